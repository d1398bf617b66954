"""One number for a curve of accuracies over rounds: the final accuracy, and the rounds to a target."""

from collections.abc import Mapping, Sequence

from torch import Tensor

_WINDOW = 100  # rounds: Legate et al. average over the last 100 of 4,000

FINAL_IS = "mean over the evaluations of the last 100 rounds, in a run of fewer than 200 rounds over those of its second half"


def late_evaluations(accuracy: Mapping[int, float]) -> dict[int, float]:
    """The evaluations that define a run's final accuracy: those after round ``max(R - 100, R / 2)``, R the last evaluated
    round.

    The first half of a run, in which the model still learns, is not included.

    Args:
        accuracy: after each evaluated round, in any order; round 0 is the untrained model.

    Returns:
        Accuracies by ascending round, the last one among them; empty if nothing after round 0 is evaluated.

    Example::

        >>> late_evaluations({0: 0.1, 10: 0.5, 20: 0.7, 30: 0.8})  # rounds after 15
        {20: 0.7, 30: 0.8}
    """
    last = max(accuracy, default=0)
    return {round: accuracy[round] for round in sorted(accuracy) if round > max(last - _WINDOW, last / 2)}


def final_accuracy(accuracy: Mapping[int, float]) -> float:
    """The final accuracy, with which runs are compared: the mean of :func:`late_evaluations`.

    Raises:
        ValueError: if nothing after round 0 is evaluated.

    Example::

        >>> final_accuracy({0: 0.1, 10: 0.5, 20: 0.7, 30: 0.8})  # rounds after 15
        0.75
    """
    late = late_evaluations(accuracy)
    if not late:
        raise ValueError("accuracy has no round after 0, must have at least one: there is no final accuracy without training")
    return sum(late.values()) / len(late)


def rounds_to_target(accuracy: Sequence[float] | Tensor, target: float) -> int | None:
    """The first round after which the accuracy is at least ``target``; None if it never is.

    Args:
        accuracy: (R,), entry r - 1 after round r.
        target: in the same unit.

    Example::

        >>> rounds_to_target([0.25, 0.5, 0.75, 0.5], target=0.5)
        2
    """
    values: Sequence[float] = accuracy.tolist() if isinstance(accuracy, Tensor) else accuracy
    return next((round for round, value in enumerate(values, start=1) if value >= target), None)
