"""Datasets and samples, the form of data between a source and a client."""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from fl_lightning.data.mapped_files import empty_rows
from fl_lightning.objectives import Objective, SingleLabel
from fl_lightning.protocol import NetInputs

Part = Literal["train", "test"]
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64)
_CLASSES_WITHOUT_SAMPLES = 1000  # as in a small part of a large set; beyond that, more classes than samples are a mistake
_BYTES_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class Samples:
    """Inputs (n, ...) as stored, and targets, (n,) or, as the objective of the source has them, (n, ...).

    Inputs are a tensor or, for a net with several arguments, a dict or tuple of tensors with n rows each: the arguments by
    name or in order. Their type determines the kind of inputs: uint8 are images (n, channels, height, width), which are
    scaled to [0, 1] and normalised; other whole numbers, such as token ids, reach the net unchanged; floats and truth values
    become the net's floats. Images that are one of several tensors are given as floats.
    """

    inputs: NetInputs
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def rows(self, indices: Tensor | slice | list[int]) -> NetInputs:
        """Inputs of some samples."""
        return tree_map(lambda part: part[indices], self.inputs)

    def some(self, indices: Tensor) -> "Samples":
        """The samples at some indices, copied; the inputs to a file if memory does not hold them."""

        def copied(part: Tensor) -> Tensor:
            return torch.index_select(part, 0, indices, out=empty_rows((len(indices), *part.shape[1:]), part.dtype))

        return Samples(tree_map(copied, self.inputs), self.targets[indices])

    def none(self) -> "Samples":
        """No samples, of the same kind."""
        return Samples(self.rows(slice(0)), self.targets[:0])


@dataclass(frozen=True)
class Dataset:
    """A source, loaded: training samples, test samples (possibly none) and the names of the classes in label order.

    With another objective than :class:`~fl_lightning.objectives.SingleLabel` the names are those of its units.

    Raises:
        ValueError: if inputs and targets differ in length, inputs differ in shape or kind or are not finite numbers, a target
            is not the index of a class, there is no training sample, or two classes have one name.
    """

    train: Samples
    test: Samples
    classes: tuple[str, ...]
    owners: Tensor | None = None
    """(n,) natural client of every training sample, counted from 0, such as the writer of a digit; None: unknown."""
    test_owners: Tensor | None = None
    """(n,) natural client of every test sample, -1 if that client has no training samples."""
    sources: tuple[str, ...] | None = None
    """(C,) source of each class, if several are joined; None: there is one source."""
    objective: Objective = field(default_factory=SingleLabel)
    """What the targets mean."""

    def __post_init__(self) -> None:
        _check_class_names(self.classes)
        for part, samples in (("training", self.train), ("test", self.test)):
            _check_targets(part, samples.targets, self.objective)
            self.objective.check(part, samples.targets, len(self.classes))
            _check_form(part, samples.inputs)
            for inputs in tree_leaves(samples.inputs):
                _check_inputs(part, inputs)
            _check_lengths(part, samples.inputs, samples.targets)
            _check_mask(part, samples.inputs)
        _check_parts_match(self.train, self.test)
        if len(self.train) == 0:
            raise ValueError("data.source gives no training sample: give some")
        if self.owners is not None and self.owners.shape != self.train.targets.shape[:1]:
            raise ValueError(
                f"data.source gives {len(self.train)} training samples and {len(self.owners)} owners: give one a sample"
            )
        if self.test_owners is not None and self.test_owners.shape != self.test.targets.shape[:1]:
            raise ValueError(
                f"data.source gives {len(self.test)} test samples and {len(self.test_owners)} owners of them: give one a sample"
            )


def check_has_classes(dataset: Dataset, source: str, key: str = "data.source.source") -> None:
    """Refuse targets of another kind than classes, for a source that goes by these; ``key``: of the dataset."""
    if not dataset.objective.tells_classes:
        raise ValueError(
            f"data.source is {source}, which goes by classes, but {key} has {dataset.objective!r}: use it without {source}"
        )


