"""``python -m studies NAME OUT``: declared settings, runs that are stopped and go on, pages whose numbers come from files."""

import argparse
import json
import math
import os
import re
import shlex
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fork_server import FORKED_RUNS
from options import NO_PICTURES
from PIL import Image
from scipy import stats

import fl_lightning
from fl_lightning.command_line.trainer_command import trainer_parser
from fl_lightning.config_files.bundled import bundled_rows
from fl_lightning.report.log import Curve, Log
from fl_lightning.report.runs import Run
from fl_lightning.sweep.run_scalars import CHANCE, LOWEST, UNKNOWN, run_scalars

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
        assert all(sweep.settings.config in bundled_rows() for sweep in study.sweeps), study.name
        assert study.measures, study.name
        assert study.chosen is None or study.chosen in study.keys, study.name
        assert {*study.tested, *study.within, *study.within.values()} <= study.measures.keys(), study.name
        settings = [{SWEEP: sweep.name, **point} for sweep in study.sweeps for point in sweep.points]
        for part in (study.baseline, *(part for pair in study.further for part in pair)):
            assert any(setting.items() >= part.items() for setting in settings), study.name


@pytest.mark.slow
def test_every_option_of_a_declared_study_is_one_of_the_command_line():
    """The runs that have a config or an option that those before them had not."""
    from studies.catalogue import STUDIES
    from studies.results_file import command

    parser, seen = trainer_parser("fit"), set[str]()
    for sweep in (sweep for study in STUDIES.values() for sweep in study.sweeps):
        for point in sweep.points:
            _, _, *arguments = shlex.split(command(sweep, point, 1))
            options = {word.partition("=")[0] for word in arguments if re.match("--|[A-Z]", word)}
            if options - seen:
                seen |= options
                assert parser.parse_args(arguments).seed_everything == 1


def test_what_is_run_next_is_declared():
    from studies.catalogue import ORDER, STUDIES

    assert set(ORDER) <= STUDIES.keys()
    assert len(set(ORDER)) == len(ORDER)


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


def test_results_files_are_rewritten_as_they_are(tmp_path):
    """Byte for byte, in whatever order the runs are given."""
    from studies.catalogue import STUDIES
    from studies.results_file import read_results, write_results

    for path in sorted(RESULTS.glob("*/runs.csv")):
        study = STUDIES[path.parent.name]
        write_results(study, read_results(study, path)[::-1], tmp_path / path.parent.name)
        assert (tmp_path / path.parent.name).read_bytes() == path.read_bytes(), path


def test_tables_by_hand(small, results):
    """Means, deviations and intervals over seeds; differences over the seeds that both have; targets that few reach."""
    from studies.table import all_runs, compared, groups

    runs = [results("CrossEntropy", seed, test_accuracy=value) for seed, value in ((1, 0.5), (2, 0.7))]
    runs += [results("TruncatedCrossEntropy", seed, test_accuracy=0.8) for seed in (1, 2, 3)]
    runs[-1] = replace(runs[-1], scalars={"test_accuracy": 0.8, "rounds_to/0.9": 120})  # which is no mean
    found = groups(runs)
    assert all_runs(small, found).splitlines()[2:] == [
        "| CrossEntropy | 2 | 0.600 ± 0.141 (-0.671 to 1.871) | - (0 of 2) |",
        "| TruncatedCrossEntropy | 3 | 0.800 | - (1 of 3) |",
    ]
    p = 1 - 2 * math.atan(2) / math.pi  # of t = .2 / (.141 / sqrt 2), with one degree of freedom
    assert compared(small, found).splitlines()[2:] == [
        f"| TruncatedCrossEntropy | final | 2 | +0.200 ± 0.141 (-1.071 to +1.471) | {p:.2g} | {p:.2g} |"
    ]


