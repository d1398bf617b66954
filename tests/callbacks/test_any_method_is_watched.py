"""Callbacks ask a method's hooks, not for its class: any method that answers is watched as those in the tree are."""

from types import SimpleNamespace

import pytest
import torch

from fl_lightning import FederatedModule
from fl_lightning.callbacks import Communication, LossIncrease, PseudoDataFisher
from fl_lightning.models import CNN2
from fl_lightning.protocol import Learner, RoundReport, TaskProgress


class Rehearsing(FederatedModule):
    def pseudo_data(self, client):
        return {"inputs": torch.zeros(1, 2), "labels": torch.ones(1, 1)}


class InSequence(Learner):
    def task_progress(self):
        return TaskProgress([2, 0], torch.zeros(2, 3, 3), torch.zeros(2))


class Logging(FederatedModule):
    def log_round(self, metrics, round):
        self.logged = metrics


def test_a_method_answers_that_it_has_nothing_to_show():
    module = FederatedModule(CNN2)
    tasks = module.tasks
    assert module.pseudo_data(None) == tasks.attention_tensors() == {}
    assert tasks.task_progress() is tasks.class_progress() is tasks.nearest_mean_logits(torch.zeros(1, 2)) is None


@pytest.mark.parametrize("callback", [PseudoDataFisher(), LossIncrease(fedavg=True)])
def test_any_method_with_pseudo_data_may_have_what_looks_at_them(callback):
    callback.setup(None, Rehearsing(CNN2), "fit")
    with pytest.raises(ValueError, match="model is FederatedModule, but .*only"):
        callback.setup(None, FederatedModule(CNN2), "fit")


def test_bytes_count_for_the_tasks_that_a_method_names():
    """Client 0 is at its third task, client 1 at its first: each task gets half of the round's bytes."""
    module, callback = Logging(CNN2, tasks=InSequence()), Communication()
    report = RoundReport(1, [0, 1], [0.0, 0.0], 2, [], bytes_down=100, bytes_up=20, norms=[0.0, 0.0])
    trainer = SimpleNamespace(is_global_zero=True, loggers=[])
    callback.on_round_start(trainer, module, 1)
    callback.on_round_end(trainer, module, 1, report)
    assert callback.of_tasks == {"down_03": 50.0, "up_03": 10.0, "down_01": 50.0, "up_01": 10.0}
