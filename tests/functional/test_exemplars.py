"""Which samples stand for many, against naive loops."""

import numpy as np
import pytest
import torch

from fl_lightning.functional import herding, reservoir


def test_a_reservoir_is_a_uniform_sample():
    """Of ten things in two portions each is kept three times out of ten, within five standard errors."""
    rng, counts, runs = np.random.default_rng(0), np.zeros(10), 4000
    for _ in range(runs):
        first = reservoir([], 0, range(4), 3, rng)
        counts[reservoir(first, 4, range(4, 10), 3, rng)] += 1
    assert np.abs(counts / runs - 0.3).max() < 5 * (0.3 * 0.7 / runs) ** 0.5


@pytest.mark.parametrize(("capacity", "kept"), [(0, []), (5, [0, 1, 2])])
def test_small_and_large_reservoirs(capacity, kept):
    assert reservoir([], 0, range(3), capacity, np.random.default_rng(0)) == kept


def test_herding_equals_a_naive_loop():
    """``argmin ||mu - (1/k) (f + sum of the chosen)||`` over what is not chosen; all of it ends at the mean."""
    features = torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    unit = [feature / feature.norm() for feature in features]
    mean, chosen = sum(unit) / 9, []
    for k in range(1, 10):
        gaps = {
            i: float((mean - (sum((unit[j] for j in chosen), unit[i])) / k).norm()) for i in range(9) if i not in chosen
        }  # fmt: skip
        chosen.append(min(gaps, key=lambda i: gaps[i]))
    assert herding(features, 20).tolist() == chosen
    for count in range(10):
        assert herding(features, count).tolist() == chosen[:count]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ties_in_herding_go_to_the_first_sample(dtype):
    """Samples at +-a degrees tie in the first choice; rounding, of either sign, decides nothing."""
    angles = torch.deg2rad(torch.tensor([-50.0, -20.0, 20.0, 50.0], dtype=torch.float64))
    features = torch.stack([angles.cos(), angles.sin()], dim=1)
    for rounding in (0.0, 3e-7, -3e-7):
        moved = (features + rounding * torch.tensor([[0.0, 0], [0, -1], [0, -1], [0, 0]])).to(dtype)
        assert herding(moved, 4).tolist() == [1, 2, 0, 3]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_to_half_precision_decides_no_tie(dtype):
    """The same samples, turned by every whole number of degrees, so that those that tie round otherwise."""
    angles = torch.deg2rad(torch.tensor([-50.0, -20.0, 20.0, 50.0]) + torch.arange(360.0)[:, None])
    chosen = [herding(features.to(dtype), 4).tolist() for features in torch.stack([angles.cos(), angles.sin()], dim=2)]
    assert chosen == [[1, 2, 0, 3]] * 360
