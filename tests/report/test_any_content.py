"""Files of runs with any content: readers know every error, take neither long nor a gigabyte, and keep the other runs."""

import json
import re
import resource
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorded import packed

from fl_lightning.data import Fixed
from fl_lightning.data.federated_split import FederatedSplit
from fl_lightning.data.partition_file import fingerprint
from fl_lightning.report import load_runs
from fl_lightning.report.commands import compare, figures, report
from fl_lightning.report.log import read_log
from fl_lightning.report.run_figures import pictures
from fl_lightning.watch.heatmaps import heatmap
from fl_lightning.watch.watched_runs import WatchedRuns, numbers

_SECONDS, _BYTES = 5.0, 10**9  # of one example, the seconds those of the processor
_DRAWING = 15.0  # seconds more for the figures of all sections, each in three formats, of any two runs
# How our errors begin. A folder's name, which some begin with, is that of the test.
_OURS = ("RUNS", "RUN ", "FIRST has", "SECOND has", "no run has logged", "data.partition", "data.num_clients")
_DAMAGED = r"[a-z/_0-9]+ of round [0-9]+ (has shape|names a task)"
_CONFIG = {
    "seed_everything": 1,
    "trainer": {"max_steps": 3},
    "model": {
        "class_path": "fl_lightning.FedAvg",
        "init_args": {
            "loss": {"class_path": "fl_lightning.losses.CrossEntropy"},
            "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.1}},
            "local_steps": 3,
        },
    },
    "data": {"source": "digits", "num_clients": 20, "partition": {"class_path": "x.Dirichlet", "init_args": {"alpha": 0.1}}},
    "callbacks": {"summary": {"targets": [0.5]}},
}
_RESULTS = {"rounds": 3, "model_megabytes": 0.5, "test_accuracy": {"best": 0.5, "last": 0.25}}
_LABELS = torch.tensor([0, 0, 0, 1, 1, 1])
_PARTITION = {
    "format": "fl-lightning partition",
    "version": 1,
    "samples": 6,
    "labels": fingerprint(_LABELS),
    "classes": ["a", "b"],
    "clients": [{"size": 3, "label_counts": {"0": 3}, "indices": [0, 1, 2]}, {"size": 1, "indices": [5]}],
}
_SCALARS = (
    *("test/accuracy", "val/accuracy", "class_accuracy/cat", "class_accuracy/a\nb", "communication/total_up"),
    *("communication/total_down", "forgetting/round", "forgetting/local_mean", "forgetting/client_mean"),
)
_TENSORS = {
    "clients/round_cohort": [3, 8],
    "clients/cohort": [3, 8],
    "clients/accuracy_before": [0.5, 0.25],
    "clients/accuracy_after": [[0.5, 0.25], [1.0, 0.0]],
    "clients/class_cohort": [8],
    "clients/class_accuracy": [[0.5, 0.25], [1.0, 0.0], [0.0, 0.0]],
    "clients/personal_accuracy": [0.5, 0.25, 0.75],
    "forgetting/local": [[0.5, 2.0], [1.0, 1.0]],
    "head/norm": [[0.5, 0.25], [1.0, 0.0], [0.0, 0.0]],
    "head/cohort": [3, 8],
    "head/holds": [[1, 0], [0, 1]],
    "cka/clients": [[0.5], [1.0]],
    "cka/cohort": [3, 8],
    "events/class": [0.5, 0.25],
    "label_counts/first_clients": [[3, 4], [1, 0], [9, 9]],
    "label_counts/clients": [[3, 4], [1, 0]],
    "tasks/table": [[0.5, 0.25], [1.0, 0.0]],
    "tasks/class_table": [[0.5, 0.25], [1.0, 0.0]],
    "tasks/counts": [[1, 0], [3, 4]],
    "tasks/class_task": [0, 1],
    "tasks/class_rounds": [[1, 2], [2, 3]],
    "tasks/attention_of_client_3": [[0.5], [0.25]],
    "tasks/foreign_of_client_3": [[8, 0]],
}
# What a log holds: [round, time, name, value], a value by its kind.
_LOG = [
    *([round, 1.7e9 + 2 * round, name, {"scalar": 0.25 * round}] for round in (1, 2, 3) for name in _SCALARS),
    *([2, 1.7e9 + 4, name, {"tensor": value}] for name, value in _TENSORS.items()),
]

# ---- Content

