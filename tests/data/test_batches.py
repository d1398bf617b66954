"""Which samples a step sees, against a plain loop over one client in Python's integers."""

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fl_lightning.data import RandomCrop, RandomHorizontalFlip, from_arrays
from fl_lightning.data.batches import Visits
from fl_lightning.streams import stream_seed

CPU = torch.device("cpu")


def plain_batches(splitmix64, seed, round, client, size, batch_size, steps):
    """One client's batches of places in its shard: epoch after epoch in an order drawn anew, the short batch kept."""
    key, batches, epoch = stream_seed(seed, round, client, "batch order"), [], 0
    while len(batches) < steps:
        drawn = [splitmix64(key, (epoch << 32) + place) >> 1 for place in range(size)]
        order = sorted(range(size), key=drawn.__getitem__)
        batches += [order[first : first + batch_size] for first in range(0, size, batch_size)]
        epoch += 1
    return batches[:steps]


@st.composite
def visits(draw):
    """Up to 5 clients of 1 to 9 samples, 1 to 8 steps in descending order, batches of 1 to 5 or whole shards."""
    count = draw(st.integers(1, 5))
    sizes = draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    return Visits(
        seed=draw(st.integers(0, 3)),
        round=draw(st.integers(1, 1000)),
        clients=draw(st.lists(st.integers(0, 10**6), min_size=count, max_size=count, unique=True)),
        starts=[100 * row for row in range(count)],
        sizes=sizes,
        steps=sorted(draw(st.lists(st.integers(1, 8), min_size=count, max_size=count)), reverse=True),
        batch_size=draw(st.one_of(st.none(), st.integers(1, 5))),
        device=CPU,
    )


def real_places(step, row, start):
    """The places in its shard that a client's step sees, without the samples that only fill up."""
    counts = torch.ones_like(step.indices[row], dtype=torch.bool) if step.real is None else step.real[row]
    return (step.indices[row][counts] - start).tolist()


@given(visits(), st.booleans())
def test_batches_are_those_of_a_plain_loop(splitmix64, visit, full):
    """For every client of every step, ragged shards and visits of several lengths included."""
    batch_sizes = [visit.batch_size or size for size in visit.sizes]
    expected = [
        plain_batches(splitmix64, visit.seed, visit.round, client, size, batch_size, steps)
        for client, size, batch_size, steps in zip(visit.clients, visit.sizes, batch_sizes, visit.steps)
    ]
    plan = list(visit.plan(full))
    assert len(plan) == visit.steps[0]
    for number, step in enumerate(plan):
        assert len(step.indices) == sum(steps > number for steps in visit.steps)
        for row in range(len(step.indices)):
            assert real_places(step, row, visit.starts[row]) == expected[row][number]


@given(visits(), st.booleans())
def test_batches_are_filled_up_with_samples_of_the_same_client(visit, full):
    """To the longest batch of the step, without a mask where there is no need; or to the batch size, always with one."""
    for step in visit.plan(full):
        active, width = step.indices.shape
        start, size = torch.tensor(visit.starts[:active])[:, None], torch.tensor(visit.sizes[:active])[:, None]
        assert ((step.indices >= start) & (step.indices < start + size)).all()
        if step.real is not None:
            assert step.real.shape == step.draw_counters.shape == step.indices.shape
            assert step.real.any(dim=1).all()
        if full:
            assert step.real is not None
            assert width == max(visit.batch_size or size for size in visit.sizes[:active])
        elif step.real is not None:
            assert not step.real.all()
            assert step.real.all(dim=1).any()


@given(visits(), st.booleans())
def test_a_clients_steps_do_not_depend_on_who_is_beside_it(visit, full):
    """Alone and not filled up: the same samples, and the same places in its stream of draws."""
    together = list(visit.plan(full))
    for row in range(len(visit.clients)):
        one = slice(row, row + 1)
        shard = visit.clients[one], visit.starts[one], visit.sizes[one]
        alone = Visits(visit.seed, visit.round, *shard, visit.steps[one], visit.batch_size, CPU)
        for step, own in zip(together, alone.plan()):
            assert own.real is None
            count = own.indices.shape[1]
            assert torch.equal(step.indices[row, :count], own.indices[0])
            assert torch.equal(step.draw_counters[row, :count], own.draw_counters[0])


