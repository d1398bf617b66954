"""FedProx against equation 2 in a plain loop."""

import pytest

from fl_lightning import FedAvg
from fl_lightning.methods import FedProx


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "sgd tce", "adam tce"], indirect=True)
def test_rounds_equal_equation_2(tiny):
    """Three rounds in which clients minimise ``f_k(w) + mu/2 ||w - x||^2``, x being what they received in this round.

    BatchNorm's statistics are averaged, and no part of the norm.
    """
    method, net = tiny.train(FedProx, mu=0.8), tiny.new_net()

    def objective(local, received, client, inputs, targets):
        distance = sum(((w - x.detach()) ** 2).sum() for w, x in zip(local.parameters(), received.parameters()))
        return tiny.losses(local(inputs), targets, client).mean() + 0.8 / 2 * distance

    for round, cohort in tiny.rounds:
        locals = {client: tiny.visit(net, client, round, objective) for client in cohort}
        net.load_state_dict(tiny.mean(locals))
    tiny.assert_same(method.net, net)
    tiny.assert_moved(net)


def test_without_pull_it_is_fedavg(tiny):
    """mu = 0: bit for bit."""
    tiny.assert_same(tiny.train(FedProx, mu=0).net, tiny.train(FedAvg).net, atol=0)


def test_where_nothing_is_shared_there_is_no_pull(tiny):
    """Buffers are sent, all weights stay with their clients."""
    settings = {"personal": ["*weight", "*bias"]}
    tiny.assert_same(tiny.train(FedProx, mu=5.0, **settings).net, tiny.train(FedAvg, **settings).net, atol=0)


def test_the_first_step_feels_no_pull(tiny):
    """At ``w = x`` the gradient of the penalty is 0: with one local step it is FedAvg, bit for bit, and finite."""
    tiny.assert_same(tiny.train(FedProx, mu=5.0, local_steps=1).net, tiny.train(FedAvg, local_steps=1).net, atol=0)


def test_negative_mu_is_refused(tiny):
    """One line with the key, the value and what is allowed."""
    with pytest.raises(ValueError, match=r"^model.mu is -0.1, must be at least 0: 0 is without a pull$"):
        FedProx(tiny.new_net(), mu=-0.1)


def test_negative_mu_on_the_command_line(main):
    """The same line, and no traceback."""
    code, _, error = main("fit", "--config", "digits_tce.yaml", "--model", "FedProx", "--model.mu", "-1")
    assert code == 1
    assert error == "fl-lightning: error: model.mu is -1.0, must be at least 0: 0 is without a pull\n"
