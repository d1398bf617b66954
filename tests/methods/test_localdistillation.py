"""Local distillation against Flashback's equation 1 in a plain loop."""

import copy

import pytest

from fl_lightning import FedAvg
from fl_lightning.methods import LocalDistillation


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "adam", "sgd tce"], indirect=True)
def test_rounds_equal_equation_1(tiny):
    """Three rounds of ``alpha CE + (1 - alpha) sum_c p_c log(p_c / q_c)``; p is the received model's, in evaluation mode."""
    alpha = 0.3
    method, net = tiny.train(LocalDistillation, alpha=alpha), tiny.new_net()

    def objective(local, received, client, inputs, targets):
        logits, teacher = local(inputs), copy.deepcopy(received).eval()(inputs).detach()
        values = []
        for f, g in zip(logits, teacher):
            q, p = (z.exp() / z.exp().sum() for z in (f, g))
            values.append(sum(p[c] * (p[c] / q[c]).log() for c in range(len(p))))
        return alpha * tiny.losses(logits, targets, client).mean() + (1 - alpha) * sum(values) / len(values)

    for round, cohort in tiny.rounds:
        locals = {client: tiny.visit(net, client, round, objective) for client in cohort}
        net.load_state_dict(tiny.mean(locals))
    tiny.assert_same(method.net, net)
    tiny.assert_moved(net)


def test_with_labels_alone_it_is_fedavg(tiny):
    """alpha = 1: bit for bit."""
    tiny.assert_same(tiny.train(LocalDistillation, alpha=1.0).net, tiny.train(FedAvg).net, atol=0)


def test_without_labels_nothing_is_learned(tiny):
    """alpha = 0, without BatchNorm: the student begins at the teacher, where the divergence has its minimum."""
    tiny.assert_same(tiny.train(LocalDistillation, norm=False, alpha=0.0).net, tiny.new_net(norm=False), atol=1e-12)


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan")])
def test_alpha_out_of_range_is_refused(tiny, alpha):
    with pytest.raises(ValueError) as error:
        LocalDistillation(tiny.new_net(), alpha=alpha)
    assert str(error.value) == f"model.alpha is {alpha}, must be between 0 and 1: 1 is FedAvg"
