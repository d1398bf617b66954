"""FedLMD against a sum over classes by hand, and in a plain loop."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch

from fl_lightning import FedAvg
from fl_lightning.functional import not_true_distillation
from fl_lightning.methods import FedLMD


def by_classes(student, teacher, target, major, temperature):
    """``tau^2 sum_c p_c log(p_c / q_c)`` of one sample: p over classes that are neither true nor major, q over all but true."""
    others = [c for c in range(len(student)) if c != target]
    taught = [c for c in others if c not in major]
    p_total = sum((teacher[c] / temperature).exp() for c in taught)
    q_total = sum((student[c] / temperature).exp() for c in others)
    value = 0.0 * student.sum()
    for c in taught:
        p, q = (teacher[c] / temperature).exp() / p_total, (student[c] / temperature).exp() / q_total
        value = value + p * (p / q).log()
    return temperature**2 * value


def test_three_classes_by_hand():
    """True class 0, major class 1: the teacher has class 2 alone, q_2 = 1/4, so ``log 4``."""
    student = torch.tensor([[7.0, math.log(3), 0.0]])
    value = not_true_distillation(student, torch.randn(1, 3), torch.tensor([0]), hidden=torch.tensor([False, True, False]))
    assert value.item() == pytest.approx(math.log(4), abs=1e-6)


def test_nothing_to_tell_is_no_term():
    """All classes but the true one are major: 0, with a finite gradient of 0."""
    student = torch.randn(1, 3, requires_grad=True)
    value = not_true_distillation(student, torch.randn(1, 3), torch.tensor([0]), hidden=torch.tensor([False, True, True]))
    (gradient,) = torch.autograd.grad(value.sum(), student)
    assert value.item() == 0
    assert torch.equal(gradient, torch.zeros(1, 3))


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "sgd tce", "adam"], indirect=True)
def test_rounds_equal_a_sum_over_classes(tiny):
    """Three rounds; the majority are classes of more than a quarter of the client's samples, there being four classes."""
    beta, temperature = 1.5, 2.0
    method, net = tiny.train(FedLMD, beta=beta, temperature=temperature), tiny.new_net()

    def objective(local, received, client, inputs, targets):
        labels = tiny.shard(client)[1].tolist()
        major = [c for c in range(4) if labels.count(c) > len(labels) / 4]
        logits, teacher = local(inputs), copy.deepcopy(received).eval()(inputs).detach()
        samples = zip(logits, teacher, targets.tolist(), strict=True)
        term = sum(by_classes(*sample, major, temperature) for sample in samples) / len(targets)
        return tiny.losses(logits, targets, client).mean() + beta * term

    for round, cohort in tiny.rounds:
        net.load_state_dict(tiny.mean({client: tiny.visit(net, client, round, objective) for client in cohort}))
    tiny.assert_same(method.net, net)
    tiny.assert_moved(net)


def test_without_distillation_it_is_fedavg(tiny):
    """beta = 0: bit for bit."""
    tiny.assert_same(tiny.train(FedLMD, beta=0).net, tiny.train(FedAvg).net, atol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": -1.0}, "model.beta is -1.0, must be at least 0: 0 is FedAvg"),
        ({"temperature": 0.0}, "model.temperature is 0.0, must be above 0: 1 leaves logits as they are"),
    ],
)
def test_settings_out_of_range_are_refused(tiny, settings, message):
    """One line with the key, the value and what is allowed."""
    with pytest.raises(ValueError) as error:
        FedLMD(tiny.new_net(), **settings)
    assert str(error.value) == message


def test_a_majority_is_exact_in_half_precision(tiny):
    """Mean 1001: of 1002 and 1001 the first is above it. In bfloat16 all three numbers are 1000."""
    method, seen = FedLMD(tiny.new_net(False)), []
    client = SimpleNamespace(train_label_counts=torch.tensor([1002, 1001, 1000]))

    def hidden(*arguments, hidden):
        seen.append(hidden.tolist())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fl_lightning.methods.fedlmd.not_true_distillation", hidden)
        torch.set_default_dtype(torch.bfloat16)
        try:
            method.distillation(torch.zeros(1, 3), torch.zeros(1, 3), torch.tensor([0]), client)
        finally:
            torch.set_default_dtype(torch.float32)
    assert seen == [[True, False, False]]
