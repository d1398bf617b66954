"""``python -m studies NAME OUT``: declared settings, runs that are stopped and go on, pages whose numbers come from files."""

import os
import re
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fork_server import FORKED_RUNS
from options import NO_PICTURES

import fl_lightning
from fl_lightning.command_line.bundled_configs import bundled_configs

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"


@pytest.fixture(autouse=True)
def _studies_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setattr(sys, "argv", ["fl-lightning", "sweep"])


@pytest.fixture
def small():
    """Two losses, one seed, four rounds."""
    from studies.declaration import Study, Sweep

    options = ["--model.net", "MLP", "--model.net.hidden", "[16]", "--data.clients_per_round", "5", *NO_PICTURES]
    arguments = ["--config", "digits_tce.yaml", "--set", "model.loss=CrossEntropy,TruncatedCrossEntropy", *options]
    sweep = Sweep("", " ".join([*arguments, "--trainer.max_steps", "120", "--trainer.val_check_interval", "20"]))
    measures = {"test_accuracy": "final", "rounds_to/0.9": "rounds to .9"}
    return Study("small", "A title", "A claim.", "A sentence.", (sweep,), measures, {"model.loss": "CrossEntropy"})


@pytest.fixture
def command(small, monkeypatch, capsys, tmp_path):
    """The command on the small study; gives exit code, standard output and standard error."""
    from studies import __main__ as studies

    monkeypatch.setattr(studies, "STUDIES", {"small": small})
    monkeypatch.setattr("fl_lightning.sweep.worker.subprocess", FORKED_RUNS)
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        return studies.main([*arguments, "--results", "results"]), *capsys.readouterr()

    return run


@pytest.fixture
def results(small):
    """Of runs whose numbers are easy to reckon with."""
    from studies.results_file import Result, command

    (sweep,) = small.sweeps

    def result(loss, seed, **scalars):
        point = {"model.loss": loss}
        version = fl_lightning.__version__
        return Result("", point, seed, "done", version, "0123456789", "digits", command(sweep, point, seed), "", scalars)

    return result


def test_every_declared_study_can_run():
    """Bundled configs, folders of their own, and a baseline that is among the runs."""
    from studies.catalogue import STUDIES
    from studies.declaration import SWEEP

    for study in STUDIES.values():
        assert re.fullmatch(r"[a-z0-9_]+", study.name)
        assert len({sweep.name for sweep in study.sweeps}) == len(study.sweeps), study.name
        assert all(sweep.settings.config in bundled_configs() for sweep in study.sweeps), study.name
        assert study.measures, study.name
        assert study.chosen is None or study.chosen in study.keys, study.name
        settings = [{SWEEP: sweep.name, **point} for sweep in study.sweeps for point in sweep.points]
        assert any(setting.items() >= study.baseline.items() for setting in settings), study.name


def test_every_study_is_listed():
    """docs/results.md names all with their numbers of runs, and links to the pages that there are."""
    from studies.catalogue import STUDIES

    text = (ROOT / "docs" / "results.md").read_text()
    for study in STUDIES.values():
        has_page = (RESULTS / study.name).is_dir()
        name = f"[{study.name}](results/{study.name}/report.md)" if has_page else f"`{study.name}`"
        assert f"| {name} | {study.title} | {study.total} |" in text


def test_every_number_in_a_table_comes_from_the_results_file():
    """A page of docs/results is what its declaration and the file next to it make of it, letter by letter."""
    from studies.catalogue import STUDIES
    from studies.page import page
    from studies.results_file import read_results

    folders = sorted(path for path in RESULTS.iterdir() if path.is_dir())
    assert folders
    for folder in folders:
        study = STUDIES[folder.name]
        assert (folder / "report.md").read_text() == page(study, read_results(study, folder / "runs.csv")), folder


def test_tables_by_hand(small, results):
    """Means, deviations and intervals over seeds; differences over the seeds that both have; targets that few reach."""
    from studies.table import all_runs, compared, groups

    runs = [results("CrossEntropy", seed, test_accuracy=value) for seed, value in ((1, 0.5), (2, 0.7))]
    runs += [results("TruncatedCrossEntropy", seed, test_accuracy=0.8) for seed in (1, 2, 3)]
    runs[-1] = replace(runs[-1], scalars={"test_accuracy": 0.8, "rounds_to/0.9": 120})
    found = groups(runs)
    assert all_runs(small, found).splitlines()[2:] == [
        "| CrossEntropy | 2 | 0.600 ± 0.141 | - |",
        "| TruncatedCrossEntropy | 3 | 0.800 ± 0.000 (0.800 to 0.800) | 120.0 (1 of 3) |",
    ]
    assert compared(small, found).splitlines()[2:] == ["| TruncatedCrossEntropy | 2 | +0.200 ± 0.141 |"]


def test_the_rate_is_chosen_on_validation(small, results):
    """Not on the test set, where .9 would be best."""
    from studies.table import chosen, groups

    runs = [results("CrossEntropy", 1, test_accuracy=test, val_accuracy=val) for test, val in ((0.9, 0.1), (0.5, 0.6))]
    runs = [replace(run, point={**run.point, "model.optimizer.lr": lr}) for run, lr in zip(runs, ("0.1", "0.03"))]
    (group,) = chosen(replace(small, chosen="model.optimizer.lr"), groups(runs))
    assert group.setting["model.optimizer.lr"] == "0.03"


