"""fl_lightning.Trainer: what a script shows, and that it trains what Lightning's own Trainer does."""

import re
import subprocess
import sys

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.profilers import PyTorchProfiler

from fl_lightning import FedAvg, FederatedDataModule, FederatedStrategy, Trainer
from fl_lightning.callbacks import (
    ClientForgetting,
    FederatedCallback,
    PerClassAccuracy,
    PrivacyBudget,
    RoundForgetting,
    RoundProgressBar,
    RunSummary,
)
from fl_lightning.data import from_arrays
from fl_lightning.models import MLP
from fl_lightning.privacy import UserLevelDP
from fl_lightning.privacy.defence import epsilon
from fl_lightning.trainer import strategy_for

SCRIPT = """
import torch
from fl_lightning import FedAvg, Trainer
from fl_lightning.data import from_arrays

inputs = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
targets = inputs[:, :2].argmax(dim=1)
data = from_arrays(inputs, targets, [range(20), range(20, 30)], test_inputs=inputs[30:], test_targets=targets[30:])
Trainer(max_steps=3, accelerator="cpu").fit(FedAvg(torch.nn.Linear(4, 2), local_steps=1), datamodule=data)
"""
QUIET = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}


@pytest.mark.slow
def test_a_script_shows_the_rounds_and_the_table_and_nothing_else(tmp_path):
    """No advert, no epoch, no warning of a library."""
    (tmp_path / "script.py").write_text(SCRIPT)
    result = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert result.stderr == ""
    engine, rounds, title, *table, curves = result.stdout.splitlines()
    assert engine.startswith("Engine: ")
    assert re.match(r"Round 3/3  accuracy 0\.\d{3} ", rounds)
    assert title.strip() == "FedAvg, CrossEntropy, 3 rounds"
    assert "test accuracy" in table[1]
    assert curves.startswith("See the curves: tensorboard --logdir ")


def fitted(trainer: pl.Trainer) -> torch.Tensor:
    torch.manual_seed(1)
    inputs = torch.randn(40, 4)
    targets = inputs[:, :2].argmax(dim=1)
    data = from_arrays(inputs, targets, [range(20), range(20, 40)], test_inputs=inputs, test_targets=targets)
    method = FedAvg(torch.nn.Linear(4, 2), local_steps=2)
    trainer.fit(method, datamodule=data)
    return torch.cat([weights.detach().flatten() for weights in method.net.parameters()])


def test_it_trains_the_same_weights_as_lightnings(capsys):
    ours = Trainer(max_steps=4, **QUIET)
    plain = pl.Trainer(max_steps=4, enable_progress_bar=False, **QUIET)
    assert torch.equal(fitted(ours), fitted(plain))


def test_epsilon_is_logged_unasked():
    method = FedAvg(torch.nn.Linear(4, 2), privacy=UserLevelDP(1.0), server_weighting="uniform", local_steps=1)
    data = from_arrays(torch.randn(20, 4), torch.arange(20) % 2, [range(10), range(10, 20)])
    Trainer(max_steps=2, **QUIET).fit(method, datamodule=data)
    assert method.newest["privacy/epsilon"] == pytest.approx(epsilon({(1.0, 1.0): 2}, 1e-5))


def test_an_evaluation_continues_no_fit(tmp_path, capsys):
    """By the trainer of that fit, which still has the callbacks of it."""
    inputs, targets = torch.randn(20, 4), torch.arange(20) % 2
    data = from_arrays(inputs, targets, [range(10), range(10, 20)], test_inputs=inputs, test_targets=targets)
    method, trainer = FedAvg(torch.nn.Linear(4, 2), local_steps=1), Trainer(max_steps=1, default_root_dir=tmp_path, **QUIET)
    trainer.fit(method, datamodule=data)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    trainer.test(method, data, ckpt_path=tmp_path / "one.ckpt", verbose=False)
    assert "The fit continues" not in capsys.readouterr().out


@pytest.mark.parametrize("kind", [PrivacyBudget, RoundProgressBar, RunSummary])
def test_a_given_callback_stands_for_its_kind(kind):
    given = kind()
    trainer = Trainer(callbacks=[given], **QUIET)
    assert [one for one in trainer.callbacks if isinstance(one, kind)] == [given]


def test_early_stopping_acts_before_others_draw():
    """Else they would not know that an evaluation is the last one."""
    others = [RoundForgetting(), PerClassAccuracy()]
    trainer = Trainer(callbacks=[*others, stop := EarlyStopping("val/accuracy")], **QUIET)
    assert trainer.callbacks[:3] == [stop, *others]


def test_the_bar_can_be_left_out():
    trainer = Trainer(enable_progress_bar=False, **QUIET)
    assert not [one for one in trainer.callbacks if isinstance(one, RoundProgressBar)]
    assert [one for one in trainer.callbacks if isinstance(one, RunSummary)]


