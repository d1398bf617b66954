"""Federated learning on PyTorch Lightning that shows what a model forgets."""

import ast
from pathlib import Path

from lazy_loader import attach

_HERE = Path(__file__).parent
_EXCHANGE = ["Batch", "Client", "ClientState", "Gathered", "Needs", "Reduction", "Upload", "Visit", "Weighted"]


def _methods() -> list[str]:
    """Names of all methods, read and not imported."""
    tree = ast.parse((_HERE / "methods" / "__init__.py").read_text(encoding="utf-8"))
    return next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))


# torch and Lightning take seconds to import: only what is asked for is, and the command line can answer --help before.
__getattr__, __dir__, __all__ = attach(
    __name__,
    ["callbacks", "continual", "data", "functional", "losses", "methods", "models", "privacy"],
    {
        "algorithm": ["FederatedAlgorithm", "Update"],
        "data": ["FederatedDataModule"],
        "exchange": _EXCHANGE,
        "methods": [*_methods(), "Moon", "Scaffold"],
        "module": ["FederatedModule", "Net"],
        "training.strategy": ["FederatedStrategy"],
    },
)

# In the source tree callbacks/ and configs/ are folders next to this one: a python that starts there finds them as well.
if not (_HERE / "callbacks").is_dir():
    __path__.append(str(_HERE.parent))
