"""Bytes, sizes and times, against sums by hand."""

import numpy as np
import pytest
from recorded import RecordWriter

from fl_lightning.report import costs
from fl_lightning.report.runs import read_runs
from fl_lightning.report.sections import sections


def test_communication(write_run, study):
    totals = {"communication/total_down": {1: 1e6, 2: 2e6}, "communication/total_up": {1: 5e5, 2: 1e6}}
    write_run("a", {2: 0.5}, scalars=totals, results={"rounds": 2, "model_megabytes": 0.25})
    write_run("b", {2: 0.5}, model="FedProx", scalars=totals | {"communication/total_seconds": {1: 40.0, 2: 1234.6}})
    write_run("c", {2: 0.5}, model="FedNova")
    # Totals logged in every second round, and results of the whole run, or of its first two rounds.
    for name, rounds in (("FedSAM", 3), ("MOON", 2)):
        counted = {"rounds": rounds, "bytes_down": 3_000_000, "bytes_up": 1_500_000}
        write_run(name, {3: 0.5}, model=name, scalars={tag: {2: curve[2]} for tag, curve in totals.items()}, results=counted)
    table = costs.communication(study())
    assert table.rows == [
        ["FedAvg, CrossEntropy", "2", "1", "0.25", "-", "0.500"],
        ["FedProx, CrossEntropy", "2", "1", "-", "1,235", "0.500"],
        ["FedSAM, CrossEntropy", "3", "1.5", "-", "-", "0.500"],
        ["MOON, CrossEntropy", "2", "1", "-", "-", "0.500"],
    ]


def test_accuracy_over_simulated_seconds(write_run, study):
    """Two runs with rounds of 30 and 50 s: means over seeds at rounds 1 and 2. A run without devices is left out.

    So are accuracies before the first logged total and after the last.
    """
    for seed, a_round in enumerate((30.0, 50.0)):
        seconds = {"communication/total_seconds": {1: a_round, 2: 2 * a_round}}
        totals = {f"communication/total_{way}": {1: 1e6, 2: 2e6} for way in ("up", "down")}
        write_run("a", {1: 0.25, 2: 0.5 + seed / 4}, seed=seed, scalars=totals | seconds)
    write_run("b", {1: 0.5, 2: 0.5}, model="FedNova", scalars=totals)
    totals = {tag: {2: 1e6, 3: 2e6} for tag in totals}
    write_run("c", {1: 0.25, 2: 0.5, 3: 0.75, 4: 1.0}, model="FedProx", scalars=totals)
    drawings = {drawing.name: drawing for section in sections(study(), []) for drawing in section.drawings}
    (axes,) = drawings["simulated_time"].figure.axes
    assert axes.get_xlabel() == "simulated seconds"
    (line,) = axes.lines
    assert line.get_xydata().tolist() == [[40.0, 0.25], [80.0, 0.625]]
    *others, last = drawings["communication"].figure.axes[0].lines
    assert len(others) == 2
    assert last.get_xydata()[np.isfinite(last.get_xdata())].tolist() == [[1.0, 0.5], [2.0, 0.75]]


def test_time_leaves_gaps_and_pauses_out(write_run):
    """Rounds of 2 s: 1 to 10 in the first process (9 gaps, one of them a pause of an hour), 8 to 12 in a second (4 gaps)."""
    folder = write_run("a", {1: 0.5}, rounds=12)
    for rounds, start in ((range(2, 11), 1.7e9), (range(8, 13), 1.8e9)):
        with RecordWriter(folder) as one:
            for round in rounds:
                pause = 3600 if start == 1.7e9 and round > 6 else 0
                one.add_scalar("train/loss", 1.0, round, start + 2 * round + pause)
    ((run,), _) = read_runs([folder])
    # The first process of the helper logged round 1 alone, so no gap; 2 to 10 has 8 gaps, one of them the pause.
    assert costs.time_of_rounds(run) == (pytest.approx(7 + 4), pytest.approx(2 * (7 + 4)))


def test_time_of_rounds_logged_now_and_then(write_run, study):
    """Every tenth round, 2 s a round: 30 rounds in 60 s."""
    write_run("a", dict.fromkeys(range(10, 41, 10), 0.5))
    table = costs.timing(study())
    assert table.rows == [["FedAvg, CrossEntropy", "1", "1 min 00 s", "0.5", "-"]]


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.21, "4.2 s"), (119.7, "2 min 00 s"), (3599.7, "1 h 00 min"), (7500, "2 h 05 min")]
)
def test_duration(seconds, text):
    assert costs.duration(seconds) == text
