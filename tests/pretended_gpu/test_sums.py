"""Sums of uploads on a GPU, where tensors of one type are summed as one."""

import pytest
import torch
from pretended import counting, pretended_gpu, values

from fl_lightning.exchange import reduction
from fl_lightning.exchange.reduction import Reduction

DEVICE = torch.device("cuda", 0)
SHAPES = {"w": (3, 2, 1, 1), "count": (), "b": (5,), "nothing": (0,), "v": (4, 3)}


def stacked(num_clients: int) -> dict[str, torch.Tensor]:
    """Weights of clients and, between them, a counter."""
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(num_clients, *shape, generator=generator) for name, shape in SHAPES.items()}
    return {**tensors, "count": torch.arange(num_clients) + (1 << 40)}  # which float32 cannot hold


@pytest.mark.parametrize("joined", [1, 40, 1 << 26])
def test_sums_of_joined_tensors_are_those_of_each(monkeypatch, joined):
    """However many are joined, and without the second of three clients, which sends a NaN; to the bit in float64."""
    monkeypatch.setattr(reduction, "_JOINED", joined)
    tensors, weights = stacked(3), [2.0, 1.0, 3.0]
    tensors["b"][1, 2] = float("nan")
    with pretended_gpu():
        sums = Reduction(DEVICE)
        sent = {name: tensor.to(DEVICE) for name, tensor in tensors.items()}
        counted = sums.add_stacked({"weights": (sent, weights)}, torch.ones(3, dtype=torch.bool, device=DEVICE))
        mean = {name: values(tensor) for name, tensor in sums.mean("weights").items()}
    assert values(counted).tolist() == [True, False, True]
    for name, tensor in tensors.items():
        expected = (2.0 * tensor[0].double() + 3.0 * tensor[2].double()) / 5.0
        torch.testing.assert_close(mean[name], expected, rtol=1e-15, atol=1e-15)


def test_a_hundred_tensors_launch_as_many_kernels_as_ten():
    launches = []
    for number in (10, 100):
        with pretended_gpu():
            sent = {f"w{i}": torch.ones(1, 3, device=DEVICE) for i in range(number)}
            sums, admissible = Reduction(DEVICE), torch.ones(1, dtype=torch.bool, device=DEVICE)
            with counting() as counts:
                sums.add_stacked({"weights": (sent, [1.0])}, admissible)
        launches.append(counts.launches.total())
    assert launches[0] == launches[1]
