"""Who knows whom: imports point down one list of rooms, no files import each other, and none is hidden from the interpreter."""

import ast
from collections.abc import Iterator
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import FunctionType

import pytest

import fl_lightning
from fl_lightning.engines.engine import Engine

ROOT = Path(__file__).parent.parent
# Top to bottom; rooms of one line do not know each other.
ROOMS = [
    {"__init__", "__main__"},
    {"command_line"},
    {"bench"},
    {"watch", "sweep"},
    {"report", "attacks", "export", "config_files", "sites"},
    {"tasks", "trainer"},
    {"methods", "callbacks"},
    {"module"},
    {"evaluation"},
    {"run"},
    {"processes"},
    {"engines"},
    {"privacy"},
    {"data"},
    {"state"},
    {"algorithm"},
    {"robustness"},
    {"protocol"},
    {"metrics"},
    {"objectives"},
    {"models", "losses", "optimizers", "forgetting"},
    {"functional"},
    {"checks"},
]
# Further down the list, and yet not known.
UNKNOWN = {"callbacks": {"algorithm", "data", "engines", "models", "optimizers", "losses", "privacy", "state"}}

# Of whoever writes a file, or reads the parts of a net.
_TOOLS = ("fl_lightning.state.atomic_files", "fl_lightning.models.network")


def modules() -> dict[str, Path]:
    """Every file of the package by its module's name."""
    found = {}
    for package, folder in (("fl_lightning", ROOT / "fl_lightning"), ("fl_lightning.callbacks", ROOT / "callbacks")):
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join([package, *parts])] = path
    return found


MODULES = modules()


def imports(module: str, source: str) -> Iterator[str]:
    """Names of the package's modules that a file imports, anywhere in it.

    The package itself is ``fl_lightning.__init__``, the top room: what it names comes from rooms that the name does not show.
    ``__version__`` alone is defined there.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name if alias.asname else alias.name.partition(".")[0] for alias in node.names]
            yield from (name for name in map(file_of, names) if name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".")[: -node.level] if node.level else []
            origin = ".".join([*package, *filter(None, [node.module])])
            if origin.partition(".")[0] == "fl_lightning":
                yield from (_target(origin, alias.name) for alias in node.names if alias.name != "__version__")


def _target(origin: str, name: str) -> str:
    """The module of ``from origin import name``."""
    return file_of(f"{origin}.{name}") if file_of(f"{origin}.{name}") in MODULES else file_of(origin)


def room(module: str) -> str:
    return module.split(".")[1]


def file_of(module: str) -> str:
    """The module that runs when one is imported: a package's is its ``__init__``."""
    return module if module in MODULES else f"{module}.__init__"


def upward(module: str, source: str) -> list[str]:
    """What a file imports of rooms that are not below the file's, or that its room is not to know."""
    level = {name: number for number, rooms in enumerate(ROOMS) for name in rooms}
    others = [target for target in imports(module, source) if room(target) != room(module) and target not in _TOOLS]
    unknown = UNKNOWN.get(room(module), set())
    return [target for target in others if level[room(module)] >= level[room(target)] or room(target) in unknown]


def text(module: str) -> str:
    return MODULES[module].read_text(encoding="utf-8")


def test_imports_point_down():
    """A file knows its room and those further down the list, a callback none of those that work for the round."""
    assert {module: found for module in MODULES if (found := upward(module, text(module)))} == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from fl_lightning import FedAvg", ["fl_lightning.__init__"]),
        ("from fl_lightning import methods", ["fl_lightning.methods.__init__"]),
        ("from fl_lightning.methods import FedAvg", ["fl_lightning.methods.__init__"]),
        ("from fl_lightning.methods.fedreg import FedReg", ["fl_lightning.methods.fedreg"]),
        ("def late():\n    from ..methods import fedreg", ["fl_lightning.methods.fedreg"]),
        ("import fl_lightning", ["fl_lightning.__init__"]),
        ("import fl_lightning.protocol", ["fl_lightning.__init__"]),
        ("import fl_lightning.methods as m", ["fl_lightning.methods.__init__"]),
        ("from fl_lightning import __version__, losses, protocol", []),
        ("import torch, fl_lightning.protocol as wire", []),
    ],
)
def test_planted_arrow_upward_is_found(source, found):
    assert upward("fl_lightning.engines.planted", source) == found


