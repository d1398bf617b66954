"""Request and Reply: a visit as a message down and a message up, and both as flat named tensors.

This process, another one or a site can make the reply from the method, the client's samples and a request.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from fl_lightning.functional.aggregation import State
from fl_lightning.protocol.client_state import ClientState
from fl_lightning.protocol.upload import Upload

Packed = dict[str, Tensor]  # a message: path to tensor
Message = TypeVar("Message")
_EMPTY = "~"  # the name in an empty dict; names have no other single tilde, see ``_escaped``
_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64}


@dataclass(frozen=True)
class Request:
    """The message down to a client for one visit. Its tensors can be those of the server: a site must copy what it keeps.

    Args:
        round: counted from 1.
        client: its index.
        seed: seed of all draws of its hooks and layers.
        weights: initial weights of the fit, by name, without those that the client has: personal ones and, if it does not
            receive, all in ``state``.
        buffers: the same for buffers.
        broadcast: further tensors of the method, by name or by group and name.
        state: the client's state from its last visit.
        receives: whether it starts from the server's weights; else it continues from those in ``state``, if there are any.
        sends: whether its update is requested; else it trains for itself.
        num_steps: maximum number of local steps of the visit; None: as many as the method asks for.
        max_steps: steps after which the visit is stopped; None: no limit.
        returns_model: whether its model after the fit is requested, for evaluation.
    """

    round: int
    client: int
    seed: int
    weights: State = field(default_factory=State)
    buffers: State = field(default_factory=State)
    broadcast: dict[str, Any] = field(default_factory=dict[str, Any])
    state: ClientState = field(default_factory=ClientState)
    receives: bool = True
    sends: bool = True
    num_steps: int | None = None
    max_steps: int | None = None
    returns_model: bool = False


@dataclass(frozen=True)
class Reply:
    """The message up from one visit. Its tensors can be those of the client's net, so it must be read before the next visit.

    Args:
        round: round of the visit.
        client: its index.
        loss: (1,), mean over its local steps.
        upload: tensors to sum or gather, by name; empty if nothing was requested.
        weight: weight in the mean over clients; the update counts if it is above 0.
        state: the client's state until its next visit; can be empty.
        probe: values that the method computes from the client's model, by name.
        bytes_down: bytes that the client received.
        bytes_up: bytes that it sent, without derived tensors.
        model: weights and buffers of its model that the upload does not have, by name; empty unless the model was requested.
    """

    round: int
    client: int
    loss: Tensor
    upload: Upload = field(default_factory=Upload)
    weight: float = 0.0
    state: ClientState = field(default_factory=ClientState)
    probe: State = field(default_factory=State)
    bytes_down: int = 0
    bytes_up: int = 0
    model: State = field(default_factory=State)


@dataclass(frozen=True)
class Evaluation:
    """The message down to a client: a model to evaluate on its validation part.

    Args:
        round: counted from 1.
        client: its index.
        model: weights and buffers, by name.
    """

    round: int
    client: int
    model: State


@dataclass(frozen=True)
class Accuracy:
    """The message up from an evaluation.

    Args:
        accuracy: (1,) float64; NaN without samples.
    """

    accuracy: Tensor


def pack(message: Any) -> Packed:
    """A message as tensors by path, such as ``state/method/variate/0.weight``: shares memory with the message.

    A message is a :class:`Request`, :class:`Reply`, :class:`ClientState` or another dataclass of tensors, numbers and dicts.
    Numbers are tensors without dimensions, of type int64, float64 or bool. A slash in a name is ``~1``, a tilde ``~0``, as in
    RFC 6901.

    Example::

        >>> pack(ClientState(method={"variate": {"0.weight": torch.ones(2)}}))[
        ...     "method/variate/0.weight"
        ... ]
        tensor([1., 1.])
    """
    return dict(_leaves("", message))


def unpack(kind: type[Message], packed: Packed) -> Message:
    """The inverse of :func:`pack`: a message of class ``kind``, which shares memory with ``packed``.

    Raises:
        ValueError: if it is another message, such as one with a missing or unknown part.
    """
    try:
        return _built(kind, _nested(packed))
    except (AttributeError, TypeError, RuntimeError) as error:
        raise ValueError(f"it is not a packed {kind.__name__} ({error})") from error


def _nested(packed: Packed) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, tensor in packed.items():
        *groups, name = path.split("/")
        inner = tree
        for group in groups:
            inner = inner.setdefault(_unescaped(group), {})
        if name != _EMPTY:
            inner[_unescaped(name)] = tensor
    return tree


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value.detach()
    elif isinstance(value, tuple(_NUMBERS)):  # NumPy's float64 is a float
        kind = bool if isinstance(value, bool) else int if isinstance(value, int) else float
        yield path, torch.tensor(value, dtype=_NUMBERS[kind])
    elif value is not None:
        before = f"{path}/" if path else ""
        parts = _parts(value)
        if not parts:
            yield f"{before}{_EMPTY}", torch.empty(0, dtype=torch.uint8)
        for name, part in parts.items():
            yield from _leaves(before + _escaped(str(name)), part)


def _parts(value: Any) -> dict[Any, Any]:
    """The contents of a dict, a dataclass or a named tuple, by name; for a dataclass, without empty containers."""
    if is_dataclass(value):
        parts = {part.name: getattr(value, part.name) for part in fields(value)}
        return {name: part for name, part in parts.items() if isinstance(part, (Tensor, *_NUMBERS)) or part}
    return cast(dict[Any, Any], value) if isinstance(value, dict) else value._asdict()


def _built(kind: Any, tree: Any) -> Any:
    """A value of a type, from what it consists of."""
    if get_origin(kind) is UnionType:  # one or None, or the class with these parts
        kinds = [one for one in get_args(kind) if one is not type(None)]
        kind = next((one for one in kinds if len(kinds) == 1 or tree.keys() == _hints(one).keys()), kinds[0])
    if kind in (Any, Tensor):
        if kind is Tensor and not isinstance(tree, Tensor):
            raise TypeError(f"{type(tree).__name__} instead of a tensor")
        return tree
    if kind in _NUMBERS:
        return tree.item()
    if get_origin(kind) is dict:
        key, value = get_args(kind)
        return {key(name): _built(value, part) for name, part in tree.items()}
    return kind(**{name: _built(_hints(kind).get(name, Any), part) for name, part in tree.items()})


_hints = cache(get_type_hints)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _unescaped(name: str) -> str:
    return name.replace("~1", "/").replace("~0", "~")