def test_every_claimed_measure_is_tested(small, results):
    """Holm over both tests of the table: twice the p of t = 5 sqrt 3, once that of the other; forgetting is always tested,
    and positive where F_ki is negative."""
    from studies.table import compared, groups

    forgetting = "forgetting/client_mean/mean"
    study = replace(small, measures={"test_accuracy": "final", "rounds_to/0.9": "rounds", forgetting: "forgetting"})
    assert study.tested == ("test_accuracy", forgetting)
    assert replace(study, claimed=("rounds_to/0.9",)).tested == ("rounds_to/0.9",)
    runs = [results("CrossEntropy", seed, test_accuracy=0.5, **{forgetting: -0.5}) for seed in (1, 2, 3)]
    for seed, (gain, kept) in enumerate([(0.0, 0.2), (0.1, 0.25), (0.2, 0.3)], 1):
        scalars = {"test_accuracy": 0.5 + gain, forgetting: -0.5 + kept}
        runs.append(results("TruncatedCrossEntropy", seed, **scalars))
    low, high = (2 * stats.t.sf(t, df=2) for t in (0.25 / (0.05 / math.sqrt(3)), 0.1 / (0.1 / math.sqrt(3))))
    rows = [[cell.strip() for cell in row.split("|")[2:-1]] for row in compared(study, groups(runs)).splitlines()[2:]]
    assert rows == [
        ["final", "3", "+0.100 ± 0.100 (-0.148 to +0.348)", f"{high:.2g}", f"{high:.2g}"],
        ["forgetting", "3", "-0.250 ± 0.050 (-0.374 to -0.126)", f"{low:.2g}", f"{2 * low:.2g}"],
    ]


def test_further_comparisons_name_what_they_are_with(small, results):
    """Alpha 1 less alpha 0.1 of the same loss, besides one loss less the other of the same alpha; by hand from four numbers."""
    from studies.page import page
    from studies.table import compared, groups

    (sweep,) = small.sweeps
    sweep = replace(sweep, arguments=f"{sweep.arguments} --set data.partition.alpha=0.1,1.0")
    of_loss = ({"data.partition.alpha": "1.0"}, {"data.partition.alpha": "0.1"})
    study = replace(small, sweeps=(sweep,), measures={"test_accuracy": "final"}, further=(of_loss,))
    runs = []
    for alpha, accuracies in (("0.1", (0.5, 0.6)), ("1.0", (0.7, 0.9))):
        for loss, accuracy in zip(("CrossEntropy", "TruncatedCrossEntropy"), accuracies):
            run = results(loss, 1, test_accuracy=accuracy)
            runs.append(replace(run, point={**run.point, "data.partition.alpha": alpha}))
    rows = [[cell.strip() for cell in row.split("|")[1:-3]] for row in compared(study, groups(runs)).splitlines()]
    assert [rows[0][2:], *rows[2:]] == [
        ["less", "measure", "pairs", "difference"],
        ["TruncatedCrossEntropy", "0.1", "CrossEntropy", "final", "1", "+0.100"],
        ["TruncatedCrossEntropy", "1.0", "CrossEntropy", "final", "1", "+0.200"],
        ["CrossEntropy", "1.0", "0.1", "final", "1", "+0.200"],
        ["TruncatedCrossEntropy", "1.0", "0.1", "final", "1", "+0.300"],
    ]
    assert "less those of the runs with the values under *less*" in " ".join(page(study, runs).split())
    assert not compared(replace(study, baseline={}, further=()), groups(runs))


def test_two_measures_of_the_same_runs_are_compared(small, results):
    """Pseudo data less the client's own, by seed: .1, .2 and .3, mean .2 and sample deviation .1, t = 2 sqrt 3."""
    from studies.table import compared_within, groups

    study = replace(small, measures={"pseudo": "pseudo data", "own": "own data"}, within={"pseudo": "own"})
    runs = [results("CrossEntropy", seed, pseudo=0.5 + 0.1 * seed, own=0.5) for seed in (1, 2, 3)]
    p = 2 * stats.t.sf(0.2 / (0.1 / math.sqrt(3)), df=2)
    row = [cell.strip() for cell in compared_within(study, groups(runs)).splitlines()[2].split("|")[2:-1]]
    assert row == ["pseudo data, less: own data", "3", "+0.200 ± 0.100 (-0.048 to +0.448)", f"{p:.2g}", f"{p:.2g}"]
    assert compared_within(small, groups(runs)) == ""


