"""A page for each module with public names, and one that leads to all of them."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import fl_lightning
from markdown_from_docstrings import first_sentence, restructured, table
from method_pages import documented_methods

# Public without a list of names: their contents.
_WITHOUT_LIST = (
    *(
        "fl_lightning.models.federated_net",
        "fl_lightning.forgetting",
        "fl_lightning.metrics",
        "fl_lightning.export",
        "fl_lightning.functional.random_streams",
        "fl_lightning.report.log",
    ),
    *(
        "fl_lightning.callbacks.figures",
        "fl_lightning.checks",
        "fl_lightning.engines.rounds",
        "fl_lightning.engines.run_context",
    ),
    *("fl_lightning.engines.sequential", "fl_lightning.engines.captured", "fl_lightning.engines.vectorized"),
)


def api_pages() -> dict[str, str]:
    """The text of every page by its path in the repository."""
    homes = dict(_homes())
    public = [(module, names) for module, names in _public() if names]
    pages = {f"docs/api/{module.__name__}.md": _page(module, names, homes) for module, names in public}
    rows = [[f"[`{module.__name__}`](api/{module.__name__}.md)", first_sentence(module)] for module, _ in public]
    index = f"# API\n\nAll public names, by the module that they are imported from.\n\n{table(['module', 'what'], rows)}"
    return {"docs/api.md": index, **pages}


def _public() -> Iterator[tuple[ModuleType, list[str]]]:
    """Every public module with the names that it offers, outer modules first, a name at the outermost that has it."""
    found = [fl_lightning, *(importlib.import_module(name) for name in _module_names())]
    listed = [module for module in found if hasattr(module, "__all__") or module.__name__ in _WITHOUT_LIST]
    seen: set[int] = set()
    for module in sorted(listed, key=lambda module: (module.__name__.count("."), module.__name__)):
        names = [name for name in _names(module) if id(getattr(module, name)) not in seen or module is fl_lightning]
        if module is not fl_lightning:
            seen.update(
                id(value) for name in names if getattr(value := getattr(module, name), "__module__", "") not in _WITHOUT_LIST
            )
        yield module, names


def _module_names() -> list[str]:
    """All modules but those whose names are not for users, or are offered by ``fl_lightning``."""
    inner = ("command_line", "config_files", "sweep", "state", "run", "evaluation", "processes", "sites", "module", "__main__")
    names = [found.name for found in pkgutil.walk_packages(fl_lightning.__path__, "fl_lightning.")]
    return [
        "fl_lightning.callbacks",
        "fl_lightning.callbacks.figures",
        *(name for name in names if name.split(".")[1] not in inner),
    ]


def _names(module: ModuleType) -> list[str]:
    if hasattr(module, "__all__"):
        names = [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]
    else:
        names = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return sorted((name for name in names if not name.startswith("_")), key=str.lower)


def _homes() -> Iterator[tuple[int, str]]:
    """By the identity of an object: its name in the page that documents it, the innermost of those that offer it."""
    for module, names in _public():
        yield from ((id(getattr(module, name)), f"{module.__name__}.{name}") for name in names)


def _page(module: ModuleType, names: list[str], homes: dict[int, str]) -> str:
    here, elsewhere = [], []
    for name in names:
        value, full = getattr(module, name), f"{module.__name__}.{name}"
        is_here = homes[id(value)] == full and name not in documented_methods()
        (here if is_here and _has_text(value) else elsewhere).append((name, value))
    parts = [f"# {module.__name__}\n\n{restructured(inspect.getdoc(module) or '')}"]
    if elsewhere:
        rows = [[_link(name, value, homes), first_sentence(value) if _has_text(value) else ""] for name, value in elsewhere]
        parts.append(table(["name", "what"], rows))
    for name, value in here:
        kind = "class" if inspect.isclass(value) else "function"
        parts.append(restructured(f".. auto{kind}:: {module.__name__}.{name}"))
    return "\n".join(parts)


def _link(name: str, value: object, homes: dict[int, str]) -> str:
    if name in documented_methods():
        return f"[`{name}`](../methods/{name}.md)"
    return f"{{py:obj}}`{name} <{homes[id(value)]}>`"


def _has_text(value: object) -> bool:
    """Whether a docstring was written for the object, which that of a type alias was not."""
    return inspect.isclass(value) or inspect.isfunction(value)
