"""Losses between models against loops in plain Python floats, by hand, and by finite differences."""

import math

import pytest
import torch

from fl_lightning.functional import (
    dynamic_distillation,
    ensemble_distillation,
    label_count_weights,
    model_contrastive_loss,
    not_true_distillation,
    update_global_label_counts,
)

B, C, K, D, TAU = 5, 4, 3, 6, 1.7
HALVES = [torch.float16, torch.bfloat16]


def draw(*shape, seed, scale=2.0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


TARGET = torch.tensor([0, 3, 1, 1, 2])
STUDENT, TEACHER, TEACHERS = draw(B, C, seed=0), draw(B, C, seed=1), draw(K, B, C, seed=2)
FEATURES = draw(B, D, seed=3), draw(B, D, seed=4), draw(B, D, seed=5)
ALPHA = torch.tensor([[0.5, 0.0, 1.0, 0.2], [0.5, 0.3, 0.0, 0.2], [0.0, 0.1, 0.0, 0.6]], dtype=torch.float64)

# Each loss as a function of what is trained alone, and the value of one sample of it, by number.
LOSSES = {
    "not_true": lambda s, **how: not_true_distillation(s, TEACHER.to(s.dtype), TARGET, TAU, **how),
    "ensemble": lambda s, **how: ensemble_distillation(s, TEACHERS.to(s.dtype), TAU, **how),
    "dynamic": lambda s, **how: dynamic_distillation(s, TEACHERS.to(s.dtype), ALPHA, **how),
    "contrast": lambda z, **how: model_contrastive_loss(z, *(f.to(z.dtype) for f in FEATURES[1:]), TAU, **how),
}
TRAINED = {name: FEATURES[0] if name == "contrast" else STUDENT for name in LOSSES}


def softmax(logits):
    total = sum(math.exp(f) for f in logits)
    return [math.exp(f) / total for f in logits]


def naive_not_true(i):
    """tau^2 sum_c p_c log(p_c / q_c), both over the classes other than the true one."""
    p, q = ([f / TAU for c, f in enumerate(logits[i].tolist()) if c != TARGET[i]] for logits in (TEACHER, STUDENT))
    return TAU**2 * sum(a * math.log(a / b) for a, b in zip(softmax(p), softmax(q)))


def naive_ensemble(i):
    """sum_c p_c log(p_c / q_c), p from the mean of the teachers' logits."""
    mean = [sum(TEACHERS[k, i, c].item() for k in range(K)) / K / TAU for c in range(C)]
    return sum(a * math.log(a / b) for a, b in zip(softmax(mean), softmax([f / TAU for f in STUDENT[i].tolist()])))


def naive_dynamic(i):
    """sum_k sum_c a_kc p_kc log(p_kc / q_c)."""
    q, total = softmax(STUDENT[i].tolist()), 0.0
    for k in range(K):
        p = softmax(TEACHERS[k, i].tolist())
        total += sum(ALPHA[k, c].item() * p[c] * math.log(p[c] / q[c]) for c in range(C))
    return total


def naive_contrast(i):
    """-log of exp(s_g / T) over exp(s_g / T) + exp(s_p / T), s cosines."""
    z, near, far = (features[i].tolist() for features in FEATURES)

    def cosine(a, b):
        return sum(x * y for x, y in zip(a, b)) / math.hypot(*a) / math.hypot(*b)

    s_g, s_p = (math.exp(cosine(z, other) / TAU) for other in (near, far))
    return -math.log(s_g / (s_g + s_p))


NAIVE = {"not_true": naive_not_true, "ensemble": naive_ensemble, "dynamic": naive_dynamic, "contrast": naive_contrast}


def gradient(name, values, **how):
    values = values.clone().requires_grad_()
    LOSSES[name](values, **how).sum().backward()
    return values.grad


@pytest.mark.parametrize("name", LOSSES)
def test_values_match_naive_loop(name):
    """One value a sample, its formula in Python floats; the mean and the sum of them."""
    expected = [NAIVE[name](i) for i in range(B)]
    actual = LOSSES[name](TRAINED[name], reduction="none")
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), atol=1e-12, rtol=1e-12)
    assert LOSSES[name](TRAINED[name], reduction="sum").item() == pytest.approx(sum(expected), abs=1e-12)
    assert LOSSES[name](TRAINED[name]).item() == pytest.approx(sum(expected) / B, abs=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_matches_finite_differences(name):
    """torch.autograd.gradcheck in float64."""
    assert torch.autograd.gradcheck(LOSSES[name], (TRAINED[name].clone().requires_grad_(),))


@pytest.mark.parametrize("name", LOSSES)
def test_unknown_reduction_is_named(name):
    """The error names the argument, the value and what is allowed."""
    with pytest.raises(ValueError, match=r"^reduction is 'median', must be one of mean, sum, none$"):
        LOSSES[name](TRAINED[name], reduction="median")


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_is_computed_in_float32(name, dtype):
    """The value is that of the same numbers in float32; the gradient has the dtype of what is trained."""
    half = TRAINED[name].to(dtype)
    value = LOSSES[name](half)
    assert value.dtype == torch.float32
    arguments = {"not_true": [TEACHER], "ensemble": [TEACHERS], "dynamic": [TEACHERS], "contrast": FEATURES[1:]}[name]
    rounded = [argument.to(dtype).float() for argument in arguments]
    functions = {
        "not_true": lambda s, t: not_true_distillation(s, t, TARGET, TAU),
        "ensemble": lambda s, t: ensemble_distillation(s, t, TAU),
        "dynamic": lambda s, t: dynamic_distillation(s, t, ALPHA.float()),
        "contrast": lambda z, g, p: model_contrastive_loss(z, g, p, TAU),
    }
    assert torch.equal(value, functions[name](half.float(), *rounded))
    assert gradient(name, half).dtype == dtype


@pytest.mark.parametrize("name", ["not_true", "ensemble", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_huge_logits_stay_finite(name, dtype):
    """Of 3e4 and -3e4, where every exponential but one is 0: values and gradients are numbers."""
    huge = (3e4 * STUDENT.sign()).to(dtype)
    assert LOSSES[name](huge).isfinite()
    assert gradient(name, huge).isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
def test_clients_can_be_stacked_under_vmap(name):
    """vmap over what is trained equals one at a time, gradients too."""
    stack = torch.stack([TRAINED[name], -TRAINED[name], TRAINED[name].flip(0)])
    values, gradients = torch.func.vmap(LOSSES[name])(stack), torch.func.vmap(torch.func.grad(LOSSES[name]))(stack)
    for row, value, grad in zip(stack, values, gradients, strict=True):
        torch.testing.assert_close(value, LOSSES[name](row), atol=1e-14, rtol=0)
        torch.testing.assert_close(grad, gradient(name, row), atol=1e-14, rtol=0)


# Not-true distillation --------------------------------------------------------------------------------------------------


def test_targets_and_teachers_can_be_stacked_too():
    """Targets and teachers differ from client to client."""
    targets, teachers = torch.stack([TARGET, TARGET.flip(0)]), torch.stack([TEACHER, STUDENT])
    students = torch.stack([STUDENT, TEACHER])
    values = torch.func.vmap(not_true_distillation)(students, teachers, targets)
    for value, *arguments in zip(values, students, teachers, targets):
        torch.testing.assert_close(value, not_true_distillation(*arguments), atol=1e-14, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES])
def test_the_true_logit_plays_no_part(dtype):
    """Its gradient is exactly 0, at student and teacher, and any value in its place gives the same loss."""
    student, teacher = (logits.to(dtype, copy=True).requires_grad_() for logits in (STUDENT, TEACHER))
    value = not_true_distillation(student, teacher, TARGET)
    value.backward()
    for logits in (student, teacher):
        assert (logits.grad[torch.arange(B), TARGET] == 0).all()
        assert (logits.grad != 0).sum() == B * (C - 1)
    for other in (-300.0, 300.0, float("-inf"), float("inf")):
        changed = student.detach().clone()
        changed[torch.arange(B), TARGET] = other
        assert torch.equal(not_true_distillation(changed, teacher, TARGET), value)
        assert gradient("not_true", changed.double()).isfinite().all()


def test_not_true_gradient_is_the_difference_of_softmaxes():
    """tau (q - p) over the not-true classes: tau^2 from the factor, 1/tau from the logits."""
    expected = torch.zeros_like(STUDENT)
    for i in range(B):
        others = [c for c in range(C) if c != TARGET[i]]
        p, q = (torch.tensor(softmax([logits[i, c].item() / TAU for c in others])) for logits in (TEACHER, STUDENT))
        expected[i, others] = TAU * (q - p).double()
    torch.testing.assert_close(gradient("not_true", STUDENT, reduction="sum"), expected, atol=1e-6, rtol=0)


def test_two_classes_leave_nothing_to_keep():
    """One not-true class has probability 1 whatever is said: loss and gradient are exactly 0."""
    student = STUDENT[:, :2].clone().requires_grad_()
    value = not_true_distillation(student, TEACHER[:, :2], TARGET % 2, reduction="none")
    value.sum().backward()
    assert (value == 0).all()
    assert (student.grad == 0).all()


def test_not_true_by_hand():
    """True class 0; teacher 1 : 1, student 3 : 1 on the others: log(1/2) - (log(3/4) + log(1/4)) / 2, at tau 1."""
    student, teacher = torch.tensor([[9.0, math.log(3), 0.0]]), torch.tensor([[-9.0, 5.0, 5.0]])
    value = not_true_distillation(student, teacher, torch.tensor([0]))
    assert value.item() == pytest.approx(math.log(0.5) - (math.log(0.75) + math.log(0.25)) / 2, rel=1e-6)


def test_agreement_costs_nothing():
    """KL is 0 where student and teacher agree, though they differ on the true class by any amount; else it is above 0."""
    student = TEACHER.clone()
    student[torch.arange(B), TARGET] += 7.0
    assert not_true_distillation(student, TEACHER, TARGET).item() == pytest.approx(0, abs=1e-14)
    assert (not_true_distillation(STUDENT, TEACHER, TARGET, reduction="none") > 0).all()


# The contrast of models -------------------------------------------------------------------------------------------------


def test_equal_models_cost_log_2_and_push_nowhere():
    """z_previous = z_global: log 2 whatever z, with a gradient of 0."""
    z, near, _ = FEATURES
    z_local = z.clone().requires_grad_()
    value = model_contrastive_loss(z_local, near, near, reduction="none")
    value.sum().backward()
    torch.testing.assert_close(value, torch.full((B,), math.log(2), dtype=torch.float64), atol=1e-14, rtol=0)
    assert z_local.grad.abs().max() < 1e-15


def test_contrast_by_hand():
    """z along the global features and across the previous ones, T 1/2: log(1 + e^-2); turned around: log(1 + e^2)."""
    z, other = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]])
    assert model_contrastive_loss(z, 5 * z, other).item() == pytest.approx(math.log(1 + math.exp(-2)), rel=1e-6)
    assert model_contrastive_loss(z, other, 5 * z).item() == pytest.approx(math.log(1 + math.exp(2)), rel=1e-6)


