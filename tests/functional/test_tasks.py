"""Scores of tasks learned in turn, against sums written out."""

import math

import pytest
import torch

from fl_lightning.functional import average_accuracy, average_forgetting, backward_transfer

NAN = math.nan
# Task 0 drops from .9 by .8 to .5 after a rise to .95; task 1 rises; task 2 is learned last.
ACCURACY = torch.tensor([[0.90, NAN, NAN], [0.95, 0.60, NAN], [0.50, 0.70, 0.80]], dtype=torch.float64)


def test_a_run_of_three_tasks():
    """(.5 + .7 + .8) / 3; drops .95 - .5 and .6 - .7; changes .5 - .9 and .7 - .6."""
    assert float(average_accuracy(ACCURACY)) == pytest.approx(2.0 / 3)
    assert float(average_forgetting(ACCURACY)) == pytest.approx((0.45 - 0.10) / 2)
    assert float(backward_transfer(ACCURACY)) == pytest.approx((-0.40 + 0.10) / 2)


def test_any_run_by_loops():
    """Six tasks at random, the formulas of the FedWeIT paper with indices from 1."""
    a = torch.rand(6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    T = len(a)
    drops = [max(float(a[t - 1, i - 1] - a[T - 1, i - 1]) for t in range(i, T)) for i in range(1, T)]
    changes = [float(a[T - 1, i - 1] - a[i - 1, i - 1]) for i in range(1, T)]
    assert float(average_forgetting(a)) == pytest.approx(sum(drops) / (T - 1))
    assert float(backward_transfer(a)) == pytest.approx(sum(changes) / (T - 1))


def test_what_was_not_learned_yet_plays_no_part():
    other = ACCURACY.clone()
    other[0, 1:], other[1, 2] = 1.0, -5.0
    for score in (average_accuracy, average_forgetting, backward_transfer):
        assert score(ACCURACY) == score(other)


def test_one_task_forgets_nothing():
    single = torch.tensor([[0.7]])
    assert average_accuracy(single) == single[0, 0]
    assert average_forgetting(single) == backward_transfer(single) == 0


@pytest.mark.parametrize("shape", [(2, 3), (3,), (0, 0)])
@pytest.mark.parametrize("score", [average_accuracy, average_forgetting, backward_transfer])
def test_other_shapes_are_named(score, shape):
    with pytest.raises(ValueError, match="accuracy has shape .*, must be"):
        score(torch.zeros(shape))
