"""Puts the site's sources together: the repository's pages under the same paths, pages written from the code, and the contents.

The pages of the repository are taken as they are, so that their links lead to the same files in the repository and on the site.
"""

import inspect
import os
import re
import shutil
from collections.abc import Container
from pathlib import Path

import yaml

import fl_lightning
from api_pages import api_pages
from lists_of_code import callbacks_page, configs_pages, methods_of_configs, tags_page, with_files_of_configs
from method_pages import documented_methods, method_pages
from pictures import draw

_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/RESULTS.md")
_LINK = re.compile(r"(?<!!)\[([^]]*)\]\((?!\w+:|#)([^)#]+)(#[^)]*)?\)")

Contents = list["str | dict[str, Contents]"]


def assemble(root: Path, source: Path) -> None:
    """Write the source folder of the site.

    Args:
        root: of the repository.
        source: the folder to write, which does not exist yet.
    """
    shutil.copytree(root / "docs", source / "docs", ignore=shutil.ignore_patterns("site", "__pycache__", ".ipynb_checkpoints"))
    for page in _PAGES:
        (source / page).parent.mkdir(exist_ok=True)
        shutil.copy(root / page, source / page)
    shutil.copy(root / "docs" / "site" / "index.md", source / "index.md")
    draw(source / "docs" / "images")
    written = {**method_pages(root), **api_pages(), **configs_pages(root), **callbacks_page(), **tags_page()}
    for page, text in written.items():
        (source / page).parent.mkdir(parents=True, exist_ok=True)
        (source / page).write_text(text, encoding="utf-8")
    methods, readme = source / "docs" / "methods.md", source / "README.md"
    methods.write_text(_linked_rows(methods.read_text(encoding="utf-8"), written), encoding="utf-8")
    readme.write_text(_with_pages(readme.read_text(encoding="utf-8"), written), encoding="utf-8")
    for path in (source / "docs" / "papers").glob("*.md"):
        text = path.read_text(encoding="utf-8")
        path.write_text(text + methods_of_configs(text), encoding="utf-8")
    for path in (page for folder in ("papers", "configs", "methods") for page in (source / "docs" / folder).glob("*.md")):
        path.write_text(with_files_of_configs(path.read_text(encoding="utf-8"), "../../"), encoding="utf-8")
    for path in source.rglob("*.md"):
        path.write_text(_with_files(path, root / path.relative_to(source), root), encoding="utf-8")
    _add_contents(source, "index.md", yaml.safe_load((root / "docs" / "site" / "contents.yaml").read_text(encoding="utf-8")))


def _linked_rows(text: str, pages: Container[str]) -> str:
    """A page with a link from each cell of a table that is a method's name to the method's page."""

    def link(row: re.Match[str]) -> str:
        return f"| [`{row[1]}`](methods/{row[1]}.md) |" if f"docs/methods/{row[1]}.md" in pages else row[0]

    return re.sub(r"\| `(\w+)` \|", link, text)


def _with_pages(text: str, pages: Container[str]) -> str:
    """The README, whose links to files of the package lead to the pages on what is in them."""
    package = Path(fl_lightning.__file__).parents[1]
    files = {inspect.getsourcefile(method): f"docs/methods/{name}.md" for name, method in documented_methods().items()}

    def page(link: re.Match[str]) -> str:
        api = f"docs/api/{link[1].replace('/', '.')}.md"
        return f"]({files.get(str(package / f'{link[1]}.py')) or (api if api in pages else link[0][2:-1])})"

    return re.sub(r"\]\((fl_lightning/[\w/]+)\.py\)", page, text)


def _with_files(path: Path, original: Path, root: Path) -> str:
    """The text of a page; another file of the repository is copied for download, a folder becomes just its name."""

    def keep(link: re.Match[str]) -> str:
        # A page that is written has no folder in the repository, from which a path could go up.
        target, there = path.parent / link[2], Path(os.path.normpath(original.parent / link[2]))
        if not target.exists() and there.is_file() and there.resolve().is_relative_to(root):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(there, target)
        return link[1] if there.is_dir() else link[0]

    return _LINK.sub(keep, path.read_text(encoding="utf-8"))


def _add_contents(source: Path, page: str, children: Contents) -> None:
    """Add a table of contents, which the page does not show, to a page and to all below it."""
    names: list[str] = []
    for child in children:
        for name, below in child.items() if isinstance(child, dict) else [(child, None)]:
            found = sorted(source.glob(name)) if "*" in name else [source / name]
            names += [str(path.relative_to(source)) for path in found]
            if below is not None:
                _add_contents(source, name, below)
    entries = "\n".join(f"/{name}" for name in names)
    with (source / page).open("a", encoding="utf-8") as file:
        file.write(f"\n```{{toctree}}\n:hidden:\n\n{entries}\n```\n")
