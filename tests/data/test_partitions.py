"""The partition classes: settings handed on, fixed index lists from lists and files, and what is wrong with them."""

import json

import numpy as np
import pytest
import torch

from fl_lightning.data import IID, Dirichlet, DirichletByClass, Fixed, Shards

LABELS = torch.arange(400) % 10


def owned_classes(parts):
    return [set(LABELS[part].tolist()) for part in parts]


def everything(parts):
    return sorted(index for part in parts for index in part.tolist())


def test_dirichlet_shares_out_equal_sizes_by_its_alpha():
    """400 / 20 = 20 each; at alpha 1e-8 the first client has one class, at 1e8 counts are near 20/10 = 2, never above 10."""
    skewed, even = (Dirichlet(alpha)(LABELS, 20, 0) for alpha in (1e-8, 1e8))
    assert [len(part) for part in skewed] == [len(part) for part in even] == [20] * 20
    assert len(owned_classes(skewed)[0]) == 1
    assert LABELS[even[0]].bincount().max() <= 10


def test_dirichlet_by_class_keeps_its_minimum():
    """Every sample is used and the smallest client has min_size samples."""
    parts = DirichletByClass(alpha=0.5, min_size=30)(LABELS, 5, 0)
    assert everything(parts) == list(range(400))
    assert min(map(len, parts)) >= 30


def test_shards_give_their_number_of_classes():
    """10 classes of 40, 20 clients of one shard of 20: one class each; of 4 shards of 5: at most four."""
    assert {len(classes) for classes in owned_classes(Shards(1)(LABELS, 20, 0))} == {1}
    parts = Shards(4)(LABELS, 20, 0)
    assert {len(part) for part in parts} == {20}
    assert 2 <= max(len(classes) for classes in owned_classes(parts)) <= 4
    assert {len(part) for part in Shards()(LABELS, 20, 0)} == {20}


def test_iid_parts_are_even():
    """400 among 7: 58 or 57 each, all used."""
    parts = IID()(LABELS, 7, 0)
    assert sorted(map(len, parts)) == [57] * 6 + [58]
    assert everything(parts) == list(range(400))


@pytest.mark.parametrize("partition", [Dirichlet(0.5), DirichletByClass(0.5), Shards(2), IID()], ids=repr)
def test_seed_is_handed_on(partition):
    """Two calls with one seed agree, two seeds do not."""
    first, again, other = (partition(LABELS, 5, seed) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("partition", [Dirichlet, DirichletByClass])
@pytest.mark.parametrize("alpha", [0, -1.0, float("nan")])
def test_alpha_is_checked_before_any_data_is_read(partition, alpha):
    """The constructor refuses, naming key and value."""
    with pytest.raises(ValueError, match=rf"data.partition.alpha is {alpha}, must be above 0"):
        partition(alpha)


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        (Dirichlet(0.1), "Dirichlet(alpha=0.1)"),
        (DirichletByClass(1.0, 5), "DirichletByClass(alpha=1.0, min_size=5)"),
        (Shards(2), "Shards(classes_per_client=2)"),
        (IID(), "IID()"),
    ],
)
def test_partitions_print_their_settings(partition, expected):
    """As they would be typed; long index lists of Fixed are left out."""
    assert repr(partition) == expected
    assert len(repr(Fixed([list(range(1000))]))) < 20


@pytest.mark.parametrize(
    "clients",
    [
        [[3, 1], [0], [2, 5, 7]],
        ((3, 1), (0,), (2, 5, 7)),
        [torch.tensor([3, 1]), torch.tensor([0]), torch.tensor([2, 5, 7])],
        [np.array([3, 1]), np.array([0]), np.array([2, 5, 7])],
    ],
)
def test_fixed_gives_the_lists_as_they_are(clients):
    """Order kept, whatever the seed; samples that no one names belong to nobody."""
    for seed in (0, 1):
        parts = Fixed(clients)(LABELS, 3, seed)
        assert [part.tolist() for part in parts] == [[3, 1], [0], [2, 5, 7]]
        assert all(part.dtype == torch.int64 for part in parts)


def test_fixed_reads_json(tmp_path):
    """A file of index lists gives what the lists give."""
    path = tmp_path / "clients.json"
    path.write_text(json.dumps([[3, 1], [], [2]]))
    assert [part.tolist() for part in Fixed(str(path))(LABELS, 3, 0)] == [[3, 1], [], [2]]


def test_fixed_wants_a_list_a_client():
    """Two lists for three clients: both keys and both numbers."""
    with pytest.raises(ValueError, match=r"data.num_clients is 3, data.partition.clients lists 2 clients"):
        Fixed([[0], [1]])(LABELS, 3, 0)


@pytest.mark.parametrize("index", [-1, 400, 10**9])
def test_fixed_names_indices_outside_the_data(index):
    """The index and the range."""
    with pytest.raises(ValueError, match=rf"data.partition.clients names sample {index}, must be between 0 and 399"):
        Fixed([[0, 1], [2, index]])(LABELS, 2, 0)


@pytest.mark.parametrize("clients", [[[0, 7], [7, 1]], [[7, 7], [1]]])
def test_fixed_names_a_sample_given_twice(clients):
    """To two clients, or twice to one."""
    with pytest.raises(ValueError, match=r"data.partition.clients names sample 7 more than once"):
        Fixed(clients)(LABELS, 2, 0)


def test_fixed_names_a_missing_file(tmp_path):
    """At construction, with key and path."""
    path = tmp_path / "none.json"
    with pytest.raises(FileNotFoundError, match=rf"data.partition.clients is {path}, which does not exist"):
        Fixed(str(path))


@pytest.mark.parametrize("text", ["", "[[0, 1], [2", "clients: 3", "\xff\xfe".encode("latin1").decode("latin1")])
def test_fixed_names_a_file_that_is_no_json(tmp_path, text):
    """Empty, cut off, another format, bytes that are no text: key, path and what to give."""
    path = tmp_path / "clients.json"
    path.write_bytes(text.encode("latin1"))
    with pytest.raises(ValueError, match=rf"data.partition.clients is {path}, which is no JSON .*list of index lists"):
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
