"""fl_lightning.Trainer: what a script shows, and that it trains what Lightning's own Trainer does."""

import re
import subprocess
import sys

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping

from fl_lightning import FedAvg, Trainer
from fl_lightning.callbacks import PerClassAccuracy, PrivacyBudget, RoundForgetting, RoundProgressBar, RunSummary
from fl_lightning.data import from_arrays
from fl_lightning.privacy import UserLevelDP
from fl_lightning.privacy.defence import epsilon

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
