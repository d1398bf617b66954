"""The partition classes: settings handed on, natural clients, fixed index lists, and what is wrong with them."""

import numpy as np
import pytest
import torch

from fl_lightning.data import (
    IID,
    Classes,
    Dirichlet,
    DirichletByClass,
    Fixed,
    Natural,
    Partition,
    PowerLaw,
    Shards,
    partitions,
)
from fl_lightning.data.federated_split import FederatedSplit

LABELS = torch.arange(400) % 10


class Own(Partition):
    """One that a user wrote."""

    def __init__(self, clients):
        self.clients = clients

    def __call__(self, labels, num_clients, seed):
        return [torch.as_tensor(samples) for samples in self.clients]


def deal(partition, num_clients):
    return FederatedSplit(partition, num_clients, 0, 0).deal(LABELS, None)


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


def test_classes_gives_exactly_as_many():
    """10 classes of 40: 20 clients of 3 classes, 6 owners a class with 6 or 7 samples each; of 1 by default, 2 owners of 20."""
    parts = Classes(3)(LABELS, 20, 0)
    assert everything(parts) == list(range(400))
    assert {len(classes) for classes in owned_classes(parts)} == {3}
    assert {count for part in parts for count in LABELS[part].bincount().tolist()} == {0, 6, 7}
    parts = Classes()(LABELS, 20, 0)
    assert {(len(part), len(classes)) for part, classes in zip(parts, owned_classes(parts), strict=True)} == {(20, 1)}


def test_power_law_hands_its_settings_on():
    """4 owners a class, base 5, sigma 0: 5 + (40 - 4 * 5) / 4 = 10 samples of each of 2 classes; by default sizes differ."""
    assert {len(part) for part in PowerLaw(2, base=5, sigma=0.0)(LABELS, 20, 0)} == {20}
    parts = PowerLaw()(LABELS, 20, 0)
    assert {len(classes) for classes in owned_classes(parts)} == {2}
    assert len({len(part) for part in parts}) > 5


def test_natural_gives_the_owners_of_the_samples():
    """Owner i % 7 of sample i: all seven; of 57 and 58 samples each, the first with 58, 58 can be asked for."""
    owners = torch.arange(400) % 7
    parts = Natural().partition(LABELS, owners, 7, 0)
    assert [part.tolist() for part in parts] == [list(range(owner, 400, 7)) for owner in range(7)]
    parts = Natural(min_samples=58).partition(LABELS, owners, 1, 0)
    assert parts[0].tolist() == list(range(0, 400, 7))
    with pytest.raises(ValueError, match=r"data.num_clients is 2, must be between 1 and 1: .*min_samples, 58,"):
        Natural(min_samples=58).partition(LABELS, owners, 2, 0)


def test_natural_wants_natural_clients():
    """A source without them: what to do."""
    with pytest.raises(ValueError, match=r"data.partition is Natural, but data.source has no natural clients: use leaf, a CSV"):
        Natural().partition(LABELS, None, 5, 0)


def test_every_partition_is_exported():
    """All of __all__ come with fl_lightning.data, and every partition is in it."""
    import fl_lightning.data

    made = {
        name for name, value in vars(partitions).items() if isinstance(value, type) and issubclass(value, partitions.Partition)
    }
    assert made == set(partitions.__all__)
    assert made <= set(fl_lightning.data.__all__)


