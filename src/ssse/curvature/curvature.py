"""The curvature as an object: fitted, stored, solved, and tied to its model."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ssse.curvature.checkpoints import EVERY, alone_with
from ssse.curvature.choices import STORED, Choice, StructureName, as_choice
from ssse.curvature.decay import Circumstances, estimate_decay, note_on_decay
from ssse.curvature.estimates import Plan, Wanted
from ssse.curvature.fit import Fitted, declared, fit_structure, going_on, group_of, prepare
from ssse.curvature.kept_probe import KeptProbe
from ssse.curvature.lowrank import LowRankStructure
from ssse.curvature.settings import check_damping, check_scale, part_note
from ssse.curvature.shared import is_shared
from ssse.curvature.shared_dense import SharedDense
from ssse.curvature.shared_lowrank import SharedLowRank
from ssse.curvature.structure import Structure
from ssse.errors import BrokenArtefact, DoubtfulSetting, InvalidData, InvalidSetting
from ssse.problem.fingerprint import Fingerprint
from ssse.problem.loaders import Data, as_batches
from ssse.problem.losses import LossLike
from ssse.problem.parameters import BlockChoice, Layout, LinearShape
from ssse.problem.problem import Problem
from ssse.problem.sample_counts import FEW, Counted
from ssse.problem.shares import check_streams, deal
from ssse.problem.view import ParameterChoice
from ssse.rows.kinds import RowChoice, RowKind
from ssse.rows.score_sums import ScoreSums
from ssse.system.group import Group, current_group
from ssse.system.progress import say
from ssse.system.shards import write_shards
from ssse.system.store import CURVATURE, read_folder, reading_entries, write_folder

WORTH_A_WORD = 5.0  # seconds of a fit, from which on it is told what it will do


@dataclass(frozen=True)
class JointState:
    """What the "joint" policy keeps: θ* and the gradients removed so far. It can rebuild θ*."""

    theta: Tensor
    removed_gradient: Tensor
    leave_out: bool
    n: int  # samples that θ* was trained on, as far as this stream knows


@dataclass(frozen=True)
class Calibrated:
    """An ε that was measured, the evidence in words, and the update that it is of."""

    scale: float
    source: str
    leave_out: bool
    residual: bool


@dataclass(frozen=True)
class Curvature:
    """C = λI + RᵀR/n at a trained θ*, in one of several structures.

    Fitted once after training with `Curvature.fit`; from then on `ssse.erase` needs only the samples to
    forget. Never changed in place: an erasure gives a new one, from which the forgotten rows are gone.

    Attributes:
        n: training samples it stands for now (those erased are no longer counted).
        damping: λ. weight_decay: w.
        gradient: ∇L(θ*) with the weight decay, None where it is no longer known.
        chosen, reason: the plan of the fit, and why that one. notes: what else one should know.
        scores: how firmly the scores of a linear model's samples are held; None of others, and where not known.
        scale: ε as `ssse.calibrate` chose it, None before. calibrated: from what evidence, and for which update.
        probe: samples that every request looks at, where some were handed over (`with_probe`).
    """

    structure: Structure
    kind: RowKind
    layout: Layout
    linear: LinearShape | None
    fingerprint: Fingerprint
    loss: str
    n: int
    erased: int
    weight_decay: float
    mean_loss: float | None
    gradient: Tensor | None
    chosen: str = ""
    reason: str = ""
    notes: tuple[str, ...] = ()
    joint: JointState | None = None
    calibrated: Calibrated | None = None
    partial: bool = False  # whether trained parameters lie outside θ, and stay as they are
    doubted: bool = False  # whether a step since the fit was not vouched for
    scores: ScoreSums | None = None
    strain: float = 0.0  # of all steps since the fit: by how much the scores of those who stay have moved
    decay_estimate: float | None = None  # ŵ as the gradient told it at the fit, where it contradicts w
    repeats: int | None = None  # samples that are the same as another, at most so many now; None: not counted
    weighted: bool = False  # whether its samples came with weights
    soft: bool = False  # whether their labels were class probabilities
    label_key: str | None = None  # under which batches that are mappings have their labels; None: a usual name
    group: int = 1024
    probe: KeptProbe | None = None

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        loss_fn: LossLike,
        data: Data,
        *,
        damping: float | None = None,
        weight_decay: float = 0.0,
        rows: RowChoice = "auto",
        rows_per_batch: int = 1,
        structure: StructureName | Choice = "auto",
        blocks: BlockChoice = "auto",
        parameters: ParameterChoice = "all",
        dtype: torch.dtype | None = None,
        memory_budget: int | str | None = None,
        seed: int = 0,
        n: int | None = None,
        label_key: str | None = None,
        progress: bool = True,
        on_plan: Callable[[Plan], None] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_seconds: float = EVERY,
    ) -> Curvature:
        """Compute the curvature of a trained model, once, in one pass over its training data.

        Inside an initialised `torch.distributed` process group all processes call it with the same arguments, and fit
        together (docs/scale.md): data that can be read at any place is dealt out, a stream is each process's own.

        Args:
            model: the trained model, in eval mode (or doing the same in training mode). It is not changed.
            loss_fn: "cross_entropy", "binary_cross_entropy", "mse"; of sequences "causal_lm" and "token_cross_entropy",
                a sum over the labels of a sequence that are not −100, or "causal_lm_mean" and
                "token_cross_entropy_mean"; or a function of (model(x), y). The named ones sum over a sample's outputs
                (torch's own BCE and MSE average: pass those as functions).
            data: batches (x, y) or mappings: a DataLoader, a list, any iterable, or a bare data set. With sample
                weights they are (x, y, weight), or mappings with a `weight`; with several inputs ((a, b), y), passed
                on in order. Batches of sequences may be of several lengths; where they have an `attention_mask`, a
                sample is the same one however it is padded, without one it is what came, padding included.
            damping: λ; the weight decay if not given.
            weight_decay: w of the training objective (1/n) Σ ℓᵢ + (w/2)‖θ‖², with sample weights
                (1/n) Σ vᵢℓᵢ + (w/2)‖θ‖², n the number of samples. Where training divided by Σ vᵢ instead, as torch's
                mean with class weights does, give the training's w times the mean of the weights.
            rows: "expected" (the true Fisher), "margin" (one row a sample: of the label against all others, for
                cross-entropy), "sampled", "empirical" (the paper's), or "auto": expected or margin; of
                sequences sampled, a label drawn for each token.
            rows_per_batch: b > 1 joins b gradients to one row, the paper's mini-batch FIM.
            structure: "dense", "lowrank", "matrix_free", "diagonal", "recurrence", or "auto"; or with its options, as
                `ssse.LowRank(rank=100)` or `ssse.MatrixFree(tolerance=1e-6)`.
            blocks: of `dense` and `lowrank`: "one", "parameter", "output", an integer size, or "auto". What lies
                between blocks is left out. `lowrank` is the smaller one for blocks larger than the number of rows.
            parameters: "all" or "trainable", "head" (the last linear layer), "adapters" (what peft made trainable),
                "last block", "last 2 blocks", …, a name or a glob such as "encoder.*", a list of them, or a function of
                (name, parameter). The rest of the model stays.
            dtype: of the curvature; the model's if not given.
            memory_budget: bytes, or a text like "8GiB", that the plan may take; if not given, 60 % of the memory there
                is (the machine's, the container's or the GPU's, in use or not), so that the plan is always the same.
            seed: of the labels that rows="sampled" draws.
            n: how many training samples there are. Samples are counted in any case, and repeats noted; data in which
                every one comes twice, or a share that a sampler dealt out to one process, is refused unless n says
                that it is meant.
            label_key: where the labels are in batches that are mappings, if not under y, label(s) or target(s). It is
                kept: requests are read in the same way.
            on_plan: told what was chosen and what it will cost, before the long pass; what it raises ends the fit. If
                not given, and the fit takes more than a few seconds, a terminal is told.
            checkpoint: a folder in which every process leaves its sums every `checkpoint_seconds`, and on SIGTERM and
                Ctrl-C. The same call goes on from there, also on another number of processes; when the curvature is
                there, the folder is removed.

        Raises:
            InvalidModel, InvalidData, InvalidSetting: before the long pass wherever possible.
            DoesNotFit: names what would fit. PrecisionLost: measured, with the number.
        """
        group = group_of(model)
        group.agree(lambda: {"kind of device": group.device.type})  # or they would not even meet
        with group.together():
            damping = check_damping(damping, weight_decay)
            wanted = Wanted(rows, rows_per_batch, seed, as_choice(structure), blocks, dtype)
            data = as_batches(data, label_key)
            if checkpoint is not None:
                check_streams(data)
            alone = group.alone and checkpoint is None
            share = None if alone else deal(data, group, max(rows_per_batch, 1))
        prepared = prepare(
            model, loss_fn, parameters, data, wanted, memory_budget, n, damping, group=group, share=share
        )
        progress = progress and group.first
        group.agree(lambda: {"weight decay": weight_decay, "label key": label_key, "checkpoint": checkpoint})
        if on_plan is not None:
            with group.together():
                on_plan(prepared.plan)
        elif prepared.plan.seconds > WORTH_A_WORD:
            say(f"Curvature: {prepared.plan}; {prepared.plan.reason}.", progress)
        for doubt in prepared.doubts if group.first else ():
            warnings.warn(doubt, DoubtfulSetting, stacklevel=2)
        with nullcontext() if checkpoint is None else alone_with(Path(checkpoint), group):
            if checkpoint is not None:
                of = declared(prepared.problem, wanted, damping, share)
                prepared = going_on(prepared, data, checkpoint, checkpoint_seconds, of)
            fitted = fit_structure(prepared, data, damping, progress)
        return replace(cls._from_fit(prepared.problem, fitted, weight_decay), label_key=label_key)

    @classmethod
    def _from_fit(cls, problem: Problem, fitted: Fitted, weight_decay: float) -> Curvature:
        slope, theta = fitted.gradient / fitted.count, problem.theta()
        gradient = slope + weight_decay * theta
        found = estimate_decay(slope, theta, problem.layout)
        doubt = ()
        if found is not None and found.contradicts(weight_decay):
            mean_weight = None if fitted.class_weights is None else fitted.class_weights / fitted.count
            around = Circumstances(fitted.count, problem.outputs, problem.loss.name, mean_weight)
            doubt = (note_on_decay(found, weight_decay, around),)
            warnings.warn(doubt[0], DoubtfulSetting, stacklevel=3)  # where the user called `fit`
        partial = set(problem.layout.names) != {n for n, p in problem.model.named_parameters() if p.requires_grad}
        return cls(
            structure=fitted.structure,
            kind=fitted.plan.kind,
            layout=problem.layout,
            linear=problem.linear,
            fingerprint=Fingerprint.of(problem),
            loss=problem.loss.name,
            n=fitted.count,
            erased=0,
            weight_decay=weight_decay,
            mean_loss=fitted.loss / fitted.count,
            gradient=gradient,
            chosen=fitted.plan.in_words,
            reason=fitted.plan.reason,
            notes=(*((part_note(problem.layout),) if partial else ()), *fitted.notes, *doubt),
            decay_estimate=found.told if doubt and found is not None else None,
            repeats=fitted.repeats,
            partial=partial,
            scores=fitted.scores,
            weighted=problem.weighted,
            soft=problem.soft,
            group=fitted.plan.group,
        )

    @property
    def damping(self) -> float:
        """λ, such that M = RᵀR + nλI. Erasing keeps it: what remains is damped by (n−k)λ."""
        return self.structure.ridge / self.samples_held

    @property
    def device(self) -> torch.device:
        tensors = self.structure.state().values() if self.gradient is None else (self.gradient,)
        return next((tensor.device for tensor in tensors), torch.device("cpu"))

    @property
    def samples_held(self) -> int:
        """Whose rows are in the structure: n, but all that it began with in a joint stream with leave_out=False."""
        return self.n if self.joint is None or self.joint.leave_out else self.joint.n

    def ridge_without(self, k: int) -> float:
        """(n−k)λ, the damping of what remains without k samples."""
        return self.structure.ridge * ((self.n - k) / self.n)

    def solve(self, v: Tensor) -> Tensor:
        """C⁻¹ v = (λI + RᵀR/n)⁻¹ v for a flat vector v, shape (d,)."""
        if v.shape != (self.layout.dim,):
            raise InvalidSetting(
                f"v must have shape ({self.layout.dim},), one number a parameter; got {tuple(v.shape)}."
            )
        return self.samples_held * self.structure.solve(v)

    def with_damping(self, damping: float) -> Curvature:
        """The same curvature with another λ, without a second pass over the data. A stored ε is forgotten: it was of
        the old λ."""
        damping = check_damping(damping, 0.0)
        return replace(self, structure=self.structure.with_ridge(self.samples_held * damping), calibrated=None)

    def with_scale(self, scale: float, source: str, *, leave_out: bool = True, residual: bool = False) -> Curvature:
        """The same curvature with an ε that `ssse.erase` uses unless it is told another; of one kind of update only."""
        return replace(self, calibrated=Calibrated(check_scale(scale), source, leave_out, residual))

    def with_probe(self, data: Data) -> Curvature:
        """The same curvature, which keeps these samples: `ssse.erase` looks at them where no `probe=` is passed, and so
        do all requests after it.

        Inputs and labels are kept as they are, here and in the folder that `save` writes; a `probe=` of `ssse.erase` is
        not kept anywhere. A request for samples that are among them is refused.
        """
        return replace(self, probe=KeptProbe.of(as_batches(data, self.label_key)))

    @property
    def scale(self) -> float | None:
        return None if self.calibrated is None else self.calibrated.scale

    def to(self, device: str | torch.device) -> Curvature:
        device = torch.device(device)
        gradient = None if self.gradient is None else self.gradient.to(device)
        joint = self.joint and replace(
            self.joint, theta=self.joint.theta.to(device), removed_gradient=self.joint.removed_gradient.to(device)
        )
        return replace(self, structure=self.structure.to(device), gradient=gradient, joint=joint)

    @staticmethod
    def merge(shards: Sequence[Curvature], *, n: int | None = None) -> Curvature:
        """The curvature of all the data, from curvatures fitted on disjoint shards of it at the same θ*.

        Args:
            n: how many samples all shards hold together. A sample that is in two shards is found where the structure
                knows its samples (`lowrank`), otherwise only a whole shard that is there twice; this number finds all.
        """
        return merge_shards(shards, n)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a new folder, atomically; see `ssse.system.store`.

        In a process group all processes call it, and each writes what it holds, to a file system that all of them see.
        """
        group, tensors = current_group(self.device), dict(self.structure.state())
        if not (group.first or is_shared(self.structure)):
            tensors = {}
        if self.gradient is not None and group.first:
            tensors["gradient"] = self.gradient
        if self.joint is not None and group.first:
            tensors["joint_theta"] = self.joint.theta
            tensors["joint_removed_gradient"] = self.joint.removed_gradient
        if self.probe is not None and group.first:
            tensors |= self.probe.tensors()
        if not group.alone:
            write_shards(folder, CURVATURE, tensors, self._manifest(), group)
        else:
            write_folder(folder, CURVATURE, tensors, self._manifest())

    @classmethod
    def load(
        cls, folder: str | os.PathLike[str], *, verify: bool = True, device: str | torch.device = "cpu"
    ) -> Curvature:
        """Map a stored curvature. `verify` checks the digest of every tensor, which reads them once.

        In a process group all processes call it; one that several processes have fitted is dealt out to those that are
        here now, however many.
        """
        group = current_group(torch.device(device))
        with group.together():
            tensors, manifest = read_folder(folder, CURVATURE, verify and group.first, torch.device(device))
        group.agree(lambda: {"stored curvature": manifest["digest"]})
        with reading_entries(folder, manifest):
            return cls._from_manifest(tensors, manifest, group)

    def _manifest(self) -> dict[str, Any]:
        return {
            "model": asdict(self.fingerprint),
            "linear": None if self.linear is None else asdict(self.linear),
            "loss": self.loss,
            "rows": asdict(self.kind),
            "structure": {"kind": self.structure.kind, "ridge": self.structure.ridge, **self.structure.settings()},
            "damping": self.damping,
            "weight_decay": self.weight_decay,
            "n": self.n,
            "erased": self.erased,
            "mean_loss": self.mean_loss,
            "gradient_norm": None if self.gradient is None else float(self.gradient.norm()),
            "joint": None if self.joint is None else {"leave_out": self.joint.leave_out, "n": self.joint.n},
            "calibrated": None if self.calibrated is None else asdict(self.calibrated),
            "partial": self.partial,
            "doubted": self.doubted,
            "scores": None if self.scores is None else asdict(self.scores),
            "strain": self.strain,
            "decay_estimate": self.decay_estimate,
            "repeats": self.repeats,
            "weighted": self.weighted,
            "soft": self.soft,
            "label_key": self.label_key,
            "group": self.group,
            **({} if self.probe is None else {"probe": self.probe.forms()}),
            "chosen": self.chosen,
            "reason": self.reason,
            "notes": list(self.notes),
        }

    @classmethod
    def _from_manifest(cls, tensors: dict[str, Tensor], manifest: dict[str, Any], group: Group) -> Curvature:
        model = manifest["model"]
        names, shapes = tuple(model["names"]), tuple(tuple(shape) for shape in model["shapes"])
        linear = None if manifest["linear"] is None else LinearShape(**manifest["linear"])
        gradient = tensors.pop("gradient", None)
        probe = KeptProbe.restored(tensors, manifest["probe"]) if manifest.get("probe") else None
        joint = None
        if manifest["joint"] is not None:
            theta, removed = tensors.pop("joint_theta"), tensors.pop("joint_removed_gradient")
            joint = JointState(theta, removed, manifest["joint"]["leave_out"], manifest["joint"]["n"])
        return cls(
            structure=restore_structure(manifest["structure"], tensors, linear, group),
            kind=RowKind(**manifest["rows"]),
            layout=Layout(names, shapes),
            linear=linear,
            fingerprint=Fingerprint(names, shapes, model["dtype"], model["theta"], model["rest"]),
            loss=manifest["loss"],
            n=manifest["n"],
            erased=manifest["erased"],
            weight_decay=manifest["weight_decay"],
            mean_loss=manifest["mean_loss"],
            gradient=gradient,
            chosen=manifest.get("chosen", ""),
            reason=manifest.get("reason", ""),
            notes=tuple(manifest["notes"]),
            joint=joint,
            calibrated=Calibrated(**manifest["calibrated"]) if manifest.get("calibrated") else None,
            partial=manifest.get("partial", len(manifest["notes"]) > 2),  # 0.1 wrote a third note where it is so
            doubted=manifest.get("doubted", False),
            scores=ScoreSums(**manifest["scores"]) if manifest.get("scores") else None,
            strain=manifest.get("strain", 0.0),
            decay_estimate=manifest.get("decay_estimate"),
            repeats=manifest.get("repeats"),
            weighted=manifest.get("weighted", False),
            soft=manifest.get("soft", False),
            label_key=manifest.get("label_key"),
            group=manifest["group"],
            probe=probe,
        )

    def __repr__(self) -> str:
        norm = "unknown" if self.gradient is None else f"{float(self.gradient.norm()):.2e}"
        return (
            f"Curvature({self.structure.kind}, {self.kind.name} rows, d={self.layout.dim:,}, n={self.n:,}, "
            f"λ={self.damping:.3g}, ‖∇L‖={norm})"
        )


def restore_structure(
    saved: dict[str, Any], tensors: dict[str, Tensor], linear: LinearShape | None, group: Group
) -> Structure:
    if saved["kind"] not in STORED:
        raise BrokenArtefact(f"Unknown structure '{saved['kind']}' in the manifest.")
    if "tiles" in saved:
        return SharedLowRank.from_state(tensors, saved, saved["ridge"], linear, group)
    if saved["kind"] == SharedDense.kind and not group.alone:
        return SharedDense.from_state(tensors, saved, saved["ridge"], linear, group)
    return STORED[saved["kind"]].from_state(tensors, saved, saved["ridge"], linear)


def merge_shards(shards: Sequence[Curvature], expected: int | None = None) -> Curvature:
    if not shards:
        raise InvalidSetting("Merging needs at least one shard.")
    first = shards[0]
    for place, shard in enumerate(shards):
        for what, value in _shared(shard).items():
            if value != _shared(first)[what]:
                raise InvalidSetting(
                    f"Shard {place} has another {what} than shard 0. Shards must share model, loss, rows, structure, "
                    "damping and weight decay, and the form of their samples: with weights or without, with classes or "
                    "with probabilities."
                )
        if abs(shard.damping - first.damping) > 1e-12 * first.damping:
            raise InvalidSetting(
                f"Shard {place} has another damping than shard 0, {shard.damping:.6g} and {first.damping:.6g}. Shards "
                "must share model, loss, rows, structure, damping and weight decay."
            )
    repeats, notes = _check_shards(shards, expected)
    merged = first
    for shard in shards[1:]:
        if merged.gradient is None or shard.gradient is None or merged.mean_loss is None or shard.mean_loss is None:
            raise InvalidSetting("Merge shards before erasing from them.")
        n = merged.n + shard.n
        merged = replace(
            merged,
            structure=merged.structure.merged(shard.structure, n * first.damping),
            n=n,
            mean_loss=(merged.n * merged.mean_loss + shard.n * shard.mean_loss) / n,
            gradient=(merged.n * merged.gradient + shard.n * shard.gradient) / n,
            scores=None if merged.scores is None or shard.scores is None else merged.scores + shard.scores,
            calibrated=None,
        )
    return replace(merged, repeats=repeats, notes=notes)


def _shared(shard: Curvature) -> dict[str, Any]:
    """What all shards of one curvature have."""
    return {
        "model": shard.fingerprint,
        "kind of rows": shard.kind,
        "loss": shard.loss,
        "weight decay": shard.weight_decay,
        "form of samples": (shard.weighted, shard.soft),
        "structure": type(shard.structure),
        "set of blocks": shard.structure.settings().get("blocks"),
    }


def _check_shards(shards: Sequence[Curvature], expected: int | None) -> tuple[int | None, tuple[str, ...]]:
    """Samples that are the same as another one, None where that is not known; and what is to be said of it."""
    total = sum(shard.n for shard in shards)
    if expected is not None and total != expected:
        raise InvalidData(
            f"n={expected} training samples were expected, and the {len(shards)} shards hold {total}. Are they "
            "disjoint, and all there? A DistributedSampler repeats samples to make its parts equally long."
        )
    notes = shards[0].notes if len(shards) == 1 else tuple(part_note(s.layout) for s in shards[:1] if s.partial)
    if len(shards) == 1:
        return shards[0].repeats, notes
    known = [digests for shard in shards if (digests := known_samples(shard)) is not None]
    twice = next(((i, j) for j, a in enumerate(shards) for i, b in enumerate(shards[:j]) if _same_sums(a, b)), None)
    if twice is None and len(known) == len(shards):
        pairs = ((i, j) for i, j in itertools.permutations(range(len(known)), 2))
        twice = next((p for p in pairs if len(known[p[0]]) > FEW and np.isin(known[p[0]], known[p[1]]).all()), None)
    if expected is None and twice is not None:
        raise InvalidData(
            f"All samples of one shard are in another one too: of shard {twice[0]} in shard {twice[1]}. If it is "
            f"meant, pass n={total}."
        )
    if len(known) < len(shards):
        unknown = f"Whether shards share samples is not known: '{shards[0].structure.kind}' does not keep which it has."
        return None, notes if expected is not None else (*notes, unknown)
    counted = Counted.of(np.concatenate(known))
    if counted.repeats:
        notes = (*notes, f"{counted.repeats:,} of the {total:,} samples in all shards repeat another one.")
    return counted.repeats, notes


def _same_sums(one: Curvature, other: Curvature) -> bool:
    """Means over other samples are not the same to the last bit."""
    if one.gradient is None or other.gradient is None:
        return False
    return (one.n, one.mean_loss) == (other.n, other.mean_loss) and torch.equal(one.gradient, other.gradient)


def known_samples(curvature: Curvature) -> np.ndarray | None:
    """Digests of the samples whose rows the curvature has, one each, where it keeps them."""
    structure, joint = curvature.structure, curvature.joint
    if not isinstance(structure, LowRankStructure) or structure.rows.digests is None:
        return None
    samples = curvature.n if joint is None or joint.leave_out else joint.n
    return structure.rows.digests.cpu().numpy()[:: structure.rows.count // samples]
