"""Sets that the library ``datasets`` reads, from Parquet files in a local folder."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fl_lightning.data import FederatedDataModule, HuggingFace, Natural

datasets = pytest.importorskip("datasets")

CLASSES = ["ant", "bee", "cat"]
WRITERS = ["w2", "w10", "w2", "w1", "w10"]


@pytest.fixture(autouse=True)
def _folder_of_the_test(tmp_path_factory, monkeypatch):
    """What the library keeps, for the tests alone."""
    folder = str(tmp_path_factory.getbasetemp() / "huggingface")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()


def random_pixels(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write(folder, pixels, labels, split, names=CLASSES, **columns):
    """A split as the hub keeps it: Parquet with PNG images and class labels, the columns in this order."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    features = {**{name: datasets.Value("string") for name in columns}, "image": datasets.Image()}
    features["label"] = datasets.ClassLabel(names=names) if names else datasets.Value("int64")
    images = [Image.fromarray(image) for image in pixels]
    content = {**columns, "image": images, "label": labels}
    table = datasets.Dataset.from_dict(content, features=datasets.Features(features))
    table.to_parquet(str(folder / "data" / f"{split}-00000-of-00001.parquet"))


@pytest.fixture
def folder(tmp_path):
    """Five colour images of three classes by three writers, and two for test; folder and pixels."""
    train, test = random_pixels(5, 6, 5, 3), random_pixels(2, 6, 5, 3, seed=1)
    root = tmp_path / "set"
    write(root, train, [2, 0, 1, 1, 0], "train", writer=WRITERS)
    write(root, test, [1, 2], "test", writer=["x", "y"])
    return root, train, test


def channels_first(pixels):
    return torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())


def test_parquet_is_read_bit_for_bit(folder, tmp_path, no_more_decoding):
    """Pixels, labels and class names in the order of the files; root is not asked; a second load decodes nothing."""
    root, train, test = folder
    for _ in range(2):
        dataset = HuggingFace(str(root)).load(tmp_path / "nowhere")
        assert torch.equal(dataset.train.inputs, channels_first(train))
        assert torch.equal(dataset.test.inputs, channels_first(test))
        assert dataset.train.targets.tolist() == [2, 0, 1, 1, 0]
        assert dataset.test.targets.tolist() == [1, 2]
        assert dataset.classes == tuple(CLASSES)
        assert dataset.owners is None
        no_more_decoding()


def test_clients_in_the_order_of_their_names(folder, tmp_path):
    """w1, w10, w2 as text are 0, 1, 2; each client of the federation holds the samples of one."""
    root, _, _ = folder
    source = HuggingFace(str(root), client="writer")
    assert source.load(tmp_path).owners.tolist() == [2, 1, 2, 0, 1]
    assert source.load(tmp_path).test_owners is None  # of other writers
    write(root, random_pixels(2, 6, 5, 3), [1, 2], "test", writer=["x", "w2"])
    assert source.load(tmp_path).test_owners.tolist() == [-1, 2]
    data = FederatedDataModule(source, num_clients=3, clients_per_round=1, partition=Natural(), val_fraction=0.0)
    data.setup()
    assert {tuple(sorted(data.shards.train_indices(i).tolist())) for i in range(3)} == {(0, 2), (1, 4), (3,)}


def test_options_are_other_cache_entries(folder, tmp_path):
    """With a client, without, with a size, and as before."""
    root, train, _ = folder
    assert HuggingFace(str(root)).load(tmp_path).owners is None
    assert HuggingFace(str(root), client="writer").load(tmp_path).owners is not None
    assert HuggingFace(str(root), size=4).load(tmp_path).train.inputs.shape == (5, 3, 4, 4)
    assert torch.equal(HuggingFace(str(root)).load(tmp_path).train.inputs, channels_first(train))


def test_a_changed_file_is_noticed(folder, tmp_path):
    """Other images of the same number under the same name."""
    root, _, _ = folder
    HuggingFace(str(root)).load(tmp_path)
    other = random_pixels(5, 6, 5, 3, seed=7)
    write(root, other, [0, 0, 1, 1, 2], "train", writer=WRITERS)
    dataset = HuggingFace(str(root)).load(tmp_path)
    assert torch.equal(dataset.train.inputs, channels_first(other))
    assert dataset.train.targets.tolist() == [0, 0, 1, 1, 2]


def test_splits_of_other_names(folder, tmp_path):
    """What is called test may be for training; with test null there is no test set."""
    root, _, test = folder
    dataset = HuggingFace(str(root), train="test", test=None).load(tmp_path)
    assert torch.equal(dataset.train.inputs, channels_first(test))
    assert dataset.test.inputs.shape == (0, 3, 6, 5)
    assert dataset.classes == tuple(CLASSES)


