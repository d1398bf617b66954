"""A run that is cut off anywhere ends where it would have ended."""

import signal

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from options import NO_PICTURES

from fl_lightning import FedAvg
from fl_lightning.callbacks import Communication, LossIncrease, PerClassAccuracy, RoundForgetting, RunSummary
from fl_lightning.state.atomic_files import atomic_save
from fl_lightning.state.client_states import MemoryStates

RUN = (
    "fit --config digits_tce.yaml --model.net MLP --model.net.hidden [16] --data.clients_per_round 5 --trainer.max_steps 12 "
    "--trainer.val_check_interval 4 --data.monitor_test 4 --model.server_optimizer.momentum 0.5 "
    "--callbacks.client_forgetting.every 10"
).split()
# Two rounds after a checkpoint: the clients have written, the server has a new model, and nobody has been told.
KILLED = """
import os
import signal

from fl_lightning.callbacks import FederatedCallback


class Killed(FederatedCallback):
    def on_aggregate_end(self, trainer, module, round):
        if round == 6:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def run_folder(tmp_path, name):
    return tmp_path / name / "digits_tce" / "version_0"


@pytest.fixture
def cut_off(command_line, main, tmp_path):
    """Run a command to round 6, where it is killed (kill -9), and with ``--ckpt_path last`` to its end."""
    (tmp_path / "killed.py").write_text(KILLED)

    def run(*arguments, name="cut"):
        arguments = [*arguments, "--trainer.default_root_dir", name]
        killed = command_line(*arguments, "--trainer.callbacks+=killed.Killed")
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        last = torch.load(run_folder(tmp_path, name) / "checkpoints" / "last.ckpt", weights_only=True)
        assert last["global_step"] == 4
        code, _, error = main(*arguments, "--ckpt_path", "last")
        assert code == 0, error

    return run


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_weights_and_curves(main, cut_off, tmp_path, raw_records):
    """A real process, a real kill -9: weights bit for bit, and every record of every round once, as in a run never killed."""
    code, _, error = main(*RUN, "--trainer.default_root_dir", "whole")
    assert code == 0, error
    cut_off(*RUN)
    expected, actual = (
        torch.load(run_folder(tmp_path, name) / "checkpoints" / "last.ckpt", weights_only=True) for name in ("whole", "cut")
    )
    assert actual["global_step"] == expected["global_step"] == 12
    assert expected["state_dict"].keys() == actual["state_dict"].keys()
    for name, value in expected["state_dict"].items():
        assert torch.equal(value, actual["state_dict"][name]), name
    assert raw_records(run_folder(tmp_path, "cut")) == raw_records(run_folder(tmp_path, "whole"))
    results = [(run_folder(tmp_path, name) / "results.json").read_text() for name in ("whole", "cut")]
    assert results[0] == results[1]


PERSONAL = """
from fl_lightning import FedAvg


class PersonalHeads(FedAvg):
    personal = ("classifier.*",)
"""


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_client_states(main, cut_off, tmp_path):
    """Killed between a client's write and the next checkpoint: heads and weights, bit for bit, of a run never killed.

    Whether it keeps the states in memory or on disk.
    """
    (tmp_path / "heads.py").write_text(PERSONAL)
    run = [*RUN, *NO_PICTURES, "--model", "heads.PersonalHeads", "--model.client_state"]
    code, out, error = main(*run, "memory", "--trainer.default_root_dir", "whole")
    assert code == 0, error
    assert "client state: up to 20 clients x 680 bytes = 13.6 kB in memory" in out
    for kind in ("memory", "disk"):
        cut_off(*run, kind, name=kind)
    whole, *others = (kept_by(run_folder(tmp_path, name)) for name in ("whole", "memory", "disk"))
    assert len(whole) > 10
    for other in others:
        assert whole.keys() == other.keys()
        for owner, state in whole.items():
            assert state.keys() == other[owner].keys()
            assert all(torch.equal(value, other[owner][name]) for name, value in state.items()), owner


def kept_by(folder):
    """What stands in a run's last checkpoint: the server's weights and each client's."""
    checkpoint = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    states = MemoryStates()
    states.restore(checkpoint["federated"]["client_states"])
    return {"net": checkpoint["state_dict"], **{client: states.read(client).weights for client in sorted(states.clients())}}


