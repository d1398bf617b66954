"""Parts of gradient inversion: the distance of two gradients, the roughness of images, the labels behind a gradient."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from fl_lightning.functional.many_tensors import norm_of

_TINY = 1e-30  # keeps a gradient of zero from being divided by


def squared_distance(gradient: Iterable[Tensor], observed: Iterable[Tensor]) -> Tensor:
    """``sum_j ||g_j - g*_j||^2`` over all tensors, which Deep Leakage from Gradients minimises.

    L. Zhu, Z. Liu, S. Han: Deep Leakage from Gradients. NeurIPS 2019. arXiv 1906.08935. Equation 4.

    Args:
        gradient, observed: tensors of the same shapes in the same order.

    Example::

        >>> squared_distance(
        ...     [torch.tensor([1.0, 2.0]), torch.tensor(3.0)],
        ...     [torch.tensor([0.0, 0.0]), torch.tensor(1.0)],
        ... )
        tensor(9.)
    """
    return torch.stack([(a - b).square().sum() for a, b in zip(gradient, observed, strict=True)]).sum()


def cosine_distance(gradient: Sequence[Tensor], observed: Sequence[Tensor]) -> Tensor:
    """``1 - <g, g*> / (||g|| ||g*||)`` over all tensors together, in [0, 2]; 1 where one of them is 0.

    J. Geiping, H. Bauermeister, H. Dröge, M. Moeller: Inverting Gradients. NeurIPS 2020. arXiv 2003.14053. Equation 4.

    Args:
        gradient, observed: tensors of the same shapes in the same order.

    Example::

        >>> east, north = [torch.tensor([2.0, 0.0])], [torch.tensor([0.0, 3.0])]
        >>> cosine_distance(east, north), cosine_distance(east, east)
        (tensor(1.), tensor(0.))
    """
    product = torch.stack([a.flatten().dot(b.flatten()) for a, b in zip(gradient, observed, strict=True)]).sum()
    norms = [norm_of(parts) for parts in (gradient, observed)]
    return 1 - product / (norms[0] * norms[1]).clamp_min(_TINY)


def total_variation(images: Tensor) -> Tensor:
    """Mean absolute difference of vertical neighbours plus that of horizontal ones.

    Means, as in Geiping's code, not sums: the weight of this term does not depend on the number of pixels.

    Args:
        images: (n, channels, height, width), height and width at least 2.

    Example::

        >>> # 2 from row to row, 1 from column to column
        >>> total_variation(torch.tensor([[[[0.0, 1.0], [2.0, 3.0]]]]))
        tensor(3.)
    """
    return images.diff(dim=-2).abs().mean() + images.diff(dim=-1).abs().mean()


def label_counts_from_bias(bias_gradient: Tensor, probabilities: Tensor, num_images: int) -> Tensor:
    """The number of images of each class in a batch, from the gradient of its mean cross entropy by the last layer's bias.

    That gradient is ``mean_i p_ic - n_c / n``, and no probability is negative. So a class has at least ``-n g_c`` images, which
    for one image is the sign rule of B. Zhao, K. Mopuri, H. Bilen: iDLG, arXiv 2001.02610. Each remaining image goes to the
    class that lacks most images by ``n (p_c - g_c)``, where p is an estimate of the unknown mean probabilities, as in J. Geng
    et al.: Towards General Deep Leakage in Federated Learning, arXiv 2110.09074.

    Args:
        bias_gradient: (C,).
        probabilities: (C,), the net's mean probabilities, on any images.
        num_images: n.

    Returns:
        (C,) integers that add up to n.

    Example::

        >>> # before training, of a batch with three images of class 0 and one of class 2
        >>> even = torch.full((3,), 1 / 3)
        >>> label_counts_from_bias(even - torch.tensor([3, 0, 1]) / 4, even, num_images=4)
        tensor([3, 0, 1])
    """
    surely, probably = -num_images * bias_gradient, num_images * (probabilities - bias_gradient)
    counts = torch.zeros_like(bias_gradient, dtype=torch.int64)
    for _ in range(num_images):
        certain = surely - counts
        # A rounding error is not an image: a class that the client does not have can get a gradient of -1e-9.
        left = certain if certain.max() > 1e-3 else probably - counts
        counts[left.argmax()] += 1
    return counts