def test_no_difference_is_over_survivors(small, results):
    """Of two pairs one reached the target in both; a run that failed has no accuracy."""
    from studies.table import all_runs, compared, groups

    study = replace(small, claimed=("rounds_to/0.9", "test_accuracy"))
    reached = {"test_accuracy": 0.9, "rounds_to/0.9": 10}
    runs = [results(loss, seed, **reached) for loss in ("CrossEntropy", "TruncatedCrossEntropy") for seed in (1, 2)]
    runs[-1] = replace(runs[-1], ended="failed", error="diverged", scalars={})
    rows = compared(study, groups(runs)).splitlines()[2:]
    assert [row.split("|")[3:5] for row in rows] == [[" 2 ", " - (1 of 2) "]] * 2
    assert all_runs(study, groups(runs)).splitlines()[-1] == "| TruncatedCrossEntropy | 2, 1 failed | - (1 of 2) | - (1 of 2) |"


def test_runs_that_predict_one_class_are_named(small, results, tmp_path):
    """By hand: of four classes one is right always, the others never; the sum over classes is 1, chance, however they are."""
    from studies.page import page

    log = {f"class_accuracy/{name}": Curve(np.array([0, 9]), np.array([0.5, last])) for name, last in zip("abcd", [0, 1, 0, 0])}
    ended = {"rounds": 9, "bytes_up": 0, "bytes_down": 0, "rounds_to_target": {}, "newest_forgetting": {}, "tasks": {}}
    ended |= {"test_accuracy": {}, "val_accuracy": {}, "personal": {}}
    log["head/logit_absent"] = Curve(
        np.array([1, 9]), np.array([-0.5, -1.5])
    )  # of a probe: the last value is a number of the run
    run = Run(tmp_path, {}, ended, Log(log))
    scalars = run_scalars(run)
    assert scalars["head/logit_absent"] == -1.5
    assert (scalars[CHANCE], scalars[LOWEST], scalars[UNKNOWN]) == (1.0, 0.0, 3.0)
    runs = [results("CrossEntropy", seed, test_accuracy=0.25, **{CHANCE: value}) for seed, value in ((1, 1.0), (2, 1.2))]
    text = page(small, runs)
    assert "| CrossEntropy | 2, 1 collapsed | 0.250" in text
    assert "accuracy, the mean over classes, is at most 1.1 times chance" in " ".join(text.split())
    assert "collapsed" not in page(small, runs[1:])


def test_rows_of_different_code_say_so(small, results):
    from studies.page import page

    one, two = results("CrossEntropy", 1, test_accuracy=0.5), results("TruncatedCrossEntropy", 1, test_accuracy=0.5)
    assert "different code" not in page(small, [one, two])
    text = page(small, [one, replace(two, version="0.0.9", commit="abcdef0123-dirty")])
    said = f"The rows are of different code: fl-lightning {fl_lightning.__version__} `0123456`, 0.0.9 `abcdef0-dirty`;"
    assert said in " ".join(text.split())
    assert "| TruncatedCrossEntropy | 1 | 0.500 | - | 0.0.9 `abcdef0-dirty` |" in text


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
    assert error == "studies: stopped: run the same command to resume\n"
    assert "0 of 2 runs are done." in " ".join((tmp_path / "results" / "small" / "report.md").read_text().split())

    code, out, error = command("small", "out", "--jobs", "1")
    assert code == 0, error
    assert "loss=CrossEntropy/seed_1: resumed from its checkpoint" in out
    assert re.search(r"small: 1 of 2 runs done, 1 remain, about \d+\.\d s with 1 at once", out)
    page = (tmp_path / "results" / "small" / "report.md").read_text()
    assert "All 2 runs are done." in " ".join(page.split())
    with Image.open(tmp_path / "results" / "small" / "figure.png") as figure:
        assert figure.width == 825  # 5.5 inches
    assert not (version.with_name("version_1")).exists()

    (tmp_path / "results" / "small" / "report.md").unlink()
    assert command("small", "out", "--jobs", "0")[:2] == (0, "small: 2 of 2 runs done, 0 remain\nResults: results/small\n")
    assert (tmp_path / "results" / "small" / "report.md").read_text() == page


