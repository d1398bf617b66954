"""Which hooks a class defines: those that it changes, and those of earlier versions, which have other names now."""

from collections.abc import Callable
from typing import Any

# Hooks under their former names.
_RENAMED = {"beside_gradients": "released_without_noise", "own_tensors": "per_task_tensors"}
# Attributes that Needs has replaced.
_NEEDS = {
    "keeps_weights": "client_weights",
    "keeps_moments": "client_moments",
    "wants_places": "sample_indices",
    "sends_nonzeros": "nonzeros_alone",
    "learns_tasks": "task_streams",
}


def overridden(method: Any, *hooks: Callable[..., Any]) -> list[str]:
    """Names of those of a base class's hooks that a method, or its class, has changed.

    For whoever knows what a default does and need not call it, or cannot vouch for another. That a class defines a hook says so
    by itself: a declaration next to it could only disagree.

    Args:
        method: an object or a class.
        hooks: of the base class, such as ``FederatedAlgorithm.client_loss``.
    """
    kind = method if isinstance(method, type) else type(method)
    return [hook.__name__ for hook in hooks if getattr(kind, hook.__name__) is not hook]


def refuse_former_hooks(method: type) -> None:
    """Check that a class defines nothing that nobody would ask any more.

    Raises:
        TypeError: naming what it defines, and what to define instead.
    """
    for former, need in _NEEDS.items():
        if former in vars(method):
            raise TypeError(f"{method.__name__}.{former} is no more: declare needs = fl_lightning.Needs({need}=True)")
    for former, name in _RENAMED.items():
        if former in vars(method):
            raise TypeError(f"{method.__name__}.{former} is now called {name}: rename it")
