"""Entries of ledgers that never were, of every kind, as the commands write them: for the tests of the page."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import numpy as np

from ssse.evaluation.scan import Scan
from ssse.evaluation.table import Cell, Evaluation, Measure
from ssse.system.version import __version__
from ssse.workspace.page.page import render
from ssse.workspace.proof.checkpoint import Checkpoint, origin_of
from ssse.workspace.proof.merkle import inclusion_proof, leaf_hash, root
from ssse.workspace.proof.proofs import Member, Proof
from ssse.workspace.record.ledger import Entry, leaf_of
from ssse.workspace.record.receipt import Receipt, bearing
from ssse.workspace.record.story import Story

N = 1437
START = datetime(2026, 3, 2, 9, 30, 0, 123456, tzinfo=UTC)
VERSIONS = {"python": "3.11.9", "torch": "2.11.0", "numpy": "2.3.1", "scikit-learn": "1.7.0", "ssse": "0.4.0"}
SETTINGS = {
    "model": {"factory": "shop.models:digits", "arguments": {"classes": 10}, "loss": "cross_entropy"},
    "data": {"train": "data/train.npz", "test": "data/test.npz"},
    "fit": {"weight_decay": 0.001, "rows": "expected", "structure": "dense"},
    "erase": {"leave_out": True, "policy": "rebase", "old_weights": "shred", "old_curvature": "shred"},
}
REMAINS = [
    {"what": "The old weights", "status": "overwritten and removed from this workspace"},
    {"what": "The old curvature", "status": "overwritten and removed; the new one holds the sum less the erased rows"},
    {"what": "Backups and snapshots", "status": "not known to this program: remove them by your own means"},
    {"what": "BatchNorm statistics", "status": "unchanged: they were taken over all training samples"},
]
HOSTILE = (
    "<script>alert('id')</script>",
    "\"><img src=x onerror=alert(1)> & ' ` {{ 7 * 7 }} $\\frac{1}{2}$",
    "turned \u202e around \u2066 and \u200b hidden\u0007",
    "x" * 300,
    "erase me 🗑️ 👩‍🔬 Žofie שלום",
)


def digest(*parts: object) -> str:
    return hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()


class Book:
    """A ledger in memory."""

    def __init__(self, salt: str = "book") -> None:
        self.entries: list[Entry] = []
        self.salt, self.n, self.weights, self.curvature = salt, N, digest(salt, "weights"), digest(salt, "curvature")

    @property
    def head(self) -> str:
        return self.entries[-1].hash

    def add(self, kind: str, request: str | None = None, **details: Any) -> Entry:
        seq = len(self.entries) + 1
        previous = self.entries[-1].hash if self.entries else "0" * 64
        time = (START + timedelta(minutes=17 * seq)).isoformat()
        plain = json.loads(json.dumps(details, allow_nan=False))  # as the ledger gives them back
        text = json.dumps([seq, time, kind, request, plain, previous])
        self.entries.append(Entry(seq, time, kind, request, plain, previous, digest(text)))
        return self.entries[-1]

    def created(self, batch_norm: bool = False) -> None:
        model = {"factory": "shop.models:digits", "parameters": 650, "batch_norm": batch_norm}
        self.add("created", engine="torch", model=model, weights=self.weights, settings=SETTINGS, versions=VERSIONS)

    def configured(self) -> None:
        changed = {**SETTINGS, "erase": {**SETTINGS["erase"], "old_weights": "keep"}}
        self.add("configured", changes={"erase.old_weights": ["shred", "keep"]}, settings=changed)

    def fitted(self, excluded: int = 0) -> None:
        self.add(
            "fitted",
            engine="torch",
            holds="sums over all training samples",
            n=self.n,
            d=640,
            structure="dense",
            rows="expected",
            rows_per_batch=1,
            blocks=1,
            loss="cross_entropy",
            parameters=["weight"],
            damping=0.001,
            weight_decay=0.001,
            gradient_norm=7.2e-06,
            mean_loss=0.2513,
            seed=0,
            notes=["Only 640 of the 650 parameters are in θ."],
            seconds=1.234,
            weights=self.weights,
            curvature=self.curvature,
            files={"curvature/manifest.json": digest("manifest"), "curvature/gram.safetensors": digest("gram")},
            samples=self.n,
            excluded=excluded,
            versions=VERSIONS,
        )

    def calibrated(
        self,
        scale: float = 1.1,
        dampings: Sequence[float] = (),
        curve: bool = True,
        reason: str = "δ is least, 0.083, and the predictions diverge least among those within 0.01 of it",
    ) -> None:
        seen = scan() if curve else None
        grid = [[abs(np.log10(s / scale)) / 3 + i / 10 for s in scan().scales] for i in range(len(dampings))]
        self.add(
            "calibrated",
            scale=scale,
            damping=0.001,
            method="retrained",
            reason=reason,
            k=73,
            curve=None if seen is None else seen.to_dict(),
            dampings=list(dampings),
            grid=grid or None,
            grid_name="δ" if grid else None,
            seconds=2.5,
            weights=self.weights,
            curvature=self.curvature,
            files={},
        )

    def received(self, request: str, k: int = 10, already: dict[str, int] | None = None, by: str = "file") -> None:
        asked = k + sum((already or {}).values())
        self.add(
            "received", request, k=k, asked=asked, already=already or {}, samples=digest(self.salt, request), by=by
        )

    def diagnostics(self, request: str, k: int, verdict: str, scale: float = 1.1, many: int = 12) -> dict[str, Any]:
        draw = np.random.default_rng(int(digest(request)[:8], 16))
        leverages = np.sort(draw.beta(0.6, 3.0, many) * 0.9)[::-1]
        before = float(draw.uniform(0.05, 0.15))
        reasons = [
            "The scale is 1.1 (by a model retrained without 73 samples); with expected rows the Newton step is at 1."
        ]
        return {
            "verdict": verdict,
            "reasons": reasons if verdict == "caution" else [],
            "notes": ["‖∇L(θ*)‖ is not known after a rebase."],
            "k": k,
            "n": self.n,
            "erased": N - self.n,
            "scale": scale,
            "damping": 0.001,
            "leave_out": True,
            "residual": False,
            "policy": "rebase",
            "gradient_norm": None,
            "forget_gradient_norm": 3.21,
            "step_norm": 0.4,
            "relative_step": float(draw.uniform(0.01, 0.09)),
            "leverage_max": float(leverages[0]),
            "leverage_sum": float(leverages.sum()),
            "leverages": leverages.tolist(),
            "loss_before": before,
            "loss_after": before + float(draw.uniform(0.05, 0.25)),
            "predicted_change": 0.1,
            "seconds": 0.02,
        }

    def erased(
        self, request: str, k: int = 10, verdict: str = "caution", policy: str = "rebase", many: int = 12
    ) -> None:
        before = {"weights": self.weights, "curvature": self.curvature}
        found = self.diagnostics(request, k, verdict, many=many)
        self.weights, self.curvature = digest(self.weights, request), digest(self.curvature, request)
        self.add(
            "erased",
            request,
            engine="torch",
            holds="sums over the samples, from which the forgotten ones were subtracted",
            keeps_remainder=True,
            k=k,
            n=self.n,
            scale=1.1,
            damping=0.001,
            rows="expected",
            structure="dense",
            leave_out=True,
            residual=False,
            policy=policy,
            seeds={"torch": 0},
            versions=VERSIONS,
            before=before,
            after={"weights": self.weights, "curvature": self.curvature},
            diagnostics={**found, "policy": policy},
            verdict=verdict,
            files={"weights.safetensors": self.weights},
        )
        self.n -= k

    def sealed(self, request: str, weights: str = "shredded") -> None:
        self.add("sealed", request, old_weights=weights, old_curvature="shredded", remains=REMAINS)

    def refused(self, request: str, k: int, reason: str, **more: Any) -> None:
        self.add("refused", request, k=k, reason=reason, **({"diagnostics": None} | more))

    def answer(self, request: str, k: int = 10, verdict: str = "caution", many: int = 12) -> None:
        self.received(request, k)
        self.erased(request, k, verdict, many=many)
        self.sealed(request)

    def evaluated(
        self, of: Sequence[str], floor: bool = True, notes: Sequence[str] = ("T_a: the test threes.",)
    ) -> None:
        self.add("evaluated", table=table(floor).to_dict(), of=list(of), notes=list(notes))


def scan() -> Scan:
    """A curve with a best place inside, and everything on it that a scan may have."""
    scales = np.geomspace(1e-2, 1e2, 49)
    away = np.abs(np.log10(scales / 1.1))
    ratio = np.clip(0.083 + away / 2, 0, 1)
    ratio[-3:] = np.nan  # where the outputs overflowed
    return Scan(
        scales=scales,
        accuracy={"forgotten": 1 / (1 + 0.08 * scales), "test_same": 0.94 / (1 + 0.02 * scales)},
        counts={"forgotten": 73, "test_same": 37},
        chance=0.1,
        ratio_name="δ",
        recognised=1 / (1 + 0.08 * scales),
        ratio=ratio,
        apart=6,
        divergence=0.0005 + away**2 / 20,
        distance=np.clip(0.14 + away / 2, 0, 1),
        attack=np.clip(0.62 - 0.1 * np.log10(scales / 0.01) / 2, 0.3, 1),
        original_attack=0.62,
        original_p=0.0003,
        original_divergence=0.0508,
        retrained={"forgotten": 0.9178, "test_same": 0.9459},
    )


def table(floor: bool = True) -> Evaluation:
    """The README's table, by hand."""
    models = ("original", "erased", "retrained")
    rows: list[tuple[Measure, tuple[float | None, ...], float | None]] = []
    accuracy, gaps, between = "accuracy, %", "difference to 'retrained'", "between 'original' and 'retrained'"
    for split, title, values in (
        ("retained", "D∖S", (98.17, 98.02, 98.02)),
        ("forgotten", "S", (100.0, 93.15, 91.78)),
        ("test_other", "T∖T_a", (96.28, 96.59, 96.59)),
        ("test_same", "T_a", (94.59, 94.59, 94.59)),
    ):
        rows.append((Measure(f"accuracy_{split}", title, accuracy), values, None))
    rows.append((Measure("mean_gap", "mean accuracy gap, points", gaps, gap=True), (2.17, 0.34, None), 0.21))
    rows.append((Measure("tow", "ToW (1 = retrained)", gaps, 3, gap=True), (0.914, 0.986, None), 0.99))
    for split, title, values in (
        ("retained", "D∖S", (0.0023, 0.0001, None)),
        ("forgotten", "S", (0.0508, 0.0005, None)),
        ("test_other", "T∖T_a", (0.0013, 2.6e-05, None)),
        ("test_same", "T_a", (0.0212, 0.0006, None)),
    ):
        measure = Measure(f"kl_{split}", f"KL(retrained ‖ model), {title}", gaps, 4, gap=True)
        rows.append((measure, values, 0.0004))
    rows.append((Measure("delta", "δ on S (0 = retrained)", between, 3, gap=True), (1.0, 0.167, None), 0.12))
    rows.append(
        (Measure("distance", "parameter distance (0 = retrained)", between, 3, gap=True), (1.0, 0.142, None), None)
    )
    attack = Measure("attack", "confidence", "attacks on S: AUC, audit at 5 %", 3)
    rows.append((attack, (0.467, 0.469, 0.467), None))
    cells = {m.key: {name: Cell(v) for name, v in zip(models, values, strict=True)} for m, values, _ in rows}
    cells["attack"] = {name: Cell(cell.value, None, "pass") for name, cell in cells["attack"].items()}
    return Evaluation(
        models=models,
        seeds={"original": 1, "erased": 1, "retrained": 3 if floor else 1},
        counts={"retained": 1364, "forgotten": 73, "test_other": 323, "test_same": 37},
        measures=tuple(m for m, _, _ in rows),
        cells=cells,
        floors={m.key: f for m, _, f in rows if f is not None} if floor else {},
        floor_spreads={"mean_gap": 0.05} if floor else {},
        flags=() if floor else ("One 'retrained' model only: pass two or more seeds to see the noise floor.",),
    )