@pytest.mark.parametrize("logger", [["CSVLogger", "--trainer.logger.save_dir", "shared"], ["false"]], ids=["csv", "none"])
def test_states_on_disk_lie_in_the_folder_of_the_run(main, tmp_path, logger):
    """Whatever the logger's folder is, which runs may share; a run goes on from them."""
    run = [*RUN, *NO_PICTURES, "--model", "SCAFFOLD", "--model.client_state", "disk", "--trainer.logger", *logger]
    code, out, error = main(*run, "--trainer.max_steps", "2")
    assert code == 0, error
    assert "client state: up to 10 clients x 4.8 kB = 48.4 kB on disk" in out
    folder = run_folder(tmp_path, "runs") / "client_states"
    assert len(list(folder.rglob("*.pt"))) >= 5
    assert list(tmp_path.rglob("client_states*")) == [folder]
    code, _, error = main(*run, "--trainer.max_steps", "3", "--ckpt_path", "last")
    assert code == 0, error
    assert list(tmp_path.rglob("client_states*")) == [folder]


def test_last_without_a_checkpoint_is_an_error(main, tmp_path):
    """Where Lightning would warn and train anew, we stop: one line, exit code not 0, nothing written."""
    code, _, error = main(*RUN, "--ckpt_path", "last")
    assert code != 0
    assert error.strip().count("\n") == 0
    assert "ckpt_path is last, but runs/digits_tce holds no such checkpoint" in error
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("cut", [2, 3])
def test_resumed_rounds_equal_uninterrupted_ones(fit, toy_data, tmp_path, cut):
    """Six rounds in one go, or ``cut`` and then the rest: the same bits, server momentum, schedule and histories included."""

    def build():
        data = toy_data(cohorts=[[0, 2], [1, 2], [0, 1]] * 2, val_fraction=0.2, batch_size=3, monitor_test=1)
        method = FedAvg(
            torch.nn.Linear(4, 3, dtype=torch.float64),
            server_optimizer=lambda p: torch.optim.Adam(p, lr=0.1),
            lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        )
        with torch.no_grad():
            method.net.weight.copy_(torch.arange(12.0).reshape(3, 4) / 12)
            method.net.bias.zero_()
        return method, data, [RoundForgetting(), PerClassAccuracy(), Communication(), RunSummary()]

    method, data, callbacks = build()
    trainer = fit(method, data, 6, precision="64-true", callbacks=callbacks)
    summary = callbacks[-1].results(trainer, method)

    first, data, callbacks = build()
    fit(first, data, cut, precision="64-true", callbacks=callbacks).save_checkpoint(tmp_path / "cut.ckpt")
    second, data, callbacks = build()
    trainer = fit(second, data, 6, precision="64-true", callbacks=callbacks, ckpt_path=tmp_path / "cut.ckpt")
    assert torch.equal(second.net.weight, method.net.weight)
    assert callbacks[-1].results(trainer, second) == summary


def test_checkpoints_hold_plain_containers_only(fit, toy_data, tmp_path):
    """torch.load with weights_only=True reads them: nothing of ours is pickled."""
    callbacks = [RoundForgetting(every=1), PerClassAccuracy(every=1), LossIncrease(every=1), Communication(), RunSummary()]
    method = FedAvg(torch.nn.Linear(4, 3, dtype=torch.float64))
    trainer = fit(method, toy_data(monitor_test=1), 2, precision="64-true", callbacks=callbacks)
    trainer.save_checkpoint(tmp_path / "plain.ckpt")
    checkpoint = torch.load(tmp_path / "plain.ckpt", weights_only=True)
    assert "hyper_parameters" not in checkpoint
    assert checkpoint["global_step"] == 2


