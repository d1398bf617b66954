"""Which samples a step sees, against a plain loop over one client in Python's integers."""

from itertools import chain
from math import comb

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fl_lightning.data import RandomCrop, RandomHorizontalFlip, batch_plan, from_arrays
from fl_lightning.data.batch_plan import Visits
from fl_lightning.functional.random_streams import stream_seed

CPU = torch.device("cpu")


def plain_batches(splitmix64, seed, round, client, size, batch_size, steps):
    """One client's batches of positions in its shard: epoch after epoch in an order drawn anew, the short batch kept."""
    key, batches, epoch = stream_seed(seed, round, client, "batch order"), [], 0
    while len(batches) < steps:
        drawn = [splitmix64(key, (epoch << 32) + position) >> 1 for position in range(size)]
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


def sample_indices(step, row, start):
    """The positions in its shard that a client's step sees, without the samples that only fill up."""
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
            assert sample_indices(step, row, visit.starts[row]) == expected[row][number]


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
def test_a_clients_steps_do_not_depend_on_who_else_is_there(visit, full):
    """Alone and not filled up: the same samples, and the same counters in its stream of draws."""
    together = list(visit.plan(full))
    for row in range(len(visit.clients)):
        one = slice(row, row + 1)
        shard = visit.clients[one], visit.starts[one], visit.sizes[one]
        alone = Visits(visit.seed, visit.round, *shard, visit.steps[one], visit.batch_size, CPU)
        for step, single in zip(together, alone.plan()):
            assert single.real is None
            count = single.indices.shape[1]
            assert torch.equal(step.indices[row, :count], single.indices[0])
            assert torch.equal(step.draw_counters[row, :count], single.draw_counters[0])


@given(visits())
def test_every_epoch_is_a_permutation_of_the_shard(visit):
    """Each sample exactly once in each epoch that a visit completes; no number of the stream of draws is used twice."""
    plan = list(visit.plan())
    for row, (size, steps) in enumerate(zip(visit.sizes, visit.steps)):
        per_epoch = -(-size // (visit.batch_size or size))
        positions = [sample_indices(step, row, visit.starts[row]) for step in plan[:steps]]
        for first in range(0, steps - per_epoch + 1, per_epoch):
            assert sorted(chain(*positions[first : first + per_epoch])) == list(range(size))
        counters = list(chain(*(step.draw_counters[row][: len(single)].tolist() for step, single in zip(plan, positions))))
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
        alone = [list(data.client_batches().batches(client, 3, count)) for client, count in zip(clients, steps)]
        for full in (False, True):
            for number, batch in enumerate(data.client_batches().stacked_batches(clients, 3, steps, full)):
                assert len(batch.targets) == sum(count > number for count in steps)
                for row in range(len(batch.targets)):
                    single = alone[row][number]
                    count = len(single.targets)
                    real = torch.ones(batch.targets.shape[1], dtype=torch.bool) if batch.real is None else batch.real[row]
                    assert real.tolist() == [True] * count + [False] * (len(real) - count)
                    assert torch.equal(batch.targets[row][real], single.targets)
                    torch.testing.assert_close(batch.inputs[row][real], single.inputs, atol=0, rtol=0)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    "settings",
    [{}, {"augment": [RandomCrop(1), RandomHorizontalFlip()]}, {"batch_size": None}, {"storage": "stream", "num_workers": 0}],
)
def test_planned_steps_are_read_as_the_batches_that_they_stand_for(settings, full):
    """All parts of all batches of clients with 6, 1, 3 and 6 steps, in the order in which they are asked for."""
    served, clients, steps = images(**settings).client_batches(sample_indices=True), [2, 3, 0, 1], [6, 1, 3, 6]
    for client, count, planned in zip(clients, steps, served.planned(clients, 3, steps, full), strict=True):
        for step, batch in zip(planned, served.batches(client, 3, count, full), strict=True):
            for part, expected in zip(served.read(step), batch, strict=True):
                assert part is expected is None or torch.equal(part, expected)


