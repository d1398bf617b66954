"""Sets that memory does not hold: the bits of those that it holds, one sample at a time, and what is said of broken ones."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import Dataset

from fl_lightning import FedAvg
from fl_lightning.data import (
    Arrays,
    FederatedDataModule,
    Fixed,
    ImageFolder,
    Joined,
    RandomCrop,
    RandomHorizontalFlip,
    SomeClasses,
    from_arrays,
    from_dataset,
    mapped_files,
    samples,
)
from fl_lightning.data.sources.images import decode
from fl_lightning.tasks import TaskStream

PIXELS = np.random.default_rng(0).integers(0, 256, (40, 9, 8, 3), dtype=np.uint8)
LABELS = np.arange(40) // 10
CLIENTS = [range(k, 40, 4) for k in range(4)]
SETTINGS = {
    "augment": [RandomCrop(1), RandomHorizontalFlip()],
    "val_fraction": 0.2,
    "batch_size": 3,
    "clients_per_round": 2,
    "num_workers": 2,
}


@pytest.fixture
def little_memory(monkeypatch):
    """A machine that holds no sample."""
    monkeypatch.setattr(mapped_files, "machine_memory", lambda: 0)


class Drawn(Dataset):
    """Images that are there only while they are asked for."""

    def __len__(self):
        return len(PIXELS)

    def __getitem__(self, i):
        return torch.from_numpy(PIXELS[i].transpose(2, 0, 1).copy()), int(LABELS[i])


def class_folders(root):
    """The images as files; their order by class and name is that of the arrays."""
    for i, (pixels, label) in enumerate(zip(PIXELS, LABELS)):
        (root / f"class {label}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(root / f"class {label}" / f"{i:02}.png")
    return root


def in_memory(storage):
    return from_arrays(torch.from_numpy(PIXELS.transpose(0, 3, 1, 2).copy()), LABELS, CLIENTS, storage=storage, **SETTINGS)


def on_disk(kind, root, storage):
    if kind == "from_dataset":
        return from_dataset(Drawn(), CLIENTS, storage=storage, **SETTINGS)
    root = root if root.exists() else class_folders(root)
    return FederatedDataModule(ImageFolder(), root, num_clients=4, partition=Fixed(CLIENTS), storage=storage, **SETTINGS)


def fitted(fit, data, rounds, **options):
    """The trainer and the weights of a net with dropout after some rounds."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 9 * 8, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 4))
    method = FedAvg(net, local_epochs=1)
    return fit(method, data, rounds, **options), {name: value.clone() for name, value in method.net.state_dict().items()}


def assert_same(actual, expected):
    for name, value in expected.items():
        assert torch.equal(actual[name], value), name


@pytest.mark.parametrize("kind", ["image_folder", "from_dataset"])
def test_a_fit_has_the_bits_of_one_in_memory(fit, tmp_path, little_memory, kind):
    """Augmentation, validation and dropout, in one go and resumed, streamed and not: weights as with tensors on the device."""
    _, expected = fitted(fit, in_memory("device"), 4)
    for storage in ("stream", "device"):
        _, whole = fitted(fit, on_disk(kind, tmp_path / "images", storage), 4)
        assert_same(whole, expected)
    trainer, half = fitted(fit, on_disk(kind, tmp_path / "images", "stream"), 2)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    assert not torch.equal(half["1.weight"], expected["1.weight"])
    _, resumed = fitted(fit, on_disk(kind, tmp_path / "images", "stream"), 4, ckpt_path=tmp_path / "half.ckpt")
    assert_same(resumed, expected)


@pytest.mark.slow
def test_two_processes_have_the_bits_of_two_in_memory(tmp_path, command_line):
    """Both start with an empty cache and map one file: its images on the device, or streamed."""
    class_folders(tmp_path / "images")
    run = (
        "fit --config digits_tce.yaml --data.source image_folder --data.root images --data.num_clients 4 --data.batch_size 3 "
        "--data.clients_per_round 2 --data.partition IID --data.augment+=RandomHorizontalFlip --model.net MLP "
        "--trainer.max_steps 3 --trainer.val_check_interval 3 --trainer.devices 2 --trainer.accelerator cpu"
    ).split()
    nets = []
    for storage in ("stream", "device"):
        folder = tmp_path / storage
        options = ["--data.storage", storage, "--trainer.default_root_dir", storage]
        result = command_line(*run, *options, FL_LIGHTNING_CACHE=str(folder / "cache"))
        assert result.returncode == 0, result.stderr
        checkpoint = folder / "digits_tce" / "version_0" / "checkpoints" / "last.ckpt"
        nets.append(torch.load(checkpoint, weights_only=True)["state_dict"])
        assert len(list((folder / "cache").glob("*.train"))) == 1
    assert_same(*nets)