def test_a_checkpoint_of_another_net_is_refused(fit, toy_data, tmp_path):
    """One line that names the net or, where nothing is to go on, the first weight that differs."""
    trainer = fit(FedAvg(torch.nn.Linear(4, 3, dtype=torch.float64)), toy_data(), 1, precision="64-true")
    trainer.save_checkpoint(tmp_path / "linear.ckpt")
    other = FedAvg(torch.nn.Sequential(torch.nn.Linear(4, 3, dtype=torch.float64)))
    with pytest.raises(ValueError, match=r"model.net is Sequential, Linear in the run: "):
        fit(other, toy_data(), 2, precision="64-true", ckpt_path=tmp_path / "linear.ckpt")
    trainer = pl.Trainer(accelerator="cpu", precision="64-true", logger=False, enable_progress_bar=False)
    with pytest.raises(ValueError, match=r"ckpt_path holds another net: net.0.bias is missing there and \(3,\) here"):
        trainer.test(other, datamodule=toy_data(), ckpt_path=tmp_path / "linear.ckpt")


@pytest.mark.parametrize(("kind", "key"), [(RoundForgetting, "best"), (Communication, "of_tasks"), (RunSummary, "bytes")])
def test_a_checkpoint_that_lacks_a_part_of_a_callback_is_refused(fit, toy_data, tmp_path, kind, key):
    """As one of a version that did not keep it yet: one line, and not a KeyError."""
    settings, path = {"precision": "64-true"}, tmp_path / "old.ckpt"
    first = FedAvg(torch.nn.Linear(4, 3, dtype=torch.float64))
    fit(first, toy_data(monitor_test=1), 1, callbacks=[kind()], **settings).save_checkpoint(path)
    checkpoint = torch.load(path, weights_only=True)
    del checkpoint["callbacks"][kind().state_key][key]
    atomic_save(checkpoint, path)
    again = FedAvg(torch.nn.Linear(4, 3, dtype=torch.float64))
    lacks = (
        f"ckpt_path lacks {key} of the callback {kind.__name__}, as where another version wrote it: resume with that version"
    )
    with pytest.raises(ValueError, match=lacks):
        fit(again, toy_data(monitor_test=1), 2, callbacks=[kind()], ckpt_path=path, **settings)


def test_an_evaluation_that_a_kill_cut_off_is_made_up_for(fit, toy_data, tmp_path):
    """A checkpoint written in round 4 before its evaluation: the resumed run evaluates round 4 first, as the whole run did."""

    def build():
        torch.manual_seed(0)
        data = toy_data(cohorts=[[0, 2], [1, 2], [0, 1]] * 2, monitor_test=1)
        return FedAvg(torch.nn.Linear(4, 3, dtype=torch.float64)), data, RunSummary()

    settings = {"precision": "64-true", "val_check_interval": 2}
    method, data, whole = build()
    checkpoints = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=4, save_top_k=-1)
    fit(method, data, 6, callbacks=[whole, checkpoints], enable_checkpointing=True, **settings)
    method, data, resumed = build()
    fit(method, data, 6, callbacks=[resumed], ckpt_path=tmp_path / "step=4.ckpt", **settings)
    assert list(whole._curves["test/accuracy"]) == [0, 2, 4, 6]
    assert resumed._curves == whole._curves


@pytest.mark.parametrize("nothing", [["--trainer.limit_val_batches=0"], ["--data.source=mine.npz", "--data.val_fraction=0"]])
def test_without_evaluation_there_are_checkpoints_all_the_same(main, tmp_path, nothing):
    """last.ckpt every val_check_interval and after the last round, fit to go on from; it may be a time."""
    np.savez(tmp_path / "mine.npz", inputs=np.ones((600, 1, 8, 8), dtype=np.float32), targets=np.arange(600) % 10)
    run = [*RUN, *NO_PICTURES, *nothing]
    assert main(*run, "--trainer.max_steps", "6")[0] == 0
    path = run_folder(tmp_path, "runs") / "checkpoints" / "last.ckpt"
    assert torch.load(path, weights_only=True)["global_step"] == 6
    more = ["--trainer.max_steps", "7", "--trainer.val_check_interval", "00:00:01:00"]
    assert main(*run, *more, "--ckpt_path", "last")[0] == 0
    assert torch.load(path, weights_only=True)["global_step"] == 7
