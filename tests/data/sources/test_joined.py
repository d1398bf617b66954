"""Several sources as one: labels, sizes, each set's scale, sets that are missing; tasks cut out of each by itself."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fl_lightning.data import Arrays, FederatedDataModule, Joined, SomeClasses, Source
from fl_lightning.objectives import Regression
from fl_lightning.tasks import TaskStream

REAL_DATA = os.environ.get("FL_LIGHTNING_DATA")


class Missing(Source):
    def load(self, root):
        raise FileNotFoundError("it is not there")


def images(count, *shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def grey(num_test=1):
    """Three training images of 1x3x4 of two classes; a test image unless told otherwise."""
    test = {"test_inputs": images(1, 1, 3, 4, seed=1), "test_targets": np.array([1])} if num_test else {}
    return Arrays(images(3, 1, 3, 4), np.array([0, 1, 0]), classes=["a", "b"], **test)


def colour():
    """Two training and two test images of 3x6x5 of three classes."""
    arrays = {"inputs": images(2, 3, 6, 5, seed=2), "test_inputs": images(2, 3, 6, 5, seed=3)}
    return Arrays(**arrays, targets=np.array([2, 1]), test_targets=np.array([0, 2]), classes=["a", "x", "y"])


def one_by_one(image, mean, std, size):
    """A normalised image (3, size, size), value by value in float64: the smaller half of the border above and to the left."""
    channels, height, width = image.shape
    top, left = (size - height) // 2, (size - width) // 2
    result = np.zeros((3, size, size))
    for c in range(3):
        for y in range(size):
            for x in range(size):
                inside = top <= y < top + height and left <= x < left + width
                value = image[c % channels, y - top, x - left] / 255 if inside else 0.0
                result[c, y, x] = (value - mean[c % len(mean)]) / std[c % len(std)]
    return torch.from_numpy(result)


def test_labels_count_on_and_classes_bear_the_name_of_their_set():
    """Two classes, then three: label 2 of the second is 2 + 2."""
    dataset = Joined({"first": grey(), "second": colour()}, size=6).load(Path())
    assert dataset.classes == ("first/a", "first/b", "second/a", "second/x", "second/y")
    assert dataset.sources == ("first", "first", "second", "second", "second")
    assert dataset.train.targets.tolist() == [0, 1, 0, 4, 3]
    assert dataset.test.targets.tolist() == [1, 2, 4]
    assert dataset.train.inputs.shape == (5, 3, 6, 6)
    assert dataset.test.inputs.shape == (3, 3, 6, 6)


def test_each_set_has_a_scale_of_its_own():
    """Given for the first, measured for the second: float16 rounds values below 4 by 2^-10 at most."""
    first, second = grey(), colour()
    dataset = Joined({"first": first, "second": second}, {"first": [0.3]}, {"first": [0.2]}, size=7).load(Path())
    trained = second.load(Path()).train.inputs.numpy() / 255
    scales = {"first": ([0.3], [0.2]), "second": (trained.mean((0, 2, 3)), trained.std((0, 2, 3)))}
    for part in ("train", "test"):
        expected = [
            one_by_one(image.numpy(), *scales[name], size=7)
            for name, source in (("first", first), ("second", second))
            for image in getattr(source.load(Path()), part).inputs
        ]
        actual = getattr(dataset, part).inputs
        assert actual.dtype == torch.float16
        assert actual.abs().max() < 4
        torch.testing.assert_close(actual.double(), torch.stack(expected), rtol=0, atol=2**-10 + 1e-6)


@pytest.mark.parametrize("std", [0.197, 0.25, 0.4501])
def test_grey_levels_stay_apart(std):
    """256 levels under the least, a usual and the largest deviation of NonIID-50: each is nearest to itself."""
    ramp = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    source = Arrays(ramp, torch.tensor([0]), classes=["a"])
    stored = Joined({"ramp": source}, {"ramp": [0.45]}, {"ramp": [std]}, size=16).load(Path()).train.inputs
    levels = (stored.double() * std + 0.45) * 255
    assert (levels - ramp).abs().max() < 1 / 8


def test_three_values_serve_grey_images():
    """A scale for each of the three equal channels."""
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.4, 0.3]
    source = grey()
    dataset = Joined({"first": source}, {"first": mean}, {"first": std}, size=4).load(Path())
    expected = one_by_one(source.load(Path()).train.inputs[0].numpy(), mean, std, size=4)
    torch.testing.assert_close(dataset.train.inputs[0].double(), expected, rtol=0, atol=2**-10 + 1e-6)


def test_missing_sets_are_named_and_left_out(capsys):
    """In one line; the labels of the others close ranks."""
    source = Joined({"gone": Missing(), "first": grey(), "lost": Missing(), "second": colour()}, size=6)
    dataset = source.load(Path("here"))
    assert capsys.readouterr().out == "Data: left out, neither under data.root here nor to be fetched: gone, lost\n"
    assert dataset.classes[2] == "second/a"
    assert dataset.train.targets.tolist() == [0, 1, 0, 4, 3]


def test_nothing_is_said_where_nothing_is_missing(capsys):
    assert len(Joined({"first": grey(num_test=0)}, size=6).load(Path()).test) == 0
    assert capsys.readouterr().out == ""


def test_all_missing_is_an_error():
    with pytest.raises(FileNotFoundError, match=r"^data\.root is here, which holds none of .*: gone, lost: set data\.root"):
        Joined({"gone": Missing(), "lost": Missing()}).load(Path("here"))


def test_class_folders_lie_in_the_folder_of_their_name(tmp_path):
    """Two sets of class folders under one root, one of them with a test set."""
    for path, pixel in {"faces/ann": 10, "faces/bob": 20, "letters/train/A": 30, "letters/test/A": 40}.items():
        (tmp_path / path).mkdir(parents=True)
        Image.fromarray(np.full((2, 2), pixel, dtype=np.uint8)).save(tmp_path / path / "1.png")
    names = ("faces", "letters")
    scale = {name: [value] for name in names for value in (0.0,)}, {name: [1 / 255] for name in names}
    dataset = Joined(dict.fromkeys(names, "image_folder"), *scale, size=2).load(tmp_path)
    assert dataset.classes == ("faces/ann", "faces/bob", "letters/A")
    assert dataset.train.inputs[:, 0, 0, 0].tolist() == [10, 20, 30]
    assert dataset.test.inputs[:, 2, 1, 1].tolist() == [40]


def test_a_source_of_class_folders_reads_the_folder_of_its_name(tmp_path):
    """Through SomeClasses too. One that is there but broken is no missing one."""
    for path in ("A/train/a", "A/test/a", "A/train/b", "A/test/b", "B/train/a"):
        (tmp_path / path).mkdir(parents=True)
        Image.fromarray(np.zeros((2, 2), dtype=np.uint8)).save(tmp_path / path / "1.png")
    some = SomeClasses("image_folder", first=1)
    assert Joined({"A": some, "C": "image_folder"}, size=2).load(tmp_path).classes == ("A/a", "A/b")
    with pytest.raises(FileNotFoundError, match=f"the folder {tmp_path / 'B' / 'test'} does not exist"):
        Joined({"A": some, "B": "image_folder"}, size=2).load(tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sources": {}}, r"data\.source\.sources is empty: name at least one"),
        ({"size": 0}, r"data\.source\.size is 0, must be at least 1"),
        ({"mean": {"MINST": [0.1]}}, r"data\.source\.mean is .MINST., must be one of first"),
        ({"mean": {"first": [0.1]}}, r"data\.source\.mean of first is \[0\.1\] and std is None: give both"),
        ({"std": {"first": [0.1]}}, r"data\.source\.mean of first is None and std is \[0\.1\]: give both"),
        ({"mean": {"first": [0.1] * 2}, "std": {"first": [0.1] * 2}}, r"one value or three each"),
        ({"mean": {"first": []}, "std": {"first": []}}, r"one value or three each"),
        ({"mean": {"first": [0.1]}, "std": {"first": [0.0]}}, r"std above 0"),
        ({"sources": {"first": "MINST"}}, r"data\.source\.sources\.first is 'MINST', .*did you mean MNIST\?"),
    ],
)
def test_mistaken_settings_are_one_line(settings, message):
    """Before data is read."""
    with pytest.raises(ValueError, match=message) as caught:
        Joined(**{"sources": {"first": grey()}, **settings})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            images(2, 3, 40, 20),
            r"data\.source\.size is 32, but the images of big have 40x20 pixels: raise it, or give big a smaller size",
        ),
        (np.zeros((2, 1, 4, 4), np.float32), r"data\.source\.sources has big with samples float32 of shape \(1, 4, 4\), must"),
        (
            images(2, 2, 4, 4),
            r"data\.source\.sources has big with samples uint8 of shape \(2, 4, 4\), must be uint8 images, grey",
        ),
    ],
    ids=["too large", "floats", "two channels"],
)
def test_sets_that_cannot_be_joined_are_named(inputs, message):
    with pytest.raises(ValueError, match=message):
        Joined({"first": grey(), "big": Arrays(inputs, np.array([0, 0]))}).load(Path())


def test_sets_without_classes_are_named():
    values = Arrays(images(2, 3, 4, 4), np.array([0.5, 1.5]), objective=Regression())
    with pytest.raises(ValueError, match=r"Joined, which goes by classes, but data\.source\.sources\.values has Regression"):
        Joined({"first": grey(), "values": values}).load(Path())


# Tasks of one set each ---------------------------------------------------------------------------------------------------


def of_classes(num_classes, per_class, value):
    """Images of one value."""
    labels = np.repeat(np.arange(num_classes), per_class)
    return Arrays(np.full((len(labels), 1, 2, 2), value, dtype=np.uint8), labels)


def stream(num_clients, **settings):
    """Seven, four and two classes of 20 samples each, whose values tell the sets apart; tasks of three classes."""
    sources = {"seven": of_classes(7, 20, 7), "four": of_classes(4, 20, 4), "two": of_classes(2, 20, 2)}
    scale = {name: [0.0] for name in sources}, {name: [1 / 255] for name in sources}
    tasks = TaskStream(by="sources", classes_per_task=3, **settings)
    data = FederatedDataModule(Joined(sources, *scale, size=2), num_clients=num_clients, clients_per_round=1.0, tasks=tasks)
    data.setup()
    return data


def test_a_task_is_of_one_set_and_of_one_client():
    """7 // 3 + 4 // 3 + 2 // 3 = 3 tasks: each is one client's, whole: 60 samples, 42 + 12 + 6."""
    data = stream(num_clients=3)
    names = [name.split(", ") for name in data.streams.names]
    assert sorted({label.split("/")[0] for label in name} == {name[0].split("/")[0]} for name in names) == [True] * 3
    assert [name[0].split("/")[0] for name in names] == ["seven", "seven", "four"]
    assert sorted(data.streams.order.flatten().tolist()) == [0, 1, 2]
    for client in range(3):
        task = int(data.streams.order[client, 0])
        train, validation, test = (
            data.shards.train_indices(client),
            data.shards.validation_indices(client),
            data.streams.test[client],
        )
        assert [len(train), len(test), len(validation)] == [42, 12, 6]
        held = torch.cat([train, validation, test])
        assert len(held.unique()) == 60
        assert data.train_set.targets[held].bincount().tolist() == [20, 20, 20]
        assert data.preparation.normalise(data.train_set.inputs[held]).unique().round().tolist() == [7.0 if task < 2 else 4.0]


