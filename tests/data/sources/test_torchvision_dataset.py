"""Sets of torchvision in files that the tests write themselves, in the layouts that torchvision downloads."""

import gzip
import itertools
import os
import pickle
import struct
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
import torchvision.datasets
from PIL import Image

from fl_lightning.data import IID, FederatedDataModule, Superclasses, TorchvisionDataset


def random_pixels(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def write_idx(path, array):
    """Yann LeCun's format: two zero bytes, 8 for unsigned bytes, the number of dimensions, each size big-endian, the bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def write_mnist(root, train=12, test=5, folder="MNIST", prefixes=("train", "t10k")):
    """A tiny MNIST in the raw layout; returns images and labels, part -> (images, labels)."""
    written = {}
    for part, prefix, count in zip(("train", "test"), prefixes, (train, test)):
        images, labels = random_pixels(count, 28, 28, seed=count), np.arange(count) * 3 % 10
        write_idx(root / folder / "raw" / f"{prefix}-images-idx3-ubyte", images)
        write_idx(root / folder / "raw" / f"{prefix}-labels-idx1-ubyte", labels)
        written[part] = images, labels
    return written


def write_emnist(root, split, **counts):
    return write_mnist(root, folder="EMNIST", prefixes=(f"emnist-{split}-train", f"emnist-{split}-test"), **counts)


def planes(images):
    """Rows of 3,072 bytes as CIFAR has them: 1,024 of red, of green, of blue, each line by line from the top."""
    rows = np.empty((len(images), 3072), dtype=np.uint8)
    for channel in range(3):
        for line in range(32):
            start = 1024 * channel + 32 * line
            rows[:, start : start + 32] = images[:, channel, line]
    return rows


def write_pickle(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=2))


@pytest.fixture
def no_checksums(monkeypatch):
    """Small files in the layout of the large ones have other checksums."""
    for module in ("cifar", "svhn"):
        monkeypatch.setattr(f"torchvision.datasets.{module}.check_integrity", lambda path, md5=None: os.path.isfile(path))


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
    """Other samples under another root are read anew, and so are other samples at the same path."""
    write_mnist(tmp_path / "a")
    TorchvisionDataset("MNIST").load(tmp_path / "a")
    images, _ = write_mnist(tmp_path / "b", train=15)["train"]
    assert torch.equal(TorchvisionDataset("MNIST").load(tmp_path / "b").train.inputs[:, 0], torch.from_numpy(images))
    images, _ = write_mnist(tmp_path / "a", train=15)["train"]
    assert torch.equal(TorchvisionDataset("MNIST").load(tmp_path / "a").train.inputs[:, 0], torch.from_numpy(images))


def test_a_root_is_decoded_once_however_it_is_given(tmp_path, monkeypatch, cache):
    write_mnist(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    for root in (tmp_path / "data", Path("data"), Path("data") / ".." / "data"):
        TorchvisionDataset("MNIST").load(root)
    assert len(list(cache.glob("MNIST-*.pt"))) == 1


def test_changed_labels_are_noticed(tmp_path):
    """Nobody checks sums of MNIST's files: one other label among the same images is read anew."""
    _, labels = write_mnist(tmp_path)["train"]
    TorchvisionDataset("MNIST").load(tmp_path)
    labels[7] = (labels[7] + 1) % 10
    write_idx(tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte", labels)
    assert TorchvisionDataset("MNIST").load(tmp_path).train.targets.tolist() == labels.tolist()


def test_changed_labels_of_a_folder_set_are_noticed(tmp_path):
    """DTD keeps them as ``_labels``: the second of five images in another class, with the same pixels."""
    folder = tmp_path / "dtd" / "dtd"
    (folder / "labels").mkdir(parents=True)
    for labels in ("aabba", "abbba"):
        for part in ("train", "test"):
            names = [f"{label}/{number}.png" for number, label in enumerate(labels)]
            (folder / "labels" / f"{part}1.txt").write_text("\n".join(names))
            for number, name in enumerate(names):
                (folder / "images" / name).parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(random_pixels(4, 4, 3, seed=number)).save(folder / "images" / name)
        targets = TorchvisionDataset("DTD").load(tmp_path).train.targets
        assert targets.tolist() == ["ab".index(label) for label in labels]


def test_missing_set_is_downloaded_into_root(tmp_path, monkeypatch):
    """A download that succeeds ends up under root, next to what lay there, and a second load needs none."""
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


def test_one_download_at_a_time(tmp_path, monkeypatch):
    """Two who start together: the second waits, finds the set and downloads nothing."""
    tried, loaded, together = [], [], threading.Barrier(2)

    def download(self):
        tried.append(self.root)
        time.sleep(0.2)
        write_mnist(Path(self.root))

    def load():
        together.wait()
        loaded.append(TorchvisionDataset("MNIST").load(tmp_path))

    monkeypatch.setattr(torchvision.datasets.MNIST, "download", download)
    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 2
    assert len(tried) == 2  # training and test part, once


def test_nothing_is_left_but_under_root_and_in_the_cache(tmp_path, cache, monkeypatch):
    """Not in the system's temporary folder; in the cache the samples and one lock for each of two loads from two roots."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "system"))
    (tmp_path / "system").mkdir()
    for name in ("a", "b"):
        write_mnist(tmp_path / name)
        for _ in range(2):
            TorchvisionDataset("MNIST").load(tmp_path / name)
    assert list((tmp_path / "system").iterdir()) == []
    assert len(list(cache.glob("root-*.lock"))) == len(list(cache.glob("MNIST-*.pt"))) == 2


NETWORK_ERRORS = [
    RuntimeError("Error downloading train-images"),
    OSError("connection refused\nsecond line"),
    TimeoutError(),  # without a text, as sockets raise it
    ValueError("The original URL is broken"),  # as StanfordCars raises it
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
    """An empty folder of the user, a file in it, and part of the dataset all stay as they are."""
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


# Other sets in the layout of MNIST


@pytest.mark.parametrize("name", ["FashionMNIST", "KMNIST"])
def test_sets_in_the_layout_of_mnist(tmp_path, name):
    """Each in another folder, with torchvision's names of the classes."""
    written = write_mnist(tmp_path, folder=name)
    dataset = TorchvisionDataset(name).load(tmp_path)
    for part, (images, labels) in written.items():
        assert torch.equal(getattr(dataset, part).inputs[:, 0], torch.from_numpy(images))
        assert getattr(dataset, part).targets.tolist() == labels.tolist()
    first = {"FashionMNIST": "T-shirt/top", "KMNIST": "o"}[name]
    assert (len(dataset.classes), dataset.classes[0]) == (10, first)


def test_emnist_is_read_split_by_split(tmp_path):
    """Two splits under one root, each with files, classes and cache entry; by name and as an object."""
    digits, letters = write_emnist(tmp_path, "digits"), write_emnist(tmp_path, "letters", train=9)
    data = FederatedDataModule("EMNIST/digits", str(tmp_path), num_clients=2, clients_per_round=1, partition=IID())
    data.setup()
    assert data.classes == tuple("0123456789")
    assert torch.equal(data.train_set.inputs[:, 0], torch.from_numpy(digits["train"][0]))
    assert torch.equal(data.test_set.inputs[:, 0], torch.from_numpy(digits["test"][0]))
    dataset = TorchvisionDataset("EMNIST", "letters").load(tmp_path)
    assert torch.equal(dataset.train.inputs[:, 0], torch.from_numpy(letters["train"][0]))
    assert dataset.train.targets.tolist() == letters["train"][1].tolist()
    assert dataset.classes == ("N/A", *"abcdefghijklmnopqrstuvwxyz")  # the files count letters from 1


def test_splits_of_equal_images_do_not_share_a_cache(tmp_path):
    """The same pictures, called digits in one split and letters in the other."""
    images, labels = write_emnist(tmp_path, "digits")["train"]
    write_emnist(tmp_path, "letters")
    write_idx(tmp_path / "EMNIST" / "raw" / "emnist-letters-train-labels-idx1-ubyte", labels + 10)
    digits, letters = (TorchvisionDataset("EMNIST", split).load(tmp_path) for split in ("digits", "letters"))
    assert torch.equal(digits.train.inputs, letters.train.inputs)
    assert torch.equal(digits.train.inputs[:, 0], torch.from_numpy(images))
    assert letters.train.targets.tolist() == [label + 10 for label in digits.train.targets.tolist()]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("EMNIST", "data.source is EMNIST, a set of several splits: write EMNIST/SPLIT, such as EMNIST/digits"),
        ("MNIST/digits", "data.source is MNIST/digits, but MNIST has no such splits: write MNIST"),
        ("SVHN/extra", "data.source is SVHN/extra, but SVHN has no such splits: write SVHN"),
        ("EMNISTT/digits", "data.source is 'EMNISTT', neither digits, .*: did you mean EMNIST?"),
    ],
)
def test_splits_that_do_not_fit_are_named(name, message):
    """When the module is made, in one line."""
    with pytest.raises(ValueError, match=message.replace("?", r"\?")) as caught:
        FederatedDataModule(name)
    assert "\n" not in str(caught.value)


