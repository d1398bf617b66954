"""Where samples lie: who decides it, what is said, and that what is read is the same."""

import itertools
import os

import pytest
import torch

from fl_lightning.data import Dataset, Samples, from_arrays, storage
from fl_lightning.data.storage import StoredSamples, fits, place_samples

CPU = torch.device("cpu")


def dataset():
    """12 training and 5 test samples of 2 float32 values: 136 bytes."""
    train, test = (Samples(torch.arange(2.0 * n).reshape(n, 2), torch.arange(n) % 3) for n in (12, 5))
    return Dataset(train, test, ("a", "b", "c"))


@pytest.mark.parametrize("announce", [True, False])
@pytest.mark.parametrize("fitting", [True, False])
def test_auto_streams_what_does_not_fit_and_says_so(monkeypatch, capsys, fitting, announce):
    """Asked with the bytes of all inputs and the device; with what fits nothing is said, nor to whom it is no news."""
    asked = []
    monkeypatch.setattr(storage, "fits", lambda *args: asked.append(args) or fitting)
    train, test = place_samples(dataset(), CPU, "auto", num_workers=0, announce=announce)
    assert asked == [(136, CPU)]
    assert train.streamed == test.streamed == (not fitting)
    said = capsys.readouterr().out
    assert said.startswith("Data: streamed from disk, 1.36e-07 GB take more than half of the memory of cpu") == bool(said)
    assert bool(said) == (announce and not fitting)


@pytest.mark.parametrize(("wanted", "streamed"), [("device", False), ("stream", True)])
def test_device_and_stream_are_taken_at_their_word(monkeypatch, capsys, wanted, streamed):
    """Nobody asks whether it fits, and nothing is said."""
    monkeypatch.setattr(storage, "fits", lambda *_: pytest.fail("asked"))
    train, test = place_samples(dataset(), CPU, wanted, num_workers=0, announce=True)
    assert train.streamed == test.streamed == streamed
    assert capsys.readouterr().out == ""


def test_the_data_module_hands_its_settings_on(monkeypatch, capsys):
    """Without a trainer the device is the one that trains: said once, not again for another dtype on it."""
    monkeypatch.setattr(storage, "fits", lambda *_: False)
    data = from_arrays(torch.zeros(4, 2), torch.arange(4) % 2, [range(4)], num_workers=0)
    data.setup()
    assert data.train_set.streamed
    assert capsys.readouterr().out.count("Data: streamed from disk") == 1
    data = from_arrays(torch.zeros(4, 2), torch.arange(4) % 2, [range(4)], storage="device")
    data.setup()
    assert not data.train_set.streamed


def test_half_of_the_memory_fits(monkeypatch):
    """A machine of 1,000 pages of 4,096 bytes; a GPU with 1,000 bytes free of 5,000."""
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}.__getitem__)
    assert fits(2_048_000, CPU)
    assert not fits(2_048_001, CPU)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 5000))
    assert fits(500, torch.device("cuda", 0))
    assert not fits(501, torch.device("cuda", 0))


@pytest.mark.parametrize("streamed", [True, False])
def test_inputs_and_targets_of_each_batch(streamed):
    """Sample i has the inputs 2 i, 2 i + 1 and the target i % 3; indices of several shapes, or none."""
    samples = StoredSamples(dataset().train, CPU, streamed, num_workers=0)
    assert len(samples) == 12
    for batches in ([[3, 1, 2], [0], [11, 11]], []):
        read = list(samples.read(torch.tensor(batch) for batch in batches))
        assert [inputs.tolist() for inputs, _ in read] == [[[2 * i, 2 * i + 1] for i in batch] for batch in batches]
        assert [targets.tolist() for _, targets in read] == [[i % 3 for i in batch] for batch in batches]
    ((inputs, targets),) = samples.read([torch.tensor([[3, 1], [0, 4]])])
    assert (inputs[:, 0].tolist(), targets.tolist()) == ([6, 2, 0, 8], [[0, 1], [0, 1]])


def test_samples_on_the_device_are_gathered_when_they_are_asked_for():
    """Batches without end: each is looked up alone."""
    read = StoredSamples(dataset().train, CPU, streamed=False, num_workers=0).read(map(torch.tensor, itertools.repeat([4])))
    assert [inputs.tolist() for inputs, _ in itertools.islice(read, 2)] == [[[8.0, 9.0]]] * 2
