"""Whatever of the package has a public name says what it is."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from importlib.util import find_spec
from types import ModuleType

import fl_lightning
from fl_lightning import callbacks

# The folder of callbacks/ is part of the package as installed, and lies elsewhere in the tree.
PACKAGES = {"fl_lightning": fl_lightning, "fl_lightning.callbacks": callbacks}
FOUND = {name for prefix, one in PACKAGES.items() for _, name, _ in pkgutil.walk_packages(one.__path__, f"{prefix}.")}
NAMES = sorted(name for name in {*PACKAGES, *FOUND} if "._" not in name)


def members(parent: ModuleType | type, module: str) -> Iterator[tuple[str, object]]:
    """Public classes and functions that a module or a class of it defines, with those in its classes."""
    for name, member in vars(parent).items():
        member = getattr(member, "__func__", member)  # of a class method, of a static one
        is_defined = (inspect.isclass(member) or inspect.isfunction(member)) and member.__module__ == module
        if name.startswith("_") or not (is_defined or isinstance(member, property)):
            continue
        yield f"{parent.__name__}.{name}", getattr(parent, name)
        if inspect.isclass(member):
            yield from members(member, module)


def test_every_public_name_is_documented():
    """An override has the docstring of what it overrides."""
    missing = []
    for name in NAMES:
        of_flower = name.startswith("fl_lightning.sites.") or name == "fl_lightning.command_line.server_app"
        if of_flower and find_spec("flwr") is None:  # the extra is not installed
            continue
        module = importlib.import_module(name)
        missing += [name] if not (module.__doc__ or "").strip() else []
        missing += [member for member, value in members(module, name) if not (inspect.getdoc(value) or "").strip()]
    assert missing == []