@pytest.mark.slow
def test_a_study_is_stopped_and_goes_on(command, small, tmp_path):
    """It ends with a page of what there is; the same command does the rest, and says what remains and how long."""
    version = tmp_path / "out" / "loss=CrossEntropy" / "seed_1" / "digits_tce" / "version_0"

    def interrupt():
        while not (version / "checkpoints" / "last.ckpt").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    code, out, error = command("small", "out", "--jobs", "1")
    assert code == 130
    assert "small: 0 of 2 runs done, 2 remain; how long is known when the first has ended" in out
    assert error == "studies: stopped: the same command goes on from here\n"
    assert "Of 2 runs 0 are done." in " ".join((tmp_path / "results" / "small" / "report.md").read_text().split())

    code, out, error = command("small", "out", "--jobs", "1")
    assert code == 0, error
    assert "loss=CrossEntropy/seed_1: goes on from its checkpoint" in out
    assert re.search(r"small: 1 of 2 runs done, 1 remain, about \d+\.\d s with 1 at once", out)
    page = (tmp_path / "results" / "small" / "report.md").read_text()
    assert "Of 2 runs 2 are done." in " ".join(page.split())
    assert (tmp_path / "results" / "small" / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert not (version.with_name("version_1")).exists()

    (tmp_path / "results" / "small" / "report.md").unlink()
    assert command("small", "out", "--jobs", "0")[:2] == (0, "small: 2 of 2 runs done, 0 remain\nResults: results/small\n")
    assert (tmp_path / "results" / "small" / "report.md").read_text() == page


def test_what_the_results_file_has_is_not_run_again(command, small, results, tmp_path):
    """On a machine without the folders of earlier runs; a failed run is none that is done."""
    from studies.results_file import read_results, write_results

    path = tmp_path / "results" / "small" / "runs.csv"
    one, two = results("CrossEntropy", 1, test_accuracy=0.1 + 0.2, seconds=7.5), results("TruncatedCrossEntropy", 1)
    write_results(small, [one, replace(two, ended="failed", error="out of memory", version="", commit="", source="")], path)
    code, out, error = command("small", "new", "--jobs", "0")
    assert (code, error) == (0, "")
    assert "small: 1 of 2 runs done, 1 remain, about 7.5 s with 1 at once" in out
    assert read_results(small, path) == [one]
    assert [folder.name for folder in (tmp_path / "new").glob("loss=*")] == []

    write_results(small, [one, replace(two, scalars={"test_accuracy": 0.5, "seconds": 8.0})], path)
    before = path.read_bytes()
    assert command("small", "newer")[:2] == (0, "small: 2 of 2 runs done, 0 remain\nResults: results/small\n")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["smal", "out"], "NAME is smal, which is no study: give one of small"),
        (["small"], "the following arguments are required: OUT: python -m studies --help shows the options"),
        (
            ["small", "out", "--trainer.max_steps", "3"],
            "unrecognized arguments: --trainer.max_steps 3: python -m studies --help",
        ),
        (["small", "out", "--jobs", "-1"], "--jobs is -1, must be at least 0"),
        (["small", "file"], "OUT is file, which is a file: give a folder"),
    ],
)
def test_bad_input_is_one_line(command, tmp_path, arguments, message):
    (tmp_path / "file").touch()
    code, out, error = command(*arguments)
    assert code == 1
    assert out == ""
    assert error.startswith("studies: error: ")
    assert message in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_results_file_keeps_what_it_has(small, results, tmp_path):
    """Numbers with all their digits; what other settings, versions or runs have written is no place for these."""
    from studies.results_file import read_results, write_results

    path = tmp_path / "runs.csv"
    one, two = results("CrossEntropy", 1, test_accuracy=0.1 + 0.2), results("TruncatedCrossEntropy", 1, test_accuracy=0.8)
    failed = replace(two, ended="failed", error="no client sent a finite update", version="", commit="", source="", scalars={})
    write_results(small, [one, failed], path)
    assert read_results(small, path) == [one, failed]
    write_results(small, [one, two], path)

    def refused(*rows):
        with pytest.raises(ValueError) as error:
            write_results(small, rows, path)
        return str(error.value)

    assert "runs.csv has the run /loss=TruncatedCrossEntropy/seed_1, of which OUT has none: give its OUT, or" in refused(one)
    assert "of which OUT has other numbers" in refused(one, replace(two, scalars={"test_accuracy": 0.7}))
    text = path.read_text()
    path.write_text(text.replace(f",{fl_lightning.__version__},", ",0.0.9,"))
    assert f"has runs of fl-lightning 0.0.9, this is {fl_lightning.__version__}: move it away" in refused(one, two)
    path.write_text(text.replace("max_steps 120", "max_steps 121"))
    assert "runs.csv has a run of other settings, fl-lightning fit --config digits_tce.yaml" in refused(one, two)
    path.write_text("a,b\n1,2\n")
    assert "runs.csv is no results file of the study small, of these settings: move it away" in refused(one, two)
