"""Which hooks a class changes, and how the command line finds all its arguments."""

import inspect
from collections.abc import Callable
from typing import Any


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


def follow_keywords(init: Callable[..., None]) -> None:
    """Have jsonargparse follow the ``**keywords`` of a constructor to the constructors that it hands them on to.

    It finds defaults and help there. Of ``Unpack`` it would take names and types only, so keywords have no type at run time.
    """
    for name, parameter in inspect.signature(init).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            init.__annotations__[name] = Any
