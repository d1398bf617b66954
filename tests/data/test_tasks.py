"""Task streams: who learns which classes in which order, from which samples, and what the data module serves of it."""

import random

import pytest
import torch

from fl_lightning.data import Arrays, Dataset, FederatedDataModule, Samples
from fl_lightning.data.sources.superclasses import CIFAR100_TABLE
from fl_lightning.data.tasks import TaskStream


def numbered(num_classes=6, per_class=40, sources=None):
    """Sample i is the number i and of class ``i % num_classes``; two thirds are training samples."""
    count = num_classes * per_class
    inputs, targets, cut = torch.arange(count).float()[:, None], torch.arange(count) % num_classes, count * 2 // 3
    classes = tuple("abcdefghijkl"[:num_classes])
    return Dataset(Samples(inputs[:cut], targets[:cut]), Samples(inputs[cut:], targets[cut:]), classes, sources=sources)


def parts_of(streams, client, position):
    """A client's training, validation and test samples of a task: numbers of samples."""
    row = client * streams.num_tasks + position
    return streams.shards.train_indices(row), streams.shards.validation_indices(row), streams.test[row]


def all_rows(streams):
    return [(client, position) for client in range(len(streams.order)) for position in range(streams.num_tasks)]


# Who gets what ----------------------------------------------------------------------------------------------------------


def test_parts_are_disjoint_and_of_their_task():
    """Six classes in three tasks of two, 80 samples each, 26 at each of three clients: 5 for testing, 2 for validation."""
    dataset = numbered()
    streams = TaskStream(classes_per_task=2).partition(dataset, num_clients=3, seed=0)
    assert sorted(", ".join(streams.names).split(", ")) == list("abcdef")
    everything = torch.cat([part for row in all_rows(streams) for part in parts_of(streams, *row)])
    assert len(everything) == len(set(everything.tolist())) == 3 * 3 * 26
    labels = torch.cat([dataset.train.targets, dataset.test.targets])
    assert torch.equal(streams.dataset.train.inputs[:, 0].long(), torch.arange(240))  # numbers are indices
    for client, position in all_rows(streams):
        parts = parts_of(streams, client, position)
        assert list(map(len, parts)) == [19, 2, 5]
        members = streams.names[streams.order[client, position]].split(", ")
        held = torch.cat(parts)
        assert {dataset.classes[label] for label in labels[held]} == set(members)
        assert members == sorted(members)
        # Within a task labels count its classes, which are in the order of the source.
        expected = [members.index(dataset.classes[label]) for label in labels[held]]
        assert streams.dataset.train.targets[held].tolist() == expected
    assert streams.dataset.classes == ("0", "1")
    assert len(streams.dataset.test) == 0


def test_training_and_test_samples_of_the_source_are_pooled():
    """Both kinds are in every kind of part."""
    streams = TaskStream(classes_per_task=3).partition(numbered(), num_clients=2, seed=0)
    for kind in range(3):
        joined = torch.cat([parts_of(streams, *row)[kind] for row in all_rows(streams)])
        assert (joined < 160).any()
        assert (joined >= 160).any()


@pytest.mark.parametrize(("fractions", "sizes"), [((0.2, 0.1), [70, 20, 10]), ((0.5, 0.25), [25, 50, 25])])
def test_fractions(fractions, sizes):
    """Of 100 samples of a client's task: training, test, validation."""
    stream = TaskStream(classes_per_task=2, test_fraction=fractions[0], val_fraction=fractions[1])
    streams = stream.partition(numbered(2, 50), num_clients=1, seed=3)
    train, validation, test = parts_of(streams, 0, 0)
    assert [len(train), len(test), len(validation)] == sizes


def test_each_client_has_an_order_of_its_own():
    """Five tasks, 40 clients: each learns all, many orders; with ``tasks_per_client`` the first ones of them."""
    dataset = numbered(10, 240)
    whole = TaskStream(classes_per_task=2).partition(dataset, num_clients=40, seed=0)
    assert all(sorted(row) == [0, 1, 2, 3, 4] for row in whole.order.tolist())
    assert len(set(map(tuple, whole.order.tolist()))) > 20
    short = TaskStream(classes_per_task=2, tasks_per_client=2).partition(dataset, num_clients=40, seed=0)
    assert torch.equal(short.order, whole.order[:, :2])
    for client, position in all_rows(short):
        assert all(map(torch.equal, parts_of(short, client, position), parts_of(whole, client, position)))


