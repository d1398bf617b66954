"""Samples in memory and in NumPy archives."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fl_lightning.data import Arrays, FederatedDataModule, Natural, Npz
from fl_lightning.objectives import MultiLabel, Regression, SingleLabel

# Arrays


def test_arrays_are_handed_on_as_they_are():
    """Inputs of any shape, targets as int64, classes named by number up to the largest label of either part."""
    inputs, targets = torch.rand(4, 3), torch.tensor([0, 2, 1, 0], dtype=torch.int32)
    dataset = Arrays(inputs, targets, torch.rand(1, 3), torch.tensor([3])).load(Path("nowhere"))
    assert torch.equal(dataset.train.inputs, inputs)
    assert dataset.train.targets.tolist() == [0, 2, 1, 0]
    assert dataset.train.targets.dtype == dataset.test.targets.dtype == torch.int64
    assert dataset.classes == ("0", "1", "2", "3")


def test_arrays_without_test_set():
    """The test part is empty, with the shape of a sample."""
    dataset = Arrays(torch.rand(4, 3), torch.tensor([0, 1, 1, 0]), classes=["cat", "dog", "owl"]).load(Path())
    assert len(dataset.test) == 0
    assert dataset.test.inputs.shape == (0, 3)
    assert dataset.classes == ("cat", "dog", "owl")


@pytest.mark.parametrize(("labels", "part", "wrong"), [([0, 2], "training", 2), ([-1, 0], "training", -1), ([0, 5], "test", 5)])
def test_arrays_name_labels_out_of_range(labels, part, wrong):
    """Which part, which label, what is allowed for two named classes."""
    good, bad = torch.tensor([0, 1]), torch.tensor(labels)
    train, test = (bad, good) if part == "training" else (good, bad)
    with pytest.raises(ValueError, match=rf"data.source has the {part} label {wrong}, must be between 0 and 1 for 2 classes"):
        Arrays(torch.zeros(2, 1), train, torch.zeros(2, 1), test, classes=["cat", "dog"])


def test_arrays_name_negative_labels_without_class_names():
    """Labels alone decide the number of classes, but never below 0."""
    with pytest.raises(ValueError, match=r"data.source has the training label -1, must be between 0 and 1"):
        Arrays(torch.zeros(2, 1), torch.tensor([-1, 1]))


def test_arrays_name_differing_lengths():
    """Three inputs, two targets."""
    with pytest.raises(ValueError, match=r"data.source gives 3 training inputs and 2 targets"):
        Arrays(torch.zeros(3, 1), torch.tensor([0, 1]))


def test_an_empty_test_set_may_have_targets_of_any_type():
    dataset = Arrays(torch.zeros(2, 1), torch.tensor([0, 1]), torch.zeros(0, 1), torch.zeros(0)).load(Path("nowhere"))

    assert len(dataset.test) == 0
    assert dataset.test.targets.dtype == torch.int64


def test_arrays_want_test_inputs_and_test_targets_together():
    """One without the other is a mistake, not a set without a test part."""
    for test in ({"test_inputs": torch.zeros(2, 1)}, {"test_targets": torch.tensor([0, 1])}):
        with pytest.raises(ValueError, match="test_inputs.*test_targets|test_targets.*test_inputs"):
            Arrays(torch.zeros(2, 1), torch.tensor([0, 1]), **test)


def test_train_and_test_samples_have_one_shape():
    """A test set of other images than the training set is refused with both shapes."""
    with pytest.raises(ValueError, match=r"data\.source.*shape"):
        Arrays(torch.zeros(2, 3, 8, 8), torch.tensor([0, 1]), torch.zeros(2, 1, 9, 9), torch.tensor([0, 1])).load(Path())


@pytest.mark.parametrize("targets", [torch.tensor([0.0, 1.0]), torch.eye(2).int()])
def test_targets_must_be_whole_numbers_one_a_sample(targets):
    """Floats would be cut off, rows of zeros and ones are no indices: refused."""
    with pytest.raises(ValueError, match=r"data\.source .*targets"):
        Arrays(torch.zeros(2, 1), targets).load(Path())


@pytest.mark.parametrize("targets", [["dog", "cat", "dog"], np.array(["dog", "cat", "dog"])])
def test_names_of_classes_are_numbered(targets):
    """In sorted order, or in that of ``classes``; a name that is not there is refused."""
    dataset = Arrays(torch.zeros(3, 1), targets, torch.zeros(1, 1), ["cat"]).load(Path())
    assert (dataset.classes, dataset.train.targets.tolist(), dataset.test.targets.tolist()) == (("cat", "dog"), [1, 0, 1], [0])
    dataset = Arrays(torch.zeros(3, 1), targets, classes=["dog", "cow", "cat"]).load(Path())
    assert dataset.train.targets.tolist() == [0, 2, 0]
    with pytest.raises(
        ValueError, match="data.source has test_targets 'cow' for sample 0, which is not a class: the classes are "
    ):
        Arrays(torch.zeros(3, 1), targets, torch.zeros(1, 1), ["cow"])


def test_names_of_classes_are_texts():
    with pytest.raises(ValueError, match="data.source has the class 0, must be one line of UTF-8 text: rename it"):
        Arrays(torch.zeros(3, 1), torch.tensor([0, 1, 2]), classes=[0, 1, 2])


@pytest.mark.parametrize(("objective", "shape"), [(MultiLabel(), (4, 1)), (SingleLabel(), (4,)), (Regression(), (4,))])
def test_an_archive_of_one_target_a_sample_has_the_shape_of_the_objective(tmp_path, objective, shape):
    """One column is one label of MultiLabel, and Keras' form of a class."""
    np.savez(tmp_path / "x.npz", inputs=np.zeros((4, 2), np.float32), targets=np.array([[0], [1], [1], [0]]))
    assert Npz(str(tmp_path / "x.npz"), objective).load(Path()).train.targets.shape == shape


