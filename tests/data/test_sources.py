"""Sources against files that the tests write themselves in the true formats, and what they say when something is wrong."""

import gzip
import os
import struct
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision.datasets
from PIL import Image
from sklearn.datasets import load_digits

from fl_lightning.data import Arrays, Digits, FederatedDataModule, ImageFolder, TorchvisionDataset
from fl_lightning.data.cache import cached
from fl_lightning.data.samples import Dataset, Samples

REAL_DATA = os.environ.get("FL_LIGHTNING_DATA")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    """An empty cache for every test."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FL_LIGHTNING_CACHE", str(folder))
    return folder


def random_pixels(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def save(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


def image_tree(root, shape=(6, 5), suffix="png", per_class=2, classes=("ant", "bee", "cat"), **options):
    """Class folders of random images under ``root``; returns the pixels, part -> (n, ...) in the order of labels and names."""
    pixels = {}
    for part, count in (("train", per_class), ("test", 1)):
        pixels[part] = random_pixels(len(classes) * count, *shape, seed=len(part))
        for i, image in enumerate(pixels[part]):
            save(root / part / classes[i // count] / f"{i:03}.{suffix}", image, **options)
    return pixels


def with_channels_first(pixels):
    return torch.from_numpy(pixels[:, None] if pixels.ndim == 3 else pixels.transpose(0, 3, 1, 2).copy())


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


def test_arrays_want_test_inputs_and_test_targets_together():
    """One without the other is a mistake, not a set without a test part."""
    for test in ({"test_inputs": torch.zeros(2, 1)}, {"test_targets": torch.tensor([0, 1])}):
        with pytest.raises(ValueError, match="test_inputs.*test_targets|test_targets.*test_inputs"):
            Arrays(torch.zeros(2, 1), torch.tensor([0, 1]), **test)


def test_train_and_test_samples_have_one_shape():
    """A test set of other images than the training set is refused with both shapes."""
    with pytest.raises(ValueError, match=r"data\.source.*shape"):
        Arrays(torch.zeros(2, 3, 8, 8), torch.tensor([0, 1]), torch.zeros(2, 1, 9, 9), torch.tensor([0, 1])).load(Path())


# Digits


def test_digits_are_scikit_learns():
    """1,797 images 8x8 of 0 to 16, stretched to 0 to 255 and rounded; both parts together are all, with their labels."""
    dataset = Digits().load(Path("nowhere"))
    images, labels = load_digits(return_X_y=True)
    expected = sorted((np.rint(image / 16 * 255).astype(np.uint8).tobytes(), label) for image, label in zip(images, labels))
    parts = (dataset.train, dataset.test)
    actual = [(x.numpy().tobytes(), int(y)) for part in parts for x, y in zip(part.inputs, part.targets)]
    assert sorted(actual) == expected
    assert dataset.train.inputs.shape[1:] == (1, 8, 8)
    assert dataset.train.inputs.dtype == torch.uint8
    assert dataset.classes == tuple("0123456789")


def test_a_fifth_of_each_digit_is_test():
    """1,797 / 5 = 359.4: 360 for test; of each class a fifth, to one sample; the same ones every time."""
    dataset, again = Digits().load(Path()), Digits().load(Path())
    assert (len(dataset.train), len(dataset.test)) == (1437, 360)
    total = np.bincount(load_digits().target)
    assert abs(dataset.test.targets.bincount().numpy() - total / 5).max() <= 1
    assert torch.equal(dataset.test.inputs, again.test.inputs)


# Class folders of images


@pytest.mark.parametrize(
    ("shape", "suffix", "options"),
    [((6, 5), "png", {}), ((6, 5, 3), "png", {}), ((6, 5, 3), "webp", {"lossless": True, "exact": True})],
    ids=["grey png", "colour png", "colour webp"],
)
def test_image_folder_reads_lossless_images_bit_for_bit(tmp_path, shape, suffix, options):
    """Pixels, labels and class names of a tree written here; folders in alphabetical order are labels 0, 1, 2."""
    pixels = image_tree(tmp_path, shape, suffix, **options)
    dataset = ImageFolder().load(tmp_path)
    assert torch.equal(dataset.train.inputs, with_channels_first(pixels["train"]))
    assert torch.equal(dataset.test.inputs, with_channels_first(pixels["test"]))
    assert dataset.train.targets.tolist() == [0, 0, 1, 1, 2, 2]
    assert dataset.test.targets.tolist() == [0, 1, 2]
    assert dataset.classes == ("ant", "bee", "cat")


def test_image_folder_labels_do_not_depend_on_creation_order(tmp_path):
    """Folders made in the order c, a, b are still labels a = 0, b = 1, c = 2, and files within go by name."""
    values = {"c": 30, "a": 10, "b": 20}
    for part in ("train", "test"):
        for name, value in values.items():
            for file, extra in (("2.png", 2), ("1.png", 1)):
                save(tmp_path / part / name / file, np.full((3, 3), value + extra, dtype=np.uint8))
    dataset = ImageFolder().load(tmp_path)
    assert dataset.classes == ("a", "b", "c")
    assert dataset.train.inputs[:, 0, 0, 0].tolist() == [11, 12, 21, 22, 31, 32]


def test_first_training_image_decides_grey_or_colour(tmp_path):
    """A colour image among grey ones is read as grey by ITU-R 601 (.299, .587, .114); a grey one among colour ones thrice."""
    grey, colour = np.full((2, 2), 77, dtype=np.uint8), np.full((2, 2, 3), (200, 100, 50), dtype=np.uint8)
    for root, first, second in ((tmp_path / "grey", grey, colour), (tmp_path / "colour", colour, grey)):
        for part in ("train", "test"):
            save(root / part / "a" / "1.png", first)
            save(root / part / "a" / "2.png", second)
    dataset = ImageFolder().load(tmp_path / "grey")
    assert dataset.train.inputs.shape == (2, 1, 2, 2)
    assert dataset.train.inputs[1].float().mean().item() == pytest.approx(0.299 * 200 + 0.587 * 100 + 0.114 * 50, abs=1)
    dataset = ImageFolder().load(tmp_path / "colour")
    assert dataset.train.inputs[1, :, 0, 0].tolist() == [77, 77, 77]


def test_image_folder_by_name_serves_a_data_module(tmp_path):
    """source="image_folder" with root: the module sees shape and classes of the tree."""
    image_tree(tmp_path, (6, 5, 3), per_class=4)
    data = FederatedDataModule("image_folder", str(tmp_path), num_clients=2, clients_per_round=1, val_fraction=0.0)
    data.setup()
    assert data.input_shape == (3, 6, 5)
    assert data.classes == ("ant", "bee", "cat")
    assert data.num_train(0) + data.num_train(1) == 12


@pytest.mark.parametrize("missing", ["", "train", "test"])
def test_image_folder_names_a_missing_folder(tmp_path, missing):
    """The root itself, or one of its two parts."""
    root = tmp_path / "images"
    if missing:
        image_tree(root)
        (root / missing).rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match=rf"data.root is {root}, but the folder {root / missing} does not exist"):
        ImageFolder().load(root)


def test_image_folder_names_classes_that_differ(tmp_path):
    """Only the class folders that one part lacks are listed."""
    image_tree(tmp_path)
    (tmp_path / "test" / "bee").rename(tmp_path / "test" / "wasp")
    with pytest.raises(
        ValueError, match=rf"data.root is {tmp_path}: train and test differ in their class folders \(bee, wasp\)"
    ):
        ImageFolder().load(tmp_path)


def test_image_folder_without_images_is_named(tmp_path):
    """Class folders without a file, and no class folders at all."""
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
    for name in (None, "ant"):
        if name:
            for part in ("train", "test"):
                (tmp_path / part / name).mkdir()
        with pytest.raises(FileNotFoundError, match=rf"data.root is {tmp_path}, but root/train/<class>/ holds no file"):
            ImageFolder().load(tmp_path)


def test_image_folder_without_test_images_is_named(tmp_path):
    """Class folders under test without a file: the message names data.root and the part."""
    image_tree(tmp_path)
    for path in tmp_path.glob("test/*/*"):
        path.unlink()
    with pytest.raises((FileNotFoundError, ValueError), match=r"data\.root.*test"):
        ImageFolder().load(tmp_path)


@pytest.mark.parametrize("content", ["no image", "cut off", "empty"])
def test_corrupt_image_is_named(tmp_path, cache, content):
    """Text in a .png, the first half of a PNG, an empty file: key, path and cure; nothing is kept in the cache."""
    image_tree(tmp_path, (20, 20))
    path = tmp_path / "train" / "bee" / "002.png"
    whole = path.read_bytes()
    path.write_bytes({"no image": b"hello", "cut off": whole[: len(whole) // 2], "empty": b""}[content])
    with pytest.raises(ValueError, match=rf"data.root: {path} cannot be read as an image .*replace or delete it"):
        ImageFolder().load(tmp_path)
    assert list(cache.glob("*.pt")) == []
    path.write_bytes(whole)
    assert len(ImageFolder().load(tmp_path).train) == 6


def test_image_of_another_size_is_named(tmp_path):
    """The path, both shapes and what to do."""
    image_tree(tmp_path)
    path = tmp_path / "train" / "cat" / "005.png"
    save(path, random_pixels(7, 5))
    with pytest.raises(ValueError, match=rf"{path} has shape \(7, 5\), the first image \(6, 5\): resize"):
        ImageFolder().load(tmp_path)


def test_test_images_of_another_size_are_named(tmp_path):
    """All images have one size, those of test too."""
    image_tree(tmp_path)
    for i, name in enumerate(("ant", "bee", "cat")):
        save(tmp_path / "test" / name / f"{i:03}.png", random_pixels(7, 5))
    with pytest.raises(ValueError, match=r"data\.(source|root).*shape"):
        ImageFolder().load(tmp_path)


# Cache


def test_images_are_decoded_once(tmp_path):
    """After the first load the files are replaced by garbage of equal size and time stamp, and the second load still works."""
    pixels = image_tree(tmp_path)
    ImageFolder().load(tmp_path)
    for path in tmp_path.glob("*/*/*.png"):
        stat = path.stat()
        path.write_bytes(b"x" * stat.st_size)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    dataset = ImageFolder().load(tmp_path)
    assert torch.equal(dataset.train.inputs, with_channels_first(pixels["train"]))
    assert dataset.classes == ("ant", "bee", "cat")


def test_changed_image_is_decoded_again(tmp_path):
    """Another image of the same name: the new pixels."""
    image_tree(tmp_path)
    ImageFolder().load(tmp_path)
    path, pixels = tmp_path / "train" / "bee" / "002.png", random_pixels(6, 5, seed=99)
    save(path, pixels)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))
    assert torch.equal(ImageFolder().load(tmp_path).train.inputs[2, 0], torch.from_numpy(pixels))


def test_added_moved_and_removed_images_are_noticed(tmp_path):
    """Labels follow the folders: one more image, one moved to another class, one gone."""
    image_tree(tmp_path)
    ImageFolder().load(tmp_path)
    save(tmp_path / "train" / "ant" / "new.png", random_pixels(6, 5))
    assert ImageFolder().load(tmp_path).train.targets.tolist() == [0, 0, 0, 1, 1, 2, 2]
    (tmp_path / "train" / "ant" / "new.png").rename(tmp_path / "train" / "bee" / "new.png")
    assert ImageFolder().load(tmp_path).train.targets.tolist() == [0, 0, 1, 1, 1, 2, 2]
    (tmp_path / "train" / "bee" / "new.png").unlink()
    assert ImageFolder().load(tmp_path).train.targets.tolist() == [0, 0, 1, 1, 2, 2]


def test_links_moved_to_another_class_are_noticed(tmp_path):
    """A tree of symbolic links into one folder of images: a link moved from class a to class b changes its label."""
    for i in range(3):
        save(tmp_path / "store" / f"{i}.png", random_pixels(4, 4, seed=i))
    for path in ("train/a/0.png", "train/a/1.png", "train/b/2.png", "test/a/0.png", "test/b/2.png"):
        link = tmp_path / "tree" / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(tmp_path / "store" / link.name)
    assert ImageFolder().load(tmp_path / "tree").train.targets.tolist() == [0, 0, 1]
    (tmp_path / "tree" / "train" / "a" / "1.png").rename(tmp_path / "tree" / "train" / "b" / "1.png")
    assert ImageFolder().load(tmp_path / "tree").train.targets.tolist() == [0, 1, 1]


def test_trees_of_one_name_do_not_share_a_cache(tmp_path):
    """Two roots called "images": each keeps its own pixels."""
    first, second = image_tree(tmp_path / "x" / "images"), image_tree(tmp_path / "y" / "images", classes=("dog", "eel", "fox"))
    assert ImageFolder().load(tmp_path / "x" / "images").classes == ("ant", "bee", "cat")
    dataset = ImageFolder().load(tmp_path / "y" / "images")
    assert dataset.classes == ("dog", "eel", "fox")
    assert torch.equal(dataset.train.inputs, with_channels_first(second["train"]))
    assert (first["train"] == second["train"]).all()


def test_cache_takes_the_default_folder_from_the_environment(tmp_path, monkeypatch):
    """Without FL_LIGHTNING_CACHE it is fl_lightning in XDG_CACHE_HOME, and without that in ~/.cache."""
    samples = Samples(torch.zeros(1, 2), torch.zeros(1, dtype=torch.long))
    for variable, folder in (("XDG_CACHE_HOME", tmp_path / "xdg"), ("HOME", tmp_path / "home" / ".cache")):
        monkeypatch.delenv("FL_LIGHTNING_CACHE", raising=False)
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setenv(variable, str(folder if variable != "HOME" else folder.parent))
        cached("toy", "x", lambda: Dataset(samples, samples, ("a",)))
        assert len(list((folder / "fl_lightning").glob("toy-*.pt"))) == 1


def test_failed_decoding_is_not_kept(cache):
    """An error reaches the caller, no cache file is left, and the next call decodes."""
    samples = Samples(torch.arange(4.0).reshape(2, 2), torch.tensor([0, 1]))

    def fail():
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        cached("toy", "x", fail)
    assert list(cache.glob("*.pt")) == []
    dataset = cached("toy", "x", lambda: Dataset(samples, samples, ("a", "b")))
    assert torch.equal(dataset.train.inputs, samples.inputs)
    assert cached("toy", "x", fail).classes == ("a", "b")
    with pytest.raises(ValueError, match="broken"):
        cached("toy", "another fingerprint", fail)


def test_writing_to_samples_does_not_change_the_cache():
    """The tensors are mapped from the file privately: whoever scales them in place spoils no one else's data."""
    samples = Samples(torch.ones(2, 2), torch.tensor([0, 1]))
    cached("toy", "x", lambda: Dataset(samples, samples, ("a", "b"))).train.inputs.zero_()
    assert torch.equal(cached("toy", "x", lambda: None).train.inputs, torch.ones(2, 2))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc/self/maps, where Linux lists mapped files")
