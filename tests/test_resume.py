"""A run that is cut off anywhere ends where it would have ended."""

import signal
import time

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from fl_lightning import FedAvg
from fl_lightning.callbacks import Communication, LossIncrease, PerClassAccuracy, RoundForgetting, RunSummary
from fl_lightning.state.client_states import MemoryStates

RUN = (
    "fit --config digits_tce.yaml --model.net.hidden 32 --trainer.max_steps 40 --trainer.val_check_interval 4 "
    "--data.monitor_test 4 --model.server_optimizer.momentum 0.5 --callbacks.client_forgetting.every 8"
).split()


def run_folder(tmp_path, name):
    return tmp_path / name / "digits_tce" / "version_0"


def kill_in_the_middle(process, checkpoints):
    """kill -9 once there is a checkpoint and a few rounds more."""
    deadline = time.monotonic() + 120
    while not (checkpoints / "last.ckpt").exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def test_a_killed_run_ends_with_the_same_weights_and_curves(command_line, tmp_path, raw_records):
    """A real process, a real kill -9: weights bit for bit, and every record of every round once, as in a run never killed."""
    whole = command_line(*RUN, "--trainer.default_root_dir", "whole")
    assert whole.returncode == 0, whole.stderr
    cut = command_line(*RUN, "--trainer.default_root_dir", "cut", wait=False)
    checkpoints = run_folder(tmp_path, "cut") / "checkpoints"
    kill_in_the_middle(cut, checkpoints)
    stopped_at = torch.load(checkpoints / "last.ckpt", weights_only=True)["global_step"]
    assert 0 < stopped_at < 40
    resumed = command_line(*RUN, "--trainer.default_root_dir", "cut", "--ckpt_path", "last")
    assert resumed.returncode == 0, resumed.stderr

    expected, actual = (
        torch.load(run_folder(tmp_path, name) / "checkpoints" / "last.ckpt", weights_only=True) for name in ("whole", "cut")
    )
    assert actual["global_step"] == expected["global_step"] == 40
    assert expected["state_dict"].keys() == actual["state_dict"].keys()
    for name, value in expected["state_dict"].items():
        assert torch.equal(value, actual["state_dict"][name]), name
    assert raw_records(run_folder(tmp_path, "cut")) == raw_records(run_folder(tmp_path, "whole"))
    results = [(run_folder(tmp_path, name) / "results.json").read_text() for name in ("whole", "cut")]
    assert results[0] == results[1]


PERSONAL = """
from fl_lightning import FedAvg


class OwnHeads(FedAvg):
    personal = ("classifier.*",)
"""


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_killed_run_ends_with_the_same_client_states(command_line, tmp_path, kind):
    """Killed between a client's write and the next checkpoint: heads and weights, bit for bit, of a run never killed."""
    (tmp_path / "heads.py").write_text(PERSONAL)
    run = [*RUN, "--model", "heads.OwnHeads", "--model.client_state", kind]
    whole = command_line(*run, "--trainer.default_root_dir", "whole")
    assert whole.returncode == 0, whole.stderr
    assert f"client state: up to 20 clients x 1.3 kB = 26.4 kB {'in memory' if kind == 'memory' else 'on disk'}" in whole.stdout
    kill_in_the_middle(
        command_line(*run, "--trainer.default_root_dir", "cut", wait=False), run_folder(tmp_path, "cut") / "checkpoints"
    )
    resumed = command_line(*run, "--trainer.default_root_dir", "cut", "--ckpt_path", "last")
    assert resumed.returncode == 0, resumed.stderr
    kept = []
    for name in ("whole", "cut"):
        checkpoint = torch.load(run_folder(tmp_path, name) / "checkpoints" / "last.ckpt", weights_only=True)
        states = MemoryStates()
        states.restore(checkpoint["federated"]["client_states"])
        heads = {client: states.read(client).weights for client in sorted(states.clients())}
        kept.append({"net": checkpoint["state_dict"], **heads})
    assert len(kept[0]) > 10
    assert kept[0].keys() == kept[1].keys()
    for owner, state in kept[0].items():
        assert state.keys() == kept[1][owner].keys()
        assert all(torch.equal(value, kept[1][owner][name]) for name, value in state.items()), owner


@pytest.mark.parametrize("logger", [["CSVLogger", "--trainer.logger.save_dir", "shared"], ["false"]], ids=["csv", "none"])
def test_states_on_disk_lie_in_the_folder_of_the_run(command_line, tmp_path, logger):
    """Whatever the logger's folder is, which runs may share; a run goes on from them."""
    run = [*RUN, "--model", "Scaffold", "--model.client_state", "disk", "--trainer.logger", *logger]
    first = command_line(*run, "--trainer.max_steps", "2")
    assert first.returncode == 0, first.stderr
    folder = run_folder(tmp_path, "runs") / "client_states"
    assert len(list(folder.rglob("*.pt"))) >= 5
    assert list(tmp_path.rglob("client_states*")) == [folder]
    resumed = command_line(*run, "--trainer.max_steps", "3", "--ckpt_path", "last")
    assert resumed.returncode == 0, resumed.stderr
    assert list(tmp_path.rglob("client_states*")) == [folder]


def test_last_without_a_checkpoint_is_an_error(command_line, tmp_path):
    """Where Lightning would warn and train anew, we stop: one line, exit code not 0, nothing written."""
    result = command_line(*RUN, "--ckpt_path", "last")
    assert result.returncode != 0
    assert result.stderr.strip().count("\n") == 0
    assert "ckpt_path is last, but runs/digits_tce holds no such checkpoint" in result.stderr
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
        trainer.validate(other, datamodule=toy_data(), ckpt_path=tmp_path / "linear.ckpt")


@pytest.mark.parametrize(("kind", "key"), [(RoundForgetting, "best"), (Communication, "of_tasks"), (RunSummary, "bytes")])
def test_a_checkpoint_that_lacks_a_part_of_a_callback_is_refused(fit, toy_data, tmp_path, kind, key):
    """As one of a version that did not keep it yet: one line, and not a KeyError."""
    settings, path = {"precision": "64-true"}, tmp_path / "old.ckpt"
    first = FedAvg(torch.nn.Linear(4, 3, dtype=torch.float64))
    fit(first, toy_data(monitor_test=1), 1, callbacks=[kind()], **settings).save_checkpoint(path)
    checkpoint = torch.load(path, weights_only=True)
    del checkpoint["callbacks"][kind().state_key][key]
    torch.save(checkpoint, path)
    again = FedAvg(torch.nn.Linear(4, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match=f"ckpt_path was written by an earlier version: .* {kind.__name__} lacks {key}: go on"):
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


def test_without_evaluation_there_are_checkpoints_all_the_same(command_line, tmp_path):
    """limit_val_batches 0: last.ckpt every val_check_interval rounds and after the last one, fit to go on from."""
    run = [*RUN, "--trainer.limit_val_batches", "0"]
    assert command_line(*run, "--trainer.max_steps", "6").returncode == 0
    path = run_folder(tmp_path, "runs") / "checkpoints" / "last.ckpt"
    assert torch.load(path, weights_only=True)["global_step"] == 6
    assert command_line(*run, "--trainer.max_steps", "7", "--ckpt_path", "last").returncode == 0
    assert torch.load(path, weights_only=True)["global_step"] == 7
