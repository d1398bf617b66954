"""Samples that stay on disk: the same batches, weights and curves as from the device, whatever is broken off."""

import gc
import threading
import time

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from fl_lightning import FedAvg
from fl_lightning.callbacks import ClientForgetting, RoundForgetting
from fl_lightning.data import (
    FederatedDataModule,
    ImageFolder,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    from_arrays,
)
from fl_lightning.data.samples import Samples
from fl_lightning.data.storage import StoredSamples

CPU = torch.device("cpu")
STREAMED = [{"storage": "stream", "num_workers": workers} for workers in (0, 2)]


@pytest.fixture(params=STREAMED, ids=["in this thread", "two workers"])
def streamed(request):
    return request.param


def image_data(**settings):
    """Four clients of 3, 20, 11 and 7 colour images of 10 classes."""
    generator, sizes = torch.Generator().manual_seed(0), (3, 20, 11, 7)
    images = torch.randint(0, 256, (50, 3, 9, 8), generator=generator, dtype=torch.uint8)
    targets = torch.randint(0, 4, (50,), generator=generator)
    clients = [part.tolist() for part in torch.randperm(sum(sizes), generator=generator).split(list(sizes))]
    defaults = {"val_fraction": 0.3, "batch_size": 4, "eval_batch_size": 5, "classes": ["a", "b", "c", "d"]}
    tests = {"test_inputs": images[41:], "test_targets": targets[41:]}
    data = from_arrays(images[:41], targets[:41], clients, **{**defaults, **tests, **settings})
    data.setup()
    return data


def assert_same(actual, expected):
    """Batches or inputs, one by one, bit for bit."""
    actual, expected = list(actual), list(expected)
    assert len(actual) == len(expected) > 0
    for one, other in zip(actual, expected):
        for name, a, b in (("inputs", one, other),) if isinstance(one, torch.Tensor) else zip(one._fields, one, other):
            assert (a is None) == (b is None), name
            assert a is None or (a.dtype == b.dtype and torch.equal(a, b)), name


CHAINS = {
    "plain": [],
    "crop and flip": [RandomCrop(2), RandomHorizontalFlip()],
    "part": [RandomResizedCrop(6)],
    "another size": [Pad(1), Resize(7), RandomCrop(0, size=5)],
}


@pytest.mark.parametrize("chain", CHAINS)
def test_batches_are_those_from_the_device(streamed, chain):
    """Single clients and ragged ones side by side, filled up or not, over two epochs, in float32 and float64."""
    device, stream = (image_data(augment=CHAINS[chain], **settings) for settings in ({"storage": "device"}, streamed))
    assert stream.input_shape == device.input_shape
    for dtype in (torch.float32, torch.float64):
        for data in (device, stream):
            data.to(CPU, dtype)
        for client in range(4):
            assert_same(stream.client_batches().batches(client, 3, 5), device.client_batches().batches(client, 3, 5))
        for full in (False, True):
            ragged = [data.client_batches().stacked_batches([1, 3, 0, 2], 2, [8, 4, 2, 1], full) for data in (stream, device)]
            assert_same(*ragged)
    assert any(batch.real is not None for batch in stream.client_batches().stacked_batches([1, 3, 0, 2], 2, [8, 4, 2, 1]))


def test_evaluation_is_that_from_the_device(streamed):
    """Validation, test set, what callbacks ask for, a client's samples, the first inputs; each of them twice."""
    settings = {"augment": CHAINS["another size"]}
    device, stream = image_data(storage="device", **settings), image_data(**streamed, **settings)
    for _ in range(2):
        for ours, theirs in zip(stream.val_dataloader(), device.val_dataloader(), strict=True):
            ours.due = theirs.due = lambda: True
            assert_same(ours, theirs)
        assert_same(stream.test_dataloader(), device.test_dataloader())
        assert_same(stream.evaluation.test_inputs().split(4), device.evaluation.test_inputs().split(4))
        (inputs, *rest), (expected, *others) = (data.evaluation.validation_samples([3, 1]) for data in (stream, device))
        assert_same(inputs.split(3), expected.split(3))
        assert_same(rest, others)
        assert_same(stream.client_batches().client_samples(2), device.client_batches().client_samples(2))
    assert_same([stream.first_inputs(2)], [device.first_inputs(2)])