def test_arrays_take_numpy_arrays_and_owners():
    """NumPy's arrays become tensors of equal values; owners are those of the training samples."""
    inputs = np.arange(6, dtype=np.float32).reshape(3, 2)
    dataset = Arrays(inputs, np.array([1, 0, 1], dtype=np.uint8), owners=np.array([2, 0, 1])).load(Path())
    assert dataset.train.inputs.tolist() == inputs.tolist()
    assert dataset.train.targets.tolist() == [1, 0, 1]
    assert dataset.owners.tolist() == [2, 0, 1]
    with pytest.raises(ValueError, match=r"data\.source gives 3 training samples and 2 owners"):
        Arrays(inputs, np.array([1, 0, 1]), owners=np.array([0, 1]))


def test_rows_of_different_lengths_are_named():
    """As lists have them."""
    with pytest.raises(
        ValueError, match=r"data\.source has inputs that are not an array .*: give all samples one shape, texts by padding=True"
    ):
        Arrays([[1.0, 2.0], [3.0]], torch.tensor([0, 1]))


def test_arrays_that_torch_does_not_take_as_they_are():
    """Read-only, backwards, of the other byte order and of 16 bytes a number: the same values."""
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    frozen = values.copy()
    frozen.flags.writeable = False
    for inputs in (frozen, values[::-1].copy()[::-1], values.astype(">f4"), values.astype(np.longdouble)):
        assert Arrays(inputs, np.array([1, 0, 1])).load(Path()).train.inputs.tolist() == values.tolist()


# Archives


def pixels(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("keras", [False, True], ids=["our names", "Keras' names"])
def test_archive_is_read_by_either_names(tmp_path, keras, compress):
    """As np.savez writes it: inputs bit for bit, targets of any integer type, classes and owners if they are there."""
    train, test = pixels(4, 3, 6, 5), pixels(2, 3, 6, 5)
    names = ("x_train", "y_train", "x_test", "y_test") if keras else ("inputs", "targets", "test_inputs", "test_targets")
    arrays = dict(zip(names, (train, np.array([0, 2, 1, 0], dtype=np.uint8), test, np.array([2, 1]))))
    (np.savez_compressed if compress else np.savez)(
        tmp_path / "a.npz", **arrays, classes=np.array(["ant", "bee", "cat"]), owners=np.array([0, 1, 1, 0])
    )
    dataset = Npz(str(tmp_path / "a.npz")).load(Path("nowhere"))
    assert torch.equal(dataset.train.inputs, torch.from_numpy(train))
    assert torch.equal(dataset.test.inputs, torch.from_numpy(test))
    assert dataset.train.targets.tolist() == [0, 2, 1, 0]
    assert dataset.test.targets.tolist() == [2, 1]
    assert dataset.train.targets.dtype == torch.int64
    assert dataset.classes == ("ant", "bee", "cat")
    assert dataset.owners.tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((4, 6, 5), None),
        ((4, 6, 5, 3), (0, 3, 1, 2)),
        ((4, 6, 5, 1), (0, 3, 1, 2)),
        ((4, 6, 5, 4), (0, 3, 1, 2)),
        ((4, 3, 6, 5), (0, 1, 2, 3)),
    ],
    ids=["no channel", "colour last", "grey last", "with transparency last", "colour first"],
)
def test_archive_of_images_becomes_channels_first(tmp_path, shape, axes):
    """Keras' MNIST (n, h, w) and CIFAR (n, h, w, 3), with targets (n, 1); and what is channels first stays."""
    images = pixels(*shape)
    np.savez(tmp_path / "a.npz", x_train=images, y_train=np.array([[0], [1], [1], [0]]))
    dataset = Npz(str(tmp_path / "a.npz")).load(Path())
    expected = images.reshape(4, 1, 6, 5) if axes is None else images.transpose(axes)
    assert dataset.train.inputs.numpy().tolist() == expected.tolist()
    assert dataset.train.targets.tolist() == [0, 1, 1, 0]
    assert len(dataset.test) == 0