def test_cached_samples_are_mapped_from_the_file(cache):
    """The tensors' memory is the file itself, so that processes share one copy."""
    samples = Samples(torch.ones(100, 100), torch.zeros(100, dtype=torch.long))
    dataset = cached("toy", "x", lambda: Dataset(samples, samples, ("a",)))
    mapped = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines() if str(cache) in line]
    address = dataset.train.inputs.data_ptr()
    assert any(int(start, 16) <= address < int(end, 16) for start, end in mapped)


def test_second_process_waits_for_the_first(tmp_path):
    """While another process decodes, this one waits, decodes nothing itself and gets the other's data."""
    program = textwrap.dedent("""
        import pathlib, sys, time, torch
        from fl_lightning.data.cache import cached
        from fl_lightning.data.samples import Dataset, Samples

        def decode():
            pathlib.Path(sys.argv[1]).touch()
            time.sleep(0.5)
            samples = Samples(torch.arange(6).reshape(3, 2), torch.tensor([0, 1, 1]))
            return Dataset(samples, samples, ("a", "b"))

        cached("toy", "x", decode)
    """)
    started = tmp_path / "started"
    other = subprocess.Popen([sys.executable, "-c", program, str(started)])
    deadline = time.monotonic() + 60
    while not started.exists() and other.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    dataset = cached("toy", "x", lambda: pytest.fail("decoded although another process does so"))
    assert other.wait(timeout=60) == 0
    assert dataset.train.inputs.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert dataset.classes == ("a", "b")


