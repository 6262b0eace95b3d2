"""What still encodes the forgotten samples after a request, and what was done about it. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOW, JOINT, NORM = "curvature now", "joint stream", "BatchNorm statistics"
REPLACED = (NOW, JOINT, NORM)  # what a repair, which leaves no curvature and new statistics, makes untrue
REPAIRED = "none: a repair changed the weights that it was of, and dropped it. Fit anew on the data that stays."


def what_remains(
    erased: Mapping[str, Any], created: Mapping[str, Any], held: bool = False, repaired: bool = False
) -> list[dict[str, str]]:
    """In words, one line a place, for somebody who must decide what else to delete.

    `erased`, `created`: the details of the two entries, as `read_details` gives them. `held`: nobody has confirmed yet.
    `repaired`: the model was, since the request.
    """
    old = {part: "held" if held else fate for part, fate in erased["old"].items()}
    lines = [
        _line("weights before this request", _done(old["weights"])),
        _line("curvature before this request", _done(old["curvature"])),
        _line(NOW, REPAIRED if repaired else _curvature_now(erased)),
    ]
    if erased["policy"] == "joint" and not repaired:
        lines.append(
            _line(
                JOINT,
                "kept by its policy: the first model and the sum of the removed gradients, from which that model can "
                "be rebuilt. End the stream by fitting anew under the policy rebase.",
            )
        )
    if created["model"].get("batch_norm"):
        lines.append(_line(NORM, _statistics(repaired)))
    if created["model"].get("transformers"):
        lines.append(
            _line(
                "transformers of the pipeline",
                f"{', '.join(created['model']['transformers'])}: what they learned still contains the forgotten "
                "samples; nothing was done. Fit them anew on the data that stays, and make a new workspace.",
            )
        )
    if erased.get("untouched"):
        lines.append(
            _line(
                "parameters outside θ",
                f"{erased['untouched']} of them were trained with the forgotten samples and stay as they were.",
            )
        )
    lines += [
        _line(
            "ledger",
            "keeps salted digests of the forgotten samples, so that they are recognised, and exact numbers that were "
            "measured on them. Who has this workspace and a sample can tell that it was erased: keep it as you keep "
            "the data. The page and `ssse log` leave out what would tell it.",
        ),
        _line(
            "training data, original weights, backups, deployed copies",
            "lie outside this workspace; nothing was done about them. Delete the samples and replace the weights.",
        ),
    ]
    return lines


def _done(policy: str) -> str:
    if policy == "held":
        return (
            "those from before all requests that wait are kept until somebody confirms them (`ssse confirm`) or goes "
            "back (`ssse revert`); they still contain the forgotten samples."
        )
    if policy == "keep":
        return "kept, as the settings say; they still contain the forgotten samples."
    return (
        "overwritten and removed. Journals, snapshots and flash memory may still hold copies that no program can reach."
    )


def _statistics(repaired: bool) -> str:
    if repaired:
        return "were estimated again on the data that stays, by the repair after the request."
    return "still contain the forgotten samples; nothing was done. `ssse repair` estimates them on the data that stays."


def _curvature_now(erased: Mapping[str, Any]) -> str:
    if erased.get("curvature_dropped"):
        return "none: rows of mini-batches cannot be separated, so it was dropped. Fit anew on the data that stays."
    if erased["policy"] == "joint" and not erased["leave_out"]:
        return "all rows, the forgotten ones included: a joint stream over the full curvature needs them."
    remainder = ""
    if erased["policy"] == "rebase" and not erased.get("exact") and erased["keeps_remainder"]:
        remainder = (
            " In a stream a remainder stays, of the size by which the model moved between requests; and who also has "
            "all the data that stays can solve for the model that it was taken at. `ssse fit --again` ends both."
        )
    return f"holds {erased['holds']}.{remainder}"


def _line(what: str, status: str) -> dict[str, str]:
    return {"what": what, "status": status}
