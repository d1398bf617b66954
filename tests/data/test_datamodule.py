"""The data module: cohorts, batches, normalisation, splits, loaders and what its constructor refuses."""

import gc
import inspect
import math
import re
import tracemalloc
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as vision
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.data import (
    IID,
    Arrays,
    Classes,
    Dirichlet,
    FederatedDataModule,
    Fixed,
    Natural,
    PowerLaw,
    RandomCrop,
    RandomHorizontalFlip,
    Shards,
    from_arrays,
)
from fl_lightning.data.class_stream import ClassStream
from fl_lightning.data.datamodule import test_is_due as is_due
from fl_lightning.data.loaders import EvaluationBatches
from fl_lightning.functional import dirichlet_partition
from fl_lightning.functional.random_streams import stream_seed
from fl_lightning.protocol import Batch
from fl_lightning.report.partition import report_partition

PROPERTY = settings(max_examples=40, deadline=None, derandomize=True)


def numbered(sizes=(7, 4, 12), **settings):
    """Clients of the given sizes; sample i is the number i, so that a batch tells which samples it holds."""
    clients = [part.tolist() for part in torch.arange(sum(sizes)).split(list(sizes))]
    data = from_arrays(torch.arange(sum(sizes)).float()[:, None], torch.arange(sum(sizes)) % 3, clients, **settings)
    data.setup()
    return data


def image_data(count=40, shape=(3, 6, 5), seed=0, **settings):
    """Four clients with random uint8 images."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, *shape), generator=generator, dtype=torch.uint8)
    data = from_arrays(images, torch.arange(count) // 4, [list(range(i, count, 4)) for i in range(4)], **settings)
    data.setup()
    return data


def numbers(batches):
    """The samples of each batch of ``numbered``."""
    return [batch.inputs[:, 0].long().tolist() for batch in batches]


# Cohorts


def test_cohort_is_a_function_of_seed_and_round():
    """Modules of one seed agree on every round, in any order of asking and before setup; another seed or round differs."""
    first, second = (FederatedDataModule(num_clients=50, clients_per_round=8, seed=3) for _ in range(2))
    forward = [first.cohort(round) for round in range(1, 30)]
    torch.manual_seed(9)
    np.random.seed(9)
    backward = [second.cohort(round) for round in reversed(range(1, 30))][::-1]
    assert forward == backward
    assert len(set(map(tuple, forward))) == 29
    other = FederatedDataModule(num_clients=50, clients_per_round=8, seed=4)
    assert [other.cohort(round) for round in range(1, 30)] != forward


def test_cohort_does_not_depend_on_the_data():
    """Partition, batch size and source leave the cohorts of a seed alone."""
    plain = FederatedDataModule(num_clients=50, clients_per_round=8)
    changed = FederatedDataModule(
        Arrays(torch.zeros(100, 2), torch.zeros(100, dtype=torch.int64)),
        num_clients=50,
        clients_per_round=8,
        batch_size=3,
        partition=IID(),
    )
    changed.setup()
    assert [plain.cohort(round) for round in range(1, 10)] == [changed.cohort(round) for round in range(1, 10)]


@PROPERTY
@given(st.integers(1, 200), st.data(), st.integers(0, 10**6))
def test_cohort_is_ascending_without_repetition(num_clients, data, round):
    """A count takes that many distinct clients, in ascending order, as plain integers."""
    count = data.draw(st.integers(1, num_clients))
    cohort = FederatedDataModule(num_clients=num_clients, clients_per_round=count).cohort(round)
    assert len(cohort) == count
    assert cohort == sorted(set(cohort))
    assert set(cohort) <= set(range(num_clients))
    assert all(type(client) is int for client in cohort)


@pytest.mark.parametrize(
    ("clients_per_round", "num_clients", "size"),
    [
        (10, 100, 10),
        (1, 100, 1),
        (0.1, 100, 10),
        (1.0, 100, 100),
        (0.29, 100, 29),
        (0.07, 100, 7),
        (np.float32(0.1), 100, 10),
        (0.001, 100, 1),
        (0.5, 3, 1),
    ],
)
def test_cohort_size(clients_per_round, num_clients, size):
    """A whole number is a count; a fraction C gives max(floor(C N), 1), .29 * 100 = 29 in spite of floating point."""
    data = FederatedDataModule(num_clients=num_clients, clients_per_round=clients_per_round)
    assert data.participation.size == size
    assert len(data.cohort(1)) == size


def test_clients_are_drawn_evenly():
    """5 of 20 over 800 rounds: each client 200 times, sd sqrt(800 * .25 * .75) = 12.2, within 5 sd."""
    data = FederatedDataModule(num_clients=20, clients_per_round=5)
    counts = Counter(client for round in range(1, 801) for client in data.cohort(round))
    assert all(abs(counts[client] - 200) < 61 for client in range(20)), counts


def test_cohort_cost_does_not_grow_with_the_population():
    """10 of 100,000 clients: no array of the population's size (800 kB) is made, and 10 of 100 needs as much within 20 kB."""

    def peak(num_clients):
        data = FederatedDataModule(num_clients=num_clients, clients_per_round=10)
        data.cohort(1)
        tracemalloc.start()
        data.cohort(2)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    assert peak(100_000) < peak(100) + 20_000


