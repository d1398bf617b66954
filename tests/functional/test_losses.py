"""The class-aware cross entropies against loops in plain Python floats, and against each other."""

import math

import pytest
import torch
import torch.nn.functional as F

from fl_lightning.functional import (
    calibrated_cross_entropy,
    masked_cross_entropy,
    reweighted_softmax_cross_entropy,
    truncated_cross_entropy,
)
from fl_lightning.losses import CrossEntropy, MaskedCrossEntropy, ReweightedSoftmax, TruncatedCrossEntropy

COUNTS = [7, 0, 2, 1, 0]  # classes 1 and 4 are absent
PRESENT = [0, 2, 3]
ABSENT = [1, 4]
LOSSES = [truncated_cross_entropy, reweighted_softmax_cross_entropy, masked_cross_entropy, calibrated_cross_entropy]


def naive_truncated(logits, label, counts):
    """log sum over present classes of exp f_c, less f_y."""
    return math.log(sum(math.exp(f) for f, n in zip(logits, counts, strict=True) if n > 0)) - logits[label]


def naive_reweighted(logits, label, counts):
    """log sum over classes of share_c * exp f_c, less f_y."""
    return math.log(sum(n / sum(counts) * math.exp(f) for f, n in zip(logits, counts, strict=True))) - logits[label]


def naive_masked(logits, label, counts):
    """log of (sum over present classes of exp f_c, plus 1 for every absent class), less f_y."""
    return math.log(sum(math.exp(f) if n > 0 else 1.0 for f, n in zip(logits, counts, strict=True))) - logits[label]


def naive_calibrated(logits, label, counts):
    """Cross entropy of f_c - n_c^(-1/4) over present classes."""
    calibrated = [f - n**-0.25 if n > 0 else -math.inf for f, n in zip(logits, counts, strict=True)]
    return math.log(sum(map(math.exp, calibrated))) - calibrated[label]


NAIVE = dict(zip(LOSSES, (naive_truncated, naive_reweighted, naive_masked, naive_calibrated), strict=True))


def example(dtype=torch.float64, batch=6, counts=COUNTS, seed=0):
    """Logits (batch, C), targets of present classes and the counts."""
    generator = torch.Generator().manual_seed(seed)
    present = torch.tensor([label for label, count in enumerate(counts) if count > 0])
    logits = 3 * torch.randn(batch, len(counts), generator=generator, dtype=torch.float64)
    target = present[torch.randint(len(present), (batch,), generator=generator)]
    return logits.to(dtype), target, torch.tensor(counts)


def gradient(loss, logits, target, counts, reduction="sum"):
    logits = logits.clone().requires_grad_()
    loss(logits, target, counts, reduction=reduction).backward()
    return logits.grad


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("counts", [COUNTS, [1, 1, 1, 1, 1], [0, 0, 9, 0, 0], [100000, 1, 0, 3, 50]])
def test_values_match_naive_loop(loss, counts):
    """One value a sample, each equal to the formula written out with math.exp and math.log."""
    logits, target, label_counts = example(counts=counts)
    expected = [NAIVE[loss](row, label, counts) for row, label in zip(logits.tolist(), target.tolist(), strict=True)]
    actual = loss(logits, target, label_counts, reduction="none")
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=1e-12)


def test_values_by_hand():
    """Logits (log 2, log 3, log 5), label 0, counts (3, 1, 0).

    TCE log((2 + 3)/2) = log 2.5; WSM log((.75 * 2 + .25 * 3)/2) = log 1.125; masked log((2 + 3 + 1)/2) = log 3; calibrated
    log((2 a + 3 b)/(2 a)) with a = exp(-3^(-1/4)) and b = exp(-1).
    """
    logits, target = torch.tensor([[2.0, 3.0, 5.0]], dtype=torch.float64).log(), torch.tensor([0])
    counts = torch.tensor([3, 1, 0])
    for loss, inside in zip(LOSSES, (2.5, 1.125, 3.0, 1 + 1.5 * math.exp(3**-0.25 - 1)), strict=True):
        assert loss(logits, target, counts).item() == pytest.approx(math.log(inside), abs=1e-14), loss.__name__


