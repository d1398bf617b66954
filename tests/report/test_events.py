"""Event files: every scalar, histogram and tensor, as far as the files are whole."""

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fl_lightning.report.events import read_log


def test_scalars_are_those_of_tensorboards_reader(write_run):
    """EventAccumulator reads the same rounds and values."""
    folder = write_run("a", {1: 0.25, 2: 0.5, 10: 0.75}, scalars={"train/loss": {r: 1 / r for r in range(1, 11)}})
    log, reference = read_log(folder), EventAccumulator(str(folder)).Reload()
    assert list(log.scalars) == reference.Tags()["scalars"] == ["test/accuracy", "train/loss"]
    for name, curve in log.scalars.items():
        points = reference.Scalars(name)
        assert curve.rounds.tolist() == [point.step for point in points]
        assert curve.values.tolist() == [point.value for point in points]
    assert (log.last_round, log.last_time, log.remarks) == (10, 1.7e9 + 20, [])


def test_of_a_resumed_run_the_later_file_counts(write_run, writer):
    """The first process logged rounds 1 to 5, the second went on from a checkpoint of round 3 to round 7.

    Files are named by the second in which they were begun; as text 999999999 would come last.
    """
    folder = write_run("a", {r: r / 10 for r in range(1, 6)})
    (first,) = folder.glob("events*")
    first.rename(folder / "events.out.tfevents.999999999.host.1.0")
    with writer(folder) as second:
        for round in range(4, 8):
            second.add_scalar("test/accuracy", round / 8, round, 1.8e9 + round)
    curve = read_log(folder).scalars["test/accuracy"]
    assert curve.rounds.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert curve.values == pytest.approx([0.1, 0.2, 0.3, 0.5, 0.625, 0.75, 0.875])


@pytest.mark.parametrize("damage", ["cut", "zeros", "noise"])
def test_a_damaged_file_is_read_up_to_the_damage(write_run, damage):
    """Cut in the midst of the last record, zeros as of a power cut, bytes that are no event."""
    folder = write_run("a", {1: 0.25, 2: 0.5, 3: 0.75})
    (file,) = folder.glob("events*")
    data = file.read_bytes()
    record = len(data) - data.rindex(b"\x09")  # from the last event's wall time on
    whole = data[: -record - 12]
    file.write_bytes(
        {"cut": data[:-5], "zeros": whole + bytes(64), "noise": whole + data[-record - 12 : -record] + b"\xff" * 99}[damage]
    )
    log = read_log(folder)
    assert log.scalars["test/accuracy"].values.tolist() == [0.25, 0.5]
    assert log.remarks == [f"{file}: cut off or damaged, read up to round 2"]


def test_histograms_and_tensors(write_run, writer):
    """F_kt of three clients as the callback logs it; the numbers of a heatmap; other tensors are not kept."""
    folder = write_run("a", {1: 0.5})
    with writer(folder) as more:
        more.add_histogram("forgetting/local", torch.tensor([0.101, 0.102, 0.5]), 4, bins=torch.linspace(0, 1, 201))
        more.add_tensor("clients/accuracy_after", torch.tensor([[0.5, 0.25], [0.0, 1.0]]), 4)
        more.add_tensor("other", torch.ones(3), 4)
    log = read_log(folder)
    edges, counts = log.histograms["forgetting/local"][4].T
    assert dict(zip(edges[counts > 0].round(6), counts[counts > 0])) == {0.105: 2, 0.505: 1}
    assert list(log.tensors) == ["clients/accuracy_after"]
    np.testing.assert_array_equal(log.tensors["clients/accuracy_after"][4], [[0.5, 0.25], [0.0, 1.0]])


def test_an_empty_file_holds_nothing(write_run):
    folder = write_run("a", {1: 0.5})
    (file,) = folder.glob("events*")
    file.write_bytes(b"")
    log = read_log(folder)
    assert (log.scalars, log.last_round, log.remarks) == ({}, 0, [])
