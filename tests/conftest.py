"""Small problems gain nothing from threads, and two test processes would fight over the cores.

Whoever sets OMP_NUM_THREADS outside has it as wanted, to see that nothing depends on the number of threads.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
for library in ("OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", os.environ["OMP_NUM_THREADS"])

import torch  # noqa: E402

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