# ── whole ledgers ─────────────────────────────────────────────────────────────────────────────────────────────────


def new() -> Book:
    """Nothing asked for yet."""
    book = Book("new")
    book.created()
    return book


def one() -> Book:
    """One request, with everything that can be known about it."""
    book = Book("one")
    book.created()
    book.fitted()
    book.calibrated()
    book.received("case-2026-0142", 73)
    book.erased("case-2026-0142", 73)
    book.sealed("case-2026-0142")
    book.evaluated(["case-2026-0142"])
    return book


def five() -> Book:
    """Every kind of entry and every state of a request: erased, refused, pending, nothing left to erase, not sealed."""
    book = Book("five")
    book.created(batch_norm=True)
    book.fitted()
    book.calibrated(dampings=(1e-4, 1e-3, 1e-2))
    book.answer("case-1", 12, "ok")
    book.configured()
    book.received("case-2", 7, {"case-1": 3}, by="ids")
    book.erased("case-2", 7)
    book.evaluated(["case-1"], floor=False)
    book.received("case-3", 40)
    reason = "Sample 7 was never in the training data: its largest leverage is 1.31, and must be below 1."
    book.refused("case-3", 40, reason)
    book.received("case-4", 0, {"case-1": 12})
    book.fitted(excluded=19)
    book.evaluated(["case-1", "case-2"])
    book.received("case-5", 5)
    return book


