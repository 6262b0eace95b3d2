"""The built site as files: which links lead nowhere, and what would be fetched from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("object", "data"), ("embed", "src")}
LOADING_LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "manifest"}  # `rel` of <link>


@dataclass
class Page(HTMLParser):
    """What a page links to, what it loads, and the places in it that can be linked to."""

    path: Path
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    places: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.places |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        self.loads += [values[name] for kind, name in LOADED if kind == tag and values.get(name)]
        if tag == "link" and LOADING_LINKS & set(values.get("rel", "").split()):
            self.loads.append(values["href"])


def pages(site: Path) -> dict[Path, Page]:
    return {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}


def is_elsewhere(address: str) -> bool:
    return bool(urlsplit(address).scheme or urlsplit(address).netloc) and not address.startswith("data:")


def broken_links(site: Path) -> list[str]:
    """Of the site into itself, anchors included."""
    found = pages(site)
    return [f"{page.path.relative_to(site)} → {link}" for page in found.values() for link in _broken(page, found)]


def _broken(page: Page, found: dict[Path, Page]) -> Iterator[str]:
    for link in dict.fromkeys(page.links + page.loads):
        parts = urlsplit(link)
        if is_elsewhere(link) or link.startswith("data:"):
            continue
        target = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path.resolve()
        places = found[target].places if target in found else set()
        if not target.is_file() or (parts.fragment and target in found and unquote(parts.fragment) not in places):
            yield link


def fetched_from_elsewhere(site: Path) -> list[str]:
    """By pages and their styles; a link that somebody has to click is none."""
    of_pages = [
        f"{page.path.name}: {load}" for page in pages(site).values() for load in page.loads if is_elsewhere(load)
    ]
    of_styles = [
        path.name
        for path in site.rglob("*.css")
        if any(sign in path.read_text(encoding="utf-8") for sign in ("url(http", "url('http", 'url("http', "@import"))
    ]
    return of_pages + of_styles