def test_features_of_zero_are_safe():
    """A sample whose features are all 0, as after ReLU: finite value and gradient."""
    z_local = torch.zeros(1, D, requires_grad=True)
    value = model_contrastive_loss(z_local, torch.ones(1, D), torch.zeros(1, D))
    value.backward()
    assert value.item() == pytest.approx(math.log(2))
    assert z_local.grad.isfinite().all()


# Distillation at the server ---------------------------------------------------------------------------------------------


def test_the_ensemble_is_of_logits_not_of_probabilities():
    """Teachers (0, 8) and (0, -2) average to (0, 3), with which such a student agrees; their probabilities would not."""
    student = torch.tensor([[0.0, 3.0]])
    assert ensemble_distillation(student, torch.tensor([[[0.0, 8.0]], [[0.0, -2.0]]])).item() == pytest.approx(0, abs=1e-6)


def test_label_count_weights_by_hand():
    """Student counts (1, 0, 0), teachers (1, 2, 0) and (2, 6, 0): 1/4, 2/8, 0/0 := 0 and 2/4, 6/8, 0."""
    weights = label_count_weights(torch.tensor([1, 0, 0]), torch.tensor([[1, 2, 0], [2, 6, 0]]))
    assert weights.tolist() == [[0.25, 0.25, 0.0], [0.5, 0.75, 0.0]]
    assert (weights.sum(dim=0) <= 1).all()