@given(visits())
def test_every_epoch_is_a_permutation_of_the_shard(visit):
    """Each sample exactly once in each epoch that a visit completes; no place of the stream of draws is used twice."""
    plan = list(visit.plan())
    for row, (size, steps) in enumerate(zip(visit.sizes, visit.steps)):
        per_epoch = -(-size // (visit.batch_size or size))
        places = [real_places(step, row, visit.starts[row]) for step in plan[:steps]]
        for first in range(0, steps - per_epoch + 1, per_epoch):
            assert sorted(chain(*places[first : first + per_epoch])) == list(range(size))
        counters = list(chain(*(step.draw_counters[row][: len(own)].tolist() for step, own in zip(plan, places))))
        assert len(set(counters)) == len(counters)


def test_orders_differ_between_epochs_rounds_clients_and_seeds():
    """Of 40 samples there are 8e47 orders."""
    orders = set()
    for seed, round, client in ((0, 1, 0), (1, 1, 0), (0, 2, 0), (0, 1, 1)):
        visit = Visits(seed, round, [client], [0], [40], [2], None, CPU)
        orders |= {tuple(step.indices[0].tolist()) for step in visit.plan()}
    assert len(orders) == 8


def test_every_order_is_equally_likely():
    """3 samples, 6,000 clients: each of 6 orders 1,000 times with sd 29, within 5 sd."""
    step = next(iter(Visits(0, 1, range(6000), [0] * 6000, [3] * 6000, [1] * 6000, None, CPU).plan()))
    _, counts = torch.unique(step.indices, dim=0, return_counts=True)
    assert len(counts) == 6
    assert all(abs(count - 1000) < 5 * 29 for count in counts.tolist()), counts


# Through the data module ----------------------------------------------------------------------------------------------

SIZES = [5, 2, 9, 1]


def images(**settings):
    """Four clients of 5, 2, 9 and 1 uint8 images of 3x4, no two pixels of an image alike, labels by number."""
    count = sum(SIZES)
    pixels = (torch.arange(2 * 12).reshape(2, 3, 4) * 7 + 11 * torch.arange(count)[:, None, None, None]) % 256
    shards = [part.tolist() for part in torch.arange(count).split(SIZES)]
    scale = {"mean": [0.0], "std": [1 / 255]}  # the net sees stored values
    data = from_arrays(pixels.to(torch.uint8), torch.arange(count), shards, **{"batch_size": 4, **scale, **settings})
    data.setup()
    return data


def test_stacked_batches_are_those_of_each_client():
    """Inputs, targets and masks of clients side by side, of 6, 6, 3 and 1 steps: rows of one are what it gets alone."""
    clients, steps = [2, 0, 3, 1], [6, 6, 3, 1]
    for settings in ({}, {"augment": [RandomCrop(1), RandomHorizontalFlip()]}, {"batch_size": None}):
        data = images(**settings)
        alone = [list(data.batches(client, 3, count)) for client, count in zip(clients, steps)]
        for full in (False, True):
            for number, batch in enumerate(data.stacked_batches(clients, 3, steps, full)):
                assert len(batch.targets) == sum(count > number for count in steps)
                for row in range(len(batch.targets)):
                    own = alone[row][number]
                    count = len(own.targets)
                    real = torch.ones(batch.targets.shape[1], dtype=torch.bool) if batch.real is None else batch.real[row]
                    assert real.tolist() == [True] * count + [False] * (len(real) - count)
                    assert torch.equal(batch.targets[row][real], own.targets)
                    torch.testing.assert_close(batch.inputs[row][real], own.inputs, atol=0, rtol=0)


def test_full_batches_of_one_client_have_one_shape():
    """5 samples in batches of 4: 4 and 1, or 4 and 1 with three that do not count."""
    plain, full = list(images().batches(0, 1, 4)), list(images().batches(0, 1, 4, full=True))
    assert [len(batch.targets) for batch in plain] == [4, 1, 4, 1]
    assert all(batch.real is None for batch in plain)
    assert [tuple(batch.inputs.shape) for batch in full] == [(4, 2, 3, 4)] * 4
    assert [batch.real.tolist() for batch in full] == [[True] * 4, [True, False, False, False]] * 2


def test_augmentation_draws_are_those_of_a_plain_loop(splitmix64):
    """The sample at place p of its visit is cropped and mirrored by draws 3 p, 3 p + 1 and 3 p + 2 of its client's stream."""
    data, padding = images(augment=[RandomCrop(1), RandomHorizontalFlip()], seed=4), 1
    for client in (0, 2):
        key = stream_seed(4, 2, client, "augmentation")
        for step, batch in enumerate(data.batches(client, 2, 5)):
            for slot, (image, label) in enumerate(zip(batch.inputs, batch.targets.tolist())):
                draws = [splitmix64(key, 3 * (4 * step + slot) + number) >> 1 for number in range(3)]
                top, left, flip = draws[0] % 3, draws[1] % 3, draws[2] % 2
                stored, expected = data.train_set.inputs[label].tolist(), torch.zeros(2, 3, 4)
                for channel, row, column in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(4)).tolist():
                    y, x = row + top - padding, column + left - padding
                    if 0 <= y < 3 and 0 <= x < 4:
                        expected[channel, row, 3 - column if flip else column] = stored[channel][y][x]
                torch.testing.assert_close(image, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("full", [False, True])
def test_batches_can_be_asked_for_again(full):
    """The same at every call, whatever else was drawn in between."""
    data = images(augment=[RandomCrop(1)])
    first = list(data.batches(2, 1, 5, full))
    torch.rand(3)
    list(data.batches(0, 1, 5, full))
    again = list(data.batches(2, 1, 5, full))
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.targets, other.targets)