def test_given_cohorts_are_used():
    """Round r trains the r-th list, and a round beyond the last names key, rounds and cure."""
    data = numbered(cohorts=[[0, 2], [1]])
    assert [data.cohort(1), data.cohort(2)] == [[0, 2], [1]]
    with pytest.raises(ValueError, match=r"data.cohorts names 2 rounds, but round 3 is needed: lower trainer.max_steps"):
        data.cohort(3)


def test_given_cohorts_come_in_ascending_order():
    """Cohorts are ascending, however they were typed."""
    assert numbered(cohorts=[[2, 0, 1]]).cohort(1) == [0, 1, 2]


def test_rounds_count_from_one():
    """There is no round 0, neither first nor last of the given cohorts."""
    with pytest.raises(ValueError, match="round"):
        numbered(cohorts=[[0, 2], [1]]).cohort(0)


# Batches


@PROPERTY
@given(st.lists(st.integers(1, 20), min_size=1, max_size=4), st.integers(1, 25), st.integers(1, 9), st.integers(1, 3))
def test_every_epoch_covers_the_shard_exactly_once(sizes, batch_size, round, epochs):
    """ceil(n / B) batches an epoch: all of size B but the last, which holds the rest; together the shard, each sample once."""
    data = numbered(sizes, batch_size=batch_size)
    for client, size in enumerate(sizes):
        steps = math.ceil(size / batch_size)
        assert data.steps_per_epoch(client) == steps
        batches = numbers(data.client_batches().batches(client, round, epochs * steps))
        assert [len(batch) for batch in batches] == ([batch_size] * (steps - 1) + [size - batch_size * (steps - 1)]) * epochs
        for epoch in range(epochs):
            seen = [sample for batch in batches[epoch * steps : (epoch + 1) * steps] for sample in batch]
            assert sorted(seen) == sorted(data.shards.train_indices(client).tolist())


def test_targets_belong_to_their_inputs():
    """Sample i has target i % 3 in every batch, and validation samples are never trained on."""
    data = numbered((30, 20), batch_size=7, val_fraction=0.1)
    for client in range(2):
        held_out = set(data.shards.validation_indices(client).tolist())
        for batch in data.client_batches().batches(client, 1, 12):
            samples = batch.inputs[:, 0].long()
            assert torch.equal(batch.targets, samples % 3)
            assert not held_out & set(samples.tolist())


@pytest.mark.parametrize(
    "key", ["num_clients", "clients_per_round", "batch_size", "eval_batch_size", "public_size", "num_workers", "monitor_test"]
)
@pytest.mark.parametrize(("value", "shown"), [([8], "[8]"), ("8", "'8'")])
def test_what_is_no_whole_number_is_refused(key, value, shown):
    with pytest.raises(ValueError, match=rf"^data\.{key} is {re.escape(shown)}, must be a whole number"):
        FederatedDataModule(**{key: value})


@pytest.mark.parametrize("batch_size", [None, 12, 100])
def test_whole_shard_as_one_batch(batch_size):
    """batch_size None, or one no smaller than the shard: one batch an epoch, with all samples."""
    data = numbered((12, 3), batch_size=batch_size)
    assert (data.steps_per_epoch(0), data.steps_per_epoch(1)) == (1, 1)
    batches = numbers(data.client_batches().batches(0, 1, 3))
    assert [sorted(batch) for batch in batches] == [list(range(12))] * 3