def test_training_and_evaluation_may_take_turns(streamed):
    """A pass over validation samples comes between two over training batches of the same stream."""
    device, stream = image_data(storage="device"), image_data(**streamed)
    for round in (1, 2):
        assert_same(stream.client_batches().batches(1, round, 6), device.client_batches().batches(1, round, 6))
        assert_same(stream.val_dataloader()[0], device.val_dataloader()[0])


def net(features=3 * 9 * 8, dropout=0.2):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(features, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 4))


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_a_fit_ends_with_the_same_weights_and_curves(fit, tmp_path, read_scalars, streamed, engine, monkeypatch):
    """Four rounds with augmentation, dropout, and callbacks that ask every client's model: every bit and every scalar."""
    for module in ("client_forgetting", "round_forgetting"):  # pictures would take longer than the fit
        monkeypatch.setattr(f"fl_lightning.callbacks.{module}.log_figure", lambda *_: None)
    weights, curves = [], []
    for name, settings in (("device", {"storage": "device"}), ("stream", streamed)):
        data = image_data(augment=[RandomCrop(1), RandomHorizontalFlip()], monitor_test=1, clients_per_round=3, **settings)
        callbacks = [ClientForgetting(every=3), RoundForgetting(every=100, clients_every=2)]
        method = FedAvg(net(dropout=0.2 * (engine == "sequential")), local_epochs=2, engine=engine)
        trainer = fit(method, data, 4, callbacks=callbacks, logger=True, default_root_dir=tmp_path / name)
        weights.append(method.net.state_dict())
        curves.append(read_scalars(trainer.log_dir))
    for name, value in weights[0].items():
        assert torch.equal(weights[1][name], value), name
    timed = {name for name in curves[0] if "second" in name or "time" in name or "per_s" in name}
    kept = [{name: values for name, values in curve.items() if name not in timed} for curve in curves]
    assert kept[0] == kept[1]
    assert {"val/accuracy", "test/accuracy", "forgetting/round"} <= kept[0].keys()
    assert not torch.equal(weights[0]["1.weight"], net()[1].weight)


@pytest.mark.parametrize(("first", "second"), [("stream", "stream"), ("stream", "device"), ("device", "stream")])
def test_a_run_resumed_with_either_storage_is_the_same(fit, tmp_path, first, second):
    """Four rounds in one go, or two and two more, the storage changed in between: bit for bit."""

    def run(storage, rounds, **options):
        method = FedAvg(net(), local_steps=3)
        data = image_data(augment=[RandomCrop(1)], clients_per_round=2, storage=storage, num_workers=0)
        return fit(method, data, rounds, **options), method

    _, whole = run("device", 4)
    trainer, _ = run(first, 2)
    trainer.save_checkpoint(tmp_path / "cut.ckpt")
    _, resumed = run(second, 4, ckpt_path=tmp_path / "cut.ckpt")
    for name, value in whole.net.state_dict().items():
        assert torch.equal(resumed.net.state_dict()[name], value), name


def test_a_net_is_built_for_changed_images_and_trains(fit, streamed):
    """Images of 9x8 padded to 13x12 and scaled to 6x6 with a random part: 3 * 36 values reach the net."""
    data = image_data(augment=[Pad(2), RandomResizedCrop(6)], **streamed)
    seen = []

    def build(input_shape, num_classes):
        seen.append((tuple(input_shape), num_classes))
        return net(3 * 6 * 6)

    method = FedAvg(build, local_steps=2)
    fit(method, data, 1, max_steps=1)
    assert seen == [((3, 6, 6), 4)]
    assert not torch.equal(method.net[1].weight, net(3 * 6 * 6)[1].weight)


def test_streamed_images_stay_in_the_cache_file(tmp_path, cache):
    """Decoded images are not copied into memory: what is streamed lies in the mapping of the file."""
    for i in range(8):
        (tmp_path / "ab"[i % 2]).mkdir(exist_ok=True)
        pixels = np.random.default_rng(i).integers(0, 256, (40, 40), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "ab"[i % 2] / f"{i}.png")
    data = FederatedDataModule(ImageFolder(), str(tmp_path), num_clients=2, clients_per_round=1, storage="stream")
    data.setup()
    assert len(list(cache.glob("*.pt"))) == 1
    with open("/proc/self/maps") as maps:
        mapped = [line.split()[0].split("-") for line in maps if str(cache) in line]
    address = data.train_set.inputs.data_ptr()
    assert any(int(start, 16) <= address < int(end, 16) for start, end in mapped)


