"""Counts and accuracies under a trainer's half precision."""

import torch

from fl_lightning import FedAvg, FederatedDataModule, Trainer
from fl_lightning.functional.exact_buffers import ExactBuffers
from fl_lightning.methods import Flashback
from fl_lightning.models import MLP
from fl_lightning.tasks import TaskLearner, TaskStream


def trained(method, rounds, **data):
    federation = FederatedDataModule("digits", num_clients=2, clients_per_round=2, batch_size=10, **data)
    quiet = {"logger": False, "enable_checkpointing": False, "accelerator": "cpu", "precision": "bf16-true"}
    Trainer(max_steps=rounds, **quiet).fit(method, datamodule=federation)
    assert next(method.net.parameters()).dtype == torch.bfloat16
    return method


def test_label_counts_grow_beyond_what_half_precision_can_count():
    """2048 + 5 is 2048 there."""
    method = trained(Flashback(MLP, local_steps=1), 1, public_size=100)
    counts = method.global_label_counts
    counts.copy_(torch.full_like(counts, 2048.0)).add_(5)
    assert counts.tolist() == [2053.0] * 10


def test_accuracies_and_rates_of_tasks_are_not_rounded():
    method = trained(FedAvg(MLP, local_steps=1, tasks=TaskLearner()), 2, tasks=TaskStream(classes_per_task=5))
    assert method.tasks.task_accuracy.dtype == method.tasks.clocks.rate_factor.dtype == torch.float64


def test_a_wider_type_is_taken_over():
    module = ExactBuffers()
    module.register_buffer("count", torch.tensor(0.1))
    assert module.double().count.dtype == torch.float64
    assert module.bfloat16().count.dtype == torch.float64