def test_epochs_are_shuffled_anew():
    """The second epoch of a visit has another order than the first, neither is the stored one."""
    first, second = numbers(numbered((12,), batch_size=None).client_batches().batches(0, 1, 2))
    assert first != second
    assert first != sorted(first)


def test_steps_may_end_within_an_epoch():
    """Five steps of three an epoch; the first five of six are the same, so asking for fewer changes nothing; none is none."""
    data = numbered((12,), batch_size=5)
    six = numbers(data.client_batches().batches(0, 1, 6))
    assert numbers(data.client_batches().batches(0, 1, 5)) == six[:5]
    assert numbers(data.client_batches().batches(0, 1, 0)) == []


def test_batches_are_a_function_of_seed_round_and_client():
    """Same address, same batches, whatever was drawn before; another seed, round or client has another order."""

    def order(client, round, seed=0):
        """Where in the client's shard the samples of its batches stand."""
        data = numbered((12, 12), batch_size=4, seed=seed)
        shard = data.shards.train_indices(client).tolist()
        return [[shard.index(sample) for sample in batch] for batch in numbers(data.client_batches().batches(client, round, 6))]

    data = numbered((12, 12), batch_size=4)
    expected = numbers(data.client_batches().batches(0, 5, 6))
    numbers(data.client_batches().batches(1, 5, 6))
    torch.manual_seed(1)
    assert numbers(data.client_batches().batches(0, 5, 6)) == expected
    assert order(0, 5) == order(0, 5)
    for client, round, seed in ((1, 5, 0), (0, 6, 0), (0, 5, 1)):
        assert order(client, round, seed) != order(0, 5), (client, round, seed)


def test_interleaved_clients_do_not_disturb_each_other():
    """Two clients' batches drawn in turns equal those drawn one client after the other."""
    data = image_data(batch_size=3, augment=[RandomCrop(2), RandomHorizontalFlip()])
    one_by_one = [list(data.client_batches().batches(client, 1, 4)) for client in (0, 1)]
    in_turns = list(zip(data.client_batches().batches(0, 1, 4), data.client_batches().batches(1, 1, 4)))
    for step, pair in enumerate(in_turns):
        for client, batch in enumerate(pair):
            assert torch.equal(batch.inputs, one_by_one[client][step].inputs)
            assert torch.equal(batch.targets, one_by_one[client][step].targets)


def test_augmentation_changes_training_batches_only():
    """Same order of samples with and without; images differ in training, never in evaluation; no global draw."""
    state = torch.get_rng_state()
    plain, changed = (image_data(batch_size=None, val_fraction=0.2, augment=list(a)) for a in ((), (RandomCrop(2),)))
    first, second, again = (list(data.client_batches().batches(0, 1, 3)) for data in (plain, changed, changed))
    for a, b, c in zip(first, second, again, strict=True):
        assert torch.equal(a.targets, b.targets)
        assert not torch.equal(a.inputs, b.inputs)
        assert torch.equal(b.inputs, c.inputs)
    for a, b in zip(plain.val_dataloader()[0], changed.val_dataloader()[0], strict=True):
        assert torch.equal(a.inputs, b.inputs)
    assert torch.equal(torch.get_rng_state(), state)


def test_augmentation_comes_before_normalisation():
    """Padding is black: a black border pixel becomes (0 - mean)/std = -.5/.25 = -2, not 0."""
    images = torch.full((8, 1, 3, 3), 255, dtype=torch.uint8)
    data = from_arrays(images, torch.arange(8) % 2, [list(range(8))], mean=[0.5], std=[0.25], augment=[RandomCrop(3)])
    data.setup()
    inputs = next(data.client_batches().batches(0, 1, 1)).inputs
    assert inputs.unique().tolist() == pytest.approx([-2.0, 2.0], abs=1e-6)


# Normalisation


def test_images_are_normalised_as_torchvision_does():
    """(x/255 - mean)/std a channel, CIFAR's constants, against torchvision on each image, in batches and evaluation."""
    mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    data = image_data(mean=mean, std=std, batch_size=None, val_fraction=0.2)

    def expected(images):
        return torch.stack([vision.normalize(image.float() / 255, mean, std) for image in images])

    stored = data.train_set.inputs
    torch.testing.assert_close(data.preparation.normalise(stored), expected(stored), atol=2e-6, rtol=0)
    validation = data.train_set.inputs[data.shards.validation]
    torch.testing.assert_close(next(iter(data.val_dataloader()[0])).inputs, expected(validation), atol=2e-6, rtol=0)
    batch = next(data.client_batches().batches(2, 1, 1))
    sums = expected(data.train_set.inputs[data.shards.train_indices(2)]).sum(dim=0)
    torch.testing.assert_close(batch.inputs.sum(dim=0), sums, atol=2e-5, rtol=0)


