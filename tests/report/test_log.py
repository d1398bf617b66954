"""The record of a run: every scalar and tensor, as far as the file is whole."""

import numpy as np
import pytest
from recorded import RecordWriter, line, packed

from fl_lightning.report.log import read_log


def test_scalars_rounds_and_times(write_run):
    folder = write_run("a", {1: 0.25, 2: 0.5, 10: 0.75}, scalars={"train/loss": {3: 1 / 3}})
    log = read_log(folder)
    curves = {name: (curve.rounds.tolist(), curve.values.tolist()) for name, curve in log.scalars.items()}
    assert curves == {"test/accuracy": ([1, 2, 10], [0.25, 0.5, 0.75]), "train/loss": ([3], [1 / 3])}
    assert (log.last_round, log.last_time, log.remarks, len(log.sessions)) == (10, 1.7e9 + 20, [], 1)


def test_of_a_resumed_run_the_later_process_counts(write_run):
    """The first process logged rounds 1 to 5, the second went on from a checkpoint of round 3 to round 7."""
    folder = write_run("a", {r: r / 10 for r in range(1, 6)})
    with RecordWriter(folder) as second:
        for round in range(4, 8):
            second.add_scalar("test/accuracy", round / 8, round, 1.8e9 + round)
    log = read_log(folder)
    assert log.scalars["test/accuracy"].rounds.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert log.scalars["test/accuracy"].values == pytest.approx([0.1, 0.2, 0.3, 0.5, 0.625, 0.75, 0.875])
    assert [session[:, 0].tolist() for session in log.sessions] == [[1, 2, 3, 4, 5], [4, 5, 6, 7]]


@pytest.mark.parametrize("damage", ["cut", "zeros", "noise", "another object", "many parts"])
def test_a_damaged_record_is_read_up_to_the_damage(write_run, damage):
    """Cut in the midst of the last line, zeros as of a power cut, bytes that are no text, JSON that is no line, or a line whose
    parts would take a gigabyte once they are read."""
    folder = write_run("a", {1: 0.25, 2: 0.5})
    file = folder / "record.jsonl"
    last = line(3, scalars={"test/accuracy": 0.75}).encode()
    found = {"cut": last[:-1], "zeros": bytes(64), "noise": b"\xff" * 99 + b"\n", "another object": b'{"rounds": 3}\n'}
    found["many parts"] = b'{"round": 3, "time": 1.7e9, "more": [%s[]]}\n' % (b"[]," * 100_000)
    file.write_bytes(file.read_bytes() + found[damage])
    log = read_log(folder)
    assert log.scalars["test/accuracy"].values.tolist() == [0.25, 0.5]
    assert log.remarks == [f"{file}: cut off or damaged, read up to round 2"]
    assert log.is_damaged == (damage not in ("cut", "zeros"))  # the others are not of a run that is being written


def test_tensors(write_run):
    """How F_kt of three clients is spread; the numbers of a heatmap; tensors of other names are not kept."""
    folder = write_run("a", {1: 0.5})
    with RecordWriter(folder) as more:
        more.add_tensor("forgetting/local", [[0.105, 2], [0.505, 1]], 4)
        more.add_tensor("clients/accuracy_after", [[0.5, 0.25], [0.0, float("nan")]], 4)
        more.add_tensor("clients/class_cohort", [], 4)
        more.add_tensor("other", [1, 1, 1], 4)
    log = read_log(folder)
    assert log.tensors.keys() == {"forgetting/local", "clients/accuracy_after", "clients/class_cohort"}
    np.testing.assert_allclose(log.tensors["forgetting/local"][4], [[0.105, 2], [0.505, 1]])
    np.testing.assert_array_equal(log.tensors["clients/accuracy_after"][4], [[0.5, 0.25], [0.0, np.nan]])
    assert log.tensors["clients/class_cohort"][4].shape == (0,)


@pytest.mark.parametrize(
    "value",
    [
        packed([0.5]) | {"shape": [1 << 20, 1 << 20]},  # 4 TB
        packed([]) | {"shape": [0, 10**12]},
        packed([0.5]) | {"shape": [-1]},
        packed([0.5, 0.5]) | {"shape": [2.0]},
        packed([0.5]) | {"shape": [1] * 99},
        packed([0.5]) | {"float32": "AAA"},
        [0.5],
    ],
)
def test_a_tensor_is_as_large_as_its_numbers(write_run, value):
    """A shape claims nothing that does not follow."""
    folder = write_run("a", {1: 0.5})
    with (folder / "record.jsonl").open("a") as file:
        file.write(line(2, tensors={"clients/accuracy_after": value}))
    log = read_log(folder)
    assert (log.tensors, log.last_round, log.is_damaged) == ({}, 1, True)


def test_an_empty_file_holds_nothing(write_run):
    folder = write_run("a", {1: 0.5})
    (folder / "record.jsonl").write_bytes(b"")
    log = read_log(folder)
    assert (log.scalars, log.last_round, log.remarks) == ({}, 0, [])
