"""Streams for one global model: who holds what, when a class counts as seen, and what is refused."""

from dataclasses import replace

import pytest
import torch
from jsonargparse import ArgumentParser

from fl_lightning.data import Arrays, Dataset, Dirichlet, Fixed, Natural, Samples
from fl_lightning.data.class_stream import ClassStream, DomainStream
from fl_lightning.data.datamodule import FederatedDataModule
from fl_lightning.data.federated_split import FederatedSplit

NAMES = tuple("abcdef")


def dataset(sources=None, names=NAMES) -> Dataset:
    """600 training and 60 test samples of six classes in turn; an input says which sample it is."""
    train, test = (Samples(torch.arange(n * 1.0)[:, None], torch.arange(n) % 6) for n in (600, 60))
    return Dataset(train, test, names, sources=sources)


def split(num_clients=4, partition=Dirichlet(alpha=0.5), seed=0) -> FederatedSplit:
    return FederatedSplit(partition, num_clients, 0, seed)


def rows(streams, position) -> list[torch.Tensor]:
    """Training samples of each client."""
    num_clients = len(streams.shards.label_counts) // streams.num_tasks
    return [streams.shards.train_indices(client * streams.num_tasks + position) for client in range(num_clients)]


@pytest.mark.parametrize("seed", [0, 1])
def test_every_sample_is_in_one_task_at_one_client(seed):
    streams = ClassStream(num_tasks=3).stream(dataset(), split(seed=seed), 0.0)
    held = torch.cat([row for position in range(3) for row in rows(streams, position)])
    assert sorted(held.tolist()) == list(range(600))
    for position in range(3):
        labels = streams.dataset.train.targets[torch.cat(rows(streams, position))]
        assert set(labels.tolist()) == {2 * position, 2 * position + 1}
    assert streams.num_seen == (2, 4, 6)
    assert [streams.at(position).new.start for position in range(3)] == [0, 2, 4]