@pytest.mark.slow
def test_what_the_results_file_has_is_not_run_again(command, small, results, tmp_path):
    """On a machine without the folders of earlier runs; one that failed keeps its row, and is run again only if asked for."""
    from studies.results_file import read_results, write_results

    path = tmp_path / "results" / "small" / "runs.csv"
    one, two = results("CrossEntropy", 1, test_accuracy=0.1 + 0.2, seconds=7.5), results("TruncatedCrossEntropy", 1)
    failed = replace(two, ended="failed", error="out of memory", version="", commit="", source="")
    write_results(small, [one, failed], path)
    error = "studies: error: 1 of 2 runs failed, results/small/report.md says why: --retry-failed tries again\n"
    assert command("small", "new") == (1, "small: 1 of 2 runs done, 0 remain\n", error)
    code, out, _ = command("small", "again", "--jobs", "0", "--retry-failed")
    assert (code, out.splitlines()[0]) == (1, "small: 1 of 2 runs done, 1 remain, about 7.5 s with 1 at once")
    assert read_results(small, path) == [one, failed]
    assert [folder.name for folder in tmp_path.glob("*/loss=*")] == []

    write_results(small, [one, replace(two, scalars={"test_accuracy": 0.5, "seconds": 8.0})], path)
    before = path.read_bytes()
    for folder in ("new", "newer"):  # in the first one the run is queued, from before it was done elsewhere
        assert command("small", folder)[:2] == (0, "small: 2 of 2 runs done, 0 remain\nResults: results/small\n")
    assert path.read_bytes() == before


def test_a_row_stands_for_a_run_without_a_record(small, results, monkeypatch, tmp_path):
    """Trained by a version that wrote none: its folder is not read, and the results file keeps what it has."""
    from studies.results_file import Collector

    row = results("CrossEntropy", 1, test_accuracy=0.5)
    record = SimpleNamespace(run=SimpleNamespace(point=row.point, seed=1, name="a"), stands="done")
    (tmp_path / "a" / "digits_tce" / "version_0").mkdir(parents=True)
    (tmp_path / "a" / "digits_tce" / "version_0" / "results.json").write_text("{}")
    collector = Collector(tmp_path, [row])
    monkeypatch.setattr(collector, "_records", lambda sweep: [record])
    assert collector.results(small.sweeps[0]) == [row]


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """Replaces the command ``fl-lightning`` by a line of shell."""

    def replace_by(line):
        file = tmp_path / "bin" / "fl-lightning"
        file.parent.mkdir()
        file.write_text(f"#!/bin/sh\n{line}\n")
        file.chmod(0o755)
        monkeypatch.setenv("PATH", str(file.parent), prepend=os.pathsep)

    return replace_by


def test_a_signal_ends_the_attack_that_is_under_way(small, stand_in, monkeypatch, tmp_path):
    """Its process is gone, the attack behind it never begins, and no page is written: there is nothing new."""
    from fl_lightning.sweep.worker import Stop
    from studies import runner

    stand_in(f"echo $$ >> {tmp_path}/begun; exec sleep 60")
    monkeypatch.setattr(runner, "_POLL", 0.01)

    def terminate():
        while not (tmp_path / "begun").exists() or not (tmp_path / "begun").read_text():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    collector = SimpleNamespace(folders=lambda sweep: [tmp_path / "a", tmp_path / "b"])
    with Stop() as stop:
        threading.Thread(target=terminate).start()
        begun = time.monotonic()
        runner._attack(replace(small, attack="--clients [0]"), collector, [], stop, lambda: pytest.fail("a page is written"))
    assert time.monotonic() - begun < 30
    assert stop.signals == [signal.SIGTERM]
    (process,) = (tmp_path / "begun").read_text().split()
    with pytest.raises(ProcessLookupError):
        os.kill(int(process), 0)


