"""A request from an artefact on disk: 40 blocks of 4,096 parameters, 2.5 GiB, in the page cache of the system.

The floor is to read the files once. A checked load reads and hashes them: by BLAKE3 as they are written now, and by
SHA-256 as version 1 wrote them. Both sides take turns; of each the best round. The request is of 100 samples: one
triangular solve of B × 101 for every block, 40·101·B² = 7e10 operations, beside a product of that many operations.

40 outputs with the same weights and labels, so that one Gram matrix is that of all of them and the fit is short.
Neither load nor request makes use of that. The weights are drawn: no step is judged here, and bounds are overridden.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

import ssse
from record import Report, best_of, run_alone
from ssse.curvature.dense import DenseStructure
from ssse.problem.parameters import make_blocks
from ssse.system import store
from ssse.system.digests import digest_tensor

OUTPUTS, FEATURES, SAMPLES, FORGET, DECAY = 40, 4_096, 2_000, 100, 1e-2
BUFFER = 1 << 22


def main(_: Path) -> None:
    report = Report("artefact", f"A request from disk, {OUTPUTS} blocks of {FEATURES:,}, float32")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, FEATURES, generator=generator) / FEATURES**0.5
    y = (torch.rand(SAMPLES, 1, generator=generator) < 0.5).float().expand(-1, OUTPUTS).contiguous()
    model = torch.nn.Linear(FEATURES, OUTPUTS, bias=False).eval()
    with torch.no_grad():
        model.weight.copy_(torch.randn(1, FEATURES, generator=generator).expand(OUTPUTS, -1))
    settings = {"weight_decay": DECAY, "rows": "expected", "progress": False}
    one = torch.nn.Linear(FEATURES, 1, bias=False).eval()
    with torch.no_grad():
        one.weight.copy_(model.weight[:1])
    loss = "binary_cross_entropy"
    single = ssse.Curvature.fit(one, loss, [(x, y[:, :1])], structure="dense", blocks="one", **settings)  # type: ignore[arg-type]
    whole = ssse.Curvature.fit(model, loss, [(x, y)], structure="diagonal", **settings)  # type: ignore[arg-type]
    assert isinstance(single.structure, DenseStructure)
    blocks = make_blocks(whole.layout, "output", whole.linear)
    grams = [replace(single.structure.grams[0], name=block.name) for block in blocks]
    curvature = replace(whole, structure=DenseStructure(blocks, grams, single.structure.ridge))
    forget = [(x[:FORGET], y[:FORGET])]
    with tempfile.TemporaryDirectory() as scratch:
        now, before = Path(scratch, "now"), Path(scratch, "before")
        curvature.save(now)
        as_version_1(now, before)
        buffer = bytearray(BUFFER)
        left, right = torch.randn(FEATURES, FEATURES), torch.randn(FEATURES, FORGET + 1)

        def read() -> None:
            for path in sorted(now.iterdir()):
                with path.open("rb", buffering=0) as opened:
                    while opened.readinto(buffer):
                        pass

        def erase(loaded: ssse.Curvature) -> None:
            ssse.erase(model, loaded, loss, forget, override=ssse.BOUNDS, progress=False)

        def products() -> None:
            for _ in range(OUTPUTS):
                _ = left @ right

        loaded = ssse.Curvature.load(now)
        best = best_of(
            3,
            read=read,
            unchecked=lambda: ssse.Curvature.load(now, verify=False),
            load=lambda: ssse.Curvature.load(now),
            before=lambda: ssse.Curvature.load(before),
            erase=lambda: erase(loaded),
            products=products,
            request=lambda: erase(ssse.Curvature.load(now)),
        )
        size = sum(path.stat().st_size for path in now.iterdir())
    names = {
        "read": "reading the files, one thread",
        "unchecked": "load, unchecked",
        "load": "load, checked (BLAKE3)",
        "before": "load, checked (SHA-256, version 1)",
        "erase": f"erase {FORGET} samples",
        "products": f"products of {FEATURES:,}² by {FORGET + 1}, {OUTPUTS} times: more operations",
        "request": "request: load and erase",
    }
    report.table(
        f"Seconds, best of 3 interleaved rounds; {size / 2**30:.2f} GiB",
        ("what", "seconds", "× reading"),
        [(name, best[key], best[key] / best["read"]) for key, name in names.items()],
    )
    report.at_most("checked load, against reading the files", best["load"] / best["read"], 3, "×")
    report.at_most("checked load, against one by SHA-256", best["load"] / best["before"], 0.5, "×")
    report.at_most("request from the disk, warm", best["request"], 0.8, " s")
    report.numbers = {**best, "bytes": size}
    report.finish()


def as_version_1(folder: Path, target: Path) -> None:
    """The same files, with digests as they were written then."""
    tensors, manifest = store.read_folder(folder, store.CURVATURE)
    target.mkdir()
    for path in folder.glob("*.safetensors"):
        (target / path.name).hardlink_to(path)
    digests = {name: {key: digest_tensor(tensors[key]) for key in group} for name, group in manifest["tensors"].items()}
    manifest |= {"format": 1, "tensors": digests}
    manifest["digest"] = store._digest_manifest(manifest)
    (target / store.MANIFEST).write_text(json.dumps(manifest))


if __name__ == "__main__":
    run_alone(main, __doc__)
