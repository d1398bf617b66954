"""Whether a model tells samples that it was trained on from others."""

import torch
from torch import Tensor


def membership_auc(members: Tensor, others: Tensor, member_classes: Tensor, other_classes: Tensor) -> Tensor:
    """Share of pairs of a member and another sample of the same class in which the member has the lower loss; ties count half.

    The area under the ROC curve of an attack that calls a sample a member if its loss is below a threshold: S. Yeom,
    I. Giacomelli, M. Fredrikson, S. Jha, "Privacy Risk in Machine Learning: Analyzing the Connection to Overfitting", CSF 2018.
    0.5 tells nothing. Pairs are of one class, so that the classes that a client has do not give it away. A member without
    another sample of its class does not count.

    Args:
        members, others: losses, (n,) and (m,).
        member_classes, other_classes: (n,) and (m,).

    Returns:
        Scalar, float64: the mean over members; NaN if none counts.

    Example::

        >>> import torch
        >>> losses, classes = torch.tensor([0.1, 0.7, 0.2]), torch.tensor([0, 0, 1])
        >>> # of 1, 1/2 and 1/2
        >>> membership_auc(
        ...     losses, torch.tensor([0.5, 0.9, 0.2]), classes, torch.tensor([0, 0, 1])
        ... )
        tensor(0.6667, dtype=torch.float64)
    """
    members, others = members.double(), others.double()
    shares = torch.full_like(members, torch.nan)
    for label in member_classes.unique():
        of_class, here = others[other_classes == label], member_classes == label
        known = of_class[~of_class.isnan()].sort().values  # a loss that is not a number is above no other
        below, up_to = (torch.searchsorted(known, members[here], right=right) for right in (False, True))
        shares[here] = (len(known) - (below + up_to).double() / 2) / len(of_class)
    return shares.nanmean()