def test_channel_statistics_of_the_training_set():
    """Without mean and std: those of all training pixels, in float64 by NumPy, over more images than one chunk holds."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, (60, 200, 256), (5000, 4, 2, 3)).astype(np.uint8).transpose(0, 3, 1, 2).copy()
    tests = torch.from_numpy(images[:50] // 2)
    labels = torch.zeros(5000, dtype=torch.int64)
    data = from_arrays(torch.from_numpy(images), labels, [range(5000)], test_inputs=tests, test_targets=labels[:50])
    data.setup()
    data.to(torch.device("cpu"), torch.float64)
    unit = images / 255
    mean, std = (part.reshape(1, 3, 1, 1) for part in (unit.mean(axis=(0, 2, 3)), unit.std(axis=(0, 2, 3))))
    expected = torch.from_numpy((unit - mean) / std)
    torch.testing.assert_close(data.preparation.normalise(data.train_set.inputs), expected, atol=1e-10, rtol=0)
    # The test set is scaled by the training set's numbers.
    expected = torch.from_numpy((tests.numpy() / 255 - mean) / std)
    torch.testing.assert_close(torch.cat(list(data.evaluation.test_inputs().split(20))), expected, atol=1e-10, rtol=0)


def test_constant_channel_does_not_divide_by_zero():
    """A channel that is 128 everywhere has deviation 0, counted as 1: it becomes 0, the other has deviation 1."""
    images = torch.full((6, 2, 2, 2), 128, dtype=torch.uint8)
    images[::2, 1] = 200
    data = from_arrays(images, torch.arange(6) % 2, [range(6)])
    data.setup()
    normalised = data.preparation.normalise(images)
    torch.testing.assert_close(normalised[:, 0], torch.zeros(6, 2, 2), atol=1e-6, rtol=0)
    torch.testing.assert_close(normalised[:, 1].std(correction=0), torch.tensor(1.0))


def test_floats_are_used_as_they_are_unless_told_otherwise():
    """Float inputs are not scaled; with mean and std they become (x - mean)/std, one value serving all channels too."""
    inputs = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    for options, expected in (
        ({}, inputs),
        ({"mean": [1.0, 2.0, 3.0], "std": [2.0, 4.0, 8.0]}, (inputs - torch.tensor([1, 2, 3])) / torch.tensor([2, 4, 8])),
        ({"mean": [1.0], "std": [2.0]}, (inputs - 1) / 2),
    ):
        data = from_arrays(inputs, torch.arange(6) % 2, [range(6)], **options)
        data.setup()
        torch.testing.assert_close(data.preparation.normalise(inputs), expected, atol=1e-6, rtol=0)


def test_inputs_come_in_the_dtype_of_the_net():
    """After ``to`` batches, evaluation and test inputs have that dtype; images stay uint8 where they are stored."""
    tests = {"test_inputs": torch.zeros(2, 3, 6, 5, dtype=torch.uint8), "test_targets": torch.tensor([0, 1])}
    data = image_data(val_fraction=0.2, **tests)
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        data.to(torch.device("cpu"), dtype)
        assert next(data.client_batches().batches(0, 1, 1)).inputs.dtype == dtype
        assert next(iter(data.val_dataloader()[0])).inputs.dtype == dtype
        assert next(data.evaluation.test_inputs().split(1)).dtype == data.first_inputs(2).dtype == dtype
        assert data.train_set.inputs.dtype == torch.uint8


# Shards


def test_validation_split_of_every_client():
    """int(.9 n) samples for training, the rest for validation, no sample in both, none lost."""
    sizes = (10, 11, 19, 20, 37, 100, 450, 500)
    data = numbered(sizes, val_fraction=0.1)
    start = 0
    for client, size in enumerate(sizes):
        train = data.shards.train_indices(client).tolist()
        validation = data.shards.validation_indices(client).tolist()
        assert (len(train), len(validation)) == (9 * size // 10, size - 9 * size // 10)
        assert data.num_train(client) == len(train)
        assert sorted(train + validation) == list(range(start, start + size))
        start += size


def test_label_counts_of_training_and_of_all_samples():
    """(N, C): label_counts over training and validation samples, train_label_counts over training samples only."""
    data = numbered((30, 20, 15), val_fraction=0.2, classes=["a", "b", "c", "d"])
    for client in range(3):
        train, validation = data.shards.train_indices(client), data.shards.validation_indices(client)
        in_train = [sum(int(i) % 3 == c for i in train) for c in range(4)]
        in_validation = [sum(int(i) % 3 == c for i in validation) for c in range(4)]
        assert data.train_label_counts[client].tolist() == in_train
        assert data.label_counts[client].tolist() == [a + b for a, b in zip(in_train, in_validation)]


def test_validation_samples_know_their_owner():
    """Validation parts of clients 2 and 0, joined in that order; owner is the position in the question, 0 and 1."""
    data = numbered((10, 20, 30), val_fraction=0.2)
    inputs, targets, owner = data.evaluation.validation_samples([2, 0])
    assert owner.tolist() == [0] * 6 + [1] * 2
    numbers_there = torch.cat(list(inputs.split(3)))[:, 0].long()
    assert numbers_there.tolist() == [*data.shards.validation_indices(2).tolist(), *data.shards.validation_indices(0).tolist()]
    assert torch.equal(targets, numbers_there % 3)


@pytest.mark.parametrize("size", [1, 4, 8, 100])
def test_inputs_for_evaluation_are_split_as_tensors_are(size):
    """Eight validation samples in order, parts of ``size`` and the rest; as often as asked; len says how many."""
    data = numbered((10, 20, 30), val_fraction=0.2)
    inputs, _, _ = data.evaluation.validation_samples([2, 0])
    expected = data.train_set.inputs[torch.cat([data.shards.validation_indices(client) for client in (2, 0)])].split(size)
    assert len(inputs) == 8
    for _ in range(2):
        parts = list(inputs.split(size))
        assert [len(part) for part in parts] == [len(part) for part in expected]
        assert torch.equal(torch.cat(parts), torch.cat(expected))


def test_seed_decides_partition_and_split():
    """Two modules of one seed hold the same shards, another seed others; reading twice changes nothing."""
    first, again, other = (FederatedDataModule("digits", num_clients=20, clients_per_round=2, seed=seed) for seed in (1, 1, 2))
    for data in (first, again, other):
        data.setup()
    shards = first.shards
    first.setup("fit")
    assert first.shards is shards
    assert torch.equal(first.shards.train, again.shards.train)
    assert torch.equal(first.shards.validation, again.shards.validation)
    assert not torch.equal(first.shards.train, other.shards.train)
    assert first.input_shape == (1, 8, 8)
    assert first.classes == tuple("0123456789")


# Samples of the server


def source_with_owners(inputs):
    """400 samples of 5 classes and 8 owners, of which the last has one sample."""
    owners = torch.arange(400) % 7
    owners[-1] = 7
    return Arrays(inputs, torch.arange(400) % 5, owners=owners)


@pytest.mark.parametrize("storage", ["device", "stream"])
@pytest.mark.parametrize("public_size", [0, 30])
def test_sharing_out_makes_no_copy_of_the_inputs(public_size, storage):
    """One whole number seen as 400 samples of 10^13 values, which no memory holds; floats would be read once."""
    inputs = torch.zeros(1, 1, dtype=torch.int64).expand(400, 10**13)
    settings = {"num_clients": 6, "clients_per_round": 1, "partition": IID(), "storage": storage, "num_workers": 0}
    data = FederatedDataModule(source_with_owners(inputs), public_size=public_size, **settings)
    data.setup()
    assert data.train_set.inputs.data_ptr() == inputs.data_ptr()
    assert len(data.shards.train) + len(data.shards.validation) == 400 - public_size


def test_what_the_server_has_is_no_part_of_the_partition():
    """The labels of the other samples, in order, are what the Dirichlet function partitions."""
    source = source_with_owners(torch.zeros(400, 1))
    data = FederatedDataModule(source, num_clients=6, clients_per_round=1, partition=Dirichlet(0.5), public_size=30, seed=2)
    data.setup()
    private = sorted(set(range(400)) - set(data.public.indices.tolist()))
    assert len(private) == 370
    parts = dirichlet_partition([i % 5 for i in private], 6, 0.5, stream_seed(2, -1, -1, "partition"))
    held = [torch.cat([data.shards.train_indices(client), data.shards.validation_indices(client)]) for client in range(6)]
    assert [sorted(part.tolist()) for part in held] == [[private[index] for index in sorted(part.tolist())] for part in parts]


@pytest.mark.parametrize("public_size", [0, 30, 393])
def test_natural_clients_keep_what_the_server_leaves(public_size):
    """Clients are the owners that have a sample left, ascending: of 8 owners at most 7 where 7 samples are left."""
    dataset = source_with_owners(torch.zeros(400, 1)).load("")
    settings = {"partition": Natural(), "clients_per_round": 1, "public_size": public_size}
    private, _ = FederatedDataModule(**settings).split.private_and_public(dataset)
    by_owner = [[i for i in private.tolist() if (7 if i == 399 else i % 7) == owner] for owner in range(8)]
    left = [samples for samples in by_owner if samples]
    assert (len(left) < 8) == (public_size == 393)
    parts = FederatedDataModule(**settings, num_clients=len(left)).split.parts(dataset, private)
    assert [part.tolist() for part in parts] == left


def test_what_lists_name_is_no_sample_of_the_server():
    """Indices are those of the data; the server's samples are drawn from the rest, of which there must be enough."""
    clients = [[7, 2], [9, 0, 4]]
    inputs, targets = torch.arange(10.0)[:, None], torch.arange(10) % 2
    data = from_arrays(inputs, targets, clients, public_size=3, seed=2)
    data.setup()
    assert [sorted(data.shards.train_indices(client).tolist()) for client in range(2)] == [[2, 7], [0, 4, 9]]
    assert set(data.public.indices.tolist()) < {1, 3, 5, 6, 8}
    message = "data.public_size is 6, must be at most 5: data.partition.clients names all other samples"
    with pytest.raises(ValueError, match=message):
        from_arrays(inputs, targets, clients, public_size=6).setup()