# The stream itself


def stored(workers, count=40):
    """Sample i has the inputs i, 100 i."""
    inputs = torch.arange(count)[:, None] * torch.tensor([1, 100])
    return StoredSamples(Samples(inputs, torch.arange(count)), CPU, streamed=True, num_workers=workers)


@pytest.fixture(params=[0, 2], ids=["in this thread", "two workers"])
def stream(request):
    return stored(request.param)


def read(samples, batches):
    """Inputs of batches that are given as lists of indices, one by one."""
    return (inputs for inputs, _ in samples.read(map(torch.tensor, batches)))


def test_rows_come_in_order_batch_by_batch(stream):
    """Batches of several lengths, samples twice, no batch at all; again and again."""
    for batches in ([[3, 1, 2], [0], [39, 39]], [], [[i] for i in range(40)], [list(range(40))]):
        rows = list(read(stream, batches))
        assert [part[:, 0].tolist() for part in rows] == batches
        assert all(torch.equal(part[:, 1], 100 * part[:, 0]) for part in rows)


@pytest.mark.parametrize("closed", [True, False])
def test_a_pass_that_is_broken_off_is_followed_by_a_right_one(stream, closed):
    """After one of twenty batches, whether the pass is closed or left lying about; three times."""
    kept = []
    for _ in range(3):
        broken = read(stream, [[i] for i in range(20)])
        assert next(broken).tolist() == [[0, 0]]
        if closed:
            broken.close()
        kept.append(broken)
        rows = list(read(stream, [[30 + i, i] for i in range(5)]))
        assert [part[:, 0].tolist() for part in rows] == [[30 + i, i] for i in range(5)]


def test_passes_may_take_turns(stream):
    """Two at a time, batch by batch: each gets its rows."""
    turns = zip(read(stream, [[i] for i in range(20)]), read(stream, [[39 - i] for i in range(20)]), strict=True)
    assert [(one.item(), other.item()) for (one, _), (other, _) in ((a[0], b[0]) for a, b in turns)] == [
        (i, 39 - i) for i in range(20)
    ]


def test_so_many_batches_are_read_ahead(stream, monkeypatch):
    """Two for each of two workers, besides the one that is asked for; without workers none."""
    begun, rows_of = [], StoredSamples._pinned
    monkeypatch.setattr(StoredSamples, "_pinned", lambda samples, indices: begun.append(1) or rows_of(samples, indices))
    rows = read(stream, [[i] for i in range(20)])
    next(rows)
    most = 1 if stream._readers is None else 5
    deadline = time.monotonic() + 20
    while len(begun) < most:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.05)
    assert len(begun) == most


def test_reading_leaves_the_global_generators_alone(stream):
    """A run's other draws are those of a run that is not streamed."""
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    for _ in range(2):
        list(read(stream, [[1], [2]]))
    assert torch.equal(torch.get_rng_state(), before)
    assert np.random.get_state()[1].tolist() == numpy_before


def readers():
    gc.collect()
    return [thread for thread in threading.enumerate() if thread.name.startswith("reader")]


@pytest.mark.slow
def test_workers_end_with_the_data():
    """Once it is read there are some for training, none after the data module is gone, in a cycle of objects too, as a trainer
    makes one, or moved to another dtype and not yet read."""

    def end_in_time(threads):
        gc.collect()
        for thread in threads:
            thread.join(timeout=20)
        return not any(thread.is_alive() for thread in threads)

    others = set(readers())
    data = image_data(storage="stream", num_workers=2)
    assert set(readers()) == others  # nobody has asked yet
    list(data.client_batches().batches(0, 1, 1))
    first = set(readers()) - others
    assert 1 <= len(first) <= 2
    data.to(CPU, torch.float64)
    assert end_in_time(first)
    data.itself = [data]
    list(data.client_batches().batches(0, 1, 1))
    list(data.test_dataloader())
    second = set(readers()) - others
    assert 2 <= len(second) <= 4
    del data
    assert end_in_time(second)


def test_a_worker_that_fails_says_so():
    """A sample that is not there: the error of the worker, not a run that waits."""
    with pytest.raises(IndexError):
        list(read(stored(2), [[1], [99]]))