def test_what_a_client_learns_follows_from_the_seed():
    """And no client learns what another does, where there are more tasks than wanted."""
    orders = [stream(num_clients=2, tasks_per_client=1).streams.order for _ in range(2)]
    assert torch.equal(*orders)
    assert orders[0].shape == (2, 1)
    assert len(orders[0].unique()) == 2


@pytest.mark.parametrize(
    ("num_clients", "wanted", "message"),
    [
        (
            2,
            2,
            r"tasks_per_client is 2, but the 13 classes of data\.source make 3 tasks, 1 for each of 2 clients: lower it",
        ),
        (
            4,
            None,
            r"tasks_per_client is 0, but the 13 classes .* 3 tasks, 0 for each of 4 clients: lower it or data\.num_clients",
        ),
    ],
)
def test_too_few_tasks_are_an_error(num_clients, wanted, message):
    with pytest.raises(ValueError, match=message):
        stream(num_clients, tasks_per_client=wanted)


@pytest.mark.slow
@pytest.mark.skipif(not REAL_DATA, reason="FL_LIGHTNING_DATA is unset: it names the folder of MNIST/raw")
def test_mnist_has_mean_0_and_deviation_1():
    """By the values of the FedWeIT paper's code, for digits in the middle of 32x32 pixels."""
    dataset = Joined({"MNIST": "MNIST"}, {"MNIST": [0.1]}, {"MNIST": [0.2752]}).load(Path(REAL_DATA))
    assert dataset.classes[:2] == ("MNIST/0 - zero", "MNIST/1 - one")
    assert dataset.train.inputs.shape == (60_000, 3, 32, 32)
    parts = [part[:, 0].double() for part in dataset.train.inputs.split(5_000)]
    assert torch.stack([part.mean() for part in parts]).mean().item() == pytest.approx(0, abs=1e-3)
    assert torch.stack([part.square().mean() for part in parts]).mean().item() == pytest.approx(1, abs=1e-3)
