"""Loading an artefact of 40 blocks of 4,096 parameters, 2.5 GiB, from the page cache of the system.

The floor is to read the files once. A checked load reads and hashes them: by BLAKE3 as they are written now, and by
SHA-256 as version 1 wrote them. All take turns; of each the best round. What a whole request takes, `multi_attribute`
measures. The numbers in the blocks are drawn: no step of a load looks at them.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import torch

from record import Report, best_of, run_alone
from ssse.system import store
from ssse.system.digests import digest_tensor

BLOCKS, SIZE, ROUNDS = 40, 4_096, 6
BUFFER = 1 << 22


def main(_: Path) -> None:
    report = Report("artefact", f"Loading an artefact of {BLOCKS} blocks of {SIZE:,}, float32")
    generator = torch.Generator().manual_seed(0)
    square = torch.randn(SIZE, SIZE, generator=generator)
    tensors = {f"{i}.square": square.roll(i) for i in range(BLOCKS)}
    tensors |= {f"{i}.pivots": square[i] for i in range(BLOCKS)}
    with tempfile.TemporaryDirectory() as scratch:
        now, before = Path(scratch, "now"), Path(scratch, "before")
        store.write_folder(now, store.TENSORS, tensors, {})
        del tensors
        as_version_1(now, before)
        buffer = bytearray(BUFFER)

        def read() -> None:
            for path in sorted(now.iterdir()):
                with path.open("rb", buffering=0) as opened:
                    while opened.readinto(buffer):
                        pass

        best = best_of(
            ROUNDS,
            read=read,
            unchecked=lambda: store.read_folder(now, store.TENSORS, verify=False),
            load=lambda: store.read_folder(now, store.TENSORS),
            before=lambda: store.read_folder(before, store.TENSORS),
        )
        size = sum(path.stat().st_size for path in now.iterdir())
    names = {
        "read": "reading the files, one thread",
        "unchecked": "load, unchecked: files are mapped",
        "load": "load, checked (BLAKE3)",
        "before": "load, checked (SHA-256, version 1)",
    }
    report.table(
        f"Seconds, best of {ROUNDS} interleaved rounds; {size / 2**30:.2f} GiB",
        ("what", "seconds", "× reading"),
        [(name, best[key], best[key] / best["read"]) for key, name in names.items()],
    )
    report.notes.append(f"Processes that wanted a core meanwhile, on average of a minute: {os.getloadavg()[0]:.0f}.")
    report.at_most("checked load, against reading the files", best["load"] / best["read"], 3, "×")
    report.at_most("checked load, against one by SHA-256", best["load"] / best["before"], 0.5, "×")
    report.numbers = {**best, "bytes": size}
    report.finish()


def as_version_1(folder: Path, target: Path) -> None:
    """The same files, with digests as they were written then."""
    tensors, manifest = store.read_folder(folder, store.TENSORS)
    target.mkdir()
    for path in folder.glob("*.safetensors"):
        (target / path.name).hardlink_to(path)
    digests = {name: {key: digest_tensor(tensors[key]) for key in group} for name, group in manifest["tensors"].items()}
    manifest |= {"format": 1, "tensors": digests}
    manifest["digest"] = store._digest_manifest(manifest)
    (target / store.MANIFEST).write_text(json.dumps(manifest))


if __name__ == "__main__":
    run_alone(main, __doc__)
