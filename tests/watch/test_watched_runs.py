"""What the page is told of runs, against numbers by hand, and while files are written."""

import json
import os
import time

import pytest

from fl_lightning.report import sections
from fl_lightning.report.runs import read_runs
from fl_lightning.report.study import build_study
from fl_lightning.watch import watched_runs
from fl_lightning.watch.watched_runs import WatchedRuns


@pytest.fixture
def watched(tmp_path) -> WatchedRuns:
    (tmp_path / "runs").mkdir()
    return WatchedRuns(tmp_path / "runs")


def seen(watched: WatchedRuns) -> dict:
    """What the page is told after a look at the files, as JSON without NaN."""
    watched.refresh()
    return json.loads(json.dumps(watched.overview(), allow_nan=False))


def test_runs_that_go_on_have_ended_or_are_silent(write_run, watched):
    """Four rounds of ten in steps of 2 s: 6 rounds of 2 s are left. The silent one logged its last an hour ago."""
    curve = {round: round / 8 for round in range(1, 5)}
    write_run("a/version_0", {"test/accuracy": curve}, rounds=4)
    write_run("b/version_0", {"test/accuracy": curve}, rounds=10, start=time.time() - 8)
    write_run("c/version_0", {"test/accuracy": curve}, rounds=10, start=time.time() - 3610)
    found = {run["name"]: run for run in seen(watched)["runs"]}
    ended, going, silent = (found[f"{name}/version_0"] for name in "abc")
    assert (ended["state"], ended["standing"]) == ("finished", "round 4 of 4, finished")
    assert (going["state"], going["standing"]) == ("running", "round 4 of 10, 12.0 s left")
    assert (silent["state"], silent["standing"]) == ("silent", "round 4 of 10, nothing new for 1 h 00 min")
    assert going["newest"] == "last test accuracy 0.500"
    assert (going["round"], going["rounds"], going["label"]) == (4, 10, "FedAvg, CrossEntropy, rounds 10, seed 5")
    assert going["curves"]["test/accuracy"] == {"rounds": [1, 2, 3, 4], "values": [0.125, 0.25, 0.375, 0.5]}


def test_colours_and_names_are_those_of_a_report(write_run, watched, tmp_path):
    """One of two methods has two seeds, which share its colour and differ in the line."""
    for name, seed, model in (("b", 1, "FedProx"), ("c", 1, "FedAvg"), ("a", 0, "FedAvg")):
        config = write_run(name, {"test/accuracy": {1: 0.25, 2: 0.5}}, rounds=2) / "config.yaml"
        config.write_text(config.read_text().replace("FedAvg", model).replace("seed_everything: 5", f"seed_everything: {seed}"))
    runs = {run["label"]: run for run in seen(watched)["runs"]}
    first, second, other = (
        runs[f"{name}, CrossEntropy, seed {seed}"] for name, seed in (("FedAvg", 0), ("FedAvg", 1), ("FedProx", 1))
    )
    assert first["color"] == second["color"] != other["color"]
    assert (first["line"], second["line"], other["line"]) == (0, 1, 0)
    study, _ = build_study(read_runs([tmp_path / "runs"])[0], None, None)
    palette = sections._palette(study)
    assert {group.method: palette[group] for group in study.groups} == {
        "FedAvg, CrossEntropy": first["color"],
        "FedProx, CrossEntropy": other["color"],
    }


def test_curves_are_thinned_hold_no_nan_and_are_those_that_matter(write_run, watched):
    """Of 4,000 rounds 400 points, the first and the last among them."""
    long = dict.fromkeys(range(1, 4001), 0.5)
    forgetting = {1: float("nan"), 2: 0.25, 3: 1e308}
    write_run("a", {"val/accuracy": long, "forgetting/round": forgetting, "train/lr": {1: 0.1}}, rounds=4000)
    told = seen(watched)
    (run,) = told["runs"]
    assert [chart["title"] for chart in told["charts"].values()] == ["validation accuracy", "round forgetting F_t"]
    assert all(chart["text"] for chart in told["charts"].values())
    rounds = run["curves"]["val/accuracy"]["rounds"]
    assert (len(rounds), rounds[0], rounds[-1]) == (400, 1, 4000)
    assert run["curves"]["forgetting/round"]["values"] == [None, 0.25, None]


