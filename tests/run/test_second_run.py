"""A method that is fitted again by another trainer: a new run, which begins with the weights of the first."""

import copy

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn
from torch.utils._pytree import tree_leaves

from fl_lightning import APFL, SCAFFOLD, Ditto, FedACG, FedAvg, FedCurv, FedDyn, FedVARP
from fl_lightning.data import FederatedDataModule
from fl_lightning.models import MLP
from fl_lightning.tasks import ClassStream, LwF


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()


def with_adam(net):
    return FedAvg(net, server_optimizer=lambda weights: torch.optim.Adam(weights, lr=0.1))


@pytest.mark.parametrize("kind", [with_adam, SCAFFOLD, FedDyn, FedACG, FedVARP, FedCurv, Ditto, APFL])
def test_a_second_run_is_that_of_a_new_method_with_its_weights(fit, toy_data, kind):
    """States of the server, the clients and the initial model are its own."""
    method = kind(net())
    fit(method, toy_data(clients_per_round=2), 4, precision="64-true")
    new = kind(copy.deepcopy(method.net))
    for one in (method, new):
        fit(one, toy_data(clients_per_round=2), 3, precision="64-true")
    for name, weight in new.net.state_dict().items():
        assert torch.equal(method.net.state_dict()[name], weight), name
    for client in range(3):
        states = (tree_leaves(one.stored.states.read(client)) for one in (method, new))
        assert all(map(torch.equal, *states)), client


def test_a_second_run_measures_and_counts_anew(fit, toy_data):
    """The model before round 1 is evaluated, and no number is of a round of the first run."""
    seen = []

    class Evaluated(Callback):
        def on_validation_end(self, trainer, module):
            seen.append(trainer.global_step)

    method = FedAvg(net())
    fit(method, toy_data(), 4, precision="64-true")
    method.lost_rounds.count = 9
    fit(method, toy_data(), 2, precision="64-true", callbacks=[Evaluated()])
    assert seen == [0, 1, 2]
    assert max(method.newest_rounds.values()) == 2
    assert method.lost_rounds.count == 0


def test_a_second_run_of_what_has_learned_tasks_is_refused(fit, tmp_path):
    """It would go on in the middle of the stream, or train no round. From a checkpoint it continues."""

    class Stops(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            trainer.should_stop = batch == 3

    def stream():
        return FederatedDataModule("digits", num_clients=3, clients_per_round=3, tasks=ClassStream(2))

    method = FedAvg(MLP, tasks=LwF(rounds_per_task=2), local_steps=1)
    trainer = fit(method, stream(), 4, callbacks=[Stops()])
    trainer.save_checkpoint(tmp_path / "3.ckpt")
    with pytest.raises(ValueError, match="^model.tasks is LwF, which has learned in an earlier fit of this method: make"):
        fit(method, stream(), 4)
    assert fit(method, stream(), 4, ckpt_path=tmp_path / "3.ckpt").global_step == 4
