"""What a run says of itself where there is no terminal, in a notebook, and where it ends early."""

import re
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from rich.console import Console
from torch import nn

from fl_lightning import FedAvg
from fl_lightning.callbacks import RoundProgressBar, RunSummary, progress


def module_of(newest: dict[str, float], of_round: int = 0, every: int = 1000) -> SimpleNamespace:
    """What the bar asks of a module that is evaluated every so many rounds."""
    evaluation = SimpleNamespace(follows=lambda trainer, round: round % every == 0)
    return SimpleNamespace(newest=newest, newest_rounds=dict.fromkeys(newest, of_round), evaluation=evaluation)


@pytest.fixture
def lines(monkeypatch, capsys):
    """The lines of a run whose rounds take so many seconds, by a clock of the test's."""

    def run(rounds: int, seconds: float, start: int = 0) -> list[str]:
        clock = SimpleNamespace(now=0.0)
        monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
        bar = RoundProgressBar()
        trainer = SimpleNamespace(global_step=start, max_steps=rounds)
        module = module_of({"val/accuracy": 0.8124, "forgetting/round": 0.034}, every=rounds)
        bar.on_train_start(trainer, module)
        for round in range(start + 1, rounds + 1):
            clock.now += seconds
            module.newest_rounds = dict.fromkeys(module.newest, round)
            bar.on_round_end(trainer, module, round, None)
        bar.on_train_end(trainer, module)
        return capsys.readouterr().out.splitlines()

    return run


def test_a_short_run_prints_its_end(lines):
    assert lines(20, 0.125) == ["Round 20/20  accuracy 0.812  F_t 0.034  8.0 rounds/s  0:00:00 left"]


def test_a_line_says_speed_and_time_left(lines):
    """Half a second a round: the first line after ten seconds, then every ten; 80 rounds left take 40 s."""
    said = lines(100, 0.5)
    assert said[0] == "Round 20/100  accuracy 0.812  F_t 0.034  2.0 rounds/s  0:00:40 left"
    assert [line.split()[1] for line in said] == ["20/100", "40/100", "60/100", "80/100", "100/100"]


def test_a_resumed_run_counts_its_rounds_alone(lines):
    """40 rounds in 20 s and 60 left."""
    assert lines(200, 0.5, start=100)[1].split("  ")[3:] == ["2.0 rounds/s", "0:00:30 left"]


def test_long_runs_print_about_fifty_lines(lines):
    """4,000 rounds of 2 s: every 80, with the first one after ten seconds."""
    said = lines(4000, 2.0)
    assert [line.split()[1] for line in said[:3]] == ["5/4000", "85/4000", "165/4000"]
    assert len(said) == 51


def test_slow_rounds_are_not_silent(lines):
    """Five minutes a round: a line every ten minutes, in seconds a round."""
    said = lines(4000, 300.0)
    assert [line.split()[1] for line in said[:3]] == ["1/4000", "3/4000", "5/4000"]
    assert "  300.0 s/round  13 days, " in said[0]