def test_unknown_split_lists_those_that_there_are(tmp_path):
    """In one line, with all of torchvision's names, and nothing is downloaded."""
    with pytest.raises(ValueError, match=r"^data\.source is EMNIST/digit: .*'?byclass'?.*'?digits'?") as caught:
        TorchvisionDataset("EMNIST", "digit").load(tmp_path)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


# CIFAR


def write_cifar10(root, per_batch=3):
    """Five training batches and one of test; returns images (n, 3, 32, 32) and labels, part -> (images, labels)."""
    folder, names = root / "cifar-10-batches-py", [f"data_batch_{i}" for i in range(1, 6)]
    images, labels = random_pixels(6 * per_batch, 3, 32, 32), np.arange(6 * per_batch) * 7 % 10
    for i, name in enumerate([*names, "test_batch"]):
        part = slice(i * per_batch, (i + 1) * per_batch)
        batch = {"batch_label": name, "labels": labels[part].tolist(), "data": planes(images[part]), "filenames": []}
        write_pickle(folder / name, batch)
    meta = {"num_cases_per_batch": 10000, "label_names": list("abcdefghij"), "num_vis": 3072}
    write_pickle(folder / "batches.meta", meta)
    train = 5 * per_batch
    return {"train": (images[:train], labels[:train]), "test": (images[train:], labels[train:])}


