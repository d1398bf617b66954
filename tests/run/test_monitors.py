"""What EarlyStopping and ModelCheckpoint compare: a callback's measurements, each once."""

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn

from fl_lightning import FedAvg
from fl_lightning.callbacks import FederatedCallback

QUALITY = "forgetting/quality"


class Measures(FederatedCallback):
    """Logs a value in some rounds: at the end of the round, or at the evaluation after it."""

    def __init__(self, values: dict[int, float], at_evaluations: bool = False) -> None:
        super().__init__()
        self.values, self.at_evaluations = values, at_evaluations

    def on_round_end(self, trainer, module, round, report):
        if round in self.values and not self.at_evaluations:
            module.log_round({QUALITY: self.values[round]}, round)

    def on_validation_end(self, trainer, module):
        if self.at_evaluations and trainer.global_step in self.values:
            module.log_round({QUALITY: self.values[trainer.global_step]}, trainer.global_step)


@pytest.fixture
def run(fit, toy_data, tmp_path):
    def build(rounds, *callbacks, ckpt_path=None):
        method = FedAvg(nn.Linear(4, 3).double())
        settings = {"precision": "64-true", "enable_checkpointing": True, "default_root_dir": tmp_path}
        return fit(method, toy_data(val_fraction=0.4), rounds, ckpt_path, callbacks=[*callbacks], **settings)

    return build


def stopping(patience):
    return EarlyStopping(QUALITY, mode="max", patience=patience, strict=False, min_delta=0.0)


@pytest.mark.parametrize("at_evaluations", [False, True])
def test_a_measurement_uses_up_patience_once(run, tmp_path, at_evaluations):
    """Best in round 2; those of 5 and 8 are no better. What an evaluation measures is compared at the next one."""
    measured = Measures({2: 0.5, 5: 0.25, 8: 0.5}, at_evaluations)
    trainer = run(12, stopping(2), measured, ModelCheckpoint(tmp_path))
    assert trainer.global_step == (9 if at_evaluations else 8)


@pytest.mark.parametrize("at_evaluations", [False, True])
@pytest.mark.parametrize("cut", [2, 5, 6, 7])
def test_a_run_in_two_parts_stops_in_the_same_round(run, tmp_path, at_evaluations, cut):
    values = {2: 0.5, 5: 0.25, 8: 0.5}
    last = ModelCheckpoint(tmp_path, save_last=True, save_top_k=0, every_n_train_steps=1)
    run(cut, stopping(2), Measures(values, at_evaluations), last)
    trainer = run(
        12, stopping(2), Measures(values, at_evaluations), ModelCheckpoint(tmp_path / "b"), ckpt_path=last.last_model_path
    )
    assert trainer.global_step == (9 if at_evaluations else 8)


def test_a_model_is_saved_under_its_own_measurement(run, tmp_path):
    """The best three of six: two were measured, and one that was not is the worst of them."""
    best = ModelCheckpoint(tmp_path, "{step}", monitor=QUALITY, mode="max", save_top_k=3)
    run(6, Measures({2: 0.25, 4: 0.5}), best)
    scores = {path.rsplit("step=")[-1]: float(score) for path, score in best.best_k_models.items()}
    assert {name: score for name, score in scores.items() if score > -torch.inf} == {"2.ckpt": 0.25, "4.ckpt": 0.5}
    assert len(scores) == 3
    assert best.best_model_path.endswith("step=4.ckpt")


def test_a_loss_of_training_counts_every_round(run, tmp_path):
    """It is logged in rounds of a loggers' interval only, and shown to monitors in all."""
    stop = EarlyStopping("train/round_lost", mode="max", patience=2, strict=False)
    assert run(9, stop, ModelCheckpoint(tmp_path)).global_step == 3


@pytest.mark.parametrize("monitor", [EarlyStopping("forgetting/qualitty", strict=False), "checkpoint"])
def test_a_monitor_that_nothing_measured_is_said(run, tmp_path, monitor):
    if monitor == "checkpoint":
        monitor = ModelCheckpoint(tmp_path, monitor="forgetting/qualitty")
    with pytest.warns(UserWarning, match=r"a monitor of forgetting/qualitty, .*: did you mean forgetting/quality\?$"):
        run(2, monitor, Measures({1: 0.5}))