def test_streams_are_a_function_of_the_seed_alone():
    """Twice the same, whatever was drawn before; another seed gives other tasks, orders and samples."""
    first = TaskStream(classes_per_task=2).partition(numbered(), num_clients=3, seed=1)
    torch.manual_seed(9)
    again, other = (TaskStream(classes_per_task=2).partition(numbered(), num_clients=3, seed=seed) for seed in (1, 2))
    assert first.names == again.names
    assert torch.equal(first.order, again.order)
    assert all(all(map(torch.equal, parts_of(first, *row), parts_of(again, *row))) for row in all_rows(first))
    assert first.names != other.names
    assert not torch.equal(first.shards.train, other.shards.train)
    assert not torch.equal(first.order, other.order)
    one, two = (TaskStream(classes_per_task=6).partition(numbered(), num_clients=3, seed=seed) for seed in (1, 2))
    assert one.names == two.names
    assert not torch.equal(one.shards.train, two.shards.train)


def test_classes_that_are_left_over_are_in_no_task():
    """Seven classes in tasks of three: one class is nobody's."""
    streams = TaskStream(classes_per_task=3).partition(numbered(7), num_clients=2, seed=0)
    held = torch.cat([part for row in all_rows(streams) for part in parts_of(streams, *row)])
    assert len(streams.names) == 2
    assert len((held % 7).unique()) == 6


def test_superclasses_of_cifar100():
    """Twenty tasks of five classes, named and put together as the table says; labels are in alphabetical order."""
    lines = [line.split(",") for line in CIFAR100_TABLE.read_text().split()[1:]]
    superclass, classes = dict(lines), tuple(sorted(name for name, _ in lines))
    targets = torch.arange(100).repeat_interleave(10)
    samples = Samples(torch.arange(1000).float()[:, None], targets)
    dataset = Dataset(samples, Samples(samples.inputs[:0], targets[:0]), classes)
    streams = TaskStream(by="superclasses").partition(dataset, num_clients=2, seed=0)
    assert streams.names == tuple(sorted(set(superclass.values())))
    assert streams.dataset.classes == ("0", "1", "2", "3", "4")
    for client, position in all_rows(streams):
        name, held = streams.names[streams.order[client, position]], torch.cat(parts_of(streams, client, position))
        assert len(held) == 25
        assert {superclass[classes[label]] for label in targets[held]} == {name}
        members = [c for c in classes if superclass[c] == name]
        assert [members.index(classes[label]) for label in targets[held]] == streams.dataset.train.targets[held].tolist()


def test_by_sources_a_task_is_one_clients():
    """Classes of two sources, tasks of two of one source each: five tasks, whole, no two clients the same; one is left over."""
    dataset = numbered(11, 40, sources=("x",) * 5 + ("y",) * 6)
    streams = TaskStream(by="sources", classes_per_task=2).partition(dataset, num_clients=2, seed=0)
    assert streams.order.shape == (2, 2)
    assert len(set(streams.order.flatten().tolist())) == 4
    assert len(streams.names) == 5
    for client, position in all_rows(streams):
        members = streams.names[streams.order[client, position]].split(", ")
        assert len({member in "abcde" for member in members}) == 1
        assert sum(map(len, parts_of(streams, client, position))) == 80