def test_full_batches_of_one_client_have_one_shape():
    """5 samples in batches of 4: 4 and 1, or 4 and 1 with three that do not count."""
    plain, full = list(images().client_batches().batches(0, 1, 4)), list(images().client_batches().batches(0, 1, 4, full=True))
    assert [len(batch.targets) for batch in plain] == [4, 1, 4, 1]
    assert all(batch.real is None for batch in plain)
    assert [tuple(batch.inputs.shape) for batch in full] == [(4, 2, 3, 4)] * 4
    assert [batch.real.tolist() for batch in full] == [[True] * 4, [True, False, False, False]] * 2


def test_augmentation_draws_are_those_of_a_plain_loop(splitmix64):
    """A sample at position p of its visit is cropped and mirrored by draws 3 p to 3 p + 2 of its client's stream."""
    data, padding = images(augment=[RandomCrop(1), RandomHorizontalFlip()], seed=4), 1
    for client in (0, 2):
        key = stream_seed(4, 2, client, "augmentation")
        for step, batch in enumerate(data.client_batches().batches(client, 2, 5)):
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
    first = list(data.client_batches().batches(2, 1, 5, full))
    torch.rand(3)
    list(data.client_batches().batches(0, 1, 5, full))
    again = list(data.client_batches().batches(2, 1, 5, full))
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.targets, other.targets)


# Poisson batches ------------------------------------------------------------------------------------------------------


def test_poisson_batches_are_those_of_a_plain_loop(splitmix64):
    """Sample i is in step s if draw ``s n + i`` of its client's stream, in [0, 1), is below B / n; its counter is that."""
    visit = Visits(2, 5, [7], [100], [6], [9], 4, CPU, "Poisson batches")
    key = stream_seed(2, 5, 7, "Poisson batches")
    for number, step in enumerate(visit.poisson_plan()):
        expected = [i for i in range(6) if (splitmix64(key, 6 * number + i) >> 11) / 2**53 < 4 / 6]
        assert step.indices.tolist() == [[100 + i for i in expected]]
        assert step.draw_counters.tolist() == [[6 * number + i for i in expected]]
        assert step.real is None


def test_every_sample_is_in_every_poisson_batch_by_a_coin_of_its_own():
    """10,000 steps of 8 samples, rate 3 / 8: shares of samples, of pairs, of neighbouring steps and of sizes, to 5 sd."""
    steps, size, q = 10_000, 8, 3 / 8
    there = torch.zeros(steps, size, dtype=torch.float64)
    for row, step in enumerate(Visits(0, 1, [3], [0], [size], [steps], 3, CPU, "Poisson batches").poisson_plan()):
        there[row, step.indices[0]] = 1
    bound = 5 / steps**0.5
    assert (there.mean(dim=0) - q).abs().max() < bound * (q * (1 - q)) ** 0.5
    pairs = there.T @ there / steps
    assert (pairs - q**2).fill_diagonal_(0).abs().max() < bound * (q**2 * (1 - q**2)) ** 0.5
    follow = there[1:].T @ there[:-1] / (steps - 1)
    assert (follow - q**2).abs().max() < bound * (q**2 * (1 - q**2)) ** 0.5
    sizes = there.sum(dim=1)
    for count in range(size + 1):
        expected = comb(size, count) * q**count * (1 - q) ** (size - count)
        assert abs(float((sizes == count).double().mean()) - expected) < bound * (expected * (1 - expected)) ** 0.5, count


@pytest.mark.parametrize("batch_size", [None, 6, 9])
def test_a_rate_of_1_is_everybody(batch_size):
    """Whole shards, and batches that are larger."""
    for step in Visits(0, 1, [3], [10], [6], [50], batch_size, CPU, "Poisson batches").poisson_plan():
        assert step.indices.tolist() == [list(range(10, 16))]


