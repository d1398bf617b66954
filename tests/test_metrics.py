"""Counting metrics against loops over single samples, and over any split of them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.metrics import ClassScores, TaskScores
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


def task_example(num_tasks, seed=0):
    """(task just learned, evaluated task, logits, targets) as three tasks in turn would be evaluated."""
    generator = torch.Generator().manual_seed(seed)
    for learned in range(num_tasks):
        for task in range(learned + 1):
            count = 5 + 3 * learned + task
            logits = torch.randn(count, 4, generator=generator)
            yield learned, task, logits, torch.randint(4, (count,), generator=generator)


def naive_task_scores(num_tasks):
    """Accuracies [t][i], their mean at the end, mean largest drop to the end, and mean change since a task was learned."""
    acc = [[NAN] * num_tasks for _ in range(num_tasks)]
    for learned, task, logits, targets in task_example(num_tasks):
        (acc[learned][task],) = naive_accuracy(logits.tolist(), [0] * len(targets), targets.tolist(), 1)
    last = num_tasks - 1
    drops = [max(acc[t][i] for t in range(i, last)) - acc[last][i] for i in range(last)]
    changes = [acc[last][i] - acc[i][i] for i in range(last)]
    return acc, sum(acc[last]) / num_tasks, sum(drops) / max(last, 1), sum(changes) / max(last, 1)


def assert_task_scores(scores, num_tasks):
    for actual, expected in zip(scores, naive_task_scores(num_tasks), strict=True):
        expected = torch.tensor(expected, dtype=torch.float64)
        torch.testing.assert_close(actual.reshape(expected.shape), expected, equal_nan=True)


@pytest.mark.parametrize("num_tasks", [1, 2, 4])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_task_scores_of_any_split(num_tasks, size):
    """Batches of any size, and a batch of nothing, against loops over single samples."""
    metric = TaskScores(num_tasks)
    for learned, task, logits, targets in task_example(num_tasks):
        metric.update(learned, task, logits[:0], targets[:0])
        for part in zip(logits.split(size), targets.split(size)):
            metric.update(learned, task, *part)
    assert_task_scores(metric.compute(), num_tasks)


def test_task_scores_of_two_processes():
    """States summed as the sync between processes does: the scores of the union, whoever saw which task."""
    parts = [TaskScores(3), TaskScores(3)]
    for number, (learned, task, logits, targets) in enumerate(task_example(3)):
        parts[number % 2].update(learned, task, logits[:4], targets[:4])
        parts[1].update(learned, task, logits[4:], targets[4:])
    parts[0].merge_state(parts[1])
    assert_task_scores(parts[0].compute(), 3)


def test_task_scores_in_the_middle_of_a_run():
    """After the first of two tasks: its accuracy is there, the other entries and what needs them are NaN; reset forgets it."""
    metric = TaskScores(2)
    metric.update(0, 0, torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
    scores = metric.compute()
    assert scores.accuracy[0, 0] == 0.5
    assert scores.accuracy.isnan().tolist() == [[False, True], [True, True]]
    assert all(score.isnan() for score in scores[1:])
    metric.reset()
    assert metric.total.sum() == 0


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ((2, 0), "task_just_learned is 2, must be between 0 and 1: tasks are counted from 0"),
        ((1, -1), "evaluated_task is -1, must be between 0 and 1: tasks are counted from 0"),
    ],
)
def test_tasks_that_do_not_exist_are_refused(tasks, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        TaskScores(2).update(*tasks, torch.zeros(1, 2), torch.zeros(1, dtype=torch.long))
    with pytest.raises(ValueError, match="^num_tasks is 0, must be at least 1$"):
        TaskScores(0)