# torchvision's data sets by name


def write_idx(path, array):
    """Yann LeCun's format: two zero bytes, 8 for unsigned bytes, the number of dimensions, each size big-endian, the bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def write_mnist(root, train=12, test=5):
    """A tiny MNIST in the raw layout; returns images and labels, part -> (images, labels)."""
    written = {}
    for part, prefix, count in (("train", "train", train), ("test", "t10k", test)):
        images, labels = random_pixels(count, 28, 28, seed=count), np.arange(count) * 3 % 10
        write_idx(root / "MNIST" / "raw" / f"{prefix}-images-idx3-ubyte", images)
        write_idx(root / "MNIST" / "raw" / f"{prefix}-labels-idx1-ubyte", labels)
        written[part] = images, labels
    return written


def refuse_network(monkeypatch, error, after_some_bytes=True):
    """Make torchvision's download fail, before or after it wrote something, and report how often it was tried."""
    tried = []

    def download(self):
        tried.append(self.root)
        if not after_some_bytes:
            raise error
        Path(self.raw_folder).mkdir(parents=True, exist_ok=True)
        (Path(self.raw_folder) / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"half")[:10])
        raise error

    monkeypatch.setattr(torchvision.datasets.MNIST, "download", download)
    return tried


def test_mnist_is_read_from_its_raw_files(tmp_path, monkeypatch):
    """Pixels and labels as written, ten classes by torchvision's names, nothing downloaded."""
    tried = refuse_network(monkeypatch, RuntimeError("no network"))
    written = write_mnist(tmp_path)
    dataset = TorchvisionDataset("MNIST").load(tmp_path)
    for part, (images, labels) in written.items():
        samples = getattr(dataset, part)
        assert torch.equal(samples.inputs, torch.from_numpy(images[:, None]))
        assert samples.targets.tolist() == labels.tolist()
    assert dataset.classes == tuple(torchvision.datasets.MNIST.classes)
    assert len(dataset.classes) == 10
    assert tried == []