def test_a_failed_run_names_its_code(small, tmp_path):
    """By the config that it wrote in its first round; none where it failed before."""
    from studies.page import page
    from studies.results_file import Collector

    config = tmp_path / "a" / "digits_tce" / "version_0" / "config.yaml"
    config.parent.mkdir(parents=True)
    config.write_text("# fl-lightning 0.0.9, commit 0123456789-dirty\nmodel: {}\n")
    runs = [SimpleNamespace(point={"model.loss": "CrossEntropy"}, seed=1, name=name) for name in ("a", "b")]
    collector = Collector(tmp_path)
    collector._records = lambda sweep: [SimpleNamespace(run=run, stands="failed", error="diverged") for run in runs]
    failed = collector.results(small.sweeps[0])
    assert [(run.version, run.commit) for run in failed] == [("0.0.9", "0123456789-dirty"), ("", "")]
    lines = page(small, failed).splitlines()[-2:]
    assert [line.rpartition("`, ")[2] for line in lines[:1]] == ["0.0.9 `0123456-dirty`: diverged"]
    assert lines[1].endswith("--seed_everything 1`: diverged")


def test_an_attack_follows_every_run_once(small, results, stand_in, monkeypatch, tmp_path):
    """Of two runs one was attacked before; a row without an attack is not done. PSNR by hand: 100 for an infinite one."""
    from studies import runner
    from studies.declaration import PSNR, SSIM
    from studies.results_file import attack_scores, recorded_results, write_results

    images = [{"psnr": None, "ssim": 1.0}, {"psnr": 20.0, "ssim": 0.5}]
    attacked, other = tmp_path / "a", tmp_path / "b"
    (attacked / "attack").mkdir(parents=True)
    other.mkdir()
    (attacked / "attack" / "attack.json").write_text(json.dumps({"images": images}))
    stand_in(f'echo "$@" >> {tmp_path}/commands; cp -r {attacked}/attack {other}')
    monkeypatch.setattr(runner, "_POLL", 0.01)
    study, collector = replace(small, attack="--clients [0,2]"), SimpleNamespace(folders=lambda sweep: [attacked, other])
    written = []  # after an attack, when its numbers are there
    write = lambda: written.append((other / "attack" / "attack.json").exists())  # noqa: E731
    for _ in range(2):
        runner._attack(study, collector, ["--data.root=DIR"], SimpleNamespace(signals=[]), write)
    assert written == [True]
    file = str(other / "checkpoints" / "last.ckpt")
    assert (tmp_path / "commands").read_text() == f"attack --ckpt_path {file} --clients [0,2] --data.root=DIR\n"
    assert attack_scores(other) == {PSNR: 60.0, SSIM: 0.75}
    assert attack_scores(tmp_path) == {}
    runs = [results("CrossEntropy", 1, **attack_scores(other)), results("TruncatedCrossEntropy", 1, test_accuracy=0.5)]
    write_results(small, runs, tmp_path / "runs.csv")
    assert recorded_results(study, tmp_path / "runs.csv") == runs[:1]


