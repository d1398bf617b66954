"""A page for each method, from its docstrings, its row and paragraph in a page on methods, its configs and its results."""

import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import yaml
from markdown_from_docstrings import as_markdown, described_arguments, restructured, table

from fl_lightning import FederatedModule, continual, methods
from fl_lightning.command_line.bundled_configs import bundled_files, bundled_rows
from fl_lightning.command_line.config_files import whole_configs

_PAGES_ON_METHODS = ("methods.md", "personal_models.md", "continual.md", "arriving_classes.md")


def method_pages(root: Path) -> dict[str, str]:
    """The text of every page by its path in the repository."""
    return {f"docs/methods/{name}.md": _page(name, method, root) for name, method in documented_methods().items()}


def documented_methods() -> dict[str, type[FederatedModule]]:
    """By name: all of fl_lightning.methods, and of fl_lightning.continual those that stand in a file."""
    names = {name: getattr(module, name) for module in (methods, continual) for name in module.__all__}
    return {name: value for name, value in sorted(names.items(), key=lambda item: item[0].lower()) if _is_method(value)}


def _is_method(value: type) -> bool:
    """Whether it stands in a file; pairs of a learner and a federation are made of those that do."""
    return issubclass(value, FederatedModule) and value.__module__ != continual.__name__


def _page(name: str, method: type[FederatedModule], root: Path) -> str:
    title, _, paper = inspect.getdoc(sys.modules[method.__module__]).partition("\n")
    parts = [
        f"# {name}\n\n{as_markdown(title)}\n",
        *(f"{table(head, [row])}" for head, row in _rows_on(name, root)),
        *(f"## What it does\n\n{text}\n" for text in _paragraphs_on(name, root)),
        *([f"## Paper and departures\n\n{restructured(paper.strip())}"] if paper.strip() else []),
        f"## Keys\n\n{_keys(method)}",
        *_configs(name),
        *_results(name, root),
        f"## Class\n\n{restructured(f'.. autoclass:: {_module_of(name)}.{name}')}",
    ]
    return "\n".join(parts)


def _module_of(name: str) -> str:
    return (methods if name in methods.__all__ else continual).__name__


def _rows_on(name: str, root: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Rows of the tables of methods that begin with a method's name, each with the head of its table."""
    for page in _PAGES_ON_METHODS:
        for head, row, _ in _table_rows(root / "docs" / page):
            if f"`{name}`" in row[0]:
                yield head, [_moved(cell) for cell in row]


def _paragraphs_on(name: str, root: Path) -> Iterator[str]:
    """The paragraph of docs/methods.md that begins with a method's name, or that gives its option."""
    text = (root / "docs" / "methods.md").read_text(encoding="utf-8").split("## One by one")[1]
    for paragraph in re.findall(r"^\*\*.*?(?=\n\n)", text, re.MULTILINE | re.DOTALL):
        heading = re.match(r"\*\*(.+?)\*\*", paragraph)[1]
        if re.sub(r"\W", "", heading).lower() == name.lower() or f"`--model {name}`" in paragraph:
            yield _moved(paragraph)


def _moved(text: str) -> str:
    """Text of a page in docs/, with its links as they are from docs/methods/."""
    return re.sub(r"\]\((?!\w+:|#)", "](../", text)


def _keys(method: type[FederatedModule]) -> str:
    """Arguments of the method's constructor that methods do not have in common."""
    described = described_arguments(method)
    common = inspect.signature(FederatedModule).parameters
    rows = []
    for base in method.__mro__[: method.__mro__.index(FederatedModule)]:
        for name, parameter in inspect.signature(base.__init__).parameters.items():
            named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) and name not in ("self", "net")
            is_new = name not in common or parameter.default != common[name].default
            if named and is_new and name not in [row[0] for row in rows]:
                default = "" if parameter.default is parameter.empty else f"`{parameter.default}`"
                rows.append([name, default, described.get(name, "")])
    text = table(["key", "default", "what"], ([f"`--model.{name}`", *rest] for name, *rest in rows)) + "\n" if rows else ""
    rest = "The others are those that [all methods](../api/fl_lightning.md) have."
    return f"{text}{rest if rows else 'None but those that [all methods](../api/fl_lightning.md) have.'}\n"


@cache
def configs_by_method() -> dict[str, list[str]]:
    """Names of the bundled configs that name a method, pieces first, by the method's class."""
    found = defaultdict(list)
    for name in [*sorted(set(bundled_files()) - set(bundled_rows())), *bundled_rows()]:
        with whole_configs(["--config", name]) as (_, path):
            model = yaml.safe_load(Path(path).read_text(encoding="utf-8")).get("model", {})
        found[model.get("class_path", "").rpartition(".")[2]].append(name)
    return found


def _configs(name: str) -> Iterator[str]:
    rows = bundled_rows()
    names = configs_by_method()[name]
    pieces = [f"`{name}`" for name in names if name not in rows]
    if names:
        yield "## Configs\n"
    if pieces:
        yield f"To combine with a config of the data: {', '.join(pieces)}.\n"
    found = [rows[name] for name in names if name in rows]
    if found:
        lines = ([f"`{row.name}`", row.paper.partition(":")[0], row.table, row.text] for row in found)
        yield table(["config", "paper", "table", "row"], lines)


def _results(name: str, root: Path) -> Iterator[str]:
    """Rows of docs/papers/ with the method's configs that were run."""
    configs = {f"`{config}`" for config in configs_by_method()[name]}
    found = []
    for page in sorted((root / "docs" / "papers").glob("*.md")):
        for head, row, section in _table_rows(page):
            if row[0] in configs and row[head.index("ours")] not in ("not run", ""):
                numbers = [f"{column} {cell}" for column, cell in zip(head[2:], row[2:], strict=True) if cell]
                found.append([f"[{section}](../papers/{page.name})", row[0], "; ".join(numbers)])
    if found:
        yield "## Results\n\n" + table(["table", "config", "the paper, and ours"], found)
        yield "[Results](../results.md) has the commands, and more runs.\n"


def _table_rows(page: Path) -> Iterator[tuple[list[str], list[str], str]]:
    """All rows of a page's tables: the table's head, the row, and the heading above."""
    head, section = None, ""
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ")
        if not line.startswith("|"):
            head = None
            continue
        cells = [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if head is None:
            head = cells
        elif not set("".join(cells)) <= set("-: "):
            yield head, cells, section