def test_scores_are_those_of_their_round(monkeypatch, capsys):
    """Rounds of a minute, evaluated every second one: a line waits for its evaluation, or names the round of its scores."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
    bar, module = RoundProgressBar(), module_of({"val/accuracy": 0.0}, every=2)
    bar.on_train_start(SimpleNamespace(global_step=0, max_steps=9), module)
    for round in range(1, 4):
        clock.now += 60.0
        bar.on_round_end(None, module, round, None)
        if round == 2:
            module.newest["val/accuracy"], module.newest_rounds["val/accuracy"] = 0.2, 2
            bar.on_validation_end(None, module)
    lines = [line.split("  ")[:2] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["Round 1/9", "accuracy 0.000 after round 0"],
        ["Round 2/9", "accuracy 0.200"],
        ["Round 3/9", "accuracy 0.200 after round 2"],
    ]


@pytest.mark.parametrize(
    ("rounds", "said"),
    [
        ((6, 6), "accuracy 0.812  F_t 0.034"),
        ((4, 4), "accuracy 0.812  F_t 0.034, both after round 4"),
        ((6, 4), "accuracy 0.812  F_t 0.034 after round 4"),
        ((5, 4), "accuracy 0.812 after round 5  F_t 0.034 after round 4"),
    ],
)
def test_a_score_names_its_round(rounds, said):
    newest = {"val/accuracy": 0.8124, "forgetting/round": 0.034}
    assert progress._scores(newest, dict(zip(newest, rounds, strict=True)), 6) == said


def test_scores_of_a_test_set_that_is_measured_less_often_name_their_round(main, monkeypatch):
    """Every round prints; without validation samples the test set is measured in rounds 0, 3 and 6 and at the end."""
    monkeypatch.setattr(progress, "_SECONDS", 0)
    without = ["--data.val_fraction", "0", "--model.net", "MLP", "--trainer.val_check_interval", "1"]
    rounds = ["--data.monitor_test", "3", "--trainer.max_steps", "7"]
    code, out, error = main("fit", "--config", "digits_tce.yaml", *without, *rounds)
    assert code == 0, error
    line = r"^Round ([1-7])/7  accuracy [\d.]+(?: +F_t -?[\d.]+)?(?:(?:, both)? after round (\d))?"
    said = re.findall(line, out, re.MULTILINE)
    assert said == [("1", "0"), ("2", "0"), ("3", ""), ("4", "3"), ("5", "3"), ("6", ""), ("7", "")]


def test_a_run_without_evaluations_waits_for_none(monkeypatch, capsys):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
    bar, module = RoundProgressBar(), module_of({}, every=1)
    module.evaluation.follows = lambda trainer, round: False
    bar.on_train_start(SimpleNamespace(global_step=0, max_steps=9), module)
    clock.now = 60.0
    bar.on_round_end(None, module, 1, None)
    assert capsys.readouterr().out.startswith("Round 1/9")


@pytest.mark.parametrize("ends_in", [4, 3])
def test_the_last_line_has_the_scores_of_the_last_evaluation(ends_in, monkeypatch, capsys):
    """A round of a minute is evaluated after its end: the last of 4, or round 3, in which its evaluation stops the run."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
    bar, module = RoundProgressBar(), module_of({"val/accuracy": 0.1}, every=ends_in)
    bar.on_train_start(SimpleNamespace(global_step=ends_in - 1, max_steps=4), module)
    clock.now = 60.0
    bar.on_round_end(None, module, ends_in, None)
    module.newest["val/accuracy"], module.newest_rounds["val/accuracy"] = 0.5, ends_in
    bar.on_validation_end(None, module)
    bar.on_train_end(None, module)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"Round {ends_in}/4  accuracy 0.500  ")


def test_what_is_printed_meanwhile_is_there_at_once(monkeypatch):
    """A file is written when a line is, and not when its buffer is full."""
    said = []
    monkeypatch.setattr("builtins.print", lambda *texts, **settings: said.append((*texts, settings.get("flush"))))
    bar = RoundProgressBar()
    bar.on_train_start(SimpleNamespace(global_step=0, max_steps=3), None)
    bar.print("Engine: sequential")
    bar.on_train_end(None, None)
    bar.print("after")
    assert said == [("Engine: sequential", True), ("after", True)]


@pytest.mark.parametrize(("settings", "widgets"), [({"force_terminal": True}, None), ({"force_jupyter": True}, "found")])
def test_where_there_is_a_bar(settings, widgets, monkeypatch):
    monkeypatch.setattr(progress, "find_spec", lambda name: widgets)
    assert progress._can_redraw(Console(_environ={"TERM": "xterm"}, **settings))


@pytest.mark.parametrize("settings", [{"force_jupyter": True}, {"force_terminal": False}, {"_environ": {"TERM": "dumb"}}])
def test_where_there_is_none(settings, monkeypatch):
    """In a notebook without ipywidgets rich would write a warning at every refresh."""
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    assert not progress._can_redraw(Console(**settings))


def test_a_run_into_a_file_is_not_silent(main):
    """From round to round of a real one, whose standard output is no terminal."""
    code, out, error = main("fit", "--config", "digits_tce.yaml", "--model.net", "MLP", "--trainer.max_steps", "2")
    assert code == 0, error
    assert re.search(r"^Round 2/2  accuracy 0\.\d{3}  F_t \d\.\d{3}  .* left$", out, re.MULTILINE)


def test_early_stopping_says_why(fit, toy_data, capsys):
    """A rate of 0 improves nothing: the second evaluation without improvement ends the run."""
    stop = EarlyStopping("val/accuracy", mode="max", patience=2)
    method = FedAvg(nn.Linear(4, 3).double(), optimizer=partial(torch.optim.SGD, lr=0.0))
    fit(method, toy_data(val_fraction=0.4), 9, precision="64-true", callbacks=[stop, RunSummary()])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Ended")]
    assert line.startswith("Ended after round 2 of 9: EarlyStopping: Monitored metric val/accuracy did not improve in the last")


def test_max_time_says_so(fit, toy_data, capsys):
    method = FedAvg(nn.Linear(4, 3).double())
    fit(method, toy_data(), 100_000, precision="64-true", callbacks=[RunSummary()], max_time={"seconds": 1})
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Ended")]
    assert re.fullmatch(r"Ended after round \d+ of 100000: trainer.max_time is over, after 0:00:0\d of training", line)


def test_a_run_to_its_last_round_gives_no_reason(fit, toy_data, capsys):
    fit(FedAvg(nn.Linear(4, 3).double()), toy_data(), 3, precision="64-true", callbacks=[RunSummary()])
    assert "Ended" not in capsys.readouterr().out