def test_poisson_batches_differ_between_rounds_clients_and_seeds():
    """Of 40 samples there are 1e12 sets."""
    seen = set()
    for seed, round, client in ((0, 1, 0), (1, 1, 0), (0, 2, 0), (0, 1, 1)):
        plan = Visits(seed, round, [client], [0], [40], [2], 20, CPU, "Poisson batches").poisson_plan()
        seen |= {tuple(step.indices[0].tolist()) for step in plan}
    assert len(seen) == 8


@pytest.mark.parametrize("settings", [{}, {"augment": [RandomCrop(1), RandomHorizontalFlip()]}, {"storage": "stream"}])
def test_poisson_batches_can_be_asked_for_again(settings):
    """The same at every call, empty ones among them; passes in an order of another name are whole as ever."""
    data = images(batch_size=1, num_workers=0, **settings)
    served = data.client_batches(poisson=True)
    first, again = list(served.batches(0, 1, 20)), list(served.batches(0, 1, 20))
    assert len({len(batch.targets) for batch in first}) >= 3
    assert any(len(batch.targets) == 0 for batch in first)
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.targets, other.targets)
        assert one.inputs.shape == (len(one.targets), 2, 3, 4)
        assert one.real is None
    labels = [batch.targets.tolist() for batch in served.epoch(2, 1, "pseudo data")]
    assert sorted(chain(*labels)) == list(range(7, 16))


# Sample indices -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", ["device", "stream"])
@pytest.mark.parametrize("poisson", [False, True])
def test_sample_indices_name_the_samples(storage, poisson):
    """Labels are numbers of samples: those that the client's shard has at these indices."""
    data = images(storage=storage, num_workers=0)
    served = data.client_batches(sample_indices=True, poisson=poisson)
    for client in range(4):
        shard = data.shards.train_indices(client)
        for full in (False, True):
            for batch in served.batches(client, 2, 5, full and not poisson):
                assert batch.sample_indices.shape == batch.targets.shape
                assert torch.equal(shard[batch.sample_indices], batch.targets)
        rows = list(served.epoch(client, 2, "pseudo data"))
        assert all(torch.equal(shard[batch.sample_indices], batch.targets) for batch in rows)
        assert sorted(chain(*(batch.sample_indices[batch.real].tolist() for batch in rows))) == list(range(SIZES[client]))


@pytest.mark.parametrize("storage", ["device", "stream"])
@pytest.mark.parametrize("full", [False, True])
def test_sample_indices_of_stacked_batches_name_the_samples(storage, full):
    """Side by side, clients that are done leaving the stack, short batches filled up with samples of the same client."""
    data, clients = images(storage=storage, num_workers=0), [2, 0, 3, 1]
    served = data.client_batches(sample_indices=True)
    for batch in served.stacked_batches(clients, 3, [6, 6, 3, 1], full):
        for client, indices, targets in zip(clients, batch.sample_indices, batch.targets):
            assert torch.equal(data.shards.train_indices(client)[indices], targets)


def test_sample_indices_are_left_out_where_nobody_asks():
    assert all(batch.sample_indices is None for batch in images().client_batches().batches(0, 1, 3))


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("together", [1, 14, 1 << 16])
def test_a_client_has_the_steps_that_it_has_among_others(together, full, monkeypatch):
    """However many of its epochs are drawn at once: seven samples, batches of three, a visit that ends within an epoch."""
    monkeypatch.setattr(batch_plan, "_DRAWN_TOGETHER", together)
    common = {"seed": 1, "round": 2, "batch_size": 3, "device": CPU}
    alone = Visits(clients=[5], starts=[10], sizes=[7], steps=[8], **common)
    among = Visits(clients=[5, 6], starts=[10, 30], sizes=[7, 7], steps=[8, 8], **common)
    steps = list(alone.plan(full))
    assert len(steps) == 8
    for one, two in zip(steps, among.plan(full), strict=True):
        assert torch.equal(one.indices, two.indices[:1])
        assert torch.equal(one.draw_counters, two.draw_counters[:1])
        assert (one.real is None) == (two.real is None)
        assert one.real is None or torch.equal(one.real, two.real[:1])