def test_next_takes_up_what_is_not_complete(command, small, results, monkeypatch, capsys, tmp_path):
    """Of three in their order: the first is done, the second fails, the third is stopped by SIGTERM."""
    from studies import __main__ as studies
    from studies.results_file import write_results

    started = []

    def run_study(study, out, folder, jobs, data, retry_failed):
        started.append((study.name, str(out), jobs, data))
        if study.name == "fails":
            raise ValueError("1 of 2 runs failed")
        return [signal.SIGTERM]

    monkeypatch.setattr(studies, "STUDIES", {name: replace(small, name=name) for name in ("first", "fails", "last", "never")})
    monkeypatch.setattr(studies, "ORDER", ("first", "fails", "last", "never"))
    monkeypatch.setattr(studies, "run_study", run_study)
    done = [results(loss, 1, test_accuracy=0.5) for loss in ("CrossEntropy", "TruncatedCrossEntropy")]
    write_results(small, done, tmp_path / "results" / "first" / "runs.csv")
    write_results(small, done[:1], tmp_path / "results" / "last" / "runs.csv")
    (tmp_path / "DIR" / "digits" / "train").mkdir(parents=True)
    code, _, error = command("next", "out", "--jobs", "1", "--data.root", "DIR")
    assert code == 128 + signal.SIGTERM
    data = ["--data.root=DIR/digits", "--data.source=image_folder"]
    assert started == [(name, f"out/{name}", 1, data) for name in ("fails", "last")]
    assert error.splitlines() == [
        "studies: error: 1 of 2 runs failed",
        "studies: stopped: run the same command to resume",
    ]


def test_next_tries_a_failed_run_again_only_if_it_is_told_to(small, results, tmp_path):
    from studies.results_file import write_results
    from studies.runner import is_complete

    done = results("CrossEntropy", 1, test_accuracy=0.5)
    failed = replace(results("TruncatedCrossEntropy", 1), ended="failed", error="no finite update")
    write_results(small, [done, failed], tmp_path / "runs.csv")
    assert is_complete(small, tmp_path, retry_failed=False)
    assert not is_complete(small, tmp_path, retry_failed=True)


def test_no_source_replaces_a_choice_of_classes():
    """Two federations of 50 classes would become two of all 100."""
    from studies.__main__ import _data
    from studies.catalogue import STUDIES

    given = argparse.Namespace(**{"data.source": "image_folder", "data.root": "DIR"})
    assert _data(given, STUDIES["tce_full_length"]) == ["--data.source=image_folder", "--data.root=DIR"]
    with pytest.raises(ValueError, match="would replace .*SomeClasses of pretrained_fifty: give only --data.root"):
        _data(given, STUDIES["pretrained_fifty"])


def test_next_finds_data_by_the_name_of_its_source(tmp_path):
    """Images of one dataset are never those of a study of another."""
    from studies.__main__ import _where
    from studies.catalogue import STUDIES

    (tmp_path / "cifar10" / "train").mkdir(parents=True)
    (tmp_path / "mnist").mkdir()
    images = [f"--data.root={tmp_path / 'cifar10'}", "--data.source=image_folder"]
    assert _where(STUDIES["tce_full_length"], str(tmp_path)) == images
    assert _where(STUDIES["fedreg_one_class"], str(tmp_path)) == [f"--data.root={tmp_path / 'mnist'}"]
    assert _where(STUDIES["fedweit_ablations"], str(tmp_path)) == []
    assert _where(STUDIES["tce_full_length"], None) == []
    (tmp_path / "cifar100" / "train").mkdir(parents=True)
    assert _where(STUDIES["pretrained_fifty"], str(tmp_path)) == [f"--data.root={tmp_path / 'cifar100'}"]


