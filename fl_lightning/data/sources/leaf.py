"""Data sets in the JSON files of LEAF, FEMNIST above all."""

import json
import string
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fl_lightning.data.cache import cached
from fl_lightning.data.samples import Dataset, Samples
from fl_lightning.data.sources.source import Source

_FEMNIST = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
_PIXELS = 28 * 28
_SERIAL_BYTES = 64 << 20  # starting processes takes seconds: less than that is parsed sooner in this one

_User = tuple[str, NDArray, NDArray]  # name, inputs (n, features), labels (n,)


class Leaf(Source):
    """What LEAF's ``preprocess.sh -t sample`` leaves: ``root/train/*.json`` and ``root/test/*.json``.

    Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018. Each user, a writer in FEMNIST, is a natural client: the
    partition :class:`~fl_lightning.data.Natural` goes by them, in the order of their names. Samples of 784 values in [0, 1]
    are grey images of 28x28, other samples vectors of numbers.
    """

    def load(self, root: Path) -> Dataset:
        files = {part: sorted((root / part).glob("*.json")) for part in ("train", "test")}
        for part, found in files.items():
            if not found:
                raise FileNotFoundError(
                    f"data.root is {root}, but {root / part} holds no .json file: run LEAF's preprocess.sh with -t sample and "
                    "give its folder data"
                )
        stamps = [(path.relative_to(root), path.stat()) for part in files.values() for path in part]
        fingerprint = "\n".join(f"{root.resolve()} {path} {stat.st_size} {stat.st_mtime_ns}" for path, stat in stamps)
        return cached(f"leaf-{root.resolve().parent.name}", fingerprint, lambda: _parse(files))


def _parse(files: dict[str, list[Path]]) -> Dataset:
    from joblib import Parallel, delayed  # takes long to import

    paths = [path for part in files.values() for path in part]
    cores = 1 if sum(path.stat().st_size for path in paths) < _SERIAL_BYTES else -1
    users = iter(Parallel(n_jobs=cores)(delayed(_read_users)(path) for path in paths))
    train, test = ([user for path in part for user in next(users)] for part in files.values())
    _check_users(train, files["train"][0].parent)
    _check_users(test, files["test"][0].parent)
    _check_widths([*train, *test])
    names = sorted(name for name, _, _ in train)
    position = {name: i for i, name in enumerate(names)}
    owners = np.repeat([position[name] for name, _, _ in train], [len(labels) for _, _, labels in train])
    samples = _samples(train, test)
    largest = max(int(part.targets.max()) for part in samples)
    is_femnist = samples[0].inputs.ndim == 4 and 10 <= largest < len(_FEMNIST)
    classes = _FEMNIST if is_femnist else tuple(str(label) for label in range(largest + 1))
    return Dataset(*samples, classes, torch.from_numpy(owners))


def _check_users(users: list[_User], folder: Path) -> None:
    if not users:
        raise ValueError(f"data.root: the .json files in {folder} name no user: run LEAF's preprocess.sh anew")
    seen: set[str] = set()
    for name, _, _ in users:
        if name in seen:
            raise ValueError(f"data.root: user {name} stands twice in {folder}: keep the files of one run of LEAF alone")
        seen.add(name)


def _check_widths(users: list[_User]) -> None:
    name, width = users[0][0], users[0][1].shape[1]
    for other, inputs, _ in users:
        if inputs.shape[1] != width:
            raise ValueError(
                f"data.root: user {name} has samples of {width} values, user {other} of {inputs.shape[1]}: keep the files of "
                "one data set alone"
            )


def _read_users(path: Path) -> list[_User]:
    """The users of one file; called in other processes."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        data = [(user, content["user_data"][user]["x"], content["user_data"][user]["y"]) for user in content["users"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"data.root: {path} is no JSON file of LEAF with users and user_data ({error}): replace it") from error
    return [(user, *_arrays(path, user, inputs, labels)) for user, inputs, labels in data]


def _arrays(path: Path, user: str, inputs: list, labels: list) -> tuple[NDArray, NDArray]:
    try:
        values, classes = np.asarray(inputs, dtype=np.float32), np.asarray(labels)
    except (ValueError, TypeError) as error:
        raise ValueError(f"data.root: {path} gives user {user} samples that are no vectors of one length ({error})") from error
    if values.ndim > 0 and classes.ndim > 0 and (len(values) == 0 or len(values) != len(classes)):
        raise ValueError(
            f"data.root: {path} gives user {user} {len(values)} samples and {len(classes)} labels: correct the file"
        )
    if classes.dtype.kind not in "iu" or classes.ndim != 1 or values.ndim != 2:
        raise ValueError(
            f"data.root: {path} gives user {user} labels of type {classes.dtype} and samples of {values.ndim - 1} dimensions: "
            "labels must be whole numbers, samples vectors"
        )
    if not np.isfinite(values).all():
        raise ValueError(f"data.root: {path} gives user {user} a value that is no finite number: correct the file")
    pixels = np.rint(values * 255)
    # LEAF divides grey values by 255; whatever else is in the files stays as it is.
    is_grey = (
        values.shape[1] == _PIXELS and pixels.min() >= 0 and pixels.max() <= 255 and np.abs(values * 255 - pixels).max() < 1e-2
    )
    return (pixels.astype(np.uint8) if is_grey else values), classes.astype(np.int64)


def _samples(train: list[_User], test: list[_User]) -> list[Samples]:
    all_grey = all(inputs.dtype == np.uint8 for _, inputs, _ in (*train, *test))
    parts = []
    for users in (train, test):
        # Where one user's values are no grey values, everybody's are floats.
        scaled = [inputs if all_grey or inputs.dtype != np.uint8 else inputs.astype(np.float32) / 255 for _, inputs, _ in users]
        inputs = np.concatenate(scaled)
        shape = (-1, 1, 28, 28) if inputs.shape[1] == _PIXELS else inputs.shape
        labels = np.concatenate([labels for _, _, labels in users])
        parts.append(Samples(torch.from_numpy(inputs.reshape(shape)), torch.from_numpy(labels)))
    return parts
