"""Which federated methods combine with a local learner, by what they declare."""

import inspect
from collections.abc import Callable

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.module import FederatedModule

_COMMON = {name for kind in (FederatedAlgorithm, FederatedModule) for name in inspect.signature(kind.__init__).parameters}


def federations(kind: type[FederatedModule], learner: type[FederatedModule]) -> list[type[FederatedModule]]:
    """The bases of a class that say what goes through the server: methods that are no ``learner``, the most derived first."""
    bases = [base for base in kind.__mro__ if issubclass(base, FederatedModule) and not issubclass(base, learner)]
    return [base for base in bases if base is not FederatedModule]


def gives_personal_models(federation: type[FederatedModule]) -> bool:
    """Whether clients use models of a federation other than the shared one with their parts in it."""
    has_models = federation.personal_model is not FederatedAlgorithm.personal_model
    shares_none = federation.has_global_model is not FederatedAlgorithm.has_global_model
    return federation.fine_tuned or has_models or shares_none


def keeps_personal_weights(federation: type[FederatedModule]) -> bool:
    """Whether any weights of a federation stay with clients, or models that they use."""
    names_some = bool(federation.personal) or federation.is_personal is not FederatedAlgorithm.is_personal
    return names_some or gives_personal_models(federation)


def obstacle(federation: type[FederatedModule]) -> str | None:
    """Why a federation combines with no learner of tasks, and what to use; None: it may with some."""
    if federation.needs.task_streams or federation.needs.arriving_classes:
        return "learns tasks itself: use one that learns none, such as FedAvg"
    if federation.needs.public_samples:
        return "trains on public samples, which streams of tasks have not: use one without, such as FedAvg"
    return None


def check_composed(
    kind: type[FederatedModule],
    learner: type[FederatedModule],
    obstacle_to: Callable[[type[FederatedModule]], str | None],
) -> None:
    """Check a class that is made of a learner and a federation.

    Args:
        learner: what all learners derive from.
        obstacle_to: why the class does not combine with a federation; None: it does.

    Raises:
        TypeError: in one line, if they do not combine.
    """
    name, others = kind.__name__, federations(kind, learner)
    for other in others:
        if (why := obstacle_to(other)) is not None:
            raise TypeError(f"{name} cannot be: {other.__name__} {why}")
    learners = [base for base in kind.__mro__[1:] if issubclass(base, learner) and not federations(base, learner)]
    if others and learners and kind.__mro__.index(others[0]) < kind.__mro__.index(learners[-1]):
        raise TypeError(
            f"{name} cannot be: {others[0].__name__} comes before {learners[0].__name__}, whose hooks call those of the "
            f"federation: write class {name}({learners[0].__name__}, {others[0].__name__})"
        )
    for first in learners:
        for other in others:
            if clash := sorted(_arguments(first) & (_arguments(other) - set(other.also_called))):
                raise TypeError(
                    f"{name} cannot be: {first.__name__} and {other.__name__} have an argument {clash[0]} each: rename one, or "
                    f"give that of {other.__name__} a second name with also_called"
                )
            for one, another in ((first, other), (other, first)):
                if clash := sorted(_arguments(one) & vars(another).keys()):
                    raise TypeError(
                        f"{name} cannot be: {one.__name__} has an argument {clash[0]}, which {another.__name__} has as a hook "
                        "or an attribute: rename one"
                    )


def _arguments(kind: type) -> set[str]:
    """Names of the arguments that a class adds to those of all methods."""
    init = vars(kind).get("__init__")
    return set() if init is None else set(inspect.signature(init).parameters) - _COMMON
