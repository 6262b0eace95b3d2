"""What the wheel says of itself: links to the project, and the README with links that hold outside of the repository.

Both are made of one setting, `repository` under [tool.hatch.metadata.hooks.custom] in pyproject.toml. While it is empty
the project names no address, and the links of the README into the repository are left as plain words: none is broken.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?://|#)([^)\s]+)\)")


class OutsideOfTheRepository(MetadataHookInterface):
    """hatchling calls it, for every wheel and sdist."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository = str(os.environ.get("SSSE_REPOSITORY") or self.config.get("repository", "")).rstrip("/")
        if repository and not repository.startswith("https://"):
            raise ValueError(f"repository is an address such as https://HOST/OWNER/ssse, not {repository!r}.")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        version = f"v{metadata['version']}"
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, repository, version)}
        metadata["urls"] = addresses(repository) if repository else {}


def absolute(text: str, repository: str, version: str) -> str:
    """Links into the repository, at the tag of this version; without a repository their words alone."""

    def link(found: re.Match[str]) -> str:
        mark, words, target = found.groups()
        if not repository:
            return f"*{words}*" if mark else words
        return f"{mark}[{words}]({repository}/{'raw' if mark else 'blob'}/{version}/{target})"

    prose_and_code = CODE.split(text)
    prose_and_code[::2] = [LINK.sub(link, part) for part in prose_and_code[::2]]
    return "".join(prose_and_code)


def addresses(repository: str) -> dict[str, str]:
    return {
        "Source": repository,
        "Documentation": f"{repository}/tree/main/docs",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