def test_a_record_is_shown_as_far_as_it_is_written(write_run, watched):
    """Up to its last whole line."""
    scalars = {"test/accuracy": {1: 0.25, 2: 0.5}, "class_accuracy/cat": {1: 0.25, 2: 0.5}}
    tensors = {"clients/round_cohort": {1: [0, 2]}, "clients/class_cohort": {2: []}, "clients/class_accuracy": {2: [[1], [1]]}}
    record = write_run("a", scalars, tensors, rounds=9, start=time.time() - 4) / "record.jsonl"
    assert list(seen(watched)["runs"][0]["measured"]) == ["by_class", "classes", "cohorts"]
    record.write_bytes(record.read_bytes()[:-4])
    told = seen(watched)
    assert list(told["runs"][0]["measured"]) == ["classes", "cohorts"]
    assert told["remarks"] == []


def test_a_folder_without_runs_is_waited_in(write_run, watched, tmp_path):
    """Before the first look nothing is known; a run appears as it begins, and a folder that goes takes its runs along."""
    assert watched.overview()["is_read"] is False
    told = seen(watched)
    assert (told["is_read"], told["runs"], told["remarks"]) == (True, [], [])
    folder = write_run("a", {"val/accuracy": {1: 0.5}}, rounds=2)
    assert [run["name"] for run in seen(watched)["runs"]] == ["a"]
    folder.rename(tmp_path / "elsewhere")
    (tmp_path / "runs").rmdir()
    assert seen(watched)["runs"] == []


def test_a_page_asked_for_as_a_run_goes_shows_it_once_more(write_run, tmp_path):
    """Between the new colours and the new runs."""
    shown = []

    class Asked(WatchedRuns):
        def __setattr__(self, name, value):
            if name == "_watched" and value is not None:
                shown.append([run["name"] for run in self.overview()["runs"]])
            super().__setattr__(name, value)

    gone, _ = (write_run(name, {"val/accuracy": {1: 0.5}}, rounds=2) for name in "ab")
    watched = Asked(tmp_path / "runs")
    watched.refresh()
    gone.rename(tmp_path / "elsewhere")
    watched.refresh()
    assert shown == [[], ["a", "b"]]


def test_the_folder_of_one_run_has_its_name(write_run):
    folder = write_run("version_7", {"val/accuracy": {1: 0.5}}, rounds=2)
    assert [run["name"] for run in seen(WatchedRuns(folder))["runs"]] == ["version_7"]


def test_half_written_files_are_no_errors(write_run, watched):
    """A line that is cut off ends its curve there; a config of which a part is written leaves what was known."""
    folder = write_run("a", {"val/accuracy": {1: 0.25, 2: 0.5}}, rounds=2, start=time.time() - 4)
    record = folder / "record.jsonl"
    whole = record.read_bytes()
    record.write_bytes(whole[:-5])
    told = seen(watched)
    assert told["runs"][0]["curves"]["val/accuracy"]["rounds"] == [1]
    assert told["remarks"] == []
    config = folder / "config.yaml"
    text = config.read_text()
    config.write_text(text[:20])
    told = seen(watched)
    assert (told["runs"][0]["round"], told["remarks"]) == (1, [])
    config.write_text(text)
    record.write_bytes(whole)
    assert seen(watched)["runs"][0]["curves"]["val/accuracy"]["rounds"] == [1, 2]


def test_a_run_that_has_only_begun_is_no_error(watched, tmp_path):
    (tmp_path / "runs" / "a").mkdir()
    (tmp_path / "runs" / "a" / "config.yaml").write_text("")
    told = seen(watched)
    assert (told["runs"], told["remarks"]) == ([], [])


