"""Partition files: what goes in comes out, what was made for other data is refused, garbage is named."""

import json
import re
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.data import IID, Dirichlet, Fixed
from fl_lightning.data.federated_split import FederatedSplit
from fl_lightning.data.partition_file import read_partition, write_partition

LABELS = torch.arange(400) % 10
CLASSES = [f"class {label}" for label in range(9)] + ["Katze \u2713"]
PROPERTY = settings(max_examples=40, deadline=None, derandomize=True)


@pytest.fixture
def file(tmp_path):
    """A partition file of 20 clients."""
    path = tmp_path / "partition.json"
    write_partition(path, Dirichlet(0.1)(LABELS, 20, 3), LABELS, classes=CLASSES, partition="Dirichlet(alpha=0.1)", seed=7)
    return path


def changed(path, **changes):
    """The file with some parts replaced."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return str(path)


def test_fixed_reads_json(tmp_path):
    """A file of index lists gives what the lists give."""
    path = tmp_path / "clients.json"
    path.write_text(json.dumps([[3, 1], [], [2]]))
    for name in (path, str(path)):
        assert [part.tolist() for part in Fixed(name)(LABELS, 3, 0)] == [[3, 1], [], [2]]


@PROPERTY
@given(st.permutations(range(40)), st.lists(st.integers(0, 40), max_size=6))
def test_what_is_written_is_read(tmp_path_factory, order, cuts):
    """Any parts, empty ones too, come back in their order."""
    borders = [0, *sorted(cuts), 40]
    parts = [torch.tensor(order[start:stop], dtype=torch.int64) for start, stop in pairwise(borders)]
    path = tmp_path_factory.mktemp("partition") / "partition.json"
    write_partition(path, parts, LABELS[:40], classes=CLASSES, partition="any", seed=0)
    read = Fixed(str(path))(LABELS[:40], len(parts), 0)
    assert [part.tolist() for part in read] == [part.tolist() for part in parts]


def test_a_file_says_what_it_is(file):
    """One client a line, and the settings, sizes and label counts to read."""
    content = json.loads(file.read_text())
    assert content["format"] == "fl-lightning partition"
    assert content["version"] == 1
    assert content["partition"] == "Dirichlet(alpha=0.1)"
    assert (content["seed"], content["samples"], content["classes"]) == (7, 400, CLASSES)
    assert len(content["clients"]) == 20
    for client, part in zip(content["clients"], Dirichlet(0.1)(LABELS, 20, 3)):
        assert client["size"] == 20
        assert client["indices"] == part.tolist()
        assert {int(label): count for label, count in client["label_counts"].items()} == {
            label: count for label, count in enumerate(LABELS[part].bincount().tolist()) if count > 0
        }
    lines = file.read_text().splitlines()
    assert sum(line.startswith('{"size": 20, ') for line in lines) == 20


def test_the_name_of_the_file_is_shown(file):
    """As the partition of a run that was read from it."""
    assert repr(Fixed(str(file))) == f"Fixed({file})"


def test_another_number_of_clients_is_refused(file):
    """Both numbers."""
    with pytest.raises(ValueError, match=r"data.num_clients is 10, data.partition Fixed lists 20 clients: make"):
        FederatedSplit(Fixed(str(file)), 10, 0, 0).deal(LABELS, None)


@pytest.mark.parametrize("labels", [LABELS[:399], torch.arange(500) % 10])
def test_another_number_of_samples_is_refused(file, labels):
    """Both numbers, the file and the cure."""
    message = (
        rf"data.partition.clients is {file}, made for 400 training samples, data.source has {len(labels)}: set data.source"
    )
    with pytest.raises(ValueError, match=message):
        Fixed(str(file))(labels, 20, 0)


def test_other_labels_are_refused(file):
    """The same number of samples, two labels exchanged."""
    labels = LABELS.clone()
    labels[[0, 1]] = labels[[1, 0]]
    with pytest.raises(ValueError, match=rf"data.partition.clients is {file}, made for other labels than those of data.source"):
        Fixed(str(file))(labels, 20, 0)
    assert len(Fixed(str(file))(LABELS.int(), 20, 0)) == 20  # the same labels, stored otherwise


@pytest.mark.parametrize("version", [0, 2, "1", None, [1], {"one": 1}])
def test_another_version_is_refused(file, version):
    """The version found, the one that is read, and the cure."""
    message = re.escape(
        f"is {file}, of version {json.dumps(version)} of the format, this fl-lightning reads version 1: write it"
    )
    with pytest.raises(ValueError, match=message):
        Fixed(changed(file, version=version))


@pytest.mark.parametrize(
    "changes",
    [
        {"clients": None},
        {"clients": 3},
        {"clients": "clients"},
        {"clients": [[0, 1]]},
        {"clients": {"0": [0, 1]}},
        {"clients": [{"indices": "01"}]},
        {"clients": [{"indices": [0.5]}]},
        {"clients": [{"indices": [[0]]}]},
        {"clients": [{"indices": [True]}]},
        {"clients": [{"size": 3}]},
        {"clients": [None]},
        {"samples": "many"},
        {"samples": None},
        {"samples": [400]},
        {"samples": float("inf")},
        {"samples": float("nan")},
    ],
)
def test_a_changed_file_is_named(file, changes):
    """Parts of another type: the file and the cure in one line."""
    with pytest.raises(
        ValueError, match=rf"data.partition.clients is {file}, a partition file with a part missing or "
    ) as error:
        Fixed(changed(file, **changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("part", ["samples", "labels", "clients"])
def test_a_missing_part_is_named(file, part):
    """Cut out by hand."""
    content = json.loads(file.read_text())
    del content[part]
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="a partition file with a part missing or changed: write it again"):
        Fixed(str(file))


def test_a_sample_twice_and_outside_are_refused_in_files_too(file):
    """By the same words as in lists."""
    clients = json.loads(file.read_text())["clients"]
    for index, message in (
        (clients[0]["indices"][0], "more than once"),
        (400, "must be between 0 and 399"),
        (10**30, "not a list of sample indices"),
    ):
        clients[1]["indices"][0] = index
        with pytest.raises(ValueError, match=message):
            FederatedSplit(Fixed(changed(file, clients=clients)), 20, 0, 0).deal(LABELS, None)


def test_a_failed_write_leaves_the_old_file(file):
    """An index that is not there: the old file stays, nothing lies next to it."""
    before = file.read_text()
    with pytest.raises(IndexError):
        write_partition(file, [torch.tensor([10**6])], LABELS, classes=CLASSES, partition="wrong", seed=0)
    assert file.read_text() == before
    assert list(file.parent.iterdir()) == [file]


def test_a_plain_list_says_nothing_of_its_data(tmp_path):
    """It is read for any labels."""
    path = tmp_path / "clients.json"
    path.write_text("[[0, 1], [2]]")
    stored = read_partition(path)
    assert (stored.samples, stored.labels) == (None, None)
    assert [part.tolist() for part in Fixed(str(path))(LABELS[:3], 2, 0)] == [[0, 1], [2]]


def test_50000_clients_are_small_and_quick(tmp_path):
    """CIFAR-100's 50,000 images, one a client: a file of less than 4 MB."""
    labels = torch.arange(50000) % 100
    path = tmp_path / "partition.json"
    write_partition(path, IID()(labels, 50000, 0), labels, classes=CLASSES * 10, partition="IID()", seed=0)
    assert path.stat().st_size < 4e6
    assert len(Fixed(str(path))(labels, 50000, 0)) == 50000