def test_labels_count_classes_in_order_of_arrival():
    """The order is drawn by the seed; a sample keeps its class, under another number."""
    data = dataset()
    streams = ClassStream(num_tasks=3).stream(data, split(), 0.0)
    assert sorted(streams.dataset.classes) == list(NAMES)
    assert streams.dataset.classes != NAMES
    assert streams.names == tuple(", ".join(streams.dataset.classes[i : i + 2]) for i in (0, 2, 4))
    for before, after in ((data.train, streams.dataset.train), (data.test, streams.dataset.test)):
        assert [streams.dataset.classes[label] for label in after.targets] == [NAMES[label] for label in before.targets]
    assert streams.class_task.tolist() == [0, 0, 1, 1, 2, 2]
    assert torch.equal(streams.test_task, streams.dataset.test.targets // 2)
    assert ClassStream(num_tasks=3, class_order="labels").stream(data, split(), 0.0).dataset.classes == NAMES


def test_sources_and_owners_stay_with_their_classes_and_samples():
    """Of joined sources a class keeps its source; samples keep their owners."""
    data = replace(dataset(sources=tuple("xxxyyy")), owners=torch.arange(600), test_owners=torch.arange(60))
    arriving = ClassStream(num_tasks=3).stream(data, split(), 0.0).dataset
    assert arriving.sources == tuple("x" if name in "abc" else "y" for name in arriving.classes)
    assert torch.equal(arriving.owners, data.owners)
    assert torch.equal(arriving.test_owners, data.test_owners)


def test_all_clients_and_seeds_differ_as_the_partition_says():
    """Every task is partitioned anew, by the seed and the task; the first as a federation without tasks."""
    parts = [ClassStream(num_tasks=3, class_order="labels").stream(dataset(), split(seed=seed), 0.1) for seed in (0, 0, 1)]
    assert torch.equal(parts[0].shards.train, parts[1].shards.train)
    assert not torch.equal(parts[0].shards.train, parts[2].shards.train)
    counts = parts[0].shards.train_label_counts.reshape(4, 3, 6)
    assert not torch.equal(counts[:, 0, :2], counts[:, 1, 2:4])
    one = ClassStream(num_tasks=1, class_order="labels").stream(dataset(), split(), 0.1)
    plain = split().shards(dataset(), torch.arange(600), 0.1)
    for client in range(4):
        assert torch.equal(one.shards.train_indices(client), plain.train_indices(client))
        assert torch.equal(one.shards.validation_indices(client), plain.validation_indices(client))


def test_uneven_tasks_and_classes_by_name():
    assert ClassStream(num_tasks=4, class_order="labels").stream(dataset(), split(), 0.0).names == ("a, b", "c, d", "e", "f")
    named = ClassStream(classes=[["f"], ["a", "c", "b"], ["e", "d"]]).stream(dataset(), split(), 0.0)
    assert named.dataset.classes == ("f", "a", "c", "b", "e", "d")
    assert named.num_seen == (1, 4, 6)


def test_cumulative_rows_are_the_union_of_the_former():
    plain, joint = (ClassStream(num_tasks=3, cumulative=c).stream(dataset(), split(), 0.1) for c in (False, True))
    for client in range(4):
        for position in range(3):
            union = torch.cat([rows(plain, before)[client] for before in range(position + 1)])
            assert torch.equal(rows(joint, position)[client], union)
    assert joint.repeating
    assert not plain.repeating


@pytest.mark.parametrize("cumulative", [False, True])
def test_clients_at_their_own_pace(cumulative):
    """A task is partitioned among those that move to it; who stays keeps the samples, who has not joined has none."""
    tasks = ClassStream(num_tasks=3, moving=0.5, joining=2, cumulative=cumulative)
    streams = tasks.stream(dataset(), split(num_clients=8), 0.1)
    of_clients, seen = streams.tasks_of_clients, [set() for _ in range(8)]
    assert [streams.num_there(position) for position in range(3)] == [4, 6, 8]
    for position in range(3):
        held = rows(streams, position)
        movers = [client for client in range(8) if of_clients[client, position] == position]
        validation = [streams.shards.validation_indices(3 * client + position) for client in movers]
        for client in range(8):
            task = int(of_clients[client, position])
            if task == position:
                labels = streams.dataset.train.targets[held[client]]
                assert set(labels.tolist()) <= set(range(0 if cumulative else 2 * task, 2 * task + 2))
                assert cumulative <= (seen[client] <= set(held[client].tolist()))
                seen[client] |= set(held[client].tolist())
            elif task < 0:
                assert len(held[client]) == 0
            else:
                assert torch.equal(held[client], rows(streams, position - 1)[client])
        if not cumulative:
            of_task = torch.cat([*(held[client] for client in movers), *validation])
            new = (streams.dataset.train.targets // 2 == position).nonzero().flatten()
            assert torch.equal(of_task.sort().values, new)
    assert streams.repeating
    stayed = next(client for client in range(8) if of_clients[client, 1] == of_clients[client, 2] >= 0)
    assert streams.stays(stayed, 1) == 1
    assert streams.stays(7, 2) == 0
    assert streams.most_samples() == max(map(len, seen))


def test_clients_that_join_mix_no_tasks():
    assert not ClassStream(num_tasks=3, joining=1).stream(dataset(), split(), 0.0).repeating


def test_blurry_borders():
    """A share b of each class is in the other tasks; with b = 0 the stream is that without, sample by sample."""
    streams = ClassStream(num_tasks=3, class_order="labels", blurry=0.25).stream(dataset(), split(1), 0.0)
    held = torch.cat([row for position in range(3) for row in rows(streams, position)])
    assert sorted(held.tolist()) == list(range(600))
    task_of = torch.empty(600, dtype=torch.int64)
    for position in range(3):
        task_of[torch.cat(rows(streams, position))] = position
    moved = task_of != dataset().train.targets // 2
    assert 0.2 < moved.double().mean() < 0.3
    assert streams.num_seen == (2, 4, 6)
    assert torch.equal(streams.test_task, dataset().test.targets // 2)
    sharp = [ClassStream(num_tasks=3, **settings).stream(dataset(), split(), 0.0) for settings in ({}, {"blurry": 0.0})]
    assert torch.equal(sharp[0].shards.train, sharp[1].shards.train)


def test_classes_that_leak_are_met_and_not_seen():
    """By the samples of each client at the positions so far; the order of arrival is that of the tasks."""
    settings = {"num_tasks": 3, "class_order": "labels"}
    streams = ClassStream(**settings, blurry=0.02).stream(dataset(), split(), 0.0)
    assert (streams.dataset.classes, streams.blurry) == (NAMES, True)
    for client in range(4):
        met = set()
        for position in range(3):
            met |= {int(streams.dataset.train.targets[i]) for i in rows(streams, position)[client]}
            assert streams.leaked_classes(client, position) == sorted(met - set(range(2 * position + 2)))
            held = {int(streams.dataset.train.targets[i]) for i in rows(streams, position)[client]}
            assert streams.classes_held(client, position) == sorted(held)
    assert not any(ClassStream(**settings, **s).stream(dataset(), split(), 0.0).blurry for s in ({}, {"cumulative": True}))


def test_names_of_classes_may_be_numbers_of_yaml():
    """As those of digits are, which need no quotes."""
    parser = ArgumentParser()
    parser.add_class_arguments(ClassStream, "tasks")
    given = parser.parse_args(["--tasks.classes", "[[5, 3], [1, '2'], ['4', 0]]"]).tasks
    digits = dataset(names=tuple("012345"))
    assert ClassStream(**given).stream(digits, split(), 0.0).dataset.classes == tuple("531240")


def test_domains_share_their_classes():
    names = ("x/a", "x/b", "x/c", "y/a", "y/b", "y/c")
    data = dataset(sources=("x",) * 3 + ("y",) * 3, names=names)
    streams = DomainStream().stream(data, split(), 0.0)
    assert (streams.dataset.classes, streams.names, streams.num_seen) == (("a", "b", "c"), ("x", "y"), (3, 3))
    assert streams.at(1).new.start == 0
    assert streams.class_task is None
    for position in range(2):
        held = torch.cat(rows(streams, position))
        assert sorted(held.tolist()) == [i for i in range(600) if i % 6 // 3 == position]
        assert torch.equal(streams.dataset.train.targets[held], held % 3)
    assert torch.equal(streams.test_task, torch.arange(60) % 6 // 3)


def test_evaluation_is_on_the_classes_seen():
    data, named = dataset(), {"classes": list(NAMES)}
    source = Arrays(data.train.inputs, data.train.targets, data.test.inputs, data.test.targets, **named)
    tasks = ClassStream(num_tasks=3, class_order="labels")
    module = FederatedDataModule(source, num_clients=4, clients_per_round=4, partition=Dirichlet(0.5), tasks=tasks)
    module.setup()
    validation, _ = module.val_dataloader()
    for position in (0, 1, 2, 3):
        module.present_shards.go_to([position] * 4)
        seen = set(range(min(2 * position + 2, 6)))
        assert set(torch.cat([batch.targets for batch in validation]).tolist()) == seen
        targets = torch.cat([batch.targets for batch in module.test_dataloader()])
        assert torch.equal(targets, module.evaluation.test_targets())
        assert len(module.evaluation.test_inputs()) == len(targets) == 10 * len(seen)
        assert torch.equal(module.evaluation.test_tasks(), targets // 2)
    assert module.has_validation
    with pytest.raises(ValueError, match=r"^data.tasks is ClassStream\(3 tasks\), so no client has a sequence of tasks"):
        _ = module.streams


def test_cumulative_validation_counts_a_sample_once():
    data = dataset()
    tasks = ClassStream(num_tasks=3, class_order="labels", cumulative=True)
    source = Arrays(data.train.inputs, data.train.targets, data.test.inputs, data.test.targets, classes=list(NAMES))
    module = FederatedDataModule(source, num_clients=4, clients_per_round=4, partition=Dirichlet(0.5), tasks=tasks)
    module.setup()
    module.present_shards.go_to([2] * 4)
    (inputs,) = [torch.cat([batch.inputs for batch in module.val_dataloader()[0]])]
    assert len(inputs.unique()) == len(inputs) == 600 - sum(len(row) for row in rows(module.class_streams, 2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_tasks": 7}, "data.tasks.num_tasks is 7, but data.source has 6 classes: lower it"),
        ({"num_tasks": 0}, "data.tasks.num_tasks is 0, must be at least 1"),
        ({"blurry": 1.0}, "data.tasks.blurry is 1.0, must be at least 0 and below 1: 0 keeps tasks apart"),
        ({"blurry": 0.5, "num_tasks": 1}, "data.tasks.blurry is 0.5, but there is one task: set it to 0, or raise num_tasks"),
        ({"class_order": "abc"}, "data.tasks.class_order is 'abc', must be one of drawn, labels"),
        ({"classes": [["a"], ["b", "a"]]}, "data.tasks.classes names a twice: give each class to one task"),
        ({"classes": [["a", "z"]]}, "data.tasks.classes names z, which data.source has not: correct it"),
        ({"classes": [["a", "b", "c"]]}, "data.tasks.classes leaves out d of data.source: give each class a task"),
        ({"classes": [["a"], []]}, "data.tasks.classes is [['a'], []], must have a class at least in each task"),
        ({"moving": 0}, "data.tasks.moving is 0, must be above 0 and at most 1: 1 moves all clients together"),
        ({"joining": 1}, "data.tasks.joining is 1 at each of 4 tasks, which leaves none of data.num_clients 4 for the first "
         "task: lower it, or raise data.num_clients"),
        ({"classes": [["a"]], "num_tasks": 2}, "data.tasks.num_tasks is 2, and data.tasks.classes has 1 tasks: give one"),
    ],
)  # fmt: skip
def test_bad_streams_are_refused(settings, message):
    with pytest.raises(ValueError) as error:
        ClassStream(**settings).stream(dataset(), split(), 0.0)
    assert str(error.value) == message


def test_partitions_and_sources_that_do_not_fit_are_refused():
    for partition in (Natural(), Fixed([[0], [1]])):
        with pytest.raises(ValueError, match=r"^data.partition is .*, but each task of data.tasks has a partition of its own"):
            ClassStream().stream(dataset(), split(2, partition), 0.0)
    with pytest.raises(ValueError, match=r"^data.num_clients is 500, must be between 1 and 200: each needs a training sample$"):
        ClassStream(num_tasks=3).stream(dataset(), split(500), 0.0)
    few = r"^data.num_clients is 500, of whom 250 share task 2 of data.tasks, and only for these data.num_clients is 250, "
    with pytest.raises(ValueError, match=few):
        ClassStream(classes=[list("abcde"), ["f"]], moving=0.5).stream(dataset(), split(500), 0.0)
    with pytest.raises(ValueError, match=r"^data.tasks is DomainStream, but data.source is one domain: give a Joined source$"):
        DomainStream().stream(dataset(), split(), 0.0)
    other = dataset(sources=("x",) * 3 + ("y",) * 3, names=("x/a", "x/b", "x/c", "y/a", "y/b", "y/z"))
    with pytest.raises(ValueError, match=r"^data.source has other classes in y than in x, but domains share theirs"):
        DomainStream().stream(other, split(), 0.0)