_INTEGERS = st.integers(-9, 99) | st.sampled_from([10**9, 2**31, 2**40, 2**53 + 1, 2**63 - 1, -(2**63), 10**400])
_FLOATS = st.sampled_from([0.0, -0.5, 0.5, 2.5, 1e-45, 3e38, 1e308, -1e308]) | st.floats()
_NAMES = st.sampled_from(
    [
        *(*_SCALARS, *_TENSORS, "tasks/accuracy", "tasks/forgetting", "tasks/model_megabytes", "class_accuracy/"),
        *("forgetting/every_10", "forgetting/every_²", f"forgetting/every_{'9' * 5000}", "tasks/attention_of_client_3\n"),
        *(f"tasks/foreign_of_client_{'9' * 5000}", f"tasks/attention_of_client_{'9' * 5000}"),
    ]
)
_TEXTS = st.text(alphabet="aé0-.\n\0\ud800", max_size=5)
_LEAVES = st.none() | st.booleans() | _INTEGERS | _FLOATS | _TEXTS | _NAMES
_ANYTHING = _LEAVES | st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3), max_leaves=6
)


@st.composite
def _changed(draw: Callable, whole: Any, most: int = 3) -> Any:
    """Nested lists and mappings with up to some parts replaced, removed or doubled."""
    whole = deepcopy(whole)
    for _ in range(draw(st.integers(0, most))):
        inner = whole
        while True:
            keys = list(inner) if isinstance(inner, dict) else list(range(len(inner)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(inner[key], dict | list) and draw(st.integers(0, 5)):
                inner = inner[key]
                continue
            change = draw(st.sampled_from(["replace", "replace", "remove", "double"]))
            if change == "replace":
                inner[key] = draw(_ANYTHING)
            elif change == "remove":
                del inner[key]
            elif isinstance(inner, list):
                inner.insert(key, deepcopy(inner[key]))
            break
    return whole


@st.composite
def _damaged(draw: Callable, data: bytes) -> bytes:
    """Bytes cut, flipped, or with others within; most are left as they are."""
    change = draw(st.sampled_from(["none"] * 4 + ["cut", "flip", "insert"]))
    at = draw(st.integers(0, max(len(data) - 1, 0)))
    if change == "cut":
        return data[:at]
    if change == "flip" and data:
        return data[:at] + bytes([data[at] ^ (1 << draw(st.integers(0, 7)))]) + data[at + 1 :]
    return data[:at] + draw(st.binary(max_size=9)) + data[at:] if change == "insert" else data


def _text(value: Any) -> bytes:
    """JSON, with what it has no word for as JavaScript calls it."""
    return json.dumps(value, default=str).encode()


def _line(entry: Any, shape: list[int] | None = None) -> bytes:
    """A line of a record as far as an entry can be one; a tensor may claim another shape."""
    try:
        round, at, name, value = entry
        ((kind, content),) = value.items()
        if kind == "tensor":
            content = packed(content) | ({} if shape is None else {"shape": shape})
        line = {"round": round, "time": at, f"{kind}s": {name: content}}
    except (TypeError, ValueError, AttributeError, OverflowError):
        line = entry
    return _text(line) + b"\n"


@st.composite
def _files(draw: Callable) -> dict[str, bytes]:
    """What a run's folder holds, by name."""
    log = draw(_changed(_LOG, most=4))
    log = log if isinstance(log, list) else []
    files = {}
    shapes = st.none() | st.lists(st.sampled_from([0, 1, 2, 3, -1, 2**20, 2**40, 2**62]), max_size=3)
    lying = draw(st.dictionaries(st.integers(0, len(log)), shapes, max_size=2))
    lines = draw(_changed([_line(entry, lying.get(index)).decode() for index, entry in enumerate(log)], most=1))
    files["record.jsonl"] = draw(_damaged("".join(map(str, lines)).encode(errors="replace")))
    config = draw(_changed(_CONFIG))
    files["config.yaml"] = draw(_damaged(_text(config) if draw(st.booleans()) else yaml.safe_dump(config).encode()))
    if draw(st.booleans()):
        files["results.json"] = draw(_damaged(_text(draw(_changed(_RESULTS)))))
    return files


# ---- What reads it


@pytest.fixture(scope="module", autouse=True)
def _memory_has_a_bound() -> Iterator[None]:
    """More than a gigabyte above what the process has is a MemoryError, which no reader expects."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _BYTES, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


@contextmanager
def _folder_of(files: dict[str, bytes]) -> Iterator[Path]:
    """A folder of a good run, and of one that holds these files."""
    with tempfile.TemporaryDirectory() as name:
        for run, content in (("good", _GOOD), ("odd", files)):
            (Path(name) / "runs" / run).mkdir(parents=True)
            for file, data in content.items():
                (Path(name) / "runs" / run / file).write_bytes(data)
        yield Path(name)


_GOOD = {"config.yaml": yaml.safe_dump(_CONFIG).encode(), "record.jsonl": b"".join(map(_line, _LOG))}


@contextmanager
def _known_errors_in_time(*errors: type[Exception], seconds: float = _SECONDS) -> Iterator[None]:
    """What is raised is one of these, with a message of ours, and soon."""
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except errors as error:
            if not str(error).startswith(_OURS) and "record.jsonl is damaged, " not in str(error):
                raise
    assert time.process_time() - began < seconds


def _is_read(files: dict[str, bytes]) -> None:
    """By ``load_runs`` and by the page, which both have the good run whatever the other is."""
    with _folder_of(files) as folder:
        with _known_errors_in_time():
            frame = load_runs(folder / "runs")
        assert str(folder / "runs" / "good") in frame.index.get_level_values("run")
        watched = WatchedRuns(folder / "runs")
        with _known_errors_in_time():
            watched.refresh()
            told = json.loads(json.dumps(watched.overview(), allow_nan=False))
            for run in told["runs"]:
                for kind, rounds in run["measured"].items():
                    for round in (rounds[0], rounds[-1]):
                        shown = heatmap(watched.run(run["name"]), kind, round)
                        json.dumps(vars(shown) | {"values": numbers(shown.values)}, allow_nan=False)
        assert "good" in [run["name"] for run in told["runs"]]
        assert not [remark for remark in told["remarks"] if "it cannot be shown" in remark]


def _is_compared(files: dict[str, bytes]) -> None:
    with _folder_of(files) as folder:
        for sides in (("good", "odd"), ("odd", "good")):
            with _known_errors_in_time(ValueError, FileNotFoundError):
                compare(*(folder / "runs" / side for side in sides))


def _is_drawn(shapes: dict[str, tuple[int, ...]]) -> None:
    """Each picture of a record of tensors of these shapes, or what is said of it, without the files, which take the time."""
    with tempfile.TemporaryDirectory() as name:
        tensors = {name: np.ones(shape) for name, shape in shapes.items()}
        lines = [json.dumps({"round": 2, "time": 4, "tensors": {name: packed(value)}}) for name, value in tensors.items()]
        (Path(name) / "record.jsonl").write_text("".join(f"{line}\n" for line in lines))
        log = read_log(Path(name))
    for picture in pictures(log):
        try:
            picture.draw(picture.rounds[-1])
        except ValueError as error:
            if not re.match(_DAMAGED, str(error)):
                raise


def _is_reported(files: dict[str, bytes]) -> None:
    with _folder_of(files) as folder:
        with _known_errors_in_time(ValueError, FileNotFoundError, seconds=_SECONDS + _DRAWING):
            report([folder / "runs"], out=folder / "report")
        with _known_errors_in_time(ValueError, FileNotFoundError, seconds=_SECONDS + _DRAWING):
            figures(folder / "runs" / "odd", folder / "figures")


def _is_a_partition(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "partition.json"
        path.write_bytes(data)
        with _known_errors_in_time(ValueError):
            FederatedSplit(Fixed(str(path)), 2, 0, 0).deal(_LABELS, None)


_QUICK = settings(max_examples=20, derandomize=True, deadline=None, database=None)
_LONG = settings(max_examples=300, deadline=None, database=None, suppress_health_check=list(HealthCheck))
_sizes = st.sampled_from([1, 2, 2, 2, 3, 3, 0])
_shapes = st.fixed_dictionaries({name: st.tuples(*[_sizes] * np.ndim(value)) for name, value in _TENSORS.items()})
_partitions = _changed(_PARTITION).map(_text).flatmap(_damaged)


@_QUICK
@given(_files())
def test_any_run_is_read(files):
    _is_read(files)


@_QUICK
@given(_partitions)
def test_any_partition_file_is_read(data):
    _is_a_partition(data)


@_QUICK
@given(_files())
def test_any_run_is_compared(files):
    _is_compared(files)


@_QUICK
@given(_shapes)
def test_any_tensors_are_drawn(shapes):
    _is_drawn(shapes)


@pytest.mark.slow
@_LONG
@given(_shapes)
def test_many_tensors_are_drawn(shapes):
    _is_drawn(shapes)


@pytest.mark.slow
@_LONG
@given(_files())
def test_many_runs_are_read_and_compared(files):
    _is_read(files)
    _is_compared(files)


@pytest.mark.slow
@_LONG
@given(_partitions)
def test_many_partition_files_are_read(data):
    _is_a_partition(data)


@pytest.mark.slow
@settings(_LONG, max_examples=3)
@given(_files())
def test_many_runs_are_reported(files):
    _is_reported(files)
