"""Runs as a data frame: every scalar, every setting, and a warning for what cannot be read."""

import re
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fl_lightning.report import load_runs

PAGE = Path(__file__).parents[2] / "docs" / "reports.md"


def test_rows_are_runs_and_rounds(write_run, tmp_path):
    """Two runs: a scalar that one lacks, a round that one lacks, a setting that one lacks, a list."""
    first = write_run("a", {1: 0.25, 2: 0.5}, scalars={"forgetting/round": {2: 0.125}}, targets=[0.5, 0.75])
    second = write_run("b", {2: 0.75}, seed=3, model="FedProx", model__mu=0.01)
    frame = load_runs(tmp_path / "runs")
    assert frame.index.names == ["run", "round"]
    assert frame.index.tolist() == [(str(first), 1), (str(first), 2), (str(second), 2)]
    assert frame["test/accuracy"].tolist() == [0.25, 0.5, 0.75]
    np.testing.assert_array_equal(frame["forgetting/round"], [np.nan, 0.125, np.nan])
    assert frame["model"].tolist() == ["fl_lightning.FedAvg"] * 2 + ["fl_lightning.FedProx"]
    np.testing.assert_array_equal(frame["model.mu"], [np.nan, np.nan, 0.01])
    assert frame["seed_everything"].tolist() == [0, 0, 3]
    assert frame["callbacks.summary.targets"].tolist()[:2] == [(0.5, 0.75)] * 2
    assert frame["data.partition.alpha"].dtype == np.float64
    pd.testing.assert_frame_equal(load_runs(first.parent, str(second)), frame)


def test_what_cannot_be_read_is_a_warning(write_run, tmp_path):
    kept, broken = write_run("a", {1: 0.5}), write_run("b", {1: 0.5})
    (broken / "config.yaml").write_text("")
    with pytest.warns(UserWarning, match=f"{broken}: skipped, its config.yaml is not that of a run"):
        assert set(load_runs(tmp_path / "runs").index.get_level_values("run")) == {str(kept)}
    with pytest.raises(FileNotFoundError, match="RUNS has nothing, which is not a folder"):
        load_runs("nothing")


def test_the_documented_frame(write_run, tmp_path, monkeypatch, capsys):
    """Final accuracies, means over the second half of 100 rounds: .75 and .25 of one loss, .625 of the other."""
    for loss, seed, late in (("CrossEntropy", 0, 0.75), ("CrossEntropy", 1, 0.25), ("TruncatedCrossEntropy", 0, 0.625)):
        write_run(loss, {25: 0.0, 75: late, 100: late}, seed=seed, model__loss=loss)
    (tmp_path / "runs").rename(tmp_path / "losses")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(code, {})
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    deviation = np.std([0.75, 0.25], ddof=1)
    assert rows[0][0].endswith(".CrossEntropy")
    assert [float(value) for value in rows[0][1:]] == pytest.approx([0.5, deviation], abs=1e-6)
    assert rows[1][1:] == ["0.625", "NaN"]


def test_a_missing_pandas_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.delitem(sys.modules, "fl_lightning.report.data_frame")
    said = r"^load_runs needs the library pandas: pip install 'fl-lightning\[analysis\]'$"
    with pytest.raises(ModuleNotFoundError, match=said):
        import_module("fl_lightning.report.data_frame")
