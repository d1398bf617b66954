"""Splitting clients into training and validation parts: sizes, disjointness, label counts, errors."""

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.data.shards import _order_within, split_clients

PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)


def split(parts, labels, num_classes, val_fraction, seed=0):
    return split_clients(
        [torch.as_tensor(p) for p in parts], torch.as_tensor(labels), num_classes, val_fraction, np.random.default_rng(seed)
    )


@pytest.mark.parametrize("step", [0.1, 2.0**-53])
def test_samples_are_in_the_order_of_owner_and_draw(step):
    """``np.lexsort`` by both, also where draws are equal or differ by less than a key has bits for beside a million owners."""
    owner = np.repeat([0, 1, 5, 10**6 - 1], [3, 1, 4, 2])
    draws = np.array([2, 1, 2, 0, 3, 0, 1, 0, 1, 0]) * step
    assert _order_within(owner, 10**6, draws).tolist() == np.lexsort((draws, owner)).tolist()


def train_and_validation(shards, client):
    return shards.train_indices(client).tolist(), shards.validation_indices(client).tolist()


@PROPERTY
@given(st.lists(st.integers(2, 30), min_size=1, max_size=8), st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.5]), st.integers(0, 100))
def test_parts_are_disjoint_and_together_the_shard(sizes, val_fraction, seed):
    """Every client: training and validation share no sample, together they are what the client was given."""
    rng = np.random.default_rng(seed)
    parts = np.split(rng.permutation(300)[: sum(sizes)], np.cumsum(sizes)[:-1])
    shards = split(parts, rng.integers(0, 4, 300), 4, val_fraction, seed)
    for client, part in enumerate(parts):
        train, validation = train_and_validation(shards, client)
        assert sorted(train + validation) == sorted(part.tolist())
    assert len(shards.train) + len(shards.validation) == sum(sizes)


@pytest.mark.parametrize("percent", [0, 5, 10, 20, 25, 30, 50])
def test_training_size_is_the_whole_part_of_the_fraction(percent):
    """int((1 - v) * n) in exact arithmetic, (100 - p) * n // 100, for n = 20 ... 600: no off-by-one from .9 * n in floats."""
    sizes = list(range(20, 601, 7))
    parts = torch.arange(sum(sizes)).split(sizes)
    shards = split(parts, torch.zeros(sum(sizes), dtype=torch.long), 1, percent / 100)
    for client, size in enumerate(sizes):
        train, validation = train_and_validation(shards, client)
        expected = (100 - percent) * size // 100
        assert (len(train), len(validation)) == (expected, size - expected), size


def test_cifar_clients_have_450_and_50():
    """500 samples a client, a tenth for validation: 450 and 50."""
    shards = split(torch.arange(2000).split(500), torch.zeros(2000, dtype=torch.long), 1, 0.1)
    assert shards.train_start.tolist() == [0, 450, 900, 1350, 1800]
    assert shards.validation_start.tolist() == [0, 50, 100, 150, 200]


def test_label_counts_match_naive_loop():
    """train_label_counts over training samples, label_counts over training and validation; absent classes are 0."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 200)
    parts = np.split(rng.permutation(200), [20, 70, 90])
    shards = split(parts, labels, 7, 0.1)
    for client, part in enumerate(parts):
        train, _ = train_and_validation(shards, client)
        assert shards.train_label_counts[client].tolist() == [sum(labels[i] == c for i in train) for c in range(7)]
        assert shards.label_counts[client].tolist() == [sum(labels[i] == c for i in part) for c in range(7)]


def test_class_present_in_validation_only_is_counted():
    """One sample of class 1 among twenty: where it falls into the validation half it is in label_counts all the same."""
    labels = torch.zeros(20, dtype=torch.long)
    labels[3] = 1
    found = 0
    for seed in range(20):
        shards = split([torch.arange(20)], labels, 2, 0.5, seed)
        assert shards.label_counts.tolist() == [[19, 1]]
        found += shards.train_label_counts[0, 1].item() == 0
    # Half of the seeds, sd 2.2.
    assert 2 <= found <= 18


def test_split_is_random():
    """Every sample of a client of ten is the one validation sample about equally often: 1,000 / 10, sd 9.5, within 5 sd."""
    times = np.zeros(10)
    rng = np.random.default_rng(0)
    for _ in range(1000):
        times[split_clients([torch.arange(10)], torch.zeros(10, dtype=torch.long), 1, 0.1, rng).validation[0]] += 1
    assert abs(times - 100).max() < 48, times


def test_generator_alone_decides():
    """Same seed, same split; another seed, another; clients are not split alike."""
    parts, labels = torch.arange(100).split(50), torch.zeros(100, dtype=torch.long)
    first, again, other = (split(parts, labels, 1, 0.2, seed) for seed in (1, 1, 2))
    assert torch.equal(first.train, again.train)
    assert torch.equal(first.validation, again.validation)
    assert not torch.equal(first.validation, other.validation)
    assert first.validation_indices(0).sort().values.tolist() != (first.validation_indices(1) - 50).sort().values.tolist()


def test_no_validation_leaves_everything_to_training():
    """With 0 even a client of one sample is allowed, and no index is lost."""
    shards = split([[4], [2, 0]], torch.zeros(5, dtype=torch.long), 1, 0.0)
    assert shards.train_indices(0).tolist() == [4]
    assert sorted(shards.train_indices(1).tolist()) == [0, 2]
    assert len(shards.validation) == 0
    assert torch.equal(shards.label_counts, shards.train_label_counts)


@pytest.mark.parametrize(
    ("sizes", "val_fraction", "client", "kind"),
    [
        ([20, 1, 20], 0.1, 1, "training"),  # int(.9 * 1) = 0
        ([3, 1, 2], 0.5, 1, "training"),
    ],
)
def test_client_left_without_samples_is_named(sizes, val_fraction, client, kind):
    """Key, value, which client, how many samples it has, and what to change."""
    parts = torch.arange(sum(sizes)).split(sizes)
    message = (
        rf"data.val_fraction is {val_fraction}, which leaves client {client} of {sizes[client]} samples without a {kind} sample"
    )
    with pytest.raises(ValueError, match=message) as error:
        split(parts, torch.zeros(sum(sizes), dtype=torch.long), 1, val_fraction)
    assert "lower data.num_clients" in str(error.value)


@pytest.mark.parametrize("val_fraction", [0.0, 0.1])
def test_client_without_any_sample_is_named(val_fraction):
    """It is the partition that gave it nothing, whatever the validation fraction."""
    with pytest.raises(ValueError, match="data.partition gives client 2 no sample"):
        split(torch.arange(40).split([20, 20, 0]), torch.zeros(40, dtype=torch.long), 1, val_fraction)


def test_tiny_validation_fraction_still_validates():
    """int((1 - v) * n) rounds down, so a fraction of .001 leaves one validation sample to each client of any size."""
    shards = split(torch.arange(30).split(10), torch.zeros(30, dtype=torch.long), 1, 0.001)
    assert shards.validation_start.diff().tolist() == [1, 1, 1]


def test_100000_clients_take_seconds():
    """200,000 samples of 100,000 clients within 10 seconds; a pass over all samples a client would take hours."""
    parts = list(torch.arange(200000).split(2))
    start = time.perf_counter()
    shards = split(parts, torch.arange(200000) % 10, 10, 0.5)
    assert time.perf_counter() - start < 10
    assert shards.label_counts.shape == (100000, 10)
    assert (shards.label_counts.sum(dim=1) == 2).all()