@pytest.mark.parametrize("loss", LOSSES)
def test_reductions(loss):
    """The mean is the sum of the samples' values over B, and the mean is the default."""
    logits, target, counts = example()
    values = loss(logits, target, counts, reduction="none")
    assert values.shape == (6,)
    total = sum(values.tolist())
    assert loss(logits, target, counts, reduction="sum").item() == pytest.approx(total, abs=1e-12)
    assert loss(logits, target, counts, reduction="mean").item() == pytest.approx(total / 6, abs=1e-12)
    assert loss(logits, target, counts).item() == pytest.approx(total / 6, abs=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_unknown_reduction_is_named(loss):
    """The error names the argument, the value and what is allowed."""
    with pytest.raises(ValueError, match=r"reduction is 'median', must be one of mean, sum, none"):
        loss(*example(), reduction="median")


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_gradient_matches_finite_differences(loss, reduction):
    """torch.autograd.gradcheck in float64."""
    logits, target, counts = example()
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda f: loss(f, target, counts, reduction=reduction), (logits,))


@pytest.mark.parametrize("loss", LOSSES)
def test_gradient_is_softmax_less_one_hot(loss):
    """q - onehot(y): q over present classes (TCE), weighted by shares (WSM) or margins (calibrated), or over all with absent
    logits 0 (masked)."""
    logits, target, counts = example()
    expected = torch.zeros_like(logits)
    for i, (row, label) in enumerate(zip(logits.tolist(), target.tolist(), strict=True)):
        factor = {reweighted_softmax_cross_entropy: lambda n: n, calibrated_cross_entropy: lambda n: math.exp(-(n**-0.25))}
        weight = {c: math.exp(row[c]) * factor.get(loss, lambda n: 1)(COUNTS[c]) for c in PRESENT}
        total = sum(weight.values()) + (len(ABSENT) if loss is masked_cross_entropy else 0)
        for c in PRESENT:
            expected[i, c] = weight[c] / total - (c == label)
    torch.testing.assert_close(gradient(loss, logits, target, counts), expected, atol=1e-14, rtol=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_absent_classes_get_no_gradient_at_all(loss, dtype):
    """Exactly 0, not merely small, even where an absent logit is the largest by far."""
    logits, target, counts = example(dtype)
    logits[:, ABSENT] = 50.0
    grad = gradient(loss, logits, target, counts)
    assert (grad[:, ABSENT] == 0).all()
    # A present label always pulls: the row is not simply all zero.
    assert (grad.gather(1, target[:, None]) < 0).all()


@pytest.mark.parametrize("loss", LOSSES)
def test_absent_logits_do_not_change_the_value(loss):
    """Any number in an absent column gives the very same loss."""
    logits, target, counts = example()
    changed = logits.clone()
    changed[:, ABSENT] = torch.tensor([-300.0, 700.0], dtype=torch.float64)
    assert torch.equal(loss(logits, target, counts, reduction="none"), loss(changed, target, counts, reduction="none"))


@pytest.mark.parametrize("loss", [truncated_cross_entropy, masked_cross_entropy])
def test_only_presence_matters_to_truncated_and_masked(loss):
    """Counts (7, 0, 2, 1, 0) and (1, 0, 1, 1, 0) give the same value."""
    logits, target, counts = example()
    assert torch.equal(loss(logits, target, counts), loss(logits, target, counts.clamp_max(1)))


@pytest.mark.parametrize("loss", [truncated_cross_entropy, masked_cross_entropy])
def test_all_classes_present_is_cross_entropy(loss):
    """With no absent class TCE and masked CE are F.cross_entropy, in value and gradient."""
    logits, target, counts = example(counts=[4, 1, 1, 9, 2])
    plain = logits.clone().requires_grad_()
    value = F.cross_entropy(plain, target)
    value.backward()
    torch.testing.assert_close(loss(logits, target, counts), value.detach(), atol=1e-14, rtol=1e-14)
    torch.testing.assert_close(gradient(loss, logits, target, counts, "mean"), plain.grad, atol=1e-14, rtol=1e-14)


def test_equal_counts_make_reweighted_cross_entropy_less_log_c():
    """Shares 1/C: log sum (1/C) e^f = log sum e^f - log C, so WSM = CE - log 5, with the gradient of CE."""
    logits, target, counts = example(counts=[3, 3, 3, 3, 3])
    plain = logits.clone().requires_grad_()
    value = F.cross_entropy(plain, target)
    value.backward()
    actual = reweighted_softmax_cross_entropy(logits, target, counts)
    torch.testing.assert_close(actual, value.detach() - math.log(5), atol=1e-14, rtol=0)
    actual_gradient = gradient(reweighted_softmax_cross_entropy, logits, target, counts, "mean")
    torch.testing.assert_close(actual_gradient, plain.grad, atol=1e-14, rtol=0)


def test_equal_counts_of_present_classes_make_reweighted_truncated_less_log_size():
    """Shares 1/|C_k| over three present classes: WSM = TCE - log 3, with the gradient of TCE."""
    logits, target, counts = example(counts=[4, 0, 4, 4, 0])
    truncated = truncated_cross_entropy(logits, target, counts, reduction="none")
    reweighted = reweighted_softmax_cross_entropy(logits, target, counts, reduction="none")
    torch.testing.assert_close(reweighted, truncated - math.log(3), atol=1e-14, rtol=0)
    torch.testing.assert_close(
        gradient(reweighted_softmax_cross_entropy, logits, target, counts),
        gradient(truncated_cross_entropy, logits, target, counts),
        atol=1e-14,
        rtol=0,
    )


def test_scaling_the_counts_leaves_reweighted_alone():
    """Only shares matter: counts (7, 0, 2, 1, 0) and ten times as many agree."""
    logits, target, counts = example()
    torch.testing.assert_close(
        reweighted_softmax_cross_entropy(logits, target, counts),
        reweighted_softmax_cross_entropy(logits, target, 10 * counts),
        atol=1e-14,
        rtol=0,
    )


@pytest.mark.parametrize("loss", [truncated_cross_entropy, reweighted_softmax_cross_entropy])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_single_class_client_has_nothing_to_learn(loss, dtype):
    """log e^f_y - f_y is 0, exactly, and so is every gradient."""
    logits, target, counts = example(dtype, counts=[0, 0, 9, 0, 0])
    assert (loss(logits, target, counts, reduction="none") == 0).all()
    assert (gradient(loss, logits, target, counts) == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("loss", "shift"),
    [(truncated_cross_entropy, 0.0), (reweighted_softmax_cross_entropy, math.log(0.75)), (masked_cross_entropy, 0.0)],
)
def test_huge_half_precision_logits_stay_finite(loss, shift, dtype):
    """Logits (1e4, -1e4, 1e4), label 1, counts (3, 1, 0): the log-sum-exp is 1e4 (+ log .75 for WSM), the loss that + 1e4.

    e^-20000 is 0 in any precision, so the gradient is (1, -1, 0) exactly. bfloat16 rounds 1e4 to 9984.
    """
    logits = torch.tensor([[1e4, -1e4, 1e4]], dtype=dtype)
    target, counts = torch.tensor([1]), torch.tensor([3, 1, 0])
    large = logits[0, 0].item()
    assert loss(logits, target, counts).item() == pytest.approx(2 * large + shift, rel=1e-6)
    assert gradient(loss, logits, target, counts).tolist() == [[1.0, -1.0, 0.0]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("sign", [1, -1])
def test_equal_huge_logits_lose_no_precision(loss, sign, dtype):
    """All present logits +1e4 or all -1e4: the loss depends on differences only, here the same as with all 0.

    The masked form has absolute zeros in its denominator: log(2 e^f + 1) - f is log 2 for +1e4 and -f for -1e4.
    """
    logits = torch.full((1, 3), sign * 1e4, dtype=dtype)
    value = loss(logits, torch.tensor([0]), torch.tensor([1, 1, 0])).item()
    expected = {truncated_cross_entropy: math.log(2), reweighted_softmax_cross_entropy: 0.0}
    expected[calibrated_cross_entropy] = math.log(2)
    expected[masked_cross_entropy] = math.log(2) if sign > 0 else -logits[0, 0].item()
    # float32 near 1e4 resolves 0.001.
    assert value == pytest.approx(expected[loss], abs=2e-3)


@pytest.mark.parametrize("loss", [truncated_cross_entropy, reweighted_softmax_cross_entropy])
def test_absent_classes_are_at_minus_infinity(loss):
    """Present logits of -1e30, where any finite stand-in for "absent" would win: the loss is 0, as 1e30 swallows log 2."""
    assert loss(torch.full((1, 3), -1e30), torch.tensor([0]), torch.tensor([1, 1, 0])).item() == 0.0


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("count_dtype", [torch.int32, torch.int64, torch.float32, torch.float64])
def test_counts_do_not_promote_to_float64(loss, count_dtype):
    """float32 logits give float32 loss and gradient whatever the counts are stored as, and the same value."""
    logits, target, counts = example(torch.float32)
    value = loss(logits, target, counts.to(count_dtype))
    assert value.dtype == torch.float32
    assert gradient(loss, logits, target, counts.to(count_dtype)).dtype == torch.float32
    assert torch.equal(value, loss(logits, target, counts))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(loss, dtype):
    """The loss of half-precision logits is that of the same numbers in float32; the gradient has the logits' dtype."""
    logits, target, counts = example(dtype)
    value = loss(logits, target, counts)
    assert value.dtype == torch.float32
    assert torch.equal(value, loss(logits.float(), target, counts))
    assert gradient(loss, logits, target, counts).dtype == dtype


@pytest.mark.parametrize("loss", LOSSES)
def test_clients_can_be_stacked_under_vmap(loss):
    """vmap over clients, each with its logits, targets and counts, equals one client at a time, gradients too."""
    rows = [COUNTS, [0, 0, 9, 0, 0], [1, 2, 3, 4, 5]]
    stacked = [torch.stack(parts) for parts in zip(*(example(counts=row, seed=i) for i, row in enumerate(rows)), strict=True)]
    values = torch.func.vmap(loss)(*stacked)
    gradients = torch.func.vmap(torch.func.grad(loss))(*stacked)
    for k in range(len(rows)):
        logits, target, counts = (part[k] for part in stacked)
        torch.testing.assert_close(values[k], loss(logits, target, counts), atol=1e-14, rtol=0)
        torch.testing.assert_close(gradients[k], gradient(loss, logits, target, counts, "mean"), atol=1e-14, rtol=0)


@pytest.mark.parametrize(
    ("loss_class", "naive"),
    [
        (TruncatedCrossEntropy, naive_truncated),
        (ReweightedSoftmax, naive_reweighted),
        (MaskedCrossEntropy, naive_masked),
        (CrossEntropy, lambda logits, label, counts: naive_truncated(logits, label, [1] * len(counts))),
    ],
)
def test_loss_classes_give_one_value_a_sample(loss_class, naive):
    """The ``loss=`` objects return (B,) values of their formula and print as their name."""
    logits, target, counts = example()
    expected = [naive(row, label, COUNTS) for row, label in zip(logits.tolist(), target.tolist(), strict=True)]
    actual = loss_class()(logits, target, counts)
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=1e-12)
    assert repr(loss_class()) == loss_class.__name__
