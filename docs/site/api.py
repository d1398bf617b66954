"""The one place where the API documents a name that several modules offer."""

import inspect
import re
from importlib import import_module
from pathlib import Path

MODULES = re.findall(r"^   (fl_lightning\S*)$", (Path(__file__).parent / "api.rst").read_text(encoding="utf-8"), re.MULTILINE)


def homes() -> dict[str, dict[str, str]]:
    """By module and name of a class or a function: the module that documents it, the innermost that offers and contains it."""
    offered = {module: _offered(module) for module in MODULES}

    def home(name: str, value: type) -> str:
        offering = [module for module in MODULES if offered[module].get(name) is value]
        return max(offering, key=lambda module: (f"{value.__module__}.".startswith(f"{module}."), len(module)))

    return {module: {name: home(name, value) for name, value in values.items()} for module, values in offered.items()}


def _offered(name: str) -> dict[str, type]:
    module = import_module(name)
    own = (key for key, value in vars(module).items() if getattr(value, "__module__", "") == name and not key.startswith("_"))
    values = {key: getattr(module, key) for key in getattr(module, "__all__", own)}
    return {key: value for key, value in values.items() if inspect.isclass(value) or inspect.isfunction(value)}
