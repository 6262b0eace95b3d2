"""Pages in a headless Chromium, where there is one: what it says about them, and what axe finds in them."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NO_CHROMIUM = "no chromium, chromium-browser or google-chrome on the PATH"
NO_AXE = "axe-core-python is not installed: pip install axe-core-python"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--allow-file-access-from-files",  # a page in a frame is looked into
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--window-size=1200,900",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # the browser has errands of its own; they lead nowhere
    "--enable-logging=stderr",
)
# What the script finds is left in the page, for --dump-dom to bring back.
LEAVE = """
const leave = found => {
  const place = document.createElement("pre");
  place.id = "found";
  place.textContent = JSON.stringify(found);
  document.body.append(place);
};
"""
# A window cannot be as narrow as a phone, a frame can.
PHONES = """
const look = frame => {
  const page = frame.contentDocument, width = frame.contentWindow.innerWidth;
  const right = e => e.getBoundingClientRect().right;
  return {width, wide: page.documentElement.scrollWidth,
    outside: [...page.querySelectorAll("body *")].filter(e => right(e) > width + 1 && !e.closest(".scroll, svg"))
      .map(e => e.outerHTML.slice(0, 80)),
    figures: [...page.querySelectorAll("figure svg")].map(e => e.getBoundingClientRect().height)};
};
onload = () => leave([...document.querySelectorAll("iframe")].map(look));
"""
AXE = """
const rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"];
const loaded = new Promise(done => document.readyState === "complete" ? done() : addEventListener("load", done));
loaded.then(() => axe.run(document, {runOnly: rules, resultTypes: ["violations"], iframes: false}))
  .then(r => leave(r.violations.map(v => ({rule: v.id, nodes: v.nodes.map(n => n.html.slice(0, 200))}))))
  .catch(error => leave([{rule: "axe failed", nodes: [String(error)]}]));
"""


@dataclass
class Seen:
    """The page after it was loaded, what the console said, and every address that the page asked for."""

    dom: str
    console: list[str]
    requests: list[str]

    @property
    def found(self) -> Any:
        """What the script left."""
        left = re.search(r'<pre id="found">(.*?)</pre>', self.dom, re.DOTALL)
        assert left, "the script left nothing"
        return json.loads(html.unescape(left[1]))


def axe() -> str | None:
    spec = find_spec("axe_core_python")
    places = spec.submodule_search_locations if spec else None
    return (Path(places[0]) / "axe.min.js").read_text(encoding="utf-8") if places else None


def with_script(page: str, *scripts: str) -> str:
    """A copy of the page that looks at itself."""
    tags = "".join(f"<script>{script}</script>" for script in (LEAVE, *scripts))
    assert page.count("</body>") == 1
    return page.replace("</body>", f"{tags}</body>")


def on_phones(pages: Sequence[str], width: int = 360) -> str:
    """A page with the others in frames, which leaves what it sees of each."""
    frame = '<iframe style="width: {}px; height: 800px; border: 0" srcdoc="{}"></iframe>'
    frames = "".join(frame.format(width, html.escape(page)) for page in pages)
    return with_script(f"<!DOCTYPE html><title>Phones</title><body>{frames}</body>", PHONES)


def browse(page: str, folder: Path, wait: int = 0, *, beside: Path | None = None, query: str = "") -> Seen:
    """`wait`: milliseconds of the page's own time, for scripts that come back later.

    `beside`: where the page lies while it is looked at, for what it loads; `folder`, where nothing else does.
    """
    assert CHROMIUM is not None
    path, log = (beside or folder) / "page.html", folder / "net.json"
    path.write_text(page, encoding="utf-8")
    flags = [f"--user-data-dir={folder / 'profile'}", f"--log-net-log={log}"]
    flags += [f"--virtual-time-budget={wait}"] if wait else []
    done = subprocess.run(
        [CHROMIUM, *FLAGS, *flags, "--dump-dom", path.as_uri() + query], capture_output=True, timeout=1800, check=True
    )
    path.unlink()
    errors = done.stderr.decode(errors="replace").splitlines()
    return Seen(done.stdout.decode(), [line for line in errors if "CONSOLE" in line], _addresses(log.read_text()))


def _addresses(log: str) -> list[str]:
    """What the page asked for over the network. The browser's own errands have no origin."""
    asked = [event["params"] for event in json.loads(log)["events"] if "initiator" in event.get("params", {})]
    return sorted({p["url"] for p in asked if p["initiator"] != "not an origin" and not p["url"].startswith("file:")})
