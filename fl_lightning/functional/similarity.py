"""How alike two representations of the same samples are."""

import torch
from torch import Tensor

from fl_lightning.functional.loss_reductions import at_least_float32


def linear_cka(first: Tensor, second: Tensor) -> Tensor:
    """Linear centred kernel alignment, a scalar in [0, 1]: 1 if one is the other up to rotation, scale and shift.

    ``||Y'X||_F^2 / (||X'X||_F ||Y'Y||_F)`` with centred columns: S. Kornblith, M. Norouzi, H. Lee, G. Hinton, "Similarity of
    Neural Network Representations Revisited", ICML 2019, section 3. It is computed from the samples' inner products, so layers
    can be wide. A representation that is the same for all samples gives NaN.

    Args:
        first: X, (n, ...), further dimensions are flattened.
        second: Y, (n, ...), of the same samples in the same order.

    Raises:
        ValueError: if the numbers of samples differ.

    Example::

        >>> x = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]])
        >>> turned = torch.stack([3 - x[:, 1], x[:, 0]], dim=1)
        >>> linear_cka(x, 5 * turned)
        tensor(1.)
    """
    if len(first) != len(second):
        raise ValueError(f"linear_cka has {len(first)} and {len(second)} samples: give both representations the same samples")
    return gram_cka(centred_gram(first), centred_gram(second))


def centred_gram(representation: Tensor) -> Tensor:
    """Inner products of the samples of a representation (n, ...) after its mean is taken off, (n, n).

    Example::

        >>> centred_gram(torch.tensor([[3.0], [5.0]]))  # -1 and 1 after the mean
        tensor([[ 1., -1.],
                [-1.,  1.]])
    """
    flat = at_least_float32(representation.flatten(1))
    centred = (flat - flat.mean(dim=0)).double()  # which autocast leaves as it is
    return torch.mm(centred, centred.T).to(flat.dtype)


def gram_cka(first: Tensor, second: Tensor) -> Tensor:
    """:func:`linear_cka` from the two results (n, n) of :func:`centred_gram`.

    Example::

        >>> gram = centred_gram(torch.tensor([[3.0], [5.0]]))
        >>> gram_cka(gram, 4 * gram)
        tensor(1.)
    """
    return (first * second).sum() / (first.norm() * second.norm())