def test_tasks_per_source(capsys):
    """Two tasks of three of the 5 classes of x, the second with the two that are left; one of the 6 classes of y, not two."""
    dataset = numbered(11, 40, sources=("x",) * 5 + ("y",) * 6)
    free = TaskStream(by="sources", classes_per_task=3).partition(dataset, num_clients=1, seed=0)
    assert [len(name.split(", ")) for name in free.names] == [3, 3, 3]  # one of x, two of y
    stream = TaskStream(by="sources", classes_per_task=3, tasks_per_source={"x": 2, "y": 1, "z": 4})
    streams = stream.partition(dataset, num_clients=1, seed=0)
    assert [len(name.split(", ")) for name in streams.names] == [3, 2, 3]  # two of x, one of y
    assert sorted(", ".join(streams.names[:2]).split(", ")) == list("abcde")
    assert (streams.names[0], streams.names[2]) == free.names[:2]  # of the same classes as without
    assert capsys.readouterr().out == "Data: no tasks of z: in data.tasks.tasks_per_source, but no source here\n"
    with pytest.raises(ValueError) as error:
        TaskStream(by="sources", classes_per_task=3, tasks_per_source={"x": 3}).partition(dataset, num_clients=1, seed=0)
    assert str(error.value) == "data.tasks.tasks_per_source is 3 for x, whose 5 classes make 2 tasks of 3 at most: lower it"


def test_client_tasks():
    """Classes of each source in the order of Python's shuffle, in threes; clients learn what their lists name, in order."""
    dataset = numbered(12, 40, sources=("x",) * 5 + ("y",) * 7)
    named = [["y_1", "x_0"], ["y_0", "x_1"]]
    settings = {"by": "sources", "classes_per_task": 3, "tasks_per_source": {"x": 2}, "client_tasks": named}
    streams = TaskStream(**settings).partition(dataset, num_clients=2, seed=4)
    assert streams.names == ("x_0", "x_1", "y_0", "y_1")
    assert [[streams.names[task] for task in row] for row in streams.order.tolist()] == named
    labels = torch.cat([dataset.train.targets, dataset.test.targets])
    for client, position in all_rows(streams):
        source, index = named[client][position].split("_")
        shuffled = {"x": list(range(5)), "y": list(range(5, 12))}[source]
        random.seed(4)
        random.shuffle(shuffled)
        held = labels[torch.cat(parts_of(streams, client, position))]
        assert sorted(held.tolist()) == sorted(40 * shuffled[3 * int(index) : 3 * int(index) + 3])
    first = TaskStream(**settings, tasks_per_client=1).partition(dataset, num_clients=2, seed=4)
    assert torch.equal(first.order, streams.order[:, :1])


@pytest.mark.parametrize(("unknown", "count", "source"), [("y_2", 2, "y"), ("z_0", 0, "z"), ("tasks", 0, "tasks")])
def test_unknown_client_tasks_are_refused(unknown, count, source):
    """A number that is too large, a source that is not there, and a name without a number."""
    dataset = numbered(12, 40, sources=("x",) * 5 + ("y",) * 7)
    stream = TaskStream(by="sources", classes_per_task=3, client_tasks=[["x_0", "y_1"], ["y_0", unknown]])
    with pytest.raises(ValueError) as error:
        stream.partition(dataset, num_clients=2, seed=4)
    assert str(error.value) == (
        f"data.tasks.client_tasks has {unknown}, but data.source has {count} tasks of {source}, numbered from 0: correct the "
        "name, raise data.tasks.tasks_per_source, or add the source"
    )


# What the data module serves --------------------------------------------------------------------------------------------


@pytest.fixture
def data():
    """Three clients; sample i is the number i."""
    dataset = numbered()
    source = Arrays(dataset.train.inputs, dataset.train.targets, dataset.test.inputs, dataset.test.targets, dataset.classes)
    module = FederatedDataModule(
        source, num_clients=3, clients_per_round=3, batch_size=8, mean=[0.0], std=[1.0], tasks=TaskStream(classes_per_task=2)
    )
    module.setup()
    return module


