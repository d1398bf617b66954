"""A federated method and a learner of tasks, built from the settings of both."""

import inspect
from typing import Any, NamedTuple

from torch import nn

from fl_lightning import FederatedModule, methods
from fl_lightning import tasks as learners
from fl_lightning.protocol import Learner
from fl_lightning.tasks import APD, FedWeIT, SingleTask, TaskLearner, WeightedTransfer

# Learners of task streams that share a body by any method: all but those that share nothing or have a method of their own.
_ALONE = (SingleTask, WeightedTransfer)
_PUBLIC = {name: getattr(learners, name) for name in learners.__all__}
LEARNERS = [name for name, kind in _PUBLIC.items() if issubclass(kind, TaskLearner) and kind not in _ALONE]
DECOMPOSED = [name for name in LEARNERS if issubclass(_PUBLIC[name], APD)]


class Pair(NamedTuple):
    """Called like a method's class. Settings that the learner has are its; ``penalty_of_method`` is the method's."""

    method: type[FederatedModule]
    learner: type[Learner]

    def __call__(self, net: nn.Module, **settings: Any) -> FederatedModule:
        return self.method(net, **self.arguments(settings))

    def arguments(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Those of the method, with a learner of its own."""
        kinds = [kind for kind in self.learner.__mro__ if issubclass(kind, Learner) and "__init__" in vars(kind)]
        names = {name for kind in kinds for name in inspect.signature(kind.__init__).parameters}
        tasks = self.learner(**{name: value for name, value in settings.items() if name in names})
        others = {name: value for name, value in settings.items() if name not in names}
        if "penalty_of_method" in others:
            others["penalty"] = others.pop("penalty_of_method")
        return {**self.common, **others, "tasks": tasks}

    def __str__(self) -> str:
        return f"{self.method.__name__} {self.learner.__name__}"

    @property
    def common(self) -> dict[str, str]:
        """What bundled configs set with such learners."""
        return {"server_weighting": "uniform"} if issubclass(self.learner, TaskLearner) else {}

    @property
    def is_federated(self) -> bool:
        """Whether clients send."""
        return not issubclass(self.method, methods.LocalOnly)


def paired(kind: Pair | type) -> Pair:
    """What runs a learner alone: FedAvg, or nobody where it shares nothing."""
    if isinstance(kind, Pair):
        return kind
    if issubclass(kind, FedWeIT):
        return Pair(kind, WeightedTransfer)
    if issubclass(kind, WeightedTransfer):
        return Pair(FedWeIT, kind)
    return Pair(methods.LocalOnly if issubclass(kind, SingleTask) else methods.FedAvg, kind)


def pair_of(name: str) -> Pair:
    """By both names, such as ``FedProx EWC``; FedWeIT has its learner."""
    if name == "FedWeIT":
        return Pair(FedWeIT, WeightedTransfer)
    method, learner = name.split()
    return Pair(getattr(methods, method), getattr(learners, learner))
