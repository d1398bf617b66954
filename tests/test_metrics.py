"""Counting metrics against loops over single samples, and over any split of them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.metrics import ClassScores
from fl_lightning.objectives import SingleLabel

PROPERTY = settings(max_examples=40, deadline=None, derandomize=True)
NAN = float("nan")


def example(count=40, num_classes=5, seed=0):
    """Random logits and targets; the last class has no samples."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(count, num_classes, generator=generator)
    return logits, torch.randint(num_classes - 1, (count,), generator=generator)


def naive_accuracy(rows, groups, targets, num_groups):
    """Share of samples of each group whose largest logit is the target's; NaN for an empty group."""
    hits = [[] for _ in range(num_groups)]
    for row, group, target in zip(rows, groups, targets, strict=True):
        hits[group].append(row.index(max(row)) == target)
    return [sum(values) / len(values) if values else NAN for values in hits]


def naive_cross_entropy(rows, targets):
    """Mean of log sum exp f - f_y."""
    losses = [math.log(sum(map(math.exp, row))) - row[target] for row, target in zip(rows, targets, strict=True)]
    return sum(losses) / len(losses)


def assert_scores(scores, rows, targets, num_classes):
    torch.testing.assert_close(
        scores.class_accuracy,
        torch.tensor(naive_accuracy(rows, targets, targets, num_classes), dtype=torch.float64),
        equal_nan=True,
    )
    assert scores.accuracy.item() == pytest.approx(naive_accuracy(rows, [0] * len(rows), targets, 1)[0], abs=1e-15)
    assert scores.loss.item() == pytest.approx(naive_cross_entropy(rows, targets), rel=1e-12)


def test_scores_by_hand():
    """Predictions 0, 1, 1, 0 for targets 0, 0, 1, 1: accuracy 2/4, per class 1/2 and 1/2, class 2 NaN.

    Logits (log 3, 0, -inf) and the like: the loss is log 4/3 where right, log 4 where wrong, mean (log 4/3 + log 4)/2.
    """
    first, second = [math.log(3), 0.0, -math.inf], [0.0, math.log(3), -math.inf]
    metric = ClassScores(3)
    metric.update(torch.tensor([first, second, second, first]), torch.tensor([0, 0, 1, 1]))
    scores = metric.compute()
    assert scores.accuracy.item() == 0.5
    assert scores.class_accuracy[:2].tolist() == [0.5, 0.5]
    assert scores.class_accuracy[2].isnan()
    assert scores.loss.item() == pytest.approx((math.log(4 / 3) + math.log(4)) / 2, abs=1e-7)


@PROPERTY
@given(st.lists(st.integers(0, 15), max_size=5), st.integers(0, 1000))
def test_any_split_into_batches_gives_the_scores_of_the_whole(sizes, seed):
    """Batches of any sizes, empty ones too, against one loop over all samples."""
    sizes = [*sizes, 3]
    logits, targets = example(sum(sizes), seed=seed)
    metric = ClassScores(5)
    for batch in zip(logits.split(sizes), targets.split(sizes), strict=True):
        metric.update(*batch)
    assert_scores(metric.compute(), logits.tolist(), targets.tolist(), 5)


def test_merged_states_are_the_scores_of_the_union():
    """Two processes that saw different samples: states summed as the sync between processes does."""
    logits, targets = example()
    parts = [ClassScores(5), ClassScores(5)]
    for rank, metric in enumerate(parts):
        metric.update(logits[rank::2], targets[rank::2])
    parts[0].merge_state(parts[1])
    assert_scores(parts[0].compute(), logits.tolist(), targets.tolist(), 5)


def test_reset_forgets_everything():
    """After reset the scores are those of the second batch alone."""
    logits, targets = example()
    metric = ClassScores(5)
    metric.update(logits[:20], targets[:20])
    metric.compute()
    metric.reset()
    metric.update(logits[20:], targets[20:])
    assert_scores(metric.compute(), logits[20:].tolist(), targets[20:].tolist(), 5)


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_no_samples_is_nan():
    """0 of 0 samples: every score is NaN, no exception."""
    metric = ClassScores(3)
    metric.update(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))
    scores = metric.compute()
    assert scores.accuracy.isnan()
    assert scores.loss.isnan()
    assert scores.class_accuracy.isnan().all()