@pytest.mark.parametrize(
    "partition", [Dirichlet(0.5), DirichletByClass(0.5), Shards(2), IID(), Classes(2), PowerLaw(), Natural()], ids=repr
)
def test_seed_is_handed_on(partition):
    """Two calls with one seed agree, two seeds do not."""
    labels = torch.arange(400) % 100 if isinstance(partition, Natural) else LABELS
    first, again, other = (partition(labels, 5, seed) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("partition", [Dirichlet, DirichletByClass])
@pytest.mark.parametrize("alpha", [0, -1.0, float("nan")])
def test_alpha_is_checked_before_any_data_is_read(partition, alpha):
    """The constructor refuses, naming key and value."""
    with pytest.raises(ValueError, match=rf"data.partition.alpha is {alpha}, must be above 0"):
        partition(alpha)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Shards(0), "data.partition.classes_per_client is 0, must be at least 1"),
        (lambda: Classes(0), "data.partition.classes_per_client is 0, must be at least 1"),
        (lambda: PowerLaw(-1), "data.partition.classes_per_client is -1, must be at least 1"),
        (lambda: PowerLaw(base=0), "data.partition.base is 0, must be at least 1"),
        (lambda: PowerLaw(sigma=-0.1), "data.partition.sigma is -0.1, must be at least 0"),
        (lambda: PowerLaw(sigma=float("nan")), "data.partition.sigma is nan, must be at least 0"),
        (lambda: PowerLaw(sigma=float("inf")), "data.partition.sigma is inf, must be at least 0"),
        (lambda: Natural(min_samples=0), "data.partition.min_samples is 0, must be at least 1"),
    ],
)
def test_settings_are_checked_before_any_data_is_read(build, message):
    """Key, value and what is allowed."""
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        (Dirichlet(0.1), "Dirichlet(alpha=0.1)"),
        (DirichletByClass(1.0, 5), "DirichletByClass(alpha=1.0, min_size=5)"),
        (Shards(2), "Shards(classes_per_client=2)"),
        (IID(), "IID()"),
        (Classes(3), "Classes(classes_per_client=3)"),
        (PowerLaw(1), "PowerLaw(classes_per_client=1, base=1, sigma=2.0)"),
        (Natural(5), "Natural(min_samples=5)"),
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


def test_fixed_wants_a_list_a_client():
    """Two lists for three clients: both keys and both numbers."""
    with pytest.raises(ValueError, match=r"data.num_clients is 3, data.partition Fixed lists 2 clients: make them equal"):
        deal(Fixed([[0], [1]]), 3)


@pytest.mark.parametrize("index", [-1, 400, 10**9])
def test_fixed_names_indices_outside_the_data(index):
    """The index and the range."""
    for partition in (Fixed([[0, 1], [2, index]]), Own([[0, 1], [2, index]])):
        kind = type(partition).__name__
        with pytest.raises(ValueError, match=rf"data.partition {kind} names sample {index}, must be between 0 and 399"):
            deal(partition, 2)


@pytest.mark.parametrize("index", [2**63, -(10**30)])
def test_fixed_names_indices_that_no_integer_holds(index):
    """Beyond 64 bits: one line that says whose fault it is."""
    with pytest.raises(ValueError, match=r"data.partition.clients holds something that is not a list of sample indices"):
        Fixed([[0, 1], [index]])(LABELS, 2, 0)


@pytest.mark.parametrize("clients", [[[0, 7], [7, 1]], [[7, 7], [1]]])
def test_fixed_names_a_sample_given_twice(clients):
    """To two clients, or twice to one."""
    for partition in (Fixed(clients), Own(clients)):
        with pytest.raises(ValueError, match=rf"data.partition {type(partition).__name__} names sample 7 more than once"):
            deal(partition, 2)


@pytest.mark.parametrize("num_clients", [1, 3])
def test_a_partition_of_a_user_has_a_list_a_client(num_clients):
    """More and fewer lists than clients: both numbers and the class."""
    with pytest.raises(ValueError, match=rf"data.num_clients is {num_clients}, data.partition Own lists 2 clients: make"):
        deal(Own([[0], [1]]), num_clients)


@pytest.mark.parametrize(
    "clients",
    [
        [[0, 1.7], [3]],
        [np.array([0, 1.7]), np.array([3.0])],
        [np.eye(2)[0] > 0, np.eye(2)[1] > 0],
        [[[0]], [[1]]],
    ],
    ids=["fractions", "arrays of fractions", "masks", "lists of lists"],
)
def test_samples_are_whole_numbers(clients):
    """Neither cut off nor taken for numbers."""
    for partition in (Fixed(clients), Own(clients)):
        with pytest.raises(ValueError, match=r"names samples as (float|bool|int).* of shape .*, must be whole numbers \(n,\)"):
            deal(partition, 2)
