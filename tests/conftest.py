"""Small problems gain nothing from threads, and two test processes would fight over the cores."""

import os

for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ[f"{library}_NUM_THREADS"] = "1"

import torch  # noqa: E402

torch.set_num_threads(1)