@pytest.mark.parametrize("precision", ["16-mixed", 16, "16-true"])
def test_float16_is_refused_on_a_processor_too(precision):
    """Lightning would make bfloat16 of it there, and say so where nobody reads."""
    with pytest.raises(ValueError, match=f"trainer.precision is {precision}, but local steps have no gradient scaler"):
        Trainer(precision=precision, **QUIET)


class Federation(FederatedDataModule):
    def __init__(self, **settings):
        super().__init__("digits", **{"num_clients": 4, "clients_per_round": 2, "batch_size": 10, "monitor_test": 1} | settings)


def short_fit(*callbacks, data=None, **settings):
    trainer = Trainer(max_steps=3, val_check_interval=1, accelerator="cpu", logger=False, callbacks=[*callbacks], **settings)
    trainer.fit(FedAvg(MLP, local_steps=1), datamodule=data or Federation(val_fraction=0.2))
    return trainer


def test_checkpoints_can_be_chosen_by_forgetting(tmp_path):
    """The best of three rounds is kept, with the value that the run logged."""
    logged = {}

    class Logged(FederatedCallback):
        def on_round_end(self, trainer, module, round, report):
            logged[round] = module.newest["forgetting/client_mean"]

    best = ModelCheckpoint(tmp_path, "{step}", monitor="forgetting/client_mean", mode="max")
    short_fit(ClientForgetting(every=1), Logged(), best)
    assert float(best.best_model_score) == pytest.approx(max(logged.values()))
    assert best.best_model_path.endswith(f"step={max(logged, key=lambda round: (logged[round], -round))}.ckpt")


@pytest.mark.parametrize(
    ("stopping", "said"),
    [
        (EarlyStopping("forgetting/round"), "which the untrained model does not have: give it strict=False"),
        (EarlyStopping("val/loss"), "has a monitor of val/loss, but no round evaluates clients' validation parts"),
    ],
)
def test_a_monitor_that_will_be_missing_is_refused(stopping, said):
    with pytest.raises(ValueError, match=said):
        short_fit(RoundForgetting(every=0), stopping, data=Federation(val_fraction=0.0), enable_checkpointing=False)


def test_a_limit_of_validation_batches_that_cuts_the_test_set_is_said():
    with pytest.warns(UserWarning, match="limit_val_batches is 1, which holds for the test set in a fit too"):
        short_fit(limit_val_batches=1, enable_checkpointing=False)


def test_round_forgetting_that_was_never_measured_is_said():
    with pytest.warns(UserWarning, match="RoundForgetting measured nothing, .* set data.monitor_test, which is 10, and"):
        short_fit(RoundForgetting(every=1), data=Federation(monitor_test=10), enable_checkpointing=False)


def test_a_seed_that_seeds_nothing_is_said(monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "3")
    with pytest.warns(UserWarning, match=r"seed_everything\(3\) does not seed a federation: give seed=3 to FedAvg and to"):
        short_fit(enable_checkpointing=False)


def test_validation_without_samples_is_refused():
    data = Federation(val_fraction=0.0)
    trainer = short_fit(data=data, enable_checkpointing=False)
    with pytest.raises(ValueError, match="data.val_fraction is 0, so there are no validation samples for the global model"):
        trainer.validate(FedAvg(MLP), datamodule=data)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: ClientForgetting(rounds=5), "callbacks.client_forgetting.rounds is 5, must be a list: give [5]"),
        (lambda: ClientForgetting(every=1.5), "callbacks.client_forgetting.every is 1.5, must be a whole number"),
        (lambda: Trainer(callbacks=[ClientForgetting]), "has the class ClientForgetting: give an object, ClientForgetting()"),
    ],
)
def test_a_callback_that_is_given_wrongly_is_named(build, said):
    with pytest.raises((TypeError, ValueError), match=re.escape(said)):
        build()


def test_several_devices_share_a_cohort_by_default():
    assert strategy_for({"accelerator": "cpu", "devices": 2}) == "federated"
    assert strategy_for({"accelerator": "cpu", "devices": 1}) == "auto"
    assert isinstance(Trainer(max_steps=1, devices=2, **QUIET).strategy, FederatedStrategy)


def test_a_profiler_with_hooks_on_the_net_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"trainer.profiler is PyTorchProfiler with hooks on the net, .* give"):
        short_fit(profiler="pytorch", enable_checkpointing=False)
    profiler = PyTorchProfiler(tmp_path, record_module_names=False)
    assert short_fit(profiler=profiler, enable_checkpointing=False).global_step == 3


def test_two_callbacks_of_one_kind_are_refused():
    """Under the same names one would hide what the other logs."""
    with pytest.raises(ValueError, match=r"^trainer.callbacks has ClientForgetting twice, which logs under the same names"):
        Trainer(callbacks=[ClientForgetting(), ClientForgetting(every=2)], **QUIET)
