"""A page for each method, from its docstrings, its row and paragraph in a page on methods, its configs and its results."""

import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from fl_lightning import FederatedModule, methods, tasks
from fl_lightning.config_files.bundled import bundled_files, bundled_rows
from fl_lightning.config_files.reading import config_values
from fl_lightning.protocol import Learner
from markdown_from_docstrings import as_markdown, described_arguments, restructured, table

sys.path.append(str(Path(__file__).parents[2]))  # studies are outside the package

from studies.catalogue import STUDIES
from studies.declaration import Study, Sweep

_NO_RUN = "No run of it is recorded here yet."
_PAGES_OF_RESULTS = ("results.md", "continual.md", "arriving_classes.md", "personal_models.md", "study_digits/report.md")
_PAGES_ON_METHODS = ("methods.md", "personal_models.md", "continual.md", "arriving_classes.md")


def method_pages(root: Path) -> dict[str, str]:
    """The text of every page by its path in the repository."""
    return {f"docs/methods/{name}.md": _page(name, method, root) for name, method in documented_methods().items()}


def documented_methods() -> dict[str, type[FederatedModule]]:
    """By name: all of fl_lightning.methods, and of fl_lightning.tasks those with a file."""
    names = {name: getattr(module, name) for module in (methods, tasks) for name in module.__all__}
    return {name: value for name, value in sorted(names.items(), key=lambda item: item[0].lower()) if _is_method(value)}


def _is_method(value: type) -> bool:
    """Whether it is a method, or a learner that methods take as ``tasks``."""
    return issubclass(value, FederatedModule | Learner) and value.__module__ != tasks.__name__


def _page(name: str, method: type[FederatedModule], root: Path) -> str:
    title, _, paper = inspect.getdoc(sys.modules[method.__module__]).partition("\n")
    parts = [
        f"# {name}\n\n{as_markdown(title)}\n",
        *(f"{table(head, [row])}" for head, row in _rows_on(name, root)),
        *(f"## What it does\n\n{text}\n" for text in _paragraphs_on(name, root)),
        *([f"## Paper and departures\n\n{restructured(paper.strip())}"] if paper.strip() else []),
        f"## Keys\n\n{_keys(method)}",
        *_configs(name, method, root),
        *_results(name, root),
        f"## Class\n\n{restructured(f'.. autoclass:: {_module_of(name)}.{name}')}",
    ]
    return "\n".join(parts)


def _module_of(name: str) -> str:
    return (methods if name in methods.__all__ else tasks).__name__


def _rows_on(name: str, root: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Rows of the tables of methods that begin with a method's name, each with the head of its table."""
    for page in _PAGES_ON_METHODS:
        for head, row, _ in _table_rows(root / "docs" / page):
            if f"`{name}`" in row[0]:
                # What clients minimise is set as a formula below, or here; what a method does is the page's first line.
                left_out = ("clients", "what it does")
                kept = [column for column, title in enumerate(head) if title not in left_out or "$" in row[column]]
                yield [head[column] for column in kept], [_moved(row[column]) for column in kept]


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
    """Arguments of the constructor, without those that all methods have in common."""
    described = described_arguments(method)
    above, option = (Learner, "model.tasks") if issubclass(method, Learner) else (FederatedModule, "model")
    common = inspect.signature(FederatedModule).parameters if above is FederatedModule else {}
    rows = []
    for base in method.__mro__[: method.__mro__.index(above)]:
        for name, parameter in inspect.signature(base.__init__).parameters.items():
            named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) and name not in ("self", "net")
            is_new = name not in common or parameter.default != common[name].default
            if named and is_new and name not in [row[0] for row in rows]:
                default = "" if parameter.default is parameter.empty else _shown(parameter.default)
                rows.append([name, default, described.get(name, "")])
    text = table(["key", "default", "what"], ([f"`--{option}.{name}`", *rest] for name, *rest in rows)) + "\n" if rows else ""
    rest = "The others are those that [all methods](../api/fl_lightning.rst) have."
    return f"{text}{rest if rows else 'None but those that [all methods](../api/fl_lightning.rst) have.'}\n"


