"""FedSOL against the two passes of its step in a plain loop."""

import copy

import pytest
import torch
from torch import nn

from fl_lightning import FedAvg, FederatedDataModule, Trainer
from fl_lightning.methods import FedSOL
from fl_lightning.privacy import DPSGD
from fl_lightning.tasks import SynapticIntelligence, TaskStream


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "sgd tce", "adam"], indirect=True)
def test_rounds_equal_two_passes_a_step(tiny):
    """Three rounds: the gradient at ``w + rho L g_p / ||g_p||``, with L row by row and in place of norms plain sums.

    The statistics of BatchNorm follow the pass at the shifted weights.
    """
    rho = 2.0
    method, net = tiny.train(FedSOL, rho=rho), tiny.new_net()

    def direction(local, received, client, inputs, targets):
        teacher = (copy.deepcopy(received).eval()(inputs).detach() / 3).softmax(dim=1)
        statistics = {name: buffer.clone() for name, buffer in local.named_buffers()}
        student = (local(inputs) / 3).softmax(dim=1)
        pull = torch.autograd.grad((teacher * (teacher / student).log()).sum() / len(targets), list(local.parameters()))
        local.load_state_dict(statistics, strict=False)
        length = sum(g.square().sum() for g in pull).sqrt() + 1e-12
        before = [weight.detach().clone() for weight in local.parameters()]
        with torch.no_grad():
            for weight, start, g in zip(local.parameters(), received.parameters(), pull, strict=True):
                moved = (weight - start).abs()
                weight += rho * moved / (moved.square().sum(dim=0).sqrt() + 1e-300) * g / length
        gradients = tiny.gradient(local, client, inputs, targets)
        with torch.no_grad():
            for weight, value in zip(local.parameters(), before, strict=True):
                weight.copy_(value)
        return gradients

    for round, cohort in tiny.rounds:
        net.load_state_dict(tiny.mean({k: tiny.visit_along(net, k, round, direction) for k in cohort}))
    tiny.assert_same(method.net, net, atol=1e-8)
    tiny.assert_moved(net)


def test_one_step_is_fedavg(tiny):
    """At the received weights nothing is shifted."""
    tiny.assert_same(tiny.train(FedSOL, local_steps=1).net, tiny.train(FedAvg, local_steps=1).net, atol=1e-12)


def test_without_shift_it_is_fedavg(tiny):
    """rho = 0: bit for bit."""
    tiny.assert_same(tiny.train(FedSOL, rho=0).net, tiny.train(FedAvg).net, atol=0)


def test_running_statistics_follow_one_pass_a_step_under_a_learner_of_tasks():
    """Synaptic Intelligence takes gradients at the client's weights too."""

    def net(shape, num_classes):
        layers = [nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, num_classes)]
        return nn.Sequential(*layers)

    method = FedSOL(net, tasks=SynapticIntelligence(), local_steps=3, class_layer="3")
    data = FederatedDataModule(
        "digits", num_clients=2, clients_per_round=2, batch_size=10, tasks=TaskStream(classes_per_task=2)
    )
    Trainer(max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False).fit(method, datamodule=data)
    assert method.net[2].num_batches_tracked == 3


def test_negative_rho_is_refused(tiny):
    """One line with the key, the value and what is allowed."""
    with pytest.raises(ValueError, match=r"^model.rho is -0.1, must be at least 0: 0 is FedAvg$"):
        FedSOL(tiny.new_net(), rho=-0.1)


def test_dp_sgd_is_refused(tiny):
    with pytest.raises(ValueError, match=r"^model.privacy is DPSGD, .* but FedSOL takes more"):
        tiny.train(FedSOL, norm=False, privacy=DPSGD(1.0))