def many(requests: int = 1000) -> Book:
    """A busy year: a refusal now and then, one that never came to an end."""
    book = Book("many")
    book.n = 60_000
    book.created()
    book.fitted()
    book.calibrated(curve=False)
    for i in range(1, requests + 1):
        request = f"case-{i:04d}"
        if i % 97 == 0:
            book.received(request, 3)
            book.refused(request, 3, "The samples were never in the training data.")
        elif i == requests // 2:
            book.received(request, 4)
        else:
            book.answer(request, 1 + i % 7, "caution" if i % 3 else "ok", many=30)
        if i % 250 == 0:
            book.evaluated([f"case-{j:04d}" for j in range(1, i)])
    return book


def hostile() -> Book:
    """Ids, reasons, notes and settings that are not what they seem."""
    book = Book("hostile")
    book.created()
    book.fitted()
    book.calibrated(curve=False, reason=HOSTILE[0])
    book.answer("case-1")
    book.evaluated(HOSTILE, notes=HOSTILE)
    for text in HOSTILE:
        book.answer(text)
        book.received(f"{text} again", 2, {text: 10})
        book.refused(f"{text} again", 2, text)
    book.add("configured", changes={HOSTILE[0]: [HOSTILE[1], HOSTILE[2]]}, settings={HOSTILE[0]: {HOSTILE[1]: HOSTILE}})
    book.received("the last", 3)
    book.erased("the last", 3)
    remains = [{"what": HOSTILE[0], "status": HOSTILE[1]}]
    book.add("sealed", "the last", old_weights=HOSTILE[0], old_curvature="kept", remains=remains)
    book.add(HOSTILE[0], HOSTILE[1], **{HOSTILE[0]: HOSTILE[1]})
    return book


def receipt_of(book: Book, request: str) -> Receipt:
    """As `ssse receipt` makes it, from a book that has no ledger."""
    leaves = [leaf_of(entry) for entry in book.entries]
    hashes = [leaf_hash(leaf.encode()) for leaf in leaves]
    last = book.entries[-1]
    head = Checkpoint(origin_of(book.entries[0].hash), len(leaves), root(hashes), last.hash, last.time)
    places = [seq - 1 for seq in bearing(Story(book.entries), request)]
    members = (Member(place, leaves[place], tuple(inclusion_proof(place, hashes))) for place in places)
    return Receipt(request, __version__, Proof(head, tuple(members)))


LEDGERS = {"new": new, "one": one, "five": five, "many": many, "hostile": hostile}
CHECKED = "Ledger, weights and curvature were checked when this page was made: all 14 files are as recorded."


@cache
def page(name: str) -> str:
    """PageFigure once in a process: figures take seconds."""
    book = LEDGERS[name]()
    return render(book.entries, name=f"{name} <b>workspace</b>", head=book.head, checked=CHECKED)
