"""Statistics of a partition, by hand and in their limits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fl_lightning.functional import heterogeneity

PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)


def test_two_clients_by_hand():
    """(4, 0) and (1, 1): 1 and 2 classes, shares 1 and 1/2; together (5, 1)/6, distances 1/6 and 1/3; sizes 4 and 2."""
    scores = heterogeneity([[4, 0], [1, 1]])
    assert scores.distinct_labels == 1.5
    assert scores.largest_share == 0.75
    assert scores.distance == pytest.approx(0.25)
    assert (scores.smallest, scores.median, scores.largest) == (2, 3, 4)


def test_clients_without_samples_count_in_sizes_alone():
    """The means are those of the two others; the smallest client has nothing."""
    scores, others = heterogeneity([[4, 0], [0, 0], [1, 1]]), heterogeneity([[4, 0], [1, 1]])
    assert scores[:3] == others[:3]
    assert (scores.smallest, scores.median, scores.largest) == (0, 2, 4)


def test_nobody_holds_anything():
    """No means over no clients."""
    with pytest.raises(ValueError, match="hold no samples"):
        heterogeneity([[0, 0]])


@PROPERTY
@given(st.integers(1, 20), st.integers(1, 9))
def test_one_class_each_is_the_largest_distance(num_classes, size):
    """C clients of one class each: 1 class, share 1, distance 1 - 1/C."""
    scores = heterogeneity(np.eye(num_classes, dtype=int) * size)
    assert scores == pytest.approx((1, 1, 1 - 1 / num_classes, size, size, size))


@PROPERTY
@given(arrays(np.int64, st.integers(1, 6), elements=st.integers(1, 9)), st.integers(1, 9))
def test_like_clients_have_no_distance(row, num_clients):
    """All clients alike: distance 0, and the largest share is that of all."""
    scores = heterogeneity(np.tile(row, (num_clients, 1)))
    assert scores.distance == pytest.approx(0, abs=1e-12)
    assert scores.largest_share == pytest.approx(row.max() / row.sum())


@PROPERTY
@given(arrays(np.int64, (5, 4), elements=st.integers(1, 50)), st.permutations(range(5)), st.permutations(range(4)))
def test_order_of_clients_and_classes_does_not_matter(counts, clients, classes):
    """The same numbers, to rounding."""
    assert heterogeneity(counts[clients][:, classes]) == pytest.approx(heterogeneity(counts))