@cache
def page_of_paper(paper: str, root: Path) -> str:
    """The page below docs/ that lists every config of a paper: one of docs/papers/, else one that is written."""
    names = [name for name, row in bundled_rows().items() if row.paper == paper]
    for page in sorted((root / "docs" / "papers").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if all(f"`{name}`" in text for name in names):
            return f"papers/{page.name}"
    short = re.sub(r"\W+", "_", paper.partition(": ")[0]).strip("_").lower()
    return f"configs/{short}.md"


@cache
def configs_by_method() -> dict[str, list[str]]:
    """Names of the bundled configs that name a method or a learner, its settings first and then rows, by the class."""
    found = defaultdict(list)
    for name in [*sorted(set(bundled_files()) - set(bundled_rows())), *bundled_rows()]:
        model = config_values(name).get("model", {})
        for part in (model, model.get("init_args", {}).get("tasks", {})):
            found[part.get("class_path", "").rpartition(".")[2]].append(name)
    return found


def _configs(name: str, method: type[FederatedModule], root: Path) -> Iterator[str]:
    rows = bundled_rows()
    names = configs_by_method()[name]
    pieces = [f"`{name}`" for name in names if name not in rows]
    yield "## Configs\n"
    if not names:
        command = command_without_config(name, method, root)
        if len(command) > 88:
            command = command.replace(" --model", " \\\n    --model", 1)
        yield f"None names it. On digits, which need no download:\n\n```\n{command}\n```\n"
    if pieces:
        yield f"Settings to combine with any row: {', '.join(pieces)}.\n"
    found = [rows[name] for name in names if name in rows]
    if found:
        pages = [f"[{row.paper.partition(':')[0]}](../{page_of_paper(row.paper, root)})" for row in found]
        lines = ([f"`{row.name}`", page, row.table, row.text] for page, row in zip(pages, found, strict=True))
        yield table(["config", "paper", "table", "row"], lines)


def command_without_config(name: str, method: type[FederatedModule], root: Path) -> str:
    """A run on digits of a method that no config names, with the options that its paragraph in docs/methods.md gives."""
    needs = method.needs
    config = "digits_fedweit" if needs.data.task_streams else "digits_classes" if needs.data.arriving_classes else "digits_tce"
    said = re.search(rf"`(--model(?:\.tasks)? {name}\b[^`]*)`", "".join(_paragraphs_on(name, root)))
    if said:
        return f"fl-lightning fit --config {config}.yaml {said[1]}"
    learned = "--model" if issubclass(method, FederatedModule) else "--model FedAvg --model.tasks"
    return f"fl-lightning fit --config {config}.yaml {learned} {_module_of(name)}.{name}"


def _results(name: str, root: Path) -> Iterator[str]:
    """Rows of docs/papers/ with the method's configs that were run, else pages whose tables have it."""
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
        return
    reports, declared = [], []
    for study in _studies_of(name):
        report = f"results/{study.name}/report.md"
        if (root / "docs" / report).is_file():
            reports.append(f"[{study.title}](../{report})")
        else:
            declared.append(f"[{study.name}](../results.md)")
    elsewhere = dict.fromkeys([*_measured_on(name, root), *reports])
    text = f"Its numbers are in {', '.join(elsewhere)}." if elsewhere else _NO_RUN
    if declared:
        text += f" Declared to run it: {', '.join(declared)}."
    yield f"## Results\n\n{text}\n"


def _measured_on(name: str, root: Path) -> Iterator[str]:
    """Links to pages whose tables have numbers in a row of the method, or of a config of it."""
    configs = {config.partition(".")[0].lower() for config in configs_by_method()[name]}
    keys = {name.lower(), *configs, *(config.removeprefix("digits_classes_") for config in configs)}
    for page in _PAGES_OF_RESULTS:
        for _, row, section in _table_rows(root / "docs" / page):
            words = re.findall(r"[\w-]+", row[0].lower())
            if keys & {*words} and any(re.match(r"\**-?\d*\.\d", cell) for cell in row[1:]):
                yield f"[{section}](../{page})"


def _studies_of(name: str) -> Iterator[Study]:
    """Those with a sweep that runs the method."""
    for study in STUDIES.values():
        pairs = ((sweep, point) for sweep in study.sweeps for point in sweep.points)
        if name in (_method_of(sweep, point.get("model", "")) for sweep, point in pairs):
            yield study


def _method_of(sweep: Sweep, model: str) -> str:
    """The name of the class that a point gives, else that of the sweep's options, its learner first, or of its config."""
    options = dict(pairwise(sweep.settings.options))
    given = model or options.get("--model.tasks") or options.get("--model", "")
    found = [name for name, configs in configs_by_method().items() if sweep.settings.config in configs]
    return given.rpartition(".")[2] or "".join(found[:1])


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


def _shown(default: object) -> str:
    """A default as text; of a function its name, if it has one."""
    if not inspect.isfunction(default):
        return f"`{default}`"
    return "a function" if default.__name__ == "<lambda>" else f"`{default.__name__}`"