def test_fixed_names_a_missing_file(tmp_path):
    """At construction, with key and path."""
    path = tmp_path / "none.json"
    with pytest.raises(FileNotFoundError, match=rf"data.partition.clients is {path}, which does not exist"):
        Fixed(str(path))


@pytest.mark.parametrize("text", ["", "[[0, 1], [2", "[" * 100000, "clients: 3", "\xff\xfe".encode("latin1").decode("latin1")])
def test_fixed_names_a_file_that_is_no_json(tmp_path, text):
    """Empty, cut off, another format, bytes that are no text: key, path and what to give."""
    path = tmp_path / "clients.json"
    path.write_bytes(text.encode("latin1"))
    with pytest.raises(ValueError, match=rf"data.partition.clients is {path}, which is not JSON .*list of index lists"):
        Fixed(str(path))


@pytest.mark.parametrize(
    "content", [{"clients": [[0]]}, [0, 1], [[0], "12"], [[0.5]], [[True]], [["0"]], [[None]], 3, None, [[[0]]]]
)
def test_fixed_names_a_file_that_holds_something_else(tmp_path, content):
    """Anything but a list of lists of integers: key, path and what it should be."""
    path = tmp_path / "clients.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rf"data.partition.clients is {path}, which holds no list of lists of integers"):
        Fixed(str(path))
