"""FedSGD against its one equation."""

import copy

import pytest
import torch

from fl_lightning import FedAvg
from fl_lightning.methods import FedSGD

NEEDS = ({"batch_size": None}, {"local_epochs": 1})

WHOLE = {"local_epochs": None}  # the default


@pytest.mark.parametrize("weighting", ["n_weighted", "uniform"])
@pytest.mark.parametrize("tiny", ["sgd", "sgd tce"], indirect=True)
def test_rounds_equal_steps_along_the_mean_gradient(tiny, weighting):
    """``x <- x - lr sum_k p_k g_k(x)``, three rounds, g_k of the mean loss over all of a client's samples."""
    method = tiny.train(FedSGD, tiny.new_data(batch_size=None), server_weighting=weighting, **WHOLE)
    net = tiny.new_net()
    for round, cohort in tiny.rounds:
        locals, gradients = {}, []
        for client in cohort:
            inputs, targets = tiny.shard(client)
            locals[client] = copy.deepcopy(net).train()
            value = tiny.losses(locals[client](inputs), targets, client).mean()
            gradients.append(torch.autograd.grad(value, list(locals[client].parameters())))
        size = [tiny.shard_sizes[client] if weighting == "n_weighted" else 1 for client in cohort]
        new = tiny.mean(locals, uniform=weighting == "uniform")  # of the statistics, which the one batch has renewed
        for (name, x), *of_clients in zip(net.named_parameters(), *gradients):
            new[name] = x.detach() - tiny.rate(round) * sum(n * g for n, g in zip(size, of_clients)) / sum(size)
        net.load_state_dict(new)
    tiny.assert_same(method.net, net)
    tiny.assert_moved(net)


@pytest.mark.parametrize("tiny", ["momentum", "adam tce"], indirect=True)
def test_it_is_fedavg_with_one_epoch_of_one_batch(tiny):
    """Bit for bit, whatever the local optimizer; and with its step spelled out."""
    data = tiny.new_data(batch_size=None)
    expected = tiny.train(FedAvg, data, local_epochs=1).net
    for settings in (WHOLE, {"local_epochs": 1}, {"local_steps": 1}):
        tiny.assert_same(tiny.train(FedSGD, data, **settings).net, expected, atol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"local_steps": 2}, "model.local_steps is 2, but FedSGD takes one step: leave it out, or use FedAvg"),
        ({"local_epochs": 3}, "model.local_epochs is 3, but FedSGD takes one step: leave it out, or use FedAvg"),
    ],
)
def test_more_local_work_is_refused(tiny, settings, message):
    """One line with the key, the value and the cure."""
    with pytest.raises(ValueError) as error:
        FedSGD(tiny.new_net(), **settings)
    assert str(error.value) == message


def test_batches_are_refused(tiny):
    """A step is to see all samples: said before round 1."""
    with pytest.raises(ValueError, match=r"^data.batch_size is 4, but a step of FedSGD sees all samples: set it to null$"):
        tiny.train(FedSGD, **WHOLE)


def test_batches_on_the_command_line(main):
    """The config's batches of 32 meet FedSGD: one line, no traceback, no run folder."""
    arguments = ("fit", "--config", "digits_tce.yaml", "--model", "FedSGD", "--model.local_steps", "null")
    code, _, error = main(*arguments, "--data.batch_size", "16")
    assert code == 1
    assert error == "fl-lightning: error: data.batch_size is 16, but a step of FedSGD sees all samples: set it to null\n"
