"""Every link of the built site leads to a page and a place on it, and no page loads anything from the internet."""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("video", "src")}
_FOLLOWED = {("a", "href")}
_NOT_FETCHED = {"canonical", "author", "search", "next", "prev", "index", "help", "copyright"}


class _Page(HTMLParser):
    """What a page can be led to by, follows and loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.assets: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        for name, value in values.items():
            if (tag, name) in _FOLLOWED:
                self.links.append(value)
            elif (tag, name) in _LOADED and values.get("rel") not in _NOT_FETCHED:
                self.assets.append(value)


def broken_links(site: Path) -> list[str]:
    """One line for each link or asset that leads nowhere, and for each asset that is not part of the site.

    Args:
        site: the folder of the site's ``index.html``.
    """
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html") if "_static" not in path.parts}
    return [f"{path.relative_to(site)}: {fault}" for path, page in pages.items() for fault in _faults(path, page, pages)]


def _faults(path: Path, page: _Page, pages: dict[Path, _Page]) -> Iterator[str]:
    yield from (f"{asset} comes from the internet" for asset in page.assets if urlsplit(asset).netloc)
    for link in {*page.links, *page.assets}:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        target = target / "index.html" if target.is_dir() else target
        if not target.is_file():
            yield f"{link} is no file"
        elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
            yield f"{link} leads to no place on its page"
