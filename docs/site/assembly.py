"""Puts the site's sources together: a copy of the repository with the pages that are written from the code.

Links of a page lead to the same files in the repository and on the site.
"""

import inspect
import re
import shutil
from pathlib import Path

import yaml

import fl_lightning
from api import MODULES
from fl_lightning import losses
from lists_of_code import callbacks_page, configs_pages, methods_of_configs, tags_page, with_files_of_configs
from method_pages import documented_methods, method_pages
from pictures import draw

Contents = list["str | dict[str, Contents]"]

_FOLDERS = ("benchmarks", "callbacks", "configs", "docs", "fl_lightning", "studies", "tests")  # that pages link to


def assemble(root: Path, source: Path) -> None:
    """Write the source folder of the site.

    Args:
        root: of the repository.
        source: the folder to write, which does not exist yet.
    """
    for folder in _FOLDERS:
        shutil.copytree(root / folder, source / folder, ignore=shutil.ignore_patterns(".*", "__pycache__"))
    for file in (*filter(Path.is_file, root.glob("[A-Z]*")), root / "docs" / "site" / "index.md"):
        shutil.copy(file, source)
    shutil.copy(root / "docs" / "site" / "api.rst", source / "docs")
    draw(source / "docs" / "images")
    written = {**method_pages(root), **configs_pages(root), **callbacks_page(), **tags_page()}
    for page, text in written.items():
        (source / page).parent.mkdir(parents=True, exist_ok=True)
        (source / page).write_text(text, encoding="utf-8")
    methods, readme = source / "docs" / "methods.md", source / "README.md"
    methods.write_text(_linked_rows(methods.read_text(encoding="utf-8")), encoding="utf-8")
    readme.write_text(_with_pages(readme.read_text(encoding="utf-8")), encoding="utf-8")
    for path in (source / "docs" / "papers").glob("*.md"):
        text = path.read_text(encoding="utf-8")
        path.write_text(text + methods_of_configs(text), encoding="utf-8")
    for path in (page for folder in ("papers", "configs", "methods") for page in (source / "docs" / folder).glob("*.md")):
        path.write_text(with_files_of_configs(path.read_text(encoding="utf-8"), "../../"), encoding="utf-8")
    _add_contents(source, "index.md", yaml.safe_load((root / "docs" / "site" / "contents.yaml").read_text(encoding="utf-8")))


def _linked_rows(text: str) -> str:
    """A page with links from the cells of tables that are names of methods or losses to what documents these."""

    def link(row: re.Match[str]) -> str:
        if row[1] in documented_methods():
            return f"| [`{row[1]}`](methods/{row[1]}.md) |"
        return f"| {{py:obj}}`{row[1]} <fl_lightning.losses.{row[1]}>` |" if row[1] in losses.__all__ else row[0]

    return re.sub(r"\| `(\w+)` \|", link, text)


def _with_pages(text: str) -> str:
    """The README, whose links to files of the package lead to the pages on what is in them."""
    package = Path(fl_lightning.__file__).parents[1]
    files = {inspect.getsourcefile(method): f"docs/methods/{name}.md" for name, method in documented_methods().items()}

    def page(link: re.Match[str]) -> str:
        module = link[1].replace("/", ".")
        api = f"docs/api/{module}.rst" if module in MODULES else link[0][2:-1]
        return f"]({files.get(str(package / f'{link[1]}.py'), api)})"

    return re.sub(r"\]\((fl_lightning/[\w/]+)\.py\)", page, text)


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