def test_sources_of_sources_are_those_in_memory(monkeypatch, little_memory):
    """A joined set, some classes of it, and tasks of both parts."""

    def loaded():
        images = torch.from_numpy(PIXELS.transpose(0, 3, 1, 2).copy())
        source = Arrays(images[:36], LABELS[:36], images[36:], LABELS[36:])
        joined = Joined({"a": source, "b": Arrays(images[:, :1, 1:], LABELS)}, size=10)
        few = SomeClasses(joined, first=6)
        tasks = FederatedDataModule(few, num_clients=1, clients_per_round=1, tasks=TaskStream(classes_per_task=2))
        tasks.setup()
        return [joined.load(Path()), few.load(Path()), tasks.samples.dataset]

    on_disk = loaded()
    monkeypatch.setattr(mapped_files, "machine_memory", lambda: 1 << 40)
    for actual, expected in zip(on_disk, loaded(), strict=True):
        for part in ("train", "test"):
            one, other = getattr(actual, part), getattr(expected, part)
            assert one.inputs.dtype == other.inputs.dtype
            assert torch.equal(one.inputs, other.inputs)
            assert torch.equal(one.targets, other.targets)


@pytest.mark.parametrize("bytes_at_once", [1, 2 * 9 * 8 * 3, 1 << 24])
def test_what_looks_at_all_inputs_does_so_part_by_part(monkeypatch, bytes_at_once):
    """One sample at a time, two, or all: mean and deviation of NumPy in float64, and the first value that is not finite."""
    monkeypatch.setattr(samples, "_BYTES_AT_ONCE", bytes_at_once)
    data = in_memory("device")
    data.setup()
    mean, std = data.preparation.statistics
    pixels = PIXELS.astype(np.float64) / 255
    np.testing.assert_allclose(mean, pixels.mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(std, pixels.std(axis=(0, 1, 2)), rtol=1e-12)
    broken = torch.zeros(5, 6)
    broken[3, 4], broken[4, 0] = torch.inf, torch.nan
    with pytest.raises(ValueError, match="data.source has inf in training input 3, which is not finite"):
        Arrays(broken, torch.zeros(5).long())


ANONYMOUS = Path("/proc/self/status")


def anonymous_mib():
    """Memory of this process that is not a file's, which the system could drop."""
    (line,) = (line for line in ANONYMOUS.read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1024


@pytest.mark.skipif(not ANONYMOUS.exists(), reason="needs /proc/self/status, where Linux counts memory")
@pytest.mark.parametrize("kind", ["images", "from_dataset"])
def test_no_more_than_a_few_samples_are_in_memory(tmp_path, little_memory, kind):
    """400 images of 1 MiB: never a third of them, though each of 32 threads may have two."""
    start, held = anonymous_mib(), []

    class Large(Dataset):
        def __len__(self):
            return 400

        def __getitem__(self, i):
            held.append(anonymous_mib())
            return torch.full((1, 1024, 1024), i % 256, dtype=torch.uint8), i % 2

    def read(i):
        held.append(anonymous_mib())
        return Image.new("L", (1024, 1024), i % 256), i % 2

    if kind == "images":
        inputs = decode(read, 400, str, None, "L", tmp_path / "rows").inputs
    else:
        inputs = from_dataset(Large(), [range(400)]).source.load(Path()).train.inputs
    assert max(held) - start < 130
    assert inputs[:, 0, 7, 7].tolist() == [i % 256 for i in range(400)]
    assert anonymous_mib() - start < 130


def test_an_image_that_is_broken_is_named_before_the_first_round_and_leaves_nothing(cache, tmp_path):
    """The 23rd of 40, after others are in the file; repaired, the set is read."""
    root = class_folders(tmp_path / "images")
    broken = root / "class 2" / "23.png"
    content = broken.read_bytes()
    broken.write_bytes(content[:50])
    with pytest.raises(ValueError, match=f"data.root: {broken} cannot be read as an image .*: replace or delete it"):
        ImageFolder().load(root)
    assert {file.suffix for file in cache.iterdir()} == {".lock"}
    broken.write_bytes(content)
    assert torch.equal(ImageFolder().load(root).train.inputs[23], Drawn()[23][0])


def test_an_image_that_changes_while_it_is_decoded_is_named(cache, tmp_path, monkeypatch):
    """Otherwise the cache would hold it under the time of the old one; started again, the new one is read."""
    root = class_folders(tmp_path / "images")
    changed, opened = root / "class 0" / "03.png", Image.open

    def replaced(path):
        image = opened(path)
        if os.fspath(path) == str(changed):
            os.utime(changed, ns=(1, 1))
        return image

    with monkeypatch.context() as patch:
        patch.setattr(Image, "open", replaced)
        with pytest.raises(ValueError, match=f"data.root: {changed} was changed while the images were decoded: start again"):
            ImageFolder().load(root)
    assert {file.suffix for file in cache.iterdir()} == {".lock"}
    assert len(ImageFolder().load(root).train) == 40