def test_a_class_that_only_the_teacher_saw_is_the_teachers():
    """alpha = pi / (nu + pi) is 1 where the client has none and 0 where the teacher has none."""
    assert label_count_weights(torch.tensor([0.0, 3.0]), torch.tensor([[5.0, 0.0]])).tolist() == [[1.0, 0.0]]


def test_dynamic_distillation_may_be_negative():
    """Teacher (1/4, 3/4), student (1/2, 1/2), weight on class 0 alone: log(1/2) / 4."""
    student, teacher = torch.zeros(1, 2), torch.tensor([[[0.0, math.log(3)]]])
    value = dynamic_distillation(student, teacher, torch.tensor([[1.0, 0.0]]))
    assert value.item() == pytest.approx(0.25 * math.log(0.5), rel=1e-6)


def test_dynamic_distillation_with_weights_of_1_is_the_divergence():
    """One teacher that counts for every class: F.kl_div."""
    value = dynamic_distillation(STUDENT, TEACHER[None], torch.ones(1, C))
    expected = torch.nn.functional.kl_div(STUDENT.log_softmax(1), TEACHER.softmax(1), reduction="batchmean")
    torch.testing.assert_close(value, expected, atol=1e-14, rtol=0)


def test_global_label_counts_grow_until_a_client_is_counted_whole():
    """gamma 0.1: ten visits count, the eleventh does not, though ten times 0.1 in floats is not 1; gamma 0.3: three do."""
    for gamma, visits in ((0.1, 10), (0.3, 3), (1.0, 1)):
        counts, held = torch.zeros(2), torch.tensor([4.0, 0.0])
        for visit in range(1, 15):
            counts = update_global_label_counts(counts, held, visit, gamma)
        assert counts.tolist() == pytest.approx([visits * gamma * 4, 0.0])
