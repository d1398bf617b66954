"""FedNTD against equation 4 in a plain loop."""

import copy

import pytest

from fl_lightning import FedAvg
from fl_lightning.methods import FedNTD


def not_true_divergence(student, teacher, targets, tau):
    """``tau^2 KL(p || q)``, p and q over the classes left once the true one is struck out; mean over samples."""
    values = []
    for f, g, y in zip(student, teacher, targets.tolist()):
        others = [c for c in range(len(f)) if c != y]
        q, p = ((logits[others] / tau).exp() / (logits[others] / tau).exp().sum() for logits in (f, g))
        values.append(tau**2 * sum(p[i] * (p[i].log() - q[i].log()) for i in range(len(others))))
    return sum(values) / len(values)


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "sgd tce", "adam tce"], indirect=True)
def test_rounds_equal_equation_4(tiny):
    """Three rounds of ``loss + beta tau^2 KL``; the teacher is the global model of the round, in evaluation mode."""
    beta, tau = 0.7, 2.0
    method, net = tiny.train(FedNTD, beta=beta, temperature=tau), tiny.new_net()

    def objective(local, received, client, inputs, targets):
        logits, teacher = local(inputs), copy.deepcopy(received).eval()(inputs).detach()
        return tiny.losses(logits, targets, client).mean() + beta * not_true_divergence(logits, teacher, targets, tau)

    for round, cohort in tiny.rounds:
        locals = {client: tiny.visit(net, client, round, objective) for client in cohort}
        net.load_state_dict(tiny.mean(locals))
    tiny.assert_same(method.net, net)
    tiny.assert_moved(net)


def test_without_distillation_it_is_fedavg(tiny):
    """beta = 0: bit for bit."""
    tiny.assert_same(tiny.train(FedNTD, beta=0).net, tiny.train(FedAvg).net, atol=0)


def test_the_first_step_is_fedavgs_where_modes_do_not_matter(tiny):
    """Without BatchNorm student and teacher agree at the start, where the divergence has its minimum."""
    actual, expected = (tiny.train(method, norm=False, local_steps=1).net for method in (FedNTD, FedAvg))
    tiny.assert_same(actual, expected, atol=1e-14)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": -0.5}, "model.beta is -0.5, must be at least 0: 0 is FedAvg"),
        ({"temperature": 0.0}, "model.temperature is 0.0, must be above 0: 1 leaves logits as they are"),
    ],
)
def test_settings_out_of_range_are_refused(tiny, settings, message):
    """One line with the key, the value and what is allowed."""
    with pytest.raises(ValueError) as error:
        FedNTD(tiny.new_net(), **settings)
    assert str(error.value) == message
