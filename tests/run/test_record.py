"""One fit at a time writes to a run's folder, and a round stands in its curves once."""

import json
import signal
import time
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from filelock import FileLock, Timeout
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from options import NO_PICTURES
from recorded import lines

from fl_lightning import FedAvg
from fl_lightning.callbacks import (
    ClientForgetting,
    Communication,
    LabelCounts,
    PerClassAccuracy,
    RoundForgetting,
    RunSummary,
)
from fl_lightning.run.record_logger import RecordLogger

DIGITS = "fit --config digits_tce.yaml --model.net MLP --model.net.hidden [8] --data.clients_per_round 5".split()
RUN = [*DIGITS, *NO_PICTURES, "--trainer.max_steps"]
SCAFFOLD_ON_DISK = "--model SCAFFOLD --model.client_state disk".split()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def method() -> FedAvg:
    torch.manual_seed(0)
    return FedAvg(torch.nn.Linear(4, 3, dtype=torch.float64))


class Look(pl.Callback):
    """Tries the lock in the midst of a fit and, if told to, ends it."""

    def __init__(self, folder: Path, error: BaseException | None = None) -> None:
        self.folder, self.error = folder, error

    def on_train_batch_end(self, *arguments) -> None:
        with pytest.raises(Timeout):
            FileLock(self.folder / ".lock").acquire(timeout=0)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [None, RuntimeError("the end"), KeyboardInterrupt()], ids=["ends", "fails", "stopped"])
def test_a_fit_locks_its_folder_until_it_ends(fit, toy_data, tmp_path, error):
    """However it ends; the folder is the logger's where nobody names one, as in Python."""
    folder = tmp_path / "logs" / "version_0"
    settings = {"precision": "64-true", "logger": TensorBoardLogger(tmp_path, "logs", 0), "callbacks": [Look(folder, error)]}
    if error is None:
        fit(method(), toy_data(), 1, **settings)
    else:
        with pytest.raises((RuntimeError, SystemExit)):
            fit(method(), toy_data(), 1, **settings)
    FileLock(folder / ".lock").acquire(timeout=0)


@pytest.mark.parametrize("options", [[], SCAFFOLD_ON_DISK], ids=["FedAvg", "SCAFFOLD"])
def test_a_second_fit_is_refused_in_one_line(main, tmp_path, options):
    """It names the folder, ends with an error, and changes nothing."""
    assert main(*RUN, "2", *options)[0] == 0
    folder = tmp_path / "runs" / "digits_tce" / "version_0"
    before = contents(folder)
    with FileLock(folder / ".lock"):
        code, _, error = main(*RUN, "4", *options, "--ckpt_path", "last")
    assert code == 1
    assert error.count("\n") == 1
    assert f"{folder} is being written by another fit" in error
    assert contents(folder) == before
    assert main(*RUN, "4", *options, "--ckpt_path", "last")[0] == 0


def test_two_resumes_at_once(command_line, main, tmp_path):
    """A real process holds the folder: another fit is refused; the first, killed, leaves a run that goes on at once."""
    assert main(*RUN, "2", *SCAFFOLD_ON_DISK)[0] == 0
    folder = tmp_path / "runs" / "digits_tce" / "version_0"
    resume = [*SCAFFOLD_ON_DISK, "--ckpt_path", "last"]
    first = command_line(*RUN, "3000", *resume, wait=False)
    config, deadline = (folder / "config.yaml").read_text(), time.monotonic() + 120
    while (folder / "config.yaml").read_text() == config:  # its first round
        assert first.poll() is None, first.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    code, _, error = main(*RUN, "3000", *resume)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert code == 1
    assert f"{folder} is being written by another fit" in error
    assert error.count("\n") == 1
    rounds = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["global_step"]
    code, _, error = main(*RUN, str(rounds + 2), *resume)
    assert code == 0, error


def test_what_a_run_ends_with_stands_once(main, tmp_path, raw_records):
    """Killed between its last readings and results.json it goes on without a round, and writes them again."""
    run = [*DIGITS, "--trainer.max_steps", "2"]
    assert main(*run)[0] == 0
    folder = tmp_path / "runs" / "digits_tce" / "version_0"
    whole, results = raw_records(folder), (folder / "results.json").read_text()
    (folder / "results.json").unlink()
    assert main(*run, "--ckpt_path", "last")[0] == 0
    assert raw_records(folder) == whole
    assert (folder / "results.json").read_text() == results


