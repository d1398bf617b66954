"""The attack's area under its curve against a loop over pairs, and scikit-learn's where there is one class."""

import pytest
import torch
from sklearn.metrics import roc_auc_score

from fl_lightning.functional.membership import membership_auc


def test_it_is_the_share_of_pairs_of_a_class():
    draws = torch.Generator().manual_seed(2)
    members, others = (torch.randint(0, 6, (count,), generator=draws).double() for count in (15, 40))
    classes, other_classes = torch.arange(15) % 4, torch.arange(40) % 3  # class 3 has no other sample
    means = []
    for loss, label in zip(members.tolist(), classes.tolist()):
        pairs = [(loss < other) + (loss == other) / 2 for other in others[other_classes == label].tolist()]
        means += [sum(pairs) / len(pairs)] if pairs else []
    expected = sum(means) / len(means)
    assert float(membership_auc(members, others, classes, other_classes)) == pytest.approx(expected)


def test_of_one_class_it_is_the_area_under_the_curve():
    draws = torch.Generator().manual_seed(3)
    members, others = (torch.randint(0, 9, (count,), generator=draws).double() for count in (20, 30))
    zeros = torch.zeros(50, dtype=torch.int64)
    area = roc_auc_score([1] * 20 + [0] * 30, [-loss for loss in [*members, *others]])
    assert float(membership_auc(members, others, zeros[:20], zeros[20:])) == pytest.approx(area)


def test_a_loss_that_is_not_a_number_is_neither_lower_nor_higher():
    classes = torch.zeros(2, dtype=torch.int64)
    assert membership_auc(torch.tensor([1.0, torch.nan]), torch.tensor([2.0, torch.nan]), classes, classes) == 0.25


def test_pairs_take_no_memory():
    """A table of a million by a million would take a terabyte."""
    losses, classes = torch.arange(1_000_000), torch.zeros(1_000_000, dtype=torch.int64)
    assert membership_auc(losses, losses, classes, classes) == 0.5


def test_without_pairs_it_is_not_a_number():
    assert membership_auc(torch.ones(2), torch.ones(2), torch.tensor([0, 0]), torch.tensor([1, 1])).isnan()