def test_a_written_partition_repeats_a_run_with_samples_of_the_server(tmp_path):
    """The same shards, and the same samples of the server in the same order."""
    settings = {"source": source_with_owners(torch.zeros(400, 1)), "num_clients": 6, "clients_per_round": 1}
    settings |= {"public_size": 30, "seed": 2}
    report_partition(FederatedDataModule(**settings, partition=Dirichlet(0.5)), tmp_path / "p.json")
    data = [FederatedDataModule(**settings, partition=p) for p in (Dirichlet(0.5), Fixed(str(tmp_path / "p.json")))]
    for one in data:
        one.setup()
    for name in ("train", "validation", "train_start"):
        assert torch.equal(*(getattr(one.shards, name) for one in data))
    assert torch.equal(*(one.public.indices for one in data))


def test_nothing_is_known_before_setup():
    """Asking for classes, shape or test set too early says what to call."""
    data = FederatedDataModule("digits")
    for question in (lambda: data.classes, lambda: data.input_shape, lambda: data.test_set):
        with pytest.raises(RuntimeError, match=r"call setup\(\) first"):
            question()


# Loaders


def evaluated(loader):
    return [sample for batch in loader for sample in batch.inputs[:, 0].long().tolist()]


def test_validation_and_test_loaders_serve_every_sample_once():
    """All clients' validation parts joined, and the test set, in batches of eval_batch_size with the rest at the end."""
    tests = torch.arange(100, 123).float()[:, None]
    data = numbered((30, 20), val_fraction=0.3, eval_batch_size=5, test_inputs=tests, test_targets=torch.arange(23) % 3)
    assert data.evaluation.names == ("val", "test")
    validation, _ = data.val_dataloader()
    assert sorted(evaluated(validation)) == sorted(data.shards.validation.tolist())
    assert evaluated(data.test_dataloader()) == list(range(100, 123))
    assert [len(batch.targets) for batch in data.test_dataloader()] == [5, 5, 5, 5, 3]
    assert torch.cat([batch.targets for batch in data.test_dataloader()]).tolist() == [i % 3 for i in range(23)]


