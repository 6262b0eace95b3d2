"""What a decision says to people: a label, why, and when; the same on the page, the terminal and a receipt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ssse.workspace.record.decision import WORKSPACE, Action, Because, Decision
from ssse.workspace.record.describe import count, named, whole

# A sign and words, readable without colour; and the class of the colour.
LABELS: dict[Action, tuple[str, str]] = {
    "close": ("✔ Close it", "yes"),
    "nothing": ("✔ Nothing to do", "yes"),
    "measure": ("▲ Measure first", "partly"),
    "look": ("▲ Look at the numbers first", "partly"),
    "confirm": ("▲ Confirm it, or go back", "partly"),
    "finish": ("▲ Not finished", "partly"),
    "ask": ("✘ Ask again", "no"),
    "retrain": ("✘ Retrain", "no"),
}
SEERS = {
    "kl_forgotten": "the divergence of the predictions from a retrained model's (KL)",
    "distance": "the distance of the weights from a retrained model's",
    "resurfacing": "a harmless training on the other samples, along which what was only hidden comes back "
    "(`--resurfacing`)",
}
UNVOUCHED = "It was carried out, and nothing vouches for it: the verdict is {}{}."
IN_TWENTY = "Of models that never saw the samples one in twenty fails by chance."


def label(decision: Decision) -> tuple[str, str]:
    return LABELS[decision.action]


def why(decision: Decision) -> str:
    return _WHY[decision.because](decision.facts)


def commands(decision: Decision, workspace: str = WORKSPACE) -> list[str]:
    return [command.replace(WORKSPACE, workspace) for command in decision.commands]


def placeholders(decision: Decision) -> str:
    """What the names of files in its commands stand for."""
    meant = {"TEST": "test data", "OLD": "the weights from before", "NEW": "weights retrained without the samples"}
    words = {word for command in decision.commands for word in command.split()}
    return "; ".join(f"{name}: {what}" for name, what in meant.items() if name in words)


def when(decision: Decision) -> str:
    """When it was answered, how long that took, by whom; and how that is to the day by which it was due."""
    who = f" by {decision.who}" if decision.who else ""
    if decision.answered is None:
        said = f"Not answered yet{f'; begun{who}' if who else ''}."
    else:
        took = "" if decision.seconds is None else f", {_passed(decision.seconds)} after it was received"
        said = f"Answered {moment(decision.answered)}{who or ' (no name was given)'}{took}."
    if decision.due is None:
        return said
    if decision.overdue:
        since = f"could be closed on {decision.settled[:10]}" if decision.settled else "is still open"
        return f"{said} ✘ Overdue: it was due {decision.due} and {since}."
    return f"{said} {'In time: it was due' if decision.closes else 'It is due'} {decision.due}."


def moment(time: str) -> str:
    """2026-05-04T10:20:30.123456+00:00 as people write it, to the second."""
    day, _, clock = time.partition("T")
    return f"{day} {clock[:8]} UTC" if clock else time


def _passed(seconds: int) -> str:
    """To the unit that matters."""
    if seconds < 1:
        return "less than a second"
    units = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))
    size, name = next(unit for unit in units if seconds >= (2 if unit[0] > 1 else 1) * unit[0])
    return count(seconds // size, name)


def _verdict(facts: Mapping[str, Any]) -> str:
    over = f", overriding {', '.join(facts['overridden'])}" if facts.get("overridden") else ""
    return UNVOUCHED.format(facts.get("verdict") or "not recorded", over)


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""


def _several(names: Sequence[str], one: str, more: str) -> str:
    return one if len(names) == 1 else more


def _vouched(facts: Mapping[str, Any]) -> str:
    said = "The erasure is vouched for: the verdict is ok."
    if facts.get("by"):
        said += f" Measured too: by {listed(facts['by'])} it is where a retrained model is."
    elif facts.get("too_few"):
        said += " What was measured on so few samples is not shown here."
    return said


def _measured(facts: Mapping[str, Any]) -> str:
    return (
        f"The verdict is {facts.get('verdict') or 'not recorded'}, and it was measured: by {listed(facts['by'])}, "
        f"which {_several(facts['by'], 'tells', 'tell')} the original model from a retrained one, the erased model is "
        f"where the retrained one is.{_together(facts)}"
    )


def _together(facts: Mapping[str, Any]) -> str:
    others = (facts.get("measured_on") or 1) - 1
    return f" It was measured together with {count(others, 'other request')}." if others else ""


def _nothing_to_see(facts: Mapping[str, Any]) -> str:
    if facts["lacking"]:
        missing = " and ".join(f"the {name} model" for name in facts["lacking"])
        said = f"It was measured without {missing}, so nothing says whether the measures have anything to see."
    else:
        said = (
            "What was measured has nothing to see: on these samples the model that knew them does as the one that was "
            f"retrained without them ({listed(facts['blind'])})."
        )
    seers = [SEERS[name] for name in facts["would_see"]]
    return f"{said} What would have: {listed(seers)}." if seers else said


def _held(facts: Mapping[str, Any]) -> str:
    because = f" {' '.join(facts['why_held'])}" if facts.get("why_held") else ""
    seen = " It was measured." if facts.get("measured_at") else " Measure it while the model from before is kept."
    return f"It was carried out and waits for somebody to say so.{because}{seen}"


def _refused(facts: Mapping[str, Any]) -> str:
    said = "It was refused and the model is as it was, with its samples in it."
    return f"{said} The reason: {facts['reason']}" if facts.get("reason") else said


_WHY: dict[Because, Callable[[Mapping[str, Any]], str]] = {
    "vouched": _vouched,
    "measured": _measured,
    "erased_before": lambda f: f"All of its samples were erased before, by {named(f['by'])}.",
    "not_measured": lambda f: f"{_verdict(f)} Nothing was measured on its samples yet.",
    "repaired": lambda f: "The model was repaired since, by a training on other samples, and not measured after that.",
    "nothing_to_see": _nothing_to_see,
    "too_few": lambda f: (
        f"{_verdict(f)} It was measured, on so few samples that a number could tell whose they are: whoever may see "
        "the data reads them, and decides."
    ),
    "audit_failed": lambda f: (
        "Somebody who sees only how sure the model is of its answers can still tell the erased samples from samples it "
        f"never saw: {listed(f['audits'])} {_several(f['audits'], 'finds', 'find')} them. {IN_TWENTY}"
    ),
    "still_different": lambda f: (
        f"The verdict is {f.get('verdict') or 'not recorded'}, but by {listed(f['by'])} the erased model is not where "
        "a retrained one is: more than a tenth of the way is left."
    ),
    "held": _held,
    "pending": lambda f: "It was received and not answered: the command was interrupted, and the same one finishes it.",
    "unsealed": lambda f: "It was carried out, and no entry says what became of the model from before it.",
    "not_found": lambda f: (
        f"{count(f['unknown'], 'sample')} of {whole(f['asked'])} that it names {'is' if f['unknown'] == 1 else 'are'} "
        "not in the training data as given, so nothing was erased. Look at the ids and the form of the samples; what "
        "was never trained on needs no erasing."
    ),
    "refused": _refused,
    "reverted": lambda f: (
        f"It was undone on {moment(f['undone'])}: its samples are in the model again. Retrain without them, or ask "
        "once more with other settings."
    ),
    "undone_with": lambda f: (
        f"It was refused because {named(f['by'])} had erased its samples, and that was undone: they are in the model "
        "again."
    ),
    "depends": lambda f: f"Some of its samples were erased by {named(f['on'])}, which cannot be closed yet.",
}
