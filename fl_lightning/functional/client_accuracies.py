"""Accuracies of many clients in few numbers."""

from torch import Tensor


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
