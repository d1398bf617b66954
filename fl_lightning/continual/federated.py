"""Federated methods that learn tasks: every learner with every federation, by one name for both.

As compared in J. Yoon, W. Jeong, G. Lee, E. Yang, S. J. Hwang: Federated Continual Learning with Weighted Inter-client
Transfer. ICML 2021: the body goes through the server in every round, the weights of single tasks stay with the client.
"""

from functools import cache

from fl_lightning import methods
from fl_lightning.continual.apd import APD
from fl_lightning.continual.classes.learner import ClassLearner
from fl_lightning.continual.ewc import EWC
from fl_lightning.continual.fedweit import FedWeIT
from fl_lightning.continual.learner import TaskLearner
from fl_lightning.continual.stable_sgd import StableSGD
from fl_lightning.module import FederatedModule

_LEARNERS: dict[str, type[TaskLearner] | type[ClassLearner]] = {
    "OnTasks": TaskLearner,
    "EWC": EWC,
    "StableSGD": StableSGD,
    "APD": APD,
    "FedWeIT": FedWeIT,
    "OnClasses": ClassLearner,
}


def combined_names() -> list[str]:
    """Names of all that combine, such as ``FedDynEWC``; ``FedDynOnTasks`` and ``FedDynOnClasses`` are FedDyn alone."""
    pairs = [(name, ending) for name in methods.__all__ for ending in _LEARNERS]
    return [name + ending for name, ending in pairs if _LEARNERS[ending].obstacle_to(getattr(methods, name)) is None]


@cache
def combined(name: str) -> type[FederatedModule] | None:
    """The class of a name: the hooks of the learner before those of the federation, with the arguments of both.

    Returns:
        None if it is no name of a method in :mod:`fl_lightning.methods` and a learner.

    Raises:
        TypeError: in one line, if the two do not combine.
    """
    for ending, learner in _LEARNERS.items():
        federation = getattr(methods, name.removesuffix(ending), None) if name.endswith(ending) else None
        if isinstance(federation, type) and issubclass(federation, FederatedModule):
            parts = f":class:`{learner.__name__}` and, for what goes through the server, of {federation.__name__}"
            doc = f"Hooks and arguments of {parts}."
            return type(name, (learner, federation), {"__module__": "fl_lightning.continual", "__doc__": doc})
    return None