def test_two_copies_of_mnist_do_not_share_a_cache(tmp_path):
    """Other samples under another root are read anew, and so are other samples at the same place."""
    write_mnist(tmp_path / "a")
    TorchvisionDataset("MNIST").load(tmp_path / "a")
    images, _ = write_mnist(tmp_path / "b", train=15)["train"]
    assert torch.equal(TorchvisionDataset("MNIST").load(tmp_path / "b").train.inputs[:, 0], torch.from_numpy(images))
    images, _ = write_mnist(tmp_path / "a", train=15)["train"]
    assert torch.equal(TorchvisionDataset("MNIST").load(tmp_path / "a").train.inputs[:, 0], torch.from_numpy(images))


def test_missing_set_is_downloaded_into_root(tmp_path, monkeypatch):
    """A download that succeeds ends up under root, beside what lay there, and a second load needs none."""
    tried = []

    def download(self):
        tried.append(self.root)
        write_mnist(Path(self.root))

    monkeypatch.setattr(torchvision.datasets.MNIST, "download", download)
    (tmp_path / "other").mkdir()
    for _ in range(2):
        assert len(TorchvisionDataset("MNIST").load(tmp_path).train) == 12
    assert sorted(path.name for path in tmp_path.iterdir()) == ["MNIST", "other"]
    assert len(tried) == 2  # training and test part, once