def test_what_stays_damaged_is_named(write_run, watched):
    """After ten minutes nobody is writing it any more."""
    folder = write_run("a\nb", {"val/accuracy": {1: 0.25}}, rounds=2)
    (folder / "config.yaml").write_text("seed_everything: 1")
    for path in folder.iterdir():
        os.utime(path, (1.7e9, 1.7e9))
    (remark,) = seen(watched)["remarks"]
    assert remark.endswith("a\\nb: its config.yaml is not that of a run")


def test_a_run_that_claims_too_much_hides_no_other(write_run, watched):
    """A round of 2^40 next to who took part was a list of as many rounds; the run is there up to it, and the remark at once."""
    curve = {1: 0.25, 2: 0.5}
    write_run("a", {"test/accuracy": curve}, rounds=2)
    cohorts = {"clients/round_cohort": {1: [0, 2]}}
    write_run("b", {"test/accuracy": {**curve, 2**40: 0.75}}, cohorts, rounds=2, start=time.time())
    told = seen(watched)
    assert [run["curves"]["test/accuracy"]["rounds"] for run in told["runs"]] == [[1, 2], [1, 2]]
    (remark,) = told["remarks"]
    assert "/b/record.jsonl" in remark
    assert remark.endswith("cut off or damaged, read up to round 2")


@pytest.mark.parametrize("client", [-1, 0.5, 2.0**40, float("inf"), float("nan")])
def test_a_client_that_cannot_be_is_damage(write_run, watched, client):
    """As of an accuracy next to a cohort, the round before it stays."""
    write_run("a", {"test/accuracy": {1: 0.25}}, {"clients/round_cohort": {1: [0, 2], 2: [client]}}, rounds=9)
    told = seen(watched)
    assert told["runs"][0]["measured"] == {"cohorts": [1]}
    assert len(told["remarks"]) == 1


def test_a_defect_in_one_run_is_a_remark(write_run, watched, monkeypatch):
    """Whatever it is; what was known of the run stays."""
    for name in "ab":
        write_run(name, {"val/accuracy": {1: 0.5}}, rounds=2, start=time.time())
    assert len(seen(watched)["runs"]) == 2
    read_run = watched_runs.read_run

    def failing(folder):
        if folder.name == "a":
            raise ZeroDivisionError("by zero")
        return read_run(folder)

    monkeypatch.setattr(watched_runs, "read_run", failing)
    for name in "ab":
        (watched._folder / name / "results.json").write_text('{"rounds": 1}')
    told = seen(watched)
    assert [(run["name"], run["state"]) for run in told["runs"]] == [("a", "running"), ("b", "finished")]
    assert told["remarks"] == [f"{watched._folder / 'a'}: it cannot be shown (ZeroDivisionError: by zero)"]


def test_time_left_without_end_is_not_known(write_run, watched):
    """JSON has no infinity, and one would hide all runs: 1e308 rounds of 2 s."""
    folder = write_run("a", {"val/accuracy": {1: 0.25, 2: 0.5}}, rounds=9, start=time.time() - 4)
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("max_steps: 9", "max_steps: 1.0e+308"))
    (run,) = seen(watched)["runs"]
    assert (run["state"], run["standing"]) == ("running", "round 2 of 1e+308, time left not known yet")


def test_a_folder_that_cannot_be_listed_is_named(watched, monkeypatch):
    monkeypatch.setattr(watched_runs, "run_folders", lambda paths: ([], ["x: skipped, it cannot be listed"]))
    assert seen(watched)["remarks"] == ["x: skipped, it cannot be listed"]


def test_what_has_not_changed_is_not_read_again(write_run, watched, monkeypatch):
    folders = [write_run(name, {"val/accuracy": {1: 0.5}}, rounds=2) for name in "ab"]
    seen(watched)
    read, read_run = [], watched_runs.read_run

    def noting(folder):
        read.append(folder)
        return read_run(folder)

    monkeypatch.setattr(watched_runs, "read_run", noting)
    seen(watched)
    assert read == []
    (folders[1] / "results.json").write_text('{"rounds": 1}')
    assert [run["state"] for run in seen(watched)["runs"]][1] == "finished"
    assert read == [folders[1]]
