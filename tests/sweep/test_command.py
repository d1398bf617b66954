"""fl-lightning sweep before anything runs: bad input is one line, and another sweep's folder is left alone."""

from pathlib import Path

import pytest

BASE = ["sweep", "--config", "digits_tce.yaml"]
LR = ["--set", "model.optimizer.lr=0.1,0.3"]


@pytest.fixture
def refused(main, tmp_path):
    """The error line of a command that starts nothing, and leaves nothing unless there was something."""

    def run(*arguments):
        before = sorted(tmp_path.rglob("*"))
        code, out, error = main(*arguments)
        assert code == 1
        assert out == ""
        assert error.startswith("fl-lightning: error: ")
        assert error.count("\n") == 1
        assert sorted(tmp_path.rglob("*")) == before
        return error

    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sweep"], "required: --config"),
        (["sweep", "--config", "nowhere.yaml"], "config is nowhere.yaml, neither a file here nor a bundled config"),
        ([*BASE, "--config", "b.yaml"], "--config is digits_tce.yaml and b.yaml, but a sweep takes one: give a file"),
        ([*BASE, "--set", "model.optimizer.lr"], "--set model.optimizer.lr must be KEY=VALUES"),
        ([*BASE, "--seeds", "0"], "--seeds is 0, must be at least 1"),
        ([*BASE, "--jobs", "0"], "--jobs is 0, must be at least 1"),
        ([*BASE, "--jobs", "two"], "--jobs: invalid int value: 'two'"),
        ([*BASE, "--search", "best"], "invalid choice: 'best'"),
        ([*BASE, *LR, "--search", "tpe"], "--search is tpe, which draws without end: give --trials N"),
        ([*BASE, "--search", "random", "--trials", "3"], "--search is random, but nothing is varied"),
        ([*BASE, *LR, "--trials", "3"], "--trials is 3, but a grid tries all its points"),
        ([*BASE, "--set", "model.optimizer.lr=0.1..1"], "--set model.optimizer.lr is a range, which a grid cannot list"),
        ([*BASE, "--seed_everything", "3"], "--seed_everything is set by the sweep: give --seeds"),
        ([*BASE, "--trainer.default_root_dir=x"], "--trainer.default_root_dir is set by the sweep: give --out"),
        ([*BASE, *LR, "--model.optimizer.lr", "1"], "--model.optimizer.lr is given, and varied by --set model.optimizer.lr"),
    ],
)
def test_a_command_that_cannot_be_meant(refused, arguments, message):
    assert message in refused(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "model.optimizer.lrr=0.1"], "model.optimizer.lrr is not an option here: did you mean model.optimizer.lr"),
        (["--set", "data.aplha=1,2"], "data.aplha is not an option here: "),
        (["--set", "qqq=1"], "qqq is not an option here: "),
        ([*LR, "--set", "model.local_steps=3,many"], "model.local_steps is many, must be"),
        (["--set", "model.loss=CrossEntropy,CrosEntropy"], "did you mean CrossEntropy?"),
        (["--set", "model=FedProx,FedAvg", "--set", "model.mu=1"], "with model=FedAvg, model.mu is "),
        (
            ["--set", "model.optimizer.lr=1..2", "--search", "random", "--trials", "2"],
            "--set model.optimizer.lr=1..2 has only whole numbers: give 1.0..2.0 for all between",
        ),
        (["--set", "model.optimizer.lr=0.1,0.10"], "--set model.optimizer.lr has 0.1 and 0.10, which are the same"),
        ([*LR, "--trainer.max_step", "3"], "trainer.max_step is not an option here"),
        ([*LR, "--prune", "--data.val_fraction", "0"], "--prune goes by validation accuracy, and there is none"),
        (["--set", "data.val_fraction=0.1,0", "--prune"], "--prune goes by validation accuracy, and there is none"),
    ],
)
@pytest.mark.one_in(3)
def test_what_fit_would_refuse_is_refused_before_anything_runs(refused, arguments, message):
    assert message in refused(*BASE, *arguments)


def test_a_config_that_resumes_a_run_is_refused(refused, tmp_path):
    (tmp_path / "mine.yaml").write_text("base: digits_tce.yaml\nckpt_path: last\n")
    assert "ckpt_path is last in mine.yaml, from which every run would continue" in refused("sweep", "--config", "mine.yaml")


class Nothing:
    """A worker that leaves everything for later."""

    config: Path  # of the newest one

    def __init__(self, study, config, *_):
        type(self).config = config

    def work(self):
        pass


@pytest.fixture
def idle(main, monkeypatch):
    """The command line whose sweeps start no run."""
    monkeypatch.setattr("fl_lightning.sweep.entered_sweep.Worker", Nothing)
    return main


@pytest.mark.slow
def test_a_folder_of_another_sweep_is_left_alone(idle, tmp_path):
    """Other values, keys, seeds, options or config: named with the cure. One value or seed more is the same sweep, grown,
    and so is one whose options stand in another order.
    """
    (tmp_path / "mine.yaml").write_text("base: digits_tce.yaml\n")
    command = ["sweep", "--config", "mine.yaml", "--out", "out", "--trainer.max_steps", "3"]
    command += ["--data.batch_size", "8"]
    assert idle(*command, *LR, "--seeds", "2")[0] == 0
    for other, message in (
        (
            ["--set", "model.optimizer.lr=0.1,1", "--seeds", "2"],
            "has 0.1, 0.3 for model.optimizer.lr, here 0.1, 1: it may",
        ),
        (
            ["--set", "model.local_steps=1,2"],
            "--search grid over model.optimizer.lr, here --search grid over model.lo",
        ),
        (
            [*LR, "--seeds", "1"],
            "has 1, 2 for --seeds, here 1: it may gain values, and lose none: give the same",
        ),
        (
            [*LR, "--seeds", "2", "--model.local_steps", "1"],
            "a sweep with other options for fit, missing here is none, new is --model.local_steps 1: give the same",
        ),
        (
            [*LR, "--seeds", "2", "--search", "random", "--trials", "1"],
            "--search grid over model.optimizer.lr, here --search",
        ),
    ):
        code, _, error = idle(*command, *other)
        assert code == 1
        assert message in error
    assert idle(*command, "--set", "model.optimizer.lr=0.1,0.3,1", "--seeds", "3")[0] == 0
    in_another_order = [*command[:5], "--data.batch_size=8", "--trainer.max_steps=3"]
    code, out, _ = idle(*in_another_order, "--set", "model.optimizer.lr=0.1,0.3,1", "--seeds", "3")
    assert out.count("3 waiting") == 3
    (tmp_path / "mine.yaml").rename(tmp_path / "renamed.yaml")
    renamed = ["sweep", "--config", "renamed.yaml", *command[3:], "--set", "model.optimizer.lr=0.1,0.3,1", "--seeds", "3"]
    assert idle(*renamed)[0] == 0
    assert Nothing.config.read_text()  # the one that runs read, by its first name
    (tmp_path / "mine.yaml").write_text("base: digits_tce.yaml\nmodel: {init_args: {local_steps: 7}}\n")
    code, _, error = idle(*command, "--set", "model.optimizer.lr=0.1,0.3,1", "--seeds", "3")
    assert "holds a sweep of another config, or of this one before it was changed" in error


def test_help_has_an_example(main):
    code, out, _ = main("sweep", "--help")
    assert code == 0
    assert "fl-lightning sweep --config digits_tce.yaml --set model.loss=CrossEntropy,TruncatedCrossEntropy" in out