@pytest.mark.slow
def test_a_page_is_written_after_every_run(command, small, monkeypatch, tmp_path):
    """`next` is stopped by SIGTERM in the second of two runs: it ends soon, the first has its row, and both have one later."""
    from studies import __main__ as studies

    monkeypatch.setattr(studies, "ORDER", ("small",))
    rows, second = tmp_path / "results" / "small" / "runs.csv", tmp_path / "out/small/loss=TruncatedCrossEntropy/seed_1"
    stopped = []

    def terminate():
        while not list(second.glob("digits_tce/version_0/checkpoints/last.ckpt")):
            time.sleep(0.05)
        assert len(rows.read_text().splitlines()) == 2
        stopped.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate).start()
    code, out, error = command("next", "out", "--jobs", "1")
    assert code == 128 + signal.SIGTERM, error
    assert time.monotonic() - stopped[0] < 60
    assert len(rows.read_text().splitlines()) == 2
    code, out, error = command("next", "out", "--jobs", "1")
    assert code == 0, error
    assert "loss=TruncatedCrossEntropy/seed_1: resumed from its checkpoint" in out
    assert len(rows.read_text().splitlines()) == 3
    assert command("next", "out", "--jobs", "1") == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["smal", "out"], "NAME is smal, which is not a study: give next or one of small"),
        (["small"], "the following arguments are required: OUT: python -m studies --help shows the options"),
        (
            ["small", "out", "--trainer.max_steps", "3"],
            "unrecognized arguments: --trainer.max_steps 3: python -m studies --help",
        ),
        (["next", "out", "--data.source", "image_folder"], "--data.source is image_folder, but next reads each study's data"),
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


def test_a_missing_file_is_named_before_the_first_run(command, small, monkeypatch, tmp_path):
    from studies import __main__ as studies

    monkeypatch.setattr(studies, "STUDIES", {"small": replace(small, files={"names.npz": "a page has it"})})
    code, out, error = command("small", "out")
    assert (code, out) == (1, "")
    assert error == "studies: error: small reads names.npz, which is not in the working folder: a page has it\n"
    assert not (tmp_path / "out").exists()


def test_a_results_file_keeps_what_it_has(small, results, tmp_path):
    """Numbers with all their digits; what other settings or runs have written is no place for these, other code's rows stay."""
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
    older = read_results(small, path)
    assert {row.version for row in older} == {"0.0.9"}
    write_results(small, older, path)
    more = [replace(row, scalars={**row.scalars, "new": 1.0}) for row in older]  # that only later code reads from a run
    write_results(small, more, path)
    assert read_results(small, path) == more
    path.write_text(text.replace("max_steps 120", "max_steps 121"))
    assert "runs.csv has a run of other settings, fl-lightning fit --config digits_tce.yaml" in refused(one, two)
    path.write_text("a,b\n1,2\n")
    assert "runs.csv is not a results file of the study small, of these settings: move it away" in refused(one, two)


@pytest.mark.slow
def test_runs_begin_with_the_pretrained_net(command, small, monkeypatch, tmp_path):
    """Stopped in the pretraining, no run has begun; the net is then trained to its end, and once."""
    from studies import __main__ as studies
    from studies.declaration import Sweep

    first = "--config digits_tce.yaml --model.net MLP --model.net.hidden [16] --trainer.max_steps 60 --seeds [5]"
    study = replace(small, pretraining=Sweep("pretrained", " ".join([first, *NO_PICTURES])))
    monkeypatch.setattr(studies, "STUDIES", {"small": study})
    checkpoint = tmp_path.resolve() / "out/pretrained/base/seed_5/digits_tce/version_0/checkpoints/last.ckpt"

    def interrupt():
        while not checkpoint.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    code, _, _ = command("small", "out", "--jobs", "1")
    assert (code, list((tmp_path / "out").glob("loss=*/seed_1/digits_tce"))) == (130, [])

    code, _, error = command("small", "out", "--jobs", "1")
    assert code == 0, error
    written = checkpoint.stat().st_mtime_ns
    for run in (tmp_path / "out").glob("loss=*/seed_1/digits_tce/version_0/results.json"):
        assert json.loads(run.read_text())["initial_weights"] == {"file": str(checkpoint), "round": 60}
    page = (tmp_path / "results" / "small" / "report.md").read_text()
    assert "`--model.initial_weights CKPT`:\n\n```\nfl-lightning sweep --config digits_tce.yaml" in page
    assert command("small", "out", "--jobs", "1")[:2] == (0, "small: 2 of 2 runs done, 0 remain\nResults: results/small\n")
    assert checkpoint.stat().st_mtime_ns == written
