"""Datasets in the JSON files of LEAF, above all FEMNIST."""

import json
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from fl_lightning.data.cache import cached
from fl_lightning.data.samples import Dataset, Part, Samples, numbered_classes
from fl_lightning.data.sources.source import Source, check_regular

_FEMNIST = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
_PIXELS = 28 * 28
_SERIAL_BYTES = 64 << 20  # below this, one process is faster, as the start of others takes seconds

_User = tuple[str, NDArray, NDArray]  # name, inputs (n, features), labels (n,)


class Leaf(Source):
    """The output of LEAF's ``preprocess.sh -t sample``: ``root/train/*.json`` and ``root/test/*.json``.

    Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018. Each user, a writer in FEMNIST, is a natural client: the
    partition :class:`~fl_lightning.data.Natural` uses them in the order of their names. Samples of 784 values are images
    of 28x28, of grey values if all of theirs are in [0, 1] in steps of 1/255. Other samples are vectors: of whole numbers if
    those of all users are, otherwise of floats.
    """

    def load(self, root: Path) -> Dataset:
        files = {part: sorted((root / part).glob("*.json")) for part in get_args(Part)}
        for part, found in files.items():
            if not found:
                raise FileNotFoundError(
                    f"data.root is {root}, but {root / part} holds no .json file: run LEAF's preprocess.sh with -t sample and "
                    "give its folder data"
                )
        for path in (*files["train"], *files["test"]):
            check_regular(path)
        stamps = [(path.relative_to(root), path.stat()) for part in files.values() for path in part]
        fingerprint = "\n".join(f"{root.resolve()} {path} {stat.st_size} {stat.st_mtime_ns}" for path, stat in stamps)
        return cached(f"leaf-{root.resolve().parent.name}", fingerprint, lambda _: _parse(files))


def _parse(files: dict[str, list[Path]]) -> Dataset:
    from joblib import Parallel, delayed  # takes long to import

    paths = [path for part in files.values() for path in part]
    cores = 1 if sum(path.stat().st_size for path in paths) < _SERIAL_BYTES else -1
    users: Iterator[Any] = iter(Parallel(n_jobs=cores)(delayed(_read_users)(path) for path in paths))
    train, test = ([user for path in part for user in next(users)] for part in files.values())
    _check_users(train, files["train"][0].parent)
    _check_users(test, files["test"][0].parent)
    _check_widths([*train, *test])
    names = sorted(name for name, _, _ in train)
    position = {name: i for i, name in enumerate(names)}
    owners, test_owners = (
        torch.from_numpy(np.repeat([position.get(name, -1) for name, _, _ in part], [len(labels) for _, _, labels in part]))
        for part in (train, test)
    )
    train_samples, test_samples = _samples(train, test)
    classes = numbered_classes(train_samples, test_samples)
    if train_samples.inputs.ndim == 4 and 10 < len(classes) <= len(_FEMNIST):
        classes = _FEMNIST
    is_known = bool((test_owners >= 0).any())  # with LEAF's -t user the test users are others
    return Dataset(train_samples, test_samples, classes, owners, test_owners if is_known else None)


def _check_users(users: list[_User], folder: Path) -> None:
    if not users:
        raise ValueError(f"data.root: the .json files in {folder} name no user: run LEAF's preprocess.sh again")
    seen: set[str] = set()
    for name, _, _ in users:
        if name in seen:
            raise ValueError(f"data.root: user {name} is twice in {folder}: keep only the files of one run of LEAF")
        seen.add(name)


def _check_widths(users: list[_User]) -> None:
    name, width = users[0][0], users[0][1].shape[1]
    for other, inputs, _ in users:
        if inputs.shape[1] != width:
            raise ValueError(
                f"data.root: user {name} has samples of {width} values, user {other} of {inputs.shape[1]}: keep only the "
                "files of one dataset"
            )


def _read_users(path: Path) -> list[_User]:
    """The users of one file; called in other processes."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        users, of_user = content["users"], content["user_data"]
        data = [(str(user), of_user[user]["x"], of_user[user]["y"]) for user in users]
        counts = content.get("num_samples", [None] * len(data))
        if len(counts) != len(data):
            raise ValueError(f"num_samples has {len(counts)} entries for {len(data)} users")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:100]
        raise ValueError(
            f"data.root: {path} is not a JSON file of LEAF with users and user_data ({reason}): replace it"
        ) from error
    return [
        (user, *_arrays(path, user, inputs, labels, count)) for (user, inputs, labels), count in zip(data, counts, strict=True)
    ]


def _arrays(path: Path, user: str, inputs: list, labels: list, count: int | None) -> tuple[NDArray, NDArray]:
    """Inputs, (n, features) grey values as uint8, other fractions as float32, whole numbers as int64; and labels (n,)."""
    gives = f"data.root: {path} gives user {user}"
    try:
        values, classes = np.asarray(inputs), np.asarray(labels)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{gives} samples that are not vectors of one length ({error}): correct the file") from error
    if values.ndim > 0 and classes.ndim > 0 and not 0 < len(values) == len(classes):
        raise ValueError(f"{gives} {len(values)} samples and {len(classes)} labels: correct the file")
    if values.ndim > 0 and count not in (None, len(values)):
        raise ValueError(f"{gives} {len(values)} samples, num_samples says {count}: correct the file")
    if classes.dtype.kind != "i" or classes.ndim != 1:
        raise ValueError(
            f"{gives} labels of type {classes.dtype} and shape {classes.shape}, must be whole numbers: correct the file"
        )
    if values.dtype.kind not in "if" or values.ndim != 2 or values.shape[1] == 0:
        raise ValueError(
            f"{gives} values of type {values.dtype} and shape {values.shape}, must be vectors of numbers: correct the file"
        )
    if values.dtype.kind == "f":
        values = _fractions(values)
        if values.dtype != np.uint8 and not np.isfinite(values).all():
            raise ValueError(f"{gives} a value that is not a finite number of 32 bits: correct the file")
    return values, classes


def _fractions(values: NDArray) -> NDArray:
    """Grey values, which LEAF divides by 255, as uint8; other values unchanged as float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        values = values.astype(np.float32)
        pixels = np.rint(values * 255)
        is_grey = (
            values.shape[1] == _PIXELS
            and pixels.min() >= 0
            and pixels.max() <= 255
            and np.abs(values * 255 - pixels).max() < 1e-2
        )
        return pixels.astype(np.uint8) if is_grey else values


def _samples(train: list[_User], test: list[_User]) -> list[Samples]:
    everyone = [inputs for _, inputs, _ in (*train, *test)]
    if everyone[0].shape[1] != _PIXELS and all(inputs.dtype == np.int64 for inputs in everyone):
        return [_joined(users, [inputs for _, inputs, _ in users]) for users in (train, test)]
    # Some writers of JSON write 1.0 as 1.
    fractions = [_fractions(inputs) if inputs.dtype == np.int64 else inputs for inputs in everyone]
    if not all(inputs.dtype == np.uint8 for inputs in fractions):
        # If the values of one user are not grey values, those of all users are floats.
        fractions = [inputs.astype(np.float32) / 255 if inputs.dtype == np.uint8 else inputs for inputs in fractions]
    return [_joined(train, fractions[: len(train)]), _joined(test, fractions[len(train) :])]


def _joined(users: list[_User], parts: list[NDArray]) -> Samples:
    inputs, labels = np.concatenate(parts), np.concatenate([labels for _, _, labels in users])
    shape = (-1, 1, 28, 28) if inputs.shape[1] == _PIXELS else inputs.shape
    return Samples(torch.from_numpy(inputs.reshape(shape)), torch.from_numpy(labels))