@pytest.mark.parametrize("file", ["record.jsonl", "events.out.tfevents.*"])
@pytest.mark.parametrize("left", [b"", 0.5])
def test_a_fit_does_not_go_on_from_a_file_that_lost_rounds(main, tmp_path, file, left):
    """Half of it, or another one in its place; nothing changes, and it goes on once the file is back, or away."""
    run = [*DIGITS, "--trainer.max_steps"]
    assert main(*run, "2")[0] == 0
    folder = tmp_path / "runs" / "digits_tce" / "version_0"
    path = next(folder.glob(file))
    whole = path.read_bytes()
    path.write_bytes(b"another\n" if left == b"" else whole[: int(left * len(whole))])
    before = contents(folder)
    code, _, errors = main(*run, "4", "--ckpt_path", "last")
    assert (code, len(errors.splitlines())) == (1, 1)
    assert f"{path} lacks lines that it had after round 2" in errors
    assert contents(folder) == before
    path.write_bytes(whole)
    assert main(*run, "3", "--ckpt_path", "last")[0] == 0
    assert path.read_bytes().startswith(whole[:100])
    path.rename(tmp_path / "away")
    assert main(*run, "4", "--ckpt_path", "last")[0] == 0


class Cut(pl.Callback):
    """Ends a fit after a round, as a kill would: nothing of it is finished."""

    def __init__(self, round: int) -> None:
        self.round = round

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        if trainer.global_step == self.round:
            raise RuntimeError("cut")


@pytest.mark.slow
def test_a_resumed_run_has_the_records_of_one_never_cut(fit, toy_data, tmp_path, raw_records):
    """Line by line, and TensorBoard its figures, histograms and texts; a checkpoint before its round's evaluation, too."""

    def run(name: str, every: int = 2, **more) -> None:
        # Round 4 is the newest checkpoint's, round 5 comes twice.
        kinds = (RoundForgetting, PerClassAccuracy, LabelCounts, ClientForgetting, Communication)
        callbacks = [kind(every=0, rounds=[4, 5]) for kind in kinds]
        checkpoints = ModelCheckpoint(tmp_path / name, filename="last", every_n_train_steps=every, enable_version_counter=False)
        callbacks = [*callbacks, *more.pop("callbacks", []), checkpoints]
        data = toy_data(cohorts=[[0, 2], [1, 2], [0, 1], [0, 1, 2], [0, 1, 2]] * 2, val_fraction=0.2, monitor_test=1)
        settings = {"precision": "64-true", "enable_checkpointing": True, "val_check_interval": 2, "callbacks": callbacks}
        fit(method(), data, 6, logger=TensorBoardLogger(tmp_path, name, 0), **settings, **more)

    run("whole")
    whole = raw_records(tmp_path / "whole" / "version_0")
    assert len({tag for _, tag, _ in whole}) > 15
    assert len(logged := lines(tmp_path / "whole" / "version_0")) > 20
    for cut, every in ((5, 2), (4, 2), (5, 3)):
        name = f"cut_{cut}_{every}"
        with pytest.raises(RuntimeError, match="cut"):
            run(name, every, callbacks=[Cut(cut)])
        run(name, every, ckpt_path=tmp_path / name / "last.ckpt")
        assert raw_records(tmp_path / name / "version_0") == whole, name
        assert lines(tmp_path / name / "version_0") == logged, name


def test_curves_of_another_folder_stay(fit, toy_data, tmp_path):
    """A fit that goes on elsewhere cuts nothing, neither there nor where the checkpoint came from.

    A record there grows, and the settings are those of the newest fit, as a config's are.
    """
    run = {"precision": "64-true", "val_check_interval": 2}
    trainer = fit(method(), toy_data(), 2, logger=TensorBoardLogger(tmp_path, "first", 0), **run)
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    fit(method(), toy_data(), 3, logger=TensorBoardLogger(tmp_path, "other", 0), **run)
    before = {**contents(tmp_path / "first"), **contents(tmp_path / "other")}
    logger = TensorBoardLogger(tmp_path, "other", 0)
    fit(method(), toy_data(), 4, logger=logger, ckpt_path=tmp_path / "two.ckpt", **run)
    after = {**contents(tmp_path / "first"), **contents(tmp_path / "other")}
    assert json.loads(after.pop("version_0/settings.json"))["trainer.max_steps"] == 4
    del before["version_0/settings.json"]
    record = "version_0/record.jsonl"
    grown = after.pop(record)
    assert grown.startswith(before[record])
    assert before.items() <= {**after, record: before[record]}.items()


def test_results_are_next_to_a_record_that_is_the_only_logger(fit, toy_data, tmp_path):
    folder = tmp_path / "study" / "method" / "seed_0"
    fit(method(), toy_data(), 1, logger=RecordLogger(folder), callbacks=[RunSummary()])
    assert {"record.jsonl", "results.json", "settings.json"} <= {path.name for path in folder.iterdir()}
    assert [path.name for path in tmp_path.rglob("results.json")] == ["results.json"]