def test_counts_are_exact_for_many_samples():
    """2^24 + 1 is no float32 number: 16,777,216 hits and one miss must still count as 16,777,217 samples."""
    metric = ClassScores(2)
    metric.correct[0] = metric.total[0] = 2.0**24
    metric.update(torch.tensor([[0.0, 1.0]]), torch.tensor([0]))
    assert metric.total[0].item() == 16777217
    assert metric.compute().accuracy.item() == 16777216 / 16777217


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_scores_take_logits_of_any_precision(dtype):
    """Half-precision logits give the scores of the same numbers in float64."""
    logits, targets = example()
    metric = ClassScores(5)
    metric.update(logits.to(dtype), targets)
    assert_scores(metric.compute(), logits.to(dtype).double().tolist(), targets.tolist(), 5)


@PROPERTY
@given(st.integers(1, 4), st.integers(0, 30), st.integers(1, 6), st.integers(0, 1000))
def test_accuracy_by_owner_matches_naive_loop(num_models, count, num_owners, seed):
    """(models, n, C) logits: entry [m, k] is model m's accuracy on owner k's samples; owners without samples are NaN."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_models, count, 4, generator=generator)
    targets = torch.randint(4, (count,), generator=generator)
    owner = torch.randint(num_owners, (count,), generator=generator)
    actual = SingleLabel().score_by_owner(logits, targets, owner, num_owners)
    expected = [naive_accuracy(rows, owner.tolist(), targets.tolist(), num_owners) for rows in logits.tolist()]
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), equal_nan=True)


def test_accuracy_by_owner_of_one_model():
    """Without a leading dimension: hits (1, 0, 1, 1) of owners (0, 0, 1, 1) give (1/2, 1), owner 2 NaN."""
    logits = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    actual = SingleLabel().score_by_owner(logits, torch.tensor([0, 1, 1, 1]), torch.tensor([0, 0, 1, 1]), 3)
    assert actual[:2].tolist() == [0.5, 1.0]
    assert actual[2].isnan()


def test_class_accuracy_matches_naive_loop():
    """Per class, for leading dimensions (2, 3); the class without samples is NaN."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 50, 5, generator=generator)
    targets = torch.randint(4, (50,), generator=generator)
    actual = SingleLabel().score_by_unit(logits, targets, 5)
    labels = targets.tolist()
    expected = [[naive_accuracy(rows, labels, labels, 5) for rows in models] for models in logits.tolist()]
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), equal_nan=True)


@PROPERTY
@given(st.integers(1, 3), st.integers(0, 20), st.integers(1, 5), st.integers(0, 1000))
def test_loss_by_owner_matches_naive_loop(num_models, count, num_owners, seed):
    """Entry [m, k] is model m's mean loss on owner k's samples, owners in any order; owners without samples are NaN."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(num_models, count, 4, generator=generator, dtype=torch.float64)
    targets = torch.randint(4, (count,), generator=generator)
    owner = torch.randint(num_owners, (count,), generator=generator)
    expected = []
    for rows in logits:
        parts = (
            [rows[owner == k].tolist() for k in range(num_owners)],
            [targets[owner == k].tolist() for k in range(num_owners)],
        )
        expected.append([naive_cross_entropy(*part) if part[0] else NAN for part in zip(*parts)])
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(SingleLabel().loss_by_owner(logits, targets, owner, num_owners), expected, equal_nan=True)
    torch.testing.assert_close(SingleLabel().loss_by_owner(logits[0], targets, owner, num_owners), expected[0], equal_nan=True)


def test_loss_by_owner_of_half_precision_is_that_of_the_same_numbers():
    """Taken in float64: bfloat16 logits lose nothing more."""
    logits = 9 * torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    logits, targets, owner = logits.bfloat16(), torch.arange(20) % 4, torch.zeros(20, dtype=torch.long)
    actual = SingleLabel().loss_by_owner(logits, targets, owner, 1).item()
    assert actual == pytest.approx(naive_cross_entropy(logits.double().tolist(), targets.tolist()), rel=1e-12)
