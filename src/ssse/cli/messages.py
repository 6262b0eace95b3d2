"""What the commands of `requests` say of what they did, for people. Nothing here imports torch."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssse.cli.console import Screen, counted, facts, in_one_line, table
from ssse.cli.wording import as_settings
from ssse.verdict import probe_in_words

if TYPE_CHECKING:
    from ssse.workspace.record.decision import Decision
    from ssse.workspace.results import Erased
    from ssse.workspace.settings import Settings


MOST_OPEN = 20  # requests that a terminal shows of those that may not be closed yet


def open_requests(screen: Screen, workspace: Path, decisions: Sequence[Decision]) -> None:
    """What is to be done before a request may be closed; how many may be."""
    waiting = [decision for decision in decisions if not decision.closes]
    for decision in waiting[-MOST_OPEN:]:
        decided(screen, workspace, decision)
    if len(waiting) > MOST_OPEN:
        screen.tell(f"{len(waiting) - MOST_OPEN:,} earlier ones may not be closed yet either; --json lists them.")
    if decisions:
        closed = len(decisions) - len(waiting)
        late = sum(decision.overdue for decision in decisions)
        overdue = f"; {late:,} overdue" if late else ""
        screen.tell(f"{closed:,} of {counted(len(decisions), 'request')} may be closed{overdue}.")


def decided(screen: Screen, workspace: Path, decision: Decision) -> None:
    """One request: what to do, why, when it was answered, and what to type."""
    from ssse.workspace.record.decision_words import commands, label, placeholders, when, why

    screen.tell(in_one_line(f"Request '{decision.request}': {label(decision)[0]}. {as_settings(why(decision))}"))
    screen.tell(f"  {in_one_line(when(decision))}")
    for command in commands(decision, shlex.quote(str(workspace))):
        screen.tell(f"  {in_one_line(command)}")
    if meant := placeholders(decision):
        screen.tell(f"  ({meant})")


def created(screen: Screen, workspace: Path, data: str, settings: Settings, seen: dict[str, Any]) -> None:
    has_ids = "with ids" if seen["has_ids"] else "without ids"
    samples = f"{data}: {counted(seen['samples'], 'sample')}, {has_ids}"
    first = f"over the first {counted(seen['first'], 'sample')}"
    if settings.model.is_estimator:
        score = "accuracy" if seen["classifies"] else "R²"
        outputs = counted(seen["outputs"], "output")
        screen.tell(
            facts(
                model=f"{seen['model']}: {seen['parameters']:,} parameters, {outputs}",
                data=samples,
                **{score: "unknown" if seen["score"] is None else f"{seen['score']:.4g} {first}"},
                next=f"ssse fit {workspace}",
            )
        )
        worse = None not in (seen["score"], seen["guessing"]) and seen["score"] < seen["guessing"]
        measure = score
    else:
        theta = "" if seen["in_theta"] == seen["parameters"] else f", {seen['in_theta']:,} of them in θ"
        kind = "linear in θ" if seen["linear"] else "not linear in θ"
        factory, chosen = settings.model.factory, settings.fit
        screen.tell(
            facts(
                model=f"{factory}: {seen['parameters']:,} parameters{theta}, {seen['outputs']} outputs; {kind}",
                data=samples,
                loss=f"{settings.model.loss}: {seen['first_loss']:.4g} on average {first}",
                next=f"ssse fit {workspace}{'' if chosen.weight_decay or chosen.damping else ' --damping λ'}",
            )
        )
        worse = seen["guessing"] is not None and seen["first_loss"] >= seen["guessing"]
        measure = "loss"
    if worse:
        screen.tell(
            f"That {measure} is no better than guessing ({seen['guessing']:.3g}): look at the preprocessing, the order "
            "of the classes, and the weights."
        )
    if not settings.model.is_estimator and not settings.fit.weight_decay:
        screen.tell("No weight decay was given: it is taken to be 0. A wrong one makes every step wrong.")


def fitted(screen: Screen, workspace: Path, details: dict[str, Any]) -> None:
    """`details`: as they may be shown. A loss over all that stays, of four digits, tells who is not among them."""
    sklearn = details["engine"] == "sklearn"
    screen.tell(
        facts(
            **_estimator_fitted(details) if sklearn else _module_fitted(details),
            left_out=f"{counted(details['excluded'], 'erased sample')} still in the data"
            if details["excluded"]
            else None,
            dropped=f"ε up to {details['dropped']:.4g}, which was calibrated before: calibrate anew, or it is 1"
            if details["dropped"]
            else None,
            next=f"ssse erase {workspace} --request ID --forget FILE",
        )
    )


def _module_fitted(details: dict[str, Any]) -> dict[str, Any]:
    norm = details["gradient_norm"]
    return {
        "curvature": f"{details['structure']}, {details['rows']} rows; λ = {details['damping']:.3g}, "
        f"w = {details['weight_decay']:.3g}",
        "mean_loss": f"up to {details['mean_loss']:.4g}",
        "‖∇L(θ*)‖": None if norm is None else f"up to {norm:.3g} (0 = trained to the end)",
    }


def _estimator_fitted(details: dict[str, Any]) -> dict[str, Any]:
    away, bound = details["correction"], details["distance_bound"]
    proved = "" if bound is None or details["exact"] else f"; proved: at most {bound:.2g}"
    return {
        "curvature": f"sums over the samples; loss {details['loss']}",
        "from_its_minimum": None if away is None else f"up to {away:.2g} of ‖θ‖ (0 = trained to the end){proved}",
    }


def curve(scan: dict[str, Any], chosen: float) -> Any:
    """A dozen points of it; the page has all."""
    name = scan["ratio_name"]
    columns = {"ε": scan["scales"]}
    if scan["ratio"] is not None:
        columns[name] = scan["ratio"]
    if scan["divergence"] is not None:
        columns["KL"] = scan["divergence"]
    if scan["recognised"] is not None:
        columns["recognised"] = scan["recognised"]
    if scan["attack"] is not None:
        columns["attack"] = scan["attack"]
    scales = scan["scales"]
    nearest = min(range(len(scales)), key=lambda i: abs(scales[i] - chosen))
    step = max(1, len(scales) // 12)
    lines = table(**{key: max(8, len(key)) for key in columns}, chosen=6)
    for i in sorted({*range(nearest % step, len(scales), step), nearest}):
        cells = ["–" if values[i] is None else f"{values[i]:.3g}" for values in columns.values()]
        lines.add_row(*cells, "◀" if i == nearest else "")
    return lines


def numbers_in_the_ledger(
    screen: Screen, workspace: Path, k: int | None, request: str | None = None, dry_run: bool = False
) -> None:
    """Where to find what was measured on few samples. `k`: None where it is a sentence whose numbers are left out."""
    from ssse.workspace.record.published import PUBLIC

    if k is None or k < PUBLIC:
        what = (
            "Where … stands, a number could tell whose samples it is of, and is not shown"
            if k is None
            else "What was measured on so few samples could tell whose they are, and is not shown"
        )
        if dry_run:
            screen.tell(f"{what}; `Workspace.erase(…, dry_run=True).details` in Python has it.")
            return
        of = "" if request is None else f" --request {shlex.quote(request)}"
        screen.tell(f"{what}. The ledger has it: ssse log {shlex.quote(str(workspace))}{of} --exact")


def erased(
    screen: Screen, workspace: Path, request: str, details: dict[str, Any], waiting: Sequence[str], dry_run: bool
) -> None:
    """`waiting`: requests that wait for confirmation, this one among them if it does."""
    from ssse.workspace.record.describe import distance_from_refit, scale

    seen = details["diagnostics"]
    done = "Would erase" if dry_run else "Erased"
    of = f"{details['k']:,} of {counted(details['n'], 'sample')} (request '{request}')"
    broken = f", overriding {', '.join(details['overridden'])}" if details["overridden"] else ""
    waits = f"; it {'would wait' if dry_run else 'waits'} for confirmation" if details["held"] else ""
    screen.headline(f"{done} {of}. Verdict: {details['verdict']}{broken}{waits}.")
    for reason in seen["reasons"]:
        screen.tell(f"  because {as_settings(reason)}")
    moved, losses = seen.get("relative_step"), (seen.get("loss_before"), seen.get("loss_after"))
    sklearn, leverage = details["engine"] == "sklearn", seen.get("leverage_max")
    screen.tell(
        facts(
            ε=None if sklearn else f"{scale(details)}, λ = {details['damping']:.3g}",
            step=None if moved is None else f"up to {moved:.3g} of ‖θ‖",
            distance_from_a_refit=distance_from_refit(details) if sklearn else None,
            loss_on_them=None if None in losses else f"up to {losses[0]:.3g} → up to {losses[1]:.3g}",
            probe=probe_in_words(seen) or None,
            largest_leverage=None if leverage is None else f"up to {leverage:.3g}",
        )
    )
    numbers_in_the_ledger(screen, workspace, details["k"], request, dry_run)
    if not dry_run:
        old, new = (details[moment]["weights"][:12] for moment in ("before", "after"))
        keeps = details["old"]["weights"] == "keep" or (details["held"] and len(waiting) == 1)
        fate = "kept" if keeps else "shredded"
        name = next(iter(details["files"]))
        screen.tell(facts(before=f"weights {old}, {fate}", now=f"weights {new}"))
        screen.tell(f"The erased model: {workspace}/current/{name}")
        if not details["held"]:
            screen.tell("Serve a copy of it: the next request shreds the file.")
            if details["verdict"] != "ok" and seen.get("probe_worse") is False:
                screen.tell("The test data does no worse, so nothing waits for confirmation.")
    for note in seen["notes"]:
        screen.detail(f"note: {as_settings(note)}")
    if details.get("curvature_dropped"):
        screen.tell(f"The curvature was dropped: rows of mini-batches cannot be separated. Next: ssse fit {workspace}")
    if dry_run:
        screen.tell("Nothing was written.")


def held(screen: Screen, workspace: Path, erased: Erased, dry_run: bool) -> None:
    """What is kept until somebody has looked, and how to say so."""
    if not erased.details["held"]:
        return
    for why in erased.details["why_held"]:
        screen.tell(f"{'Would wait' if dry_run else 'Waits'} for confirmation: {as_settings(why)}")
    if not dry_run:
        first = erased.held[0]
        since = "" if len(erased.held) == 1 else f" '{first}', the first of {len(erased.held)} that wait"
        screen.tell(f"The model from before{since or ' it'} is kept, with all that was to be forgotten.")
        screen.tell(f"To go on with the new one: ssse confirm {workspace}")
        screen.tell(f"To go back to the old one: ssse revert {workspace}")
