"""What the real sets are known to be, where ``FL_LIGHTNING_DATA`` names a folder that holds them."""

import csv
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fl_lightning.data import ImageFolder, Superclasses, TorchvisionDataset

REAL_DATA = os.environ.get("FL_LIGHTNING_DATA")
pytestmark = pytest.mark.skipif(
    not REAL_DATA, reason="FL_LIGHTNING_DATA is unset: it names the folder of MNIST/raw, cifar10.tar.xz and cifar100.tar.xz"
)

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@pytest.fixture(scope="session")
def some_images(tmp_path_factory):
    """A few thousand images of the class folders in an archive, unpacked once."""
    unpacked = {}

    def unpack(name):
        if name not in unpacked:
            unpacked[name] = tmp_path_factory.mktemp(name)
            with tarfile.open(Path(REAL_DATA) / f"{name}.tar.xz", "r|xz") as archive:
                for member in archive:
                    if member.isfile() and "_s_0001" in member.name:  # files are numbered up to 2,500
                        archive.extract(member, unpacked[name], filter="data")
        return unpacked[name]

    return unpack


@pytest.mark.slow
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


def labels_by_walking(root, part, classes):
    """The label of every file of a part, folder by folder and file by file in alphabetical order."""
    return [label for label, name in enumerate(classes) for _ in sorted(os.listdir(root / part / name))]


@pytest.mark.parametrize(
    ("name", "mean"),
    [
        # Unpacking its archive takes most of the time of these tests.
        pytest.param("cifar10", (0.4914, 0.4822, 0.4465), id="CIFAR-10", marks=pytest.mark.slow),
        pytest.param("cifar100", (0.5071, 0.4865, 0.4409), id="CIFAR-100", marks=pytest.mark.slow),
    ],
)
def test_real_cifar(some_images, name, mean):
    """Classes and labels of the folders, 32x32 in colour, pixels as Pillow reads them, mean of the channels as known to .02."""
    root = some_images(name)
    dataset = ImageFolder().load(root)
    if name == "cifar10":
        assert dataset.classes == CIFAR10
    else:
        with open(Path(REAL_DATA) / "cifar100_superclasses.csv", newline="") as file:
            assert dataset.classes == tuple(sorted(row["class"] for row in csv.DictReader(file)))
        assert len(dataset.classes) == 100
    for part in ("train", "test"):
        samples = getattr(dataset, part)
        assert samples.targets.tolist() == labels_by_walking(root, part, dataset.classes)
        assert samples.inputs.shape == (len(samples), 3, 32, 32)
        assert samples.targets.unique().tolist() == list(range(len(dataset.classes)))
    paths = [path for folder in sorted((root / "train").iterdir()) for path in sorted(folder.iterdir())]
    for i in (0, len(paths) // 3, len(paths) - 1):
        pixels = np.asarray(Image.open(paths[i]).convert("RGB"))
        assert torch.equal(dataset.train.inputs[i], torch.from_numpy(pixels.transpose(2, 0, 1).copy()))
    assert len(dataset.train) > 3000
    actual = dataset.train.inputs.double().mean(dim=(0, 2, 3)) / 255
    assert actual.tolist() == pytest.approx(mean, abs=0.02)


@pytest.mark.slow
def test_real_cifar100_in_its_superclasses(some_images):
    """Twenty labels; every image has the superclass that the table next to the data gives its folder."""
    root = some_images("cifar100")
    with open(Path(REAL_DATA) / "cifar100_superclasses.csv", newline="") as file:
        above = {row["class"]: row["superclass"] for row in csv.DictReader(file)}
    fine, coarse = ImageFolder().load(root), Superclasses("image_folder").load(root)
    assert coarse.classes == tuple(sorted(set(above.values())))
    assert len(coarse.classes) == 20
    for part in ("train", "test"):
        names = [coarse.classes[label] for label in getattr(coarse, part).targets]
        assert names == [above[fine.classes[label]] for label in getattr(fine, part).targets]
        assert torch.equal(getattr(coarse, part).inputs, getattr(fine, part).inputs)