@pytest.mark.parametrize("target", ["engines.sequential", "state.client_states", "privacy.defence", "data.samples"])
def test_what_no_callback_knows_is_found(target):
    """Callbacks see what the hooks that call them pass, and ask the method, ``run`` and ``evaluation`` for more."""
    assert upward("fl_lightning.callbacks.planted", f"from fl_lightning.{target} import x") == [f"fl_lightning.{target}"]


def test_callbacks_know_few_files_of_a_run():
    """What they derive from, their record, what fits clients once more, sets to ask about, weights of runs, a refusal."""
    of_callbacks = [target for module in MODULES if room(module) == "callbacks" for target in imports(module, text(module))]
    files = {target.rpartition(".")[2] for target in of_callbacks if room(target) in ("run", "evaluation")}
    assert files == {
        *(
            "fine_tuning",
            "provenance",
            "record_logger",
            "reference_sets",
            "refused_data",
            "refits",
            "round_callback",
            "trainer_settings",
            "warm_start",
        )
    }


def test_no_files_import_each_other():
    graph = {module: set(imports(module, text(module))) - {module} for module in MODULES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")


def test_types_are_imported_as_they_are_used():
    """``TYPE_CHECKING`` hides an arrow from the interpreter, not from the reader; a package that may be missing has none."""
    assert [module for module in MODULES if "TYPE_CHECKING" in text(module)] == []


# What goes from room to room, by the names that it has in all of them.
PASSED_ON = {"client", "visit", "method", "module", "data", "engine", "context", "share", "callback"}


def set_from_outside(source: str) -> set[str]:
    """Attributes that a file sets on what it was given; items of a dict or tensor are not meant."""
    attributes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]
    stored = [node for node in attributes if isinstance(node.ctx, ast.Store)]
    return {ast.unparse(node) for node in stored if ast.unparse(node.value).rpartition(".")[2] in PASSED_ON}


def test_nobody_sets_an_attribute_on_what_another_room_made():
    found = {module: set_from_outside(text(module)) for module in MODULES}
    assert {module: attributes for module, attributes in found.items() if attributes} == {}


def test_planted_attribute_is_found():
    source = "self.member.client.state = 1\nclient.step, loss = 2, 3\nclient.state['x'] = self.method = 4\nself.data.x += 1"
    assert set_from_outside(source) == {"self.member.client.state", "client.step", "self.data.x"}


def methods_of_ours(kind: type) -> dict[str, set[str]]:
    """Names of the methods and properties that each of our classes in a class's line defines."""
    line = [one for one in kind.__mro__ if one.__module__.startswith("fl_lightning")]
    return {one.__name__: {name for name, value in vars(one).items() if _is_method(name, value)} for one in line}


def _is_method(name: str, value: object) -> bool:
    special = name.startswith("__") and name not in ("__init__", "__new__")
    return not special and isinstance(value, FunctionType | property | cached_property | classmethod | staticmethod)


def shipped(room: str) -> list[type]:
    """Classes that a package of ours exports."""
    package = getattr(fl_lightning, room)
    return [value for name in package.__all__ if isinstance(value := getattr(package, name), type)]


@pytest.mark.parametrize("kind", [*shipped("methods"), *shipped("tasks"), fl_lightning.FederatedDataModule, Engine])
def test_objects_have_few_methods(kind):
    """What is a part of its own is held, not inherited."""
    defined = methods_of_ours(kind)
    assert max(map(len, defined.values())) < 25
    assert len(set().union(*defined.values())) < 80


def test_the_module_has_few_methods():
    defined = methods_of_ours(fl_lightning.FederatedModule)
    assert len(set().union(*defined.values())) < 60