NETWORK_ERRORS = [
    RuntimeError("Error downloading train-images"),
    OSError("connection refused\nsecond line"),
    TimeoutError(),  # without a text, as sockets raise it
]


@pytest.mark.parametrize("error", NETWORK_ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("after_some_bytes", [True, False])
def test_missing_set_without_network_is_named(tmp_path, monkeypatch, error, after_some_bytes):
    """Source, root, reason and cure in one line, and the half download is gone."""
    refuse_network(monkeypatch, error, after_some_bytes)
    root = tmp_path / "data"
    with pytest.raises(
        FileNotFoundError, match=rf"data.source MNIST does not lie under data.root {root} .*could not be"
    ) as caught:
        TorchvisionDataset("MNIST").load(root)
    assert "\n" not in str(caught.value)
    assert not root.exists()


def test_failed_download_leaves_nothing_behind(tmp_path, monkeypatch):
    """Nested folders that were made for the download are gone too."""
    refuse_network(monkeypatch, RuntimeError("no network"))
    with pytest.raises(FileNotFoundError):
        TorchvisionDataset("MNIST").load(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [[], ["notes.txt"], ["MNIST/raw/t10k-labels-idx1-ubyte", "notes.txt"]])
def test_failed_download_keeps_what_was_there(tmp_path, monkeypatch, content):
    """An empty folder of the user, a file in it, and part of the data set all stay as they are."""
    refuse_network(monkeypatch, RuntimeError("no network"))
    root = tmp_path / "data"
    root.mkdir()
    for name in content:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("mine")
    with pytest.raises(FileNotFoundError):
        TorchvisionDataset("MNIST").load(root)
    assert root.is_dir()
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()) == content