def test_the_module_follows_the_positions(data):
    """Sizes, label counts, batches and samples are of each client's present task; after the last they stay with it."""
    assert data.classes == ("0", "1")
    assert data.streams.num_tasks == 3
    assert not data.has_validation
    assert not data.evaluation.has_test
    for positions in ([0, 0, 0], [2, 0, 1], [3, 2, 3]):
        data.present_shards.go_to(positions)
        for client, position in enumerate(positions):
            train, validation, _ = parts_of(data.streams, client, min(position, 2))
            assert data.num_train(client) == len(train) == 19
            assert data.steps_per_epoch(client) == 3
            labels = data.streams.dataset.train.targets
            assert data.train_label_counts[client].tolist() == torch.bincount(labels[train], minlength=2).tolist()
            counted = torch.bincount(labels[torch.cat([train, validation])], minlength=2)
            assert data.label_counts[client].tolist() == counted.tolist()
            batches = list(data.client_batches().batches(client, round=4, steps=3))
            assert sorted(torch.cat([batch.inputs[:, 0] for batch in batches]).int().tolist()) == sorted(train.tolist())
            assert all(torch.equal(batch.targets, labels[batch.inputs[:, 0].long()]) for batch in batches)
            (samples,) = data.client_batches().client_samples(client)
            assert samples.inputs[:, 0].int().tolist() == train.tolist()


def test_the_batches_of_several_clients_are_those_of_each(data):
    """Side by side, at different positions of their streams."""
    data.present_shards.go_to([2, 0, 1])
    stacked = list(data.client_batches().stacked_batches([0, 1, 2], 4, [3, 3, 3]))
    for client in range(3):
        for one, all_of_them in zip(data.client_batches().batches(client, 4, 3), stacked, strict=True):
            assert torch.equal(one.inputs, all_of_them.inputs[client])


def test_validation_and_test_samples_of_any_task(data):
    """Whatever the present one."""
    data.present_shards.go_to([1, 1, 1])
    for client in range(3):
        for position in range(3):
            _, validation, test = parts_of(data.streams, client, position)
            for part, expected in (("validation", validation), ("test", test)):
                inputs, targets = data.evaluation.samples_at(data.streams.indices(client, position, part))
                assert torch.cat([*inputs.split(2)])[:, 0].int().tolist() == expected.tolist()
                assert torch.equal(targets, data.streams.dataset.train.targets[expected])


def test_without_tasks_there_are_no_streams():
    """And a line names the key."""
    module = FederatedDataModule(Arrays(torch.randn(40, 2), torch.arange(40) % 2), num_clients=2, clients_per_round=2)
    module.setup()
    with pytest.raises(ValueError, match="data.tasks is null"):
        _ = module.streams