def test_parts_that_are_not_there_are_not_served():
    """No validation, no test set: no loader, and test_dataloader names the cure."""
    data = numbered()
    assert data.evaluation.names == ()
    assert data.val_dataloader() == []
    with pytest.raises(ValueError, match=r"data.source has no test set: give Arrays test_inputs and test_targets"):
        data.test_dataloader()


@PROPERTY
@given(st.integers(0, 40), st.integers(1, 9), st.integers(1, 5))
def test_ranks_share_evaluation_without_repetition(count, batch_size, world_size):
    """The ranks' samples together are all samples, none twice, none left out, whatever the numbers."""
    served = [
        sample
        for rank in range(world_size)
        for batch in EvaluationBatches(
            lambda parts: (Batch(part[:, None], part) for part in parts),
            lambda: torch.arange(count),
            batch_size,
            lambda: True,
            rank,
            world_size,
        )
        for sample in batch.targets.tolist()
    ]
    assert sorted(served) == list(range(count))


def test_loader_that_is_not_due_is_empty():
    """Asked at every pass: due, not due, due again."""
    answers = iter([True, False, True])

    def read(parts):
        return (Batch(part, part) for part in parts)

    loader = EvaluationBatches(read, lambda: torch.arange(4), 2, lambda: next(answers), 0, 1)
    assert [len(list(loader)) for _ in range(3)] == [2, 0, 2]
    assert list(EvaluationBatches(read, lambda: torch.arange(0), 2, lambda: True, 0, 1)) == []


