"""Who knows whom: imports point down one list of rooms, no files import each other, and none is hidden from the interpreter."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Top to bottom; rooms of one line do not know each other.
ROOMS = [
    {"__init__", "__main__", "clients"},
    {"command_line"},
    {"sweep", "report", "attacks", "export"},
    {"callbacks"},
    {"continual"},
    {"methods"},
    {"module"},
    {"training"},
    {"engines"},
    {"privacy"},
    {"data"},
    {"state"},
    {"algorithm"},
    {"exchange"},
    {"models", "losses", "metrics", "optimizers"},
    {"functional", "random_streams"},
    {"checks", "memory", "provenance", "transfers"},
]


def modules() -> dict[str, Path]:
    """Every file of the package by its module's name."""
    found = {}
    for package, folder in (("fl_lightning", ROOT / "fl_lightning"), ("fl_lightning.callbacks", ROOT / "callbacks")):
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join([package, *parts])] = path
    return found


MODULES = modules()


def imports(path: Path) -> Iterator[str]:
    """Names of the package's modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("fl_lightning."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fl_lightning"):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES or f"{full}.__init__" in MODULES else node.module


def room(module: str) -> str:
    return module.split(".")[1]


def file_of(module: str) -> str:
    """The module that runs when one is imported: a package's is its ``__init__``."""
    return module if module in MODULES else f"{module}.__init__"


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module):
    """A file knows its own room and those further down the list."""
    level = {name: number for number, rooms in enumerate(ROOMS) for name in rooms}
    for target in imports(MODULES[module]):
        if target != "fl_lightning" and room(target) != room(module):
            assert level[room(module)] < level[room(target)], f"{module} imports {target}"


def test_no_files_import_each_other():
    graph = {module: {file_of(target) for target in imports(path)} - {module} for module, path in MODULES.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("module", MODULES)
def test_types_are_imported_as_they_are_used(module):
    """``TYPE_CHECKING`` hides an arrow from the interpreter, not from the reader; a package that may be missing has none."""
    assert "TYPE_CHECKING" not in MODULES[module].read_text(encoding="utf-8")
