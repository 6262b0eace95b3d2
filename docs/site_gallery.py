"""Figures of the gallery are the files that an example writes, as they are for whoever runs it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from sphinx_gallery.scrapers import figure_rst

# They train with libraries that ssse does not need, and for long: shown as they are, and run by the tests.
NOT_RUN = ("lightning_module", "lora_secret", "transformer_classifier")


def written_figures(block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """Move them to where Sphinx finds them; the title of the example says what they show."""
    folder = Path(block_vars["src_file"]).parent
    moved = []
    for figure in sorted(folder.glob("*.svg")):
        place = Path(next(block_vars["image_path_iterator"])).with_suffix(".svg")
        place.parent.mkdir(parents=True, exist_ok=True)
        moved.append(shutil.move(figure, place))
    title = Path(block_vars["src_file"]).read_text(encoding="utf-8").splitlines()[0].strip('"')
    return figure_rst(moved, gallery_conf["src_dir"], f"Figure of the example: {title}") if moved else ""