@pytest.mark.parametrize(
    ("monitor_test", "due"), [(10, [0, 10, 20, 22]), (1, list(range(23))), (0, []), (7, [0, 7, 14, 21, 22]), (100, [0, 22])]
)
def test_test_set_is_monitored_every_so_many_rounds(monitor_test, due):
    """In a fit of 22 rounds: rounds that monitor_test divides, round 0 among them, and the last; 0 is never; else never."""
    data = numbered(monitor_test=monitor_test, test_inputs=torch.zeros(2, 1), test_targets=torch.tensor([0, 1]))
    data.trainer = SimpleNamespace(global_step=0, max_steps=22, should_stop=False, state=SimpleNamespace(fn="fit"))
    asked = []
    for data.trainer.global_step in range(23):
        asked += [data.trainer.global_step] * is_due(data)
    assert asked == due
    data.trainer.global_step, data.trainer.should_stop = 9, True
    assert is_due(data) == (monitor_test > 0)
    data.trainer.state.fn = "validate"
    assert not is_due(data)


def test_training_loader_counts_rounds_from_the_trainer():
    """Round numbers without end, from 1, or after a restart from the round that follows the trainer's step."""
    data = numbered()
    rounds = iter(data.train_dataloader())
    assert [next(rounds) for _ in range(3)] == [1, 2, 3]
    data.trainer = SimpleNamespace(global_step=41)
    assert next(iter(data.train_dataloader())) == 42


