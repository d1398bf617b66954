"""Hooks and attributes that methods had in earlier versions, and what took their place."""

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