def test_root_that_is_a_file_is_named(tmp_path, monkeypatch):
    """The data is not there and cannot be fetched: FileNotFoundError naming data.root."""
    refuse_network(monkeypatch, RuntimeError("no network"))
    (tmp_path / "data").write_text("x")
    with pytest.raises(FileNotFoundError, match=rf"data.root.*{tmp_path / 'data'}"):
        TorchvisionDataset("MNIST").load(tmp_path / "data")


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("CIFAR1O", "CIFAR10"),
        ("MNISTT", "MNIST"),
        ("digit", "digits"),
        ("imagefolder", "image_folder"),
        ("Fashion", "FashionMNIST"),
    ],
)
def test_unknown_source_suggests_a_name(name, suggestion):
    """A typing error: key, value and the closest name, before any data is read."""
    with pytest.raises(ValueError, match=rf"data.source is '{name}', .*: did you mean {suggestion}\?"):
        FederatedDataModule(source=name)


def test_hopeless_source_lists_what_there_is():
    """Nothing is close: the known names, sets with train= and with split= among them, no detection sets or base classes."""
    with pytest.raises(ValueError, match=r"data.source is 'qqqqqq', .*: try one of ") as caught:
        FederatedDataModule(source="qqqqqq")
    listed = str(caught.value).split("try one of ")[1].split(", ")
    assert {"CIFAR10", "CIFAR100", "MNIST", "FashionMNIST", "SVHN"} <= set(listed)
    assert not {"VisionDataset", "ImageFolder", "CocoDetection", "FakeData"} & set(listed)


@pytest.mark.skipif(not REAL_DATA, reason="FL_LIGHTNING_DATA is unset: it names the folder that holds MNIST/raw")
def test_real_mnist():
    """60,000 and 10,000 images; 5,923 zeros and 6,742 ones among the former; pixel mean .1307 and deviation .3081 as known."""
    dataset = TorchvisionDataset("MNIST").load(Path(REAL_DATA))
    assert dataset.train.inputs.shape == (60000, 1, 28, 28)
    assert dataset.test.inputs.shape == (10000, 1, 28, 28)
    assert len(dataset.classes) == 10
    assert dataset.train.targets.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    counts = dataset.train.inputs.flatten().bincount(minlength=256).double()
    values = torch.arange(256).double() / 255
    mean = (counts * values).sum() / counts.sum()
    assert mean.item() == pytest.approx(0.1307, abs=5e-5)
    assert ((counts * (values - mean) ** 2).sum() / counts.sum()).sqrt().item() == pytest.approx(0.3081, abs=5e-5)
