"""LwF against its equation in a plain loop."""

import pytest
import torch

from fl_lightning.functional import soft_cross_entropy
from fl_lightning.losses import TruncatedCrossEntropy
from fl_lightning.tasks import ClassLearner, LwF

LAMBDA, T = 3.0, 2.0


@pytest.mark.parametrize("softmax_over", ["new", "seen"])
def test_all_tasks_equal_the_equation(arriving, softmax_over):
    """``CE - lambda/B sum_b sum_{c<o} p_bc log q_bc``, p of the global model when the task before ended."""
    teacher = {}

    def objective(visit, weights, inputs, targets):
        loss = (arriving.new_loss if softmax_over == "new" else arriving.seen_loss)(visit, weights, inputs, targets)
        if visit.position == 0:
            return loss
        p = (arriving.logits(teacher, inputs) / T).exp()
        q = (arriving.logits(weights, inputs)[:, : visit.first] / T).exp()
        p, q = p / p.sum(dim=1, keepdim=True), q / q.sum(dim=1, keepdim=True)
        return loss - LAMBDA * sum(p[b, c] * q[b, c].log() for b in range(len(p)) for c in range(visit.first)) / len(p)

    expected = arriving.plain(objective, after_task=lambda visit, weights: teacher.update(weights))
    arriving.assert_same(arriving.train(LwF, softmax_over=softmax_over).net, expected)


def test_without_distillation_it_is_fine_tuning(arriving):
    """Bit for bit, and as many bytes; with it one more net goes down from the second task on."""
    plain, off, on = (
        arriving.train(method, **settings)
        for method, settings in ((ClassLearner, {}), (LwF, {"distillation": 0.0}), (LwF, {"distillation": 30.0}))
    )
    arriving.assert_same(off.net, plain.net, atol=0)
    assert [report.bytes_down for report in off.seen.rounds] == [report.bytes_down for report in plain.seen.rounds]
    factors = [a.bytes_down / b.bytes_down for a, b in zip(on.seen.rounds, plain.seen.rounds)]
    assert factors == [1, 1, 2, 2, 2, 2]
    assert (on.net.classifier.weight - plain.net.classifier.weight).abs().max() > 1e-3


def test_a_student_that_agrees_gets_no_gradient():
    """The value is the entropy of what both say; new columns never get any."""
    logits = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    value = soft_cross_entropy(logits[:, :4], logits[:, :4].detach(), T)
    (gradient,) = torch.autograd.grad(value, logits)
    p = (logits[:, :4] / T).softmax(dim=1)
    assert gradient.abs().max() < 1e-15
    torch.testing.assert_close(value, -(p * p.log()).sum(dim=1).mean())
    other = torch.zeros(5, 4, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(soft_cross_entropy(logits[:, :4], other, T), logits)
    assert torch.equal(gradient[:, 4:], torch.zeros(5, 2, dtype=torch.float64))
    torch.testing.assert_close(gradient[:, :4], (p - 0.25) / (T * 5))


def test_any_local_loss(arriving):
    plain, truncated = (arriving.train(LwF, **settings) for settings in ({}, {"loss": TruncatedCrossEntropy()}))
    assert (plain.net.classifier.weight - truncated.net.classifier.weight).abs().max() > 1e-3


def test_settings_out_of_range_are_refused(arriving):
    with pytest.raises(ValueError, match=r"^model.tasks.distillation is -1.0, must be at least 0: 0 distils nothing$"):
        LwF(distillation=-1.0)
    with pytest.raises(ValueError, match=r"^model.tasks.temperature is 0.0, must be above 0: the paper uses 2$"):
        LwF(temperature=0.0)