def test_archive_of_floats_stays_as_it_is(tmp_path):
    """Vectors, and float images whatever their order of dimensions."""
    for shape in ((4, 7), (4, 6, 5, 3)):
        values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        np.savez(tmp_path / "a.npz", inputs=values, targets=np.arange(4))
        assert torch.equal(Npz(str(tmp_path / "a.npz")).load(Path()).train.inputs, torch.from_numpy(values))


def test_archive_by_name_serves_a_data_module(tmp_path):
    """source: path.npz, the spelling of the command line."""
    np.savez(tmp_path / "a.npz", inputs=pixels(8, 6, 5), targets=np.arange(8) % 2, owners=np.array([0, 0, 0, 0, 0, 1, 1, 1]))
    data = FederatedDataModule(
        str(tmp_path / "a.npz"), num_clients=2, clients_per_round=1, partition=Natural(), val_fraction=0.0
    )
    data.setup()
    assert data.input_shape == (1, 6, 5)
    assert sorted(data.num_train(client) for client in range(2)) == [3, 5]


ARCHIVE = {"inputs": np.zeros((2, 3)), "targets": np.array([0, 1])}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"inputs": np.zeros((2, 3))}, "has no array targets: an archive may hold inputs, targets, test_inputs"),
        ({"targets": np.array([0])}, "has no array inputs"),
        ({**ARCHIVE, "weights": np.zeros(2)}, "has an array weights: an archive may hold inputs, targets"),
        ({**ARCHIVE, "x_train": np.zeros((2, 3))}, "which has both inputs and x_train: leave one out"),
        (
            {**ARCHIVE, "targets": np.array(["cat", "dog"]), "classes": np.array(["cat"])},
            "has targets 'dog' for sample 1, which is not a class",
        ),
        (
            {**ARCHIVE, "targets": np.array([0.0, 1.0])},
            "has targets of type float64, .*give values the objective Regression",
        ),
        (
            {**ARCHIVE, "targets": np.eye(2, dtype=int)},
            r"training targets of shape \(2, 2\), .*one class for each sample, or",
        ),
        (
            {**ARCHIVE, "targets": np.eye(2)},
            r"training targets of shape \(2, 2\), .*one class for each sample, or",
        ),
        ({**ARCHIVE, "targets": np.array([0, 1], dtype=object)}, "not an archive of plain arrays"),
        ({**ARCHIVE, "targets": np.array([0, -1])}, "training label -1"),
        ({**ARCHIVE, "targets": np.array([0, 1, 1])}, "2 training inputs and 3 targets"),
        ({**ARCHIVE, "test_inputs": np.zeros((1, 3))}, "has only test_inputs"),
        ({**ARCHIVE, "classes": np.array(["cat"])}, "must be between 0 and 0 for 1 classes"),
        ({**ARCHIVE, "test_inputs": np.zeros((1, 4)), "test_targets": np.array([0])}, r"shape \(3,\) and test .* \(4,\)"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value[:25],
)
def test_archives_that_do_not_fit_name_the_file(tmp_path, arrays, message):
    """Key, file, what is wrong, in one line."""
    path = tmp_path / "a.npz"
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=message) as caught:
        Npz(str(path)).load(Path())
    assert str(caught.value).startswith("data.source")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["text", "empty", "cut off", "one array", "bits flipped"])
def test_files_that_are_no_archives_are_named(tmp_path, content):
    """Text, nothing, the first half, what np.save writes, and a compressed archive with damage inside."""
    path = tmp_path / "a.npz"
    np.savez_compressed(path, inputs=pixels(50, 8, 8) // 16, targets=np.arange(50))
    whole = path.read_bytes()
    flipped = bytearray(whole)
    for offset in range(300, 900):
        flipped[offset] ^= 255
    if content == "one array":
        with open(path, "wb") as file:
            np.save(file, pixels(4, 3))
    else:
        made = {"text": b"hello", "empty": b"", "cut off": whole[: len(whole) // 2], "bits flipped": bytes(flipped)}
        path.write_bytes(made[content])
    with pytest.raises(ValueError, match=rf"data\.source is {path}, which is not an archive of plain arrays") as caught:
        Npz(str(path)).load(Path())
    assert "\n" not in str(caught.value)


def test_missing_archive_is_named_before_any_work(tmp_path):
    """When the source is named, not when it is read."""
    with pytest.raises(FileNotFoundError, match=rf"data\.source is {tmp_path}/a\.npz, which does not exist: give a \.npz"):
        FederatedDataModule(f"{tmp_path}/a.npz")
