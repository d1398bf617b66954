"""The hooks that a class changes, and the arguments that the command line finds."""

import difflib
import inspect
import warnings
from collections.abc import Callable, Collection
from typing import Any

_NEARLY = 0.85  # similarity of a name and a hook's, from 0 to 1, from which it is taken for a slip


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


def replaces(method: type, hook: Callable[..., Any]) -> bool:
    """Whether a class overrides a base class's hook without a call of it."""
    own: Callable[..., Any] = getattr(method, hook.__name__)
    return own is not hook and _leaves_out(own, hook.__name__)


def refuse_left_out(kind: type, names: Collection[str], who: str) -> None:
    """Refuse a class that overrides one of these hooks without a call of it.

    Raises:
        TypeError: with the cure; ``who`` does something there.
    """
    for name in vars(kind).keys() & set(names):
        if _leaves_out(vars(kind)[name], name):
            raise TypeError(f"{kind.__name__}.{name} leaves out what {who} does there: call super().{name}() in it")


def _leaves_out(override: Callable[..., Any], name: str) -> bool:
    """Whether the code of an override, where it can be read, does not contain the name of what it overrides."""
    code = getattr(inspect.unwrap(override), "__code__", None)
    return code is not None and name not in code.co_names


def warn_of_misspelt(kind: type, hooks: Collection[str]) -> None:
    """Warn of each new public name in a class that is nearly the name of a hook, and that nothing calls."""
    inherited = {name for base in kind.__mro__[1:] for name in vars(base)}
    for name in vars(kind).keys() - inherited:
        near = [] if name.startswith("_") else difflib.get_close_matches(name, hooks, n=1, cutoff=_NEARLY)
        if near and callable(getattr(kind, name)) == callable(getattr(kind, near[0], None)):
            warnings.warn(
                f"{kind.__name__}.{name} is not a hook, so no run reads it: did you mean {near[0]}? Begin the name with an "
                "underscore if it is your own",
                stacklevel=3,
            )


def follow_keywords(init: Callable[..., None]) -> None:
    """Make jsonargparse follow the ``**keywords`` of a constructor to the constructors that receive them.

    It finds defaults and help there. From ``Unpack`` it would take only names and types, so keywords have no type at run time.
    """
    for name, parameter in inspect.signature(init).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            init.__annotations__[name] = Any
