"""Test samples of each client: held out of its samples, or its part of the global test set."""

from itertools import chain, pairwise

import numpy as np
import pytest
import torch

from fl_lightning.data.shards import split_clients
from fl_lightning.functional import matched_parts


def split(sizes, val_fraction, test_fraction, seed=0):
    parts, labels = list(torch.arange(sum(sizes)).split(sizes)), torch.arange(sum(sizes)) % 3
    return parts, split_clients(parts, labels, 3, val_fraction, np.random.default_rng(seed), test_fraction)


def rows(flat, start):
    return [flat[first:last].tolist() for first, last in pairwise(start.tolist())]


def test_a_clients_samples_are_in_one_part_each():
    """Of 10 samples 5, 2 and 3; of 7 they are 7 - 2 - 3, 7 - int(5.6) and 7 - int(4.9)."""
    parts, shards = split([10, 7], 0.2, 0.3)
    held = [
        rows(*pair)
        for pair in zip(
            (shards.train, shards.validation, shards.test), (shards.train_start, shards.validation_start, shards.test_start)
        )
    ]
    assert [[len(row) for row in part] for part in held] == [[5, 2], [2, 2], [3, 3]]
    for client, part in enumerate(parts):
        assert sorted(chain.from_iterable(rows_of[client] for rows_of in held)) == part.tolist()


def test_label_counts_know_nothing_of_test_samples():
    """Losses go by them."""
    _, shards = split([10, 7], 0.2, 0.3)
    assert shards.label_counts.sum(dim=1).tolist() == [7, 4]


def test_without_a_fraction_nothing_is_held_out():
    _, shards = split([10, 7], 0.2, 0.0)
    assert shards.test.tolist() == []
    assert shards.test_start.tolist() == [0, 0, 0]
    assert shards.train_start.tolist() == [0, 8, 13]


@pytest.mark.parametrize(("val", "test", "kind"), [(0.0, 0.9, "training"), (0.4, 0.5, "training")])
def test_a_client_that_is_left_nothing_is_named(val, test, kind):
    with pytest.raises(ValueError) as error:
        split([10, 2], val, test)
    keys = ["data.val_fraction", "data.test_fraction"] if val else ["data.test_fraction"]
    given = " and ".join(f"{key} is {value}" for key, value in zip(keys, (val, test) if val else (test,)))
    assert str(error.value) == (
        f"{given}, which leaves client 1 of 2 samples without a {kind} sample: give it more samples or leave it out, lower "
        f"data.num_clients, choose a more even data.partition or set {' or '.join(keys)} to 0"
    )


def test_the_test_set_follows_what_clients_train_on():
    """30 : 10 : 0 of class 0 and 5 : 5 : 10 of class 1 deal 8 and 12 test samples out as 6, 2, 0 and 3, 3, 6."""
    labels = torch.tensor([0] * 8 + [1] * 12 + [2] * 5)
    parts = matched_parts(labels, [[30, 5, 0], [10, 5, 0], [0, 10, 0]], seed=1)
    counts = [labels[part].bincount(minlength=3).tolist() for part in parts]
    assert counts == [[6, 3, 0], [2, 3, 0], [0, 6, 0]]
    dealt = torch.cat(parts).tolist()
    assert len(set(dealt)) == len(dealt)


def test_a_small_client_may_have_no_test_sample():
    """One of 100 training samples, five test samples."""
    parts = matched_parts([0] * 5, [[1], [99]], seed=0)
    assert [len(part) for part in parts] == [0, 5]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"test_fraction": 1.0}, "data.test_fraction is 1.0, must be at least 0 and below 1: 0 holds out nothing"),
        (
            {"val_fraction": 0.5, "test_fraction": 0.5},
            "data.val_fraction is 0.5 and data.test_fraction is 0.5, must be below 1 together: the rest is trained on",
        ),
    ],
)
def test_fractions_out_of_range_are_refused(toy_data, settings, line):
    with pytest.raises(ValueError) as error:
        toy_data(**settings)
    assert str(error.value) == line


def test_a_federation_without_a_global_test_set_is_tested_on_clients_parts(toy_data):
    """The module has something to test then."""
    data = toy_data(test_inputs=None, test_targets=None, test_fraction=0.4)
    data.setup()
    assert not data.evaluation.has_test
    assert data.evaluation.names == ("test",)
    assert data.evaluation.client_tests.kind == "held_out"
    assert data.evaluation.client_samples("test", range(3))[2].bincount().tolist() == [2, 4, 6]