def test_cifar10_is_read_from_its_batches(tmp_path, no_checksums, no_more_decoding):
    """Five batches in order, planes of red, green and blue; a second load decodes nothing."""
    written = write_cifar10(tmp_path)
    for _ in range(2):
        dataset = TorchvisionDataset("CIFAR10").load(tmp_path)
        for part, (images, labels) in written.items():
            assert torch.equal(getattr(dataset, part).inputs, torch.from_numpy(images))
            assert getattr(dataset, part).targets.tolist() == labels.tolist()
        assert dataset.classes == tuple("abcdefghij")
        no_more_decoding()


def test_cifar10_with_a_size_is_another_cache_entry(tmp_path, no_checksums):
    """32, 16 and again 32."""
    written = write_cifar10(tmp_path)
    assert TorchvisionDataset("CIFAR10").load(tmp_path).train.inputs.shape == (15, 3, 32, 32)
    assert TorchvisionDataset("CIFAR10", size=16).load(tmp_path).train.inputs.shape == (15, 3, 16, 16)
    assert torch.equal(TorchvisionDataset("CIFAR10").load(tmp_path).train.inputs, torch.from_numpy(written["train"][0]))


FINE = [f"class {i}" for i in range(100)]


def write_cifar100(root, names=FINE, coarse=lambda fine: fine % 20, coarse_names=tuple(map(str, range(20)))):
    """Two images of each class in a shuffled order for training, one for test; returns part -> (images, fine, coarse)."""
    written = {}
    for part, count in (("train", 200), ("test", 100)):
        images, fine = random_pixels(count, 3, 32, 32, seed=count), np.random.default_rng(count).permutation(count) % 100
        above = [coarse(int(label)) for label in fine]
        content = {"filenames": [], "batch_label": part, "fine_labels": fine.tolist(), "coarse_labels": above}
        write_pickle(root / "cifar-100-python" / part, {**content, "data": planes(images)})
        written[part] = images, fine.tolist(), above
    meta = {"fine_label_names": list(names), "coarse_label_names": list(coarse_names)}
    write_pickle(root / "cifar-100-python" / "meta", meta)
    return written


def test_cifar100_has_its_fine_labels(tmp_path, no_checksums):
    """Labels 0 to 99 of fine_labels, not the coarse ones."""
    written = write_cifar100(tmp_path)
    dataset = TorchvisionDataset("CIFAR100").load(tmp_path)
    for part, (images, fine, _) in written.items():
        assert torch.equal(getattr(dataset, part).inputs, torch.from_numpy(images))
        assert getattr(dataset, part).targets.tolist() == fine
    assert dataset.classes == tuple(FINE)