def in_parts(inputs: Tensor) -> tuple[Tensor, ...]:
    """Views of (n, ...) inputs in order, each of about 16 MiB: for results that must not hold another copy of all."""
    return inputs.split(max(_BYTES_AT_ONCE // max(inputs[:1].nbytes, 1), 1))


def are_whole(inputs: NetInputs) -> bool:
    """Whether some inputs are whole numbers that reach the net unchanged: neither images nor truth values."""
    return any(part.dtype in _WHOLE for part in tree_leaves(inputs))


def type_names(inputs: NetInputs) -> Any:
    """The type of the values, such as ``int64``; a dict or tuple of such for several tensors."""
    return tree_map(lambda part: str(part.dtype).removeprefix("torch."), inputs)


def named_tensors(inputs: NetInputs) -> dict[Any, Tensor]:
    """The tensors by their names or positions; a single one by an empty text."""
    if isinstance(inputs, Tensor):
        return {"": inputs}
    return inputs if isinstance(inputs, dict) else dict(enumerate(inputs))


def shapes(inputs: NetInputs) -> Any:
    """The shape of one sample; a dict or tuple of such for several tensors."""
    return tree_map(lambda part: tuple(part.shape[1:]), inputs)


def numbered_classes(train: Samples, test: Samples) -> tuple[str, ...]:
    """Names ``0``, ``1``, ... up to the largest label, for a source without names.

    Raises:
        ValueError: if that would be more classes than samples, and more than 1,000.
    """
    allowed = max(len(train) + len(test), _CLASSES_WITHOUT_SAMPLES)
    largest = {part: int(of.targets.max()) if of.targets.numel() else -1 for part, of in (("training", train), ("test", test))}
    for part, label in largest.items():
        if label >= allowed:
            raise ValueError(
                f"data.source has the {part} label {label}, which makes more classes than there are samples: number the "
                "classes 0, 1, ... without a gap"
            )
    return tuple(map(str, range(max(largest.values()) + 1)))


def _check_class_names(classes: tuple[str, ...]) -> None:
    seen: set[str] = set()
    for name in classes:
        if name in seen:
            raise ValueError(f"data.source names the class {name!r} twice: give each class another name")
        # A file name that is not UTF-8 has halves of characters, which nothing can print.
        if not isinstance(name, str) or name.splitlines() != [name] or any("\ud800" <= part <= "\udfff" for part in name):
            raise ValueError(f"data.source has the class {name!a}, must be one line of UTF-8 text: rename it")
        seen.add(name)


def _check_lengths(part: str, inputs: NetInputs, targets: Tensor) -> None:
    for name, tensor in named_tensors(inputs).items():
        if len(tensor) != len(targets):
            said = f"inputs {name!r}" if name != "" else "inputs"
            raise ValueError(
                f"data.source gives {len(tensor)} {part} {said} and {len(targets)} targets: give one target a sample"
            )


def _check_inputs(part: str, inputs: Tensor) -> None:
    shape = tuple(inputs.shape)
    if inputs.ndim == 0:
        raise ValueError(f"data.source gives {part} inputs of shape (), must be (samples, ...): give each sample its values")
    if inputs.dtype == torch.uint8 and inputs.ndim != 4:
        raise ValueError(
            f"data.source gives {part} images of shape {shape}, must be (samples, channels, height, width): add the missing "
            "dimension, or give inputs other than images as floats or, such as token ids, as int64"
        )
    if inputs.dtype not in (*_FLOATS, *_WHOLE, torch.uint8, torch.bool):
        raise ValueError(
            f"data.source gives {part} inputs of type {type_names(inputs)}, must be floats, uint8 images or signed whole "
            "numbers: convert them"
        )
    if 0 in shape[1:]:
        raise ValueError(f"data.source gives {part} inputs of shape {shape}, which hold no value: give each sample its values")
    if inputs.dtype in _FLOATS and len(inputs) > 0:
        _check_finite(part, inputs)


def _check_finite(part: str, inputs: Tensor) -> None:
    first = 0
    for some in in_parts(inputs):
        # Without a second tensor of their size; a float64 that float32 cannot hold would be infinite too.
        if all(bound.float().isfinite() for bound in some.aminmax()):
            first += len(some)
            continue
        bad = ~some.float().isfinite()
        row, value = first + int(bad.nonzero()[0, 0]), some[bad][0].item()
        raise ValueError(
            f"data.source has {value} in {part} input {row}, which is not finite in float32: replace the value, or leave the "
            "sample out"
        )


def _check_targets(part: str, targets: Any, objective: Objective) -> None:
    """Refuse targets in another form than the objective keeps them in."""
    if not isinstance(targets, Tensor):
        raise ValueError(f"data.source gives {part} targets of type {type(targets).__name__}, must be a tensor: convert them")
    needed = objective.stored(f"{part} targets", targets).dtype
    if targets.dtype != needed:
        raise ValueError(
            f"data.source gives {part} targets of type {targets.dtype}, must be {needed} for {type(objective).__name__}: "
            "convert them"
        )


def _check_form(part: str, inputs: NetInputs) -> None:
    """Refuse inputs, one tensor or several, that a net cannot be called with."""
    if other := next((type(leaf).__name__ for leaf in tree_leaves(inputs) if not isinstance(leaf, Tensor)), None):
        raise ValueError(
            f"data.source gives {part} inputs of type {other}, must be a tensor, or a dict or tuple of tensors: convert them"
        )
    if isinstance(inputs, Tensor):
        return
    if len(tree_leaves(inputs)) == 0:
        raise ValueError(f"data.source gives {part} inputs without a tensor: give at least one")
    for name, tensor in named_tensors(inputs).items():
        if len(tree_leaves(inputs)) == 1 and isinstance(tensor, Tensor) and tensor.dtype == torch.uint8:
            raise ValueError(
                f"data.source gives {part} inputs with only the uint8 images {name!r}: give the tensor itself, without its name"
            )
        if not isinstance(tensor, Tensor):
            raise ValueError(f"data.source gives {part} inputs with {name!r} of several tensors: give one tensor a name")
        if tensor.dtype == torch.uint8:
            raise ValueError(
                f"data.source gives {part} inputs with uint8 images as {name!r} next to other tensors: give them as floats, "
                "normalised"
            )


def _check_mask(part: str, inputs: NetInputs) -> None:
    """Refuse a padding mask of another length than the token ids, which a net may find in a later batch only, or of zeros.

    Attention without a token to attend to differs by its implementation, and so by the engine.
    """
    names = ("input_ids", "attention_mask")
    if not isinstance(inputs, dict) or not all(name in inputs for name in names):
        return
    ids, mask = (tuple(inputs[name].shape[1:]) for name in names)
    if ids != mask:
        raise ValueError(
            f"data.source gives {part} inputs with input_ids of shape {ids} and attention_mask of {mask}: give the mask of "
            "these ids"
        )
    shown = inputs["attention_mask"].flatten(1).any(dim=1)
    if not shown.all():
        raise ValueError(
            f"data.source has {part} sample {int((~shown).nonzero()[0, 0])} with an attention_mask that hides every token, as "
            "of an empty text: leave the sample out"
        )


def _check_parts_match(train: Samples, test: Samples) -> None:
    """Raise a ValueError if the parts differ in shape or kind: both get the same changes for the same net."""
    if len(test) == 0:
        return
    given = shapes(train.inputs), shapes(test.inputs)
    if given[0] != given[1]:
        cure = "give both the same, with texts padded to one length" if are_whole(train.inputs) else "resize them"
        raise ValueError("data.source gives training inputs of shape {} and test inputs of {}: {}".format(*given, cure))
    kinds = [
        {name: (one.dtype == torch.uint8, are_whole(one)) for name, one in named_tensors(part.inputs).items()}
        for part in (train, test)
    ]
    if kinds[0] != kinds[1]:
        types = type_names(train.inputs), type_names(test.inputs)
        raise ValueError("data.source gives training inputs of type {} and test inputs of {}: convert one".format(*types))
