"""Which rows of which tensors are finite, against every value asked by itself."""

import math

import pytest
import torch

from fl_lightning.functional.finite import finite_rows


def plain(tensors, num_rows):
    return [[all(map(math.isfinite, tensor[row].flatten().tolist())) for row in range(num_rows)] for tensor in tensors]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_bad_value_at_every_position_is_seen(layout):
    """NaN and both infinities, in matrices, in vectors of rows, and in images that lie channels last."""
    values = [math.nan, math.inf, -math.inf]
    images = [torch.ones(3, 2, 4, 4).contiguous(memory_format=layout) for _ in values]
    for row, (image, value) in enumerate(zip(images, values, strict=True)):
        image[row, 1, 3, 0] = value
    tensors = [*images, torch.tensor([1.0, math.nan, 3e38]), torch.full((3, 5), -3e38), torch.ones(3, 1, dtype=torch.float64)]
    assert finite_rows(tensors, 3).tolist() == plain(tensors, 3)


def test_float32_values_near_its_limit_are_finite():
    """A thousand values of 3e38, whose sum in float32 is not."""
    assert finite_rows([torch.full((1, 1000), 3e38)], 1).tolist() == [[True]]


def test_infinities_of_both_signs_are_seen():
    """inf - inf is NaN, which is not finite either; one tensor cannot hide another."""
    tensors = [torch.tensor([[1.0, 2.0], [math.inf, -math.inf]]), torch.tensor([math.inf, 1.0]), torch.tensor([-math.inf, 1.0])]
    assert finite_rows(tensors, 2).tolist() == plain(tensors, 2)


def test_integers_and_nothing_are_left_out():
    rows = finite_rows([torch.ones(2, 3, dtype=torch.int64), torch.empty(2, 0), torch.ones(2, 1)], 2)
    assert rows.tolist() == [[True, True]]
    assert finite_rows([], 4).shape == (0, 4)