def test_superclasses_of_cifar100_are_its_coarse_labels(tmp_path, no_checksums):
    """Each class in a superclass at random: a table of the pairs in the files gives the files' coarse labels."""
    above = np.random.default_rng(0).permutation(100) % 20
    names = sorted(f"kind_{chr(97 + i)}" for i in range(20))
    written = write_cifar100(tmp_path, coarse=lambda fine: int(above[fine]), coarse_names=names)
    lines = [f"{name},{names[above[i]]}" for i, name in enumerate(FINE)]
    (tmp_path / "table.csv").write_text("\n".join(["class,superclass", *lines]))
    dataset = Superclasses("CIFAR100", str(tmp_path / "table.csv")).load(tmp_path)
    for part, (images, _, coarse) in written.items():
        assert torch.equal(getattr(dataset, part).inputs, torch.from_numpy(images))
        assert getattr(dataset, part).targets.tolist() == coarse
    assert dataset.classes == tuple(names)


# Others


def test_svhn_is_read_from_its_mat_files(tmp_path, no_checksums, no_more_decoding):
    """X is (32, 32, 3, n), y counts from 1 and calls a zero 10."""
    images, digits = random_pixels(8, 3, 32, 32), np.array([1, 10, 9, 5, 10, 2, 3, 4])
    for part, chosen in (("train", slice(0, 5)), ("test", slice(5, 8))):
        content = {"X": images[chosen].transpose(2, 3, 1, 0), "y": digits[chosen, None].astype(np.uint8)}
        scipy.io.savemat(tmp_path / f"{part}_32x32.mat", content)
    for _ in range(2):
        dataset = TorchvisionDataset("SVHN").load(tmp_path)
        assert torch.equal(dataset.train.inputs, torch.from_numpy(images[:5]))
        assert torch.equal(dataset.test.inputs, torch.from_numpy(images[5:]))
        assert dataset.train.targets.tolist() == [1, 0, 9, 5, 0]
        assert dataset.test.targets.tolist() == [2, 3, 4]
        assert dataset.classes == tuple("0123456789")
        no_more_decoding()


def write_gtsrb(root, shapes):
    """Two training signs of each of three kinds and three test signs, PPM files of these shapes in turn."""
    shapes, folder, pixels = itertools.cycle(shapes), root / "gtsrb" / "GTSRB", []

    def write_image(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels.append(random_pixels(*next(shapes), 3, seed=len(pixels)))
        Image.fromarray(pixels[-1]).save(path)

    for label, track in itertools.product(range(3), range(2)):
        write_image(folder / "Training" / f"{label:05}" / f"00000_{track:05}.ppm")
    rows = ["Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId"]
    for i, label in enumerate((2, 0, 1)):
        write_image(folder / "Final_Test" / "Images" / f"{i:05}.ppm")
        rows.append(f"{i:05}.ppm;9;9;1;1;8;8;{label}")
    (root / "gtsrb" / "GT-final_test.csv").write_text("\n".join(rows) + "\n")
    return pixels


def test_gtsrb_of_unequal_sizes_needs_a_size(tmp_path, cache):
    """Without one: which sample, both sizes and the key; with one all images are read, train and test."""
    pixels = write_gtsrb(tmp_path, [(20, 20), (25, 31), (16, 15)])
    with pytest.raises(
        ValueError, match=r"^data\.source GTSRB: sample 1 has 25x31 pixels, the first image 20x20: give the source as a class"
    ):
        TorchvisionDataset("GTSRB").load(tmp_path)
    assert list(cache.glob("*.pt")) == []
    dataset = TorchvisionDataset("GTSRB", size=20).load(tmp_path)
    assert dataset.train.inputs.shape == (6, 3, 20, 20)
    assert dataset.test.inputs.shape == (3, 3, 20, 20)
    assert dataset.train.targets.tolist() == [0, 0, 1, 1, 2, 2]
    assert dataset.test.targets.tolist() == [2, 0, 1]
    assert dataset.classes == ("0", "1", "2")
    for i in (0, 3):  # of that size already
        assert torch.equal(dataset.train.inputs[i], torch.from_numpy(pixels[i].transpose(2, 0, 1).copy()))


def test_gtsrb_of_equal_sizes_needs_none(tmp_path):
    """Bit for bit, colours first."""
    pixels = write_gtsrb(tmp_path, [(12, 14)])
    dataset = TorchvisionDataset("GTSRB").load(tmp_path)
    expected = np.stack(pixels).transpose(0, 3, 1, 2).copy()
    assert torch.equal(torch.cat([dataset.train.inputs, dataset.test.inputs]), torch.from_numpy(expected))


def test_a_set_without_a_test_part_is_named(tmp_path):
    """Imagenette comes as train and val: one line with its name and torchvision's reason."""
    with pytest.raises(ValueError, match=r"^data\.source is Imagenette: .*train.*val") as caught:
        TorchvisionDataset("Imagenette").load(tmp_path)
    assert "\n" not in str(caught.value)