# What is refused --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"by": "colour"}, "data.tasks.by is 'colour', must be one of classes, sources, superclasses"),
        (
            {"table": "mine.csv"},
            "data.tasks.table is mine.csv, but data.tasks.by is classes: set it to superclasses, or leave the table out",
        ),
        ({"classes_per_task": 1}, "data.tasks.classes_per_task is 1, must be at least 2: one class leaves no choice"),
        (
            {"tasks_per_source": {"x": 2}},
            "data.tasks.tasks_per_source is {'x': 2}, but data.tasks.by is classes: set it to sources, or leave "
            "tasks_per_source out",
        ),
        (
            {"client_tasks": [["x_0"]]},
            "data.tasks.client_tasks is [['x_0']], but data.tasks.by is classes: set it to sources, or leave client_tasks out",
        ),
        *(
            (
                {"by": "sources", "client_tasks": lists, "tasks_per_client": count},
                f"data.tasks.client_tasks has lists of {found} tasks, must be of one length, at least {least}: name as many "
                "tasks for each client, or change data.tasks.tasks_per_client",
            )
            for lists, count, found, least in (
                ([["x_0", "x_1"], ["y_0"]], None, "1 and 2", 1),
                ([[], []], None, "0", 1),
                ([["x_0"], ["y_0"]], 2, "1", 2),
            )
        ),
        (
            {"by": "sources", "client_tasks": [["x_0", "y_0"], ["y_1", "x_0"]]},
            "data.tasks.client_tasks has x_0 2 times: a task belongs to one client",
        ),
        ({"by": "sources", "tasks_per_source": {"x": 0}}, "data.tasks.tasks_per_source.x is 0, must be at least 1"),
        ({"tasks_per_client": 0}, "data.tasks.tasks_per_client is 0, must be at least 1: null for all tasks"),
        *(
            ({"test_fraction": value}, f"data.tasks.test_fraction is {value}, must be above 0 and below 1: the paper uses 0.2")
            for value in (0.0, -0.1, 1.0, float("nan"))
        ),
        ({"val_fraction": 0.0}, "data.tasks.val_fraction is 0.0, must be above 0 and below 1: the paper uses 0.1"),
        (
            {"test_fraction": 0.6, "val_fraction": 0.4},
            "data.tasks.test_fraction is 0.6 and data.tasks.val_fraction is 0.4, must be below 1 together: the rest is trained "
            "on",
        ),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    """One line with the key, the value and what is allowed."""
    with pytest.raises(ValueError) as error:
        TaskStream(**settings)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("settings", "num_clients", "message"),
    [
        (
            {"classes_per_task": 2, "tasks_per_client": 4},
            3,
            "data.tasks.tasks_per_client is 4, but the 6 classes of data.source make 3 tasks: lower it, or "
            "data.tasks.classes_per_task",
        ),
        (
            {"by": "sources", "classes_per_task": 2},
            4,
            "data.tasks.tasks_per_client is 0, but the 6 classes of data.source make 3 tasks, 0 for each of 4 clients: lower "
            "it or data.num_clients, or data.tasks.classes_per_task",
        ),
        (
            {"by": "sources", "classes_per_task": 2, "client_tasks": [["_0"], ["_1"]]},
            3,
            "data.tasks.client_tasks has 2 lists, but data.num_clients is 3: give one list each",
        ),
        (
            {"classes_per_task": 7},
            3,
            "data.tasks.classes_per_task is 7, but data.source has 6 classes: lower it",
        ),
        (
            {"classes_per_task": 2},
            9,
            "data.tasks leaves client 0 with 8 samples of the task {}: 7 for training, 1 by test_fraction 0.2 and 0 by "
            "val_fraction 0.1, must be at least one each: lower data.num_clients or raise the fraction that leaves none",
        ),
        (
            {"classes_per_task": 2},
            81,
            "data.tasks leaves client 0 with 0 samples of the task {}: 0 for training, 0 by test_fraction 0.2 and 0 by "
            "val_fraction 0.1, must be at least one each: lower data.num_clients or raise the fraction that leaves none",
        ),
        (
            {"by": "sources", "classes_per_task": 2, "test_fraction": 0.001},
            2,
            "data.tasks leaves client 0 with 80 samples of the task {}: 72 for training, 0 by test_fraction 0.001 and 8 by "
            "val_fraction 0.1, must be at least one each: raise the fraction that leaves none",
        ),
    ],
)
def test_data_that_do_not_suffice_are_refused(settings, num_clients, message):
    """One line with the cure; of the tasks that are too small the first that the first client learns is named."""
    stream = TaskStream(**settings)
    with pytest.raises(ValueError) as error:
        stream.partition(numbered(), num_clients, seed=0)
    if "{}" in message:
        few = TaskStream(**{**settings, "test_fraction": 0.2}).partition(numbered(), 2, seed=0)
        message = message.format(few.names[few.order[0, 0]])
    assert str(error.value) == message


def test_more_tasks_than_superclasses_are_refused(tmp_path):
    """Classes a task play no part in the cure."""
    table = tmp_path / "table.csv"
    table.write_text("class,superclass\na,one\nb,one\nc,two\nd,two\ne,two\nf,two\n")
    with pytest.raises(ValueError) as error:
        TaskStream(by="superclasses", table=str(table), tasks_per_client=3).partition(numbered(), 2, seed=0)
    assert str(error.value) == ("data.tasks.tasks_per_client is 3, but the 6 classes of data.source make 2 tasks: lower it")


def test_a_superclass_of_one_class_is_refused(tmp_path):
    """There would be nothing to choose."""
    table = tmp_path / "table.csv"
    table.write_text("class,superclass\na,one\nb,two\nc,two\nd,two\ne,two\nf,two\n")
    with pytest.raises(ValueError) as error:
        TaskStream(by="superclasses", table=str(table)).partition(numbered(), 2, seed=0)
    assert str(error.value) == "data.tasks has the task one with one class, must have at least two: one leaves no choice"