# Mistakes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_clients": 0}, r"data\.num_clients is 0, must be at least 1"),
        ({"batch_size": 0}, r"data\.batch_size is 0, must be at least 1"),
        ({"eval_batch_size": -5}, r"data\.eval_batch_size is -5, must be at least 1"),
        ({"clients_per_round": 0}, r"data\.clients_per_round is 0, must be between 1 and 100: data\.num_clients is 100"),
        ({"clients_per_round": 101}, r"data\.clients_per_round is 101, must be between 1 and 100: data\.num_clients is 100"),
        ({"clients_per_round": 0.0}, r"data\.clients_per_round is 0\.0, must be above 0 and at most 1"),
        ({"clients_per_round": 1.5}, r"data\.clients_per_round is 1\.5, must be above 0 and at most 1"),
        ({"clients_per_round": -0.1}, r"data\.clients_per_round is -0\.1, must be above 0"),
        ({"clients_per_round": math.nan}, r"data\.clients_per_round is nan, must be above 0"),
        ({"val_fraction": 1.0}, r"data\.val_fraction is 1\.0, must be at least 0 and below 1"),
        ({"val_fraction": -0.1}, r"data\.val_fraction is -0\.1, must be at least 0 and below 1"),
        ({"val_fraction": math.nan}, r"data\.val_fraction is nan, must be at least 0 and below 1"),
        ({"storage": "disk"}, r"data\.storage is 'disk', must be one of auto, device, stream"),
        ({"num_workers": -1}, r"data\.num_workers is -1, must be at least 0"),
        ({"monitor_test": -1}, r"data\.monitor_test is -1, must be at least 0"),
        ({"mean": [0.5]}, r"data\.mean is \[0\.5\] and data\.std is None: give both or neither"),
        ({"std": [0.5]}, r"data\.mean is None and data\.std is \[0\.5\]: give both or neither"),
        ({"mean": [0.5, 0.5], "std": [0.5, 0.0]}, r"data\.std has 0\.0, must be above 0 and finite"),
        ({"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5]}, r"data\.mean .*data\.std"),
        ({"mean": [], "std": []}, r"data\.(mean|std)"),
        ({"cohorts": [[0, 1], [100]]}, r"data\.cohorts names client 100 in round 2, must name clients between 0 and 99"),
        ({"cohorts": [[0, -1]]}, r"data\.cohorts names client -1 in round 1, must"),
        ({"cohorts": [[3, 3]]}, r"data\.cohorts names client 3 twice in round 1, .*each once"),
        ({"cohorts": [[]]}, r"data\.cohorts names no client in round 1, .*at least one"),
        (
            {"public_size": 10, "tasks": ClassStream()},
            r"^data\.public_size is 10, but data\.tasks gives all samples to clients: set it to 0$",
        ),
        ({"source": "CIFAR1O"}, r"data\.source is 'CIFAR1O'"),
    ],
)
def test_constructor_names_the_key(options, message):
    """Key, value and range, before any data is read."""
    with pytest.raises(ValueError, match=message):
        FederatedDataModule(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": [0.5, 0.5], "std": [1.0, 1.0]}, r"data\.mean has 2 values, the data 3 channels"),
        (
            {"num_clients": 41, "partition": IID()},
            r"data\.num_clients is 41, must be between 1 and 40: each needs a training sample",
        ),
        ({"partition": Fixed([[0], [1], [2]])}, r"data\.num_clients is 4, data\.partition Fixed lists 3 clients"),
        ({"partition": Fixed([[0], [1], [2], [40]])}, r"data\.partition Fixed names sample 40"),
        ({"partition": Fixed([[0], [1], [2], []])}, r"data.partition gives client 3 no sample"),
    ],
)
def test_setup_names_the_key(options, message):
    """What only the data can tell: channels, number of samples, indices."""
    source = Arrays(torch.zeros(40, 3, 4, 4, dtype=torch.uint8), torch.arange(40) % 4)
    data = FederatedDataModule(source, **{"num_clients": 4, "clients_per_round": 1, "val_fraction": 0.0, **options})
    with pytest.raises(ValueError, match=message):
        data.setup()


def test_every_setting_is_documented():
    """Each argument of the constructor has its line in the class's docstring."""
    arguments = [name for name in inspect.signature(FederatedDataModule.__init__).parameters if name != "self"]
    text = inspect.getdoc(FederatedDataModule)
    assert [name for name in arguments if f"    {name}: " not in text] == []


def test_given_cohorts_need_no_cohort_size():
    """Three clients with given cohorts: the default of 10 clients a round is not looked at."""
    data = FederatedDataModule("digits", num_clients=3, cohorts=[[0, 2], [1]])
    assert [data.cohort(round) for round in (1, 2)] == [[0, 2], [1]]


def test_it_says_what_it_holds():
    """Lightning's text expects loaders of samples, and failed on rounds."""
    module = from_arrays(torch.randn(7, 2), torch.arange(7) % 3, [[0, 1], [2, 3, 4, 5, 6]])
    assert str(module) == "Arrays, 2 clients, not loaded yet"
    module.setup()
    assert str(module) == "Arrays, 2 clients, 3 classes, samples: 7 training, 0 validation, 0 test"


@pytest.mark.parametrize("partition", [IID(), Shards(1), Classes(), PowerLaw(1), Natural(), "owners", "ranges"], ids=str)
def test_a_client_costs_no_object(partition):
    """100,000 clients, two samples each, within 20 collections of garbage; a tensor or list a client makes over a hundred."""
    owners = torch.arange(200_000) // 2
    inputs, targets = torch.zeros(200_000, 1), owners % 5
    if isinstance(partition, str):
        clients = owners if partition == "owners" else [range(2 * k, 2 * k + 2) for k in range(100_000)]
        data = from_arrays(inputs, targets, clients)
    else:
        data = FederatedDataModule(
            Arrays(inputs, targets, owners=owners), num_clients=100_000, partition=partition, val_fraction=0
        )
    started = []
    gc.callbacks.append(lambda phase, info: started.append(phase))
    try:
        data.setup()
    finally:
        gc.callbacks.pop()
    assert started.count("start") < 20
