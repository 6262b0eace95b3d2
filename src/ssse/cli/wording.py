"""The library's words for people at a terminal: where it names an argument of Python, the setting is named instead."""

from __future__ import annotations

import re

from ssse.errors import MissingExtra

SECTIONS = ("fit", "erase", "calibrate", "evaluate")
# dtype=torch.float64, policy='joint', rows="empirical", leave_out=False, rank=100, memory_budget=
ARGUMENT = re.compile(r"""(?<![\w.=(])(?P<name>[a-z_]+)=(?:torch\.)?(?P<quote>["']?)(?P<value>[\w.+-]*\w)?(?P=quote)""")
OVERRIDE, NAME = re.compile(r'override=\("[^)]*"[,]?\)'), re.compile('"([a-z]+)"')
CONSTANTS = {"True": "true", "False": "false"}
PHRASES = {
    "Refine with the data that remains, if it is there.": "ssse.refine, in Python, goes on with what remains.",
    "Retrain, or override the bound and refine with the data that remains.": "Retrain, or override the bound.",
    "or correct for it (residual).": "or correct for it (--set erase.residual=true).",
}


def as_settings(text: str) -> str:
    """`dtype=torch.float64` → `--set fit.dtype=float64`, of every argument that is a setting; the rest as it is."""
    try:
        from ssse.workspace.settings import Settings
    except MissingExtra:  # without what workspaces need there are no settings to name, and the text has to be told
        return text

    places: dict[str, str] = {}
    for section in SECTIONS:
        kind = Settings.model_fields[section].annotation
        places |= {name: section for name in getattr(kind, "model_fields", {})}

    def setting(found: re.Match[str]) -> str:
        name, value = found["name"], found["value"] or ""
        if name not in places:
            return found[0]
        return f"--set {places[name]}.{name}={CONSTANTS.get(value, value)}"

    text = OVERRIDE.sub(lambda found: " ".join(f"--override {name}" for name in NAME.findall(found[0])), text)
    for words, here in PHRASES.items():
        text = text.replace(words, here)
    return ARGUMENT.sub(setting, text)
