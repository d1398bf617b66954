"""Federated learning on PyTorch Lightning that shows what a model forgets."""

import ast
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from lazy_loader import attach

__version__ = "0.1.0"

_HERE = Path(__file__).parent
_PROTOCOL = [
    "Batch",
    "Client",
    "ClientState",
    "DataNeeds",
    "Gathered",
    "Needs",
    "Reduction",
    "Update",
    "Upload",
    "Visit",
    "Weighted",
]


def _methods() -> list[str]:
    """Names of all methods, read and not imported."""
    tree = ast.parse((_HERE / "methods" / "__init__.py").read_text(encoding="utf-8"))
    return next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))


# torch and Lightning take seconds to import: only what is asked for is, and the command line can answer --help before.
__getattr__, __dir__, __all__ = attach(
    __name__,
    [
        "callbacks",
        "data",
        "forgetting",
        "functional",
        "losses",
        "methods",
        "models",
        "objectives",
        "privacy",
        "report",
        "robustness",
        "tasks",
    ],
    {
        "algorithm": ["FederatedAlgorithm"],
        "data": ["FederatedDataModule"],
        "protocol": _PROTOCOL,
        "methods": _methods(),
        "module": ["FederatedModule", "Net"],
        "processes.strategy": ["FederatedStrategy"],
        "run.arguments": ["CommonArguments"],
        "trainer": ["Trainer"],
    },
)


class _TopLevelFolders(MetaPathFinder):
    """Finds ``callbacks`` and ``configs`` where a python starts in the source tree: they are folders next to this one there."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        package, _, folder = name.partition(".")
        if package != __name__ or folder not in ("callbacks", "configs"):
            return None
        return PathFinder.find_spec(name, [str(_HERE.parent)])


if not (_HERE / "callbacks").is_dir():
    sys.meta_path.insert(0, _TopLevelFolders())  # before the finder of an editable installation, which may be another tree's