def test_columns_by_name_and_labels_without_names(tmp_path):
    """Two images a row and plain integers: the named columns; classes by number up to the largest label of either part."""
    first, second = random_pixels(2, 4, 4), random_pixels(2, 4, 4, seed=1)
    for split, labels in (("train", [0, 1]), ("test", [3, 0])):
        (tmp_path / "set" / "data").mkdir(parents=True, exist_ok=True)
        features = {"small": datasets.Image(), "large": datasets.Image(), "digit": datasets.Value("int64")}
        content = {"small": list(map(Image.fromarray, first)), "large": list(map(Image.fromarray, second)), "digit": labels}
        table = datasets.Dataset.from_dict(content, features=datasets.Features(features))
        table.to_parquet(str(tmp_path / "set" / "data" / f"{split}-00000-of-00001.parquet"))
    dataset = HuggingFace(str(tmp_path / "set"), image="large", label="digit").load(tmp_path)
    assert torch.equal(dataset.train.inputs[:, 0], torch.from_numpy(second))
    assert dataset.classes == ("0", "1", "2", "3")
    default = HuggingFace(str(tmp_path / "set"), label="digit").load(tmp_path)
    assert torch.equal(default.train.inputs[:, 0], torch.from_numpy(first))


def test_unequal_sizes_need_a_size(tmp_path):
    """The sample, both sizes and the key; with it they are read."""
    images = [random_pixels(6, 5), random_pixels(6, 5), random_pixels(8, 8)]
    for split in ("train", "test"):
        write(tmp_path / "set", images, [0, 1, 2], split)
    with pytest.raises(ValueError, match=r"^data\.source .*set: sample 2 has 8x8 pixels, the first image 6x5: give .*\.size"):
        HuggingFace(str(tmp_path / "set")).load(tmp_path)
    assert HuggingFace(str(tmp_path / "set"), size=8).load(tmp_path).train.inputs.shape == (3, 1, 8, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": "training"}, "has no split training, there are train, test: name one of them"),
        ({"test": "validation"}, "has no split validation, there are train, test"),
        ({"image": "picture"}, r"data\.source\.image is .picture., must be one of writer, image, label: the columns of"),
        ({"label": "class"}, r"data\.source\.label is .class., must be one of"),
        ({"client": "author"}, r"data\.source\.client is .author., must be one of"),
        ({"image": "writer"}, "column writer is not an image but of type str: choose a set of images"),
        ({"label": "writer"}, "sample 0 has the label 'w2', must be the number of its class"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_mistakes_name_the_key(folder, tmp_path, options, message):
    """In one line, with what there is."""
    with pytest.raises(ValueError, match=message) as caught:
        HuggingFace(str(folder[0]), **options).load(tmp_path)
    assert str(caught.value).startswith("data.source")
    assert "\n" not in str(caught.value)


def test_columns_that_cannot_be_guessed_are_asked_for(tmp_path):
    """Plain integers are no class labels until somebody says so."""
    write(tmp_path / "set", random_pixels(2, 4, 4), [0, 1], "train", names=None)
    with pytest.raises(
        ValueError, match=r"data\.source .* has no column that is known to hold a label: set data\.source\.label"
    ):
        HuggingFace(str(tmp_path / "set"), test=None).load(tmp_path)


def test_samples_without_a_client_or_an_image_are_named(tmp_path):
    """An empty value is no writer, and no image."""
    write(tmp_path / "a", random_pixels(2, 4, 4), [0, 1], "train", writer=["w", None])
    with pytest.raises(ValueError, match=r"^data\.source .*a: sample 1 has no writer: .*") as caught:
        HuggingFace(str(tmp_path / "a"), test=None, client="writer").load(tmp_path)
    assert "\n" not in str(caught.value)


def test_hidden_test_labels_are_named(tmp_path):
    """The hub's -1 for labels that are kept secret."""
    for split, labels in (("train", [0, 1]), ("test", [-1, -1])):
        write(tmp_path / "set", random_pixels(2, 4, 4), labels, split)
    with pytest.raises(ValueError, match=r"data\.source has the test label -1, must be between 0 and 2"):
        HuggingFace(str(tmp_path / "set")).load(tmp_path)


@pytest.mark.parametrize("content", ["no file", "no parquet", "damaged"])
def test_a_set_that_cannot_be_loaded_is_named(folder, content):
    """No such folder, and a broken file: one line with the library's reason, whatever it raised."""
    root = folder[0] if content != "no file" else folder[0] / "nowhere"
    if content != "no file":
        path = root / "data" / "train-00000-of-00001.parquet"
        whole = path.read_bytes()
        path.write_bytes(b"no parquet" if content == "no parquet" else b"\xff" * 400 + whole[400:])
    with pytest.raises(FileNotFoundError, match=rf"^data\.source {root} could not be loaded from Hugging Face") as caught:
        HuggingFace(str(root)).load(Path())
    assert "\n" not in str(caught.value)
