"""The hooks that a class changes, and the arguments that the command line finds."""

import inspect
from collections.abc import Callable
from typing import Any


def overridden(method: Any, *hooks: Callable[..., Any]) -> list[str]:
    """Names of a base class's hooks that a method, or its class, overrides.

    For callers that rely on a default's behaviour: they can skip the default, or must refuse another hook. The definition of a
    hook is its only declaration; a second one could only disagree.

    Args:
        method: an object or a class.
        hooks: hooks of the base class, such as ``FederatedAlgorithm.client_loss``.
    """
    kind = method if isinstance(method, type) else type(method)
    return [hook.__name__ for hook in hooks if getattr(kind, hook.__name__) is not hook]


def follow_keywords(init: Callable[..., None]) -> None:
    """Make jsonargparse follow the ``**keywords`` of a constructor to the constructors that receive them.

    It finds defaults and help there. From ``Unpack`` it would take only names and types, so keywords have no type at run time.
    """
    for name, parameter in inspect.signature(init).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            init.__annotations__[name] = Any
