"""The number that runs are compared by, and when one reaches a target, on curves made by hand."""

import pytest
import torch

from fl_lightning.functional import final_accuracy, rounds_to_target
from fl_lightning.functional.accuracy_curves import first_round_reaching, late_evaluations


@pytest.mark.parametrize(
    ("rounds", "late"),
    [
        (range(0, 4001, 1000), [4000]),
        (range(0, 4001, 50), [3950, 4000]),
        (range(301), list(range(201, 301))),
        (range(0, 201, 50), [150, 200]),
        (range(0, 199, 33), [132, 165, 198]),
        (range(0, 41, 10), [30, 40]),
        ([0, 2, 4, 5], [4, 5]),
        ([5, 0, 4, 2], [4, 5]),
        ([0, 1, 2, 3], [2, 3]),
        ([0, 1], [1]),
        ([37], [37]),
        ([0], []),
        ([], []),
    ],
)
def test_the_last_hundred_rounds_and_never_the_first_half(rounds, late):
    assert list(late_evaluations(dict.fromkeys(rounds, 0.5))) == late


def test_the_final_accuracy_is_their_mean():
    """.875 and .75; the .5 of round 20 is of the first half, and the highest value of all too."""
    assert final_accuracy({0: 0.125, 10: 1.0, 20: 0.5, 30: 0.875, 40: 0.75}) == 0.8125


def test_an_untrained_model_has_none():
    with pytest.raises(ValueError, match="accuracy has no round after 0"):
        final_accuracy({0: 0.5})


@pytest.mark.parametrize("kind", [list, torch.tensor])
def test_rounds_to_target(kind):
    """The first round that reaches it, counted from 1; equal is enough; a later fall does not matter."""
    accuracy = kind([0.1, 0.5, 0.4, 0.75])
    assert rounds_to_target(accuracy, 0.5) == 2
    assert rounds_to_target(accuracy, 0.45) == 2
    assert rounds_to_target(accuracy, 0.0) == 1
    assert rounds_to_target(accuracy, 0.75) == 4
    assert rounds_to_target(accuracy, 0.76) is None
    assert rounds_to_target(kind([]), 0.5) is None


def test_the_first_evaluated_round_that_reaches_a_target():
    """Rounds in any order; the untrained model does not count; equal is enough; NaN reaches nothing."""
    accuracy = {30: 0.5, 0: 0.9, 10: float("nan"), 20: 0.5, 40: 0.8}
    assert [first_round_reaching(accuracy, target) for target in (0.0, 0.5, 0.6, 0.8, 0.85)] == [20, 20, 40, 40, None]
    assert first_round_reaching({}, 0.0) is None
