"""One number for many accuracies: the final one of a curve over rounds, the rounds to a target, the worst tenth of clients."""

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


def first_round_reaching(accuracy: Mapping[int, float], target: float) -> int | None:
    """The first evaluated round with an accuracy of at least ``target``; None if there is none.

    Args:
        accuracy: after each evaluated round, in any order; round 0, the untrained model, does not count.
        target: in the same unit.

    Example::

        >>> first_round_reaching({0: 0.5, 10: 0.25, 20: 0.5, 30: 0.75}, target=0.5)
        20
    """
    return next((round for round in sorted(accuracy) if round > 0 and accuracy[round] >= target), None)


def worst_decile(accuracy: Tensor) -> Tensor:
    """Mean of the ``ceil(N / 10)`` lowest of N clients' accuracies.

    It is also defined for few clients, unlike the mean of the lowest ``floor(N / 10)``, the ``bottom10%`` of pFL-Bench's code.

    Args:
        accuracy: (N,), N at least 1.

    Returns:
        Scalar.

    Raises:
        ValueError: if there are no clients.

    Example::

        >>> import torch
        >>> worst_decile(torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0]))
        tensor(0.1500)
    """
    if len(accuracy) == 0:
        raise ValueError("accuracy is of no client, must be of at least one")
    return accuracy.sort().values[: -(-len(accuracy) // 10)].mean()
