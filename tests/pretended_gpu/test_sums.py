"""Sums of uploads on a GPU, where tensors of one type are summed as one."""

import pytest
import torch
from pretended import counting, pretended_gpu, values

from fl_lightning.engines import sums as engine_sums
from fl_lightning.engines.sums import Sums
from fl_lightning.functional.aggregation import less_mean
from fl_lightning.functional.finite import finite_rows
from fl_lightning.functional.many_tensors import copy_all

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
    monkeypatch.setattr(engine_sums, "_JOINED", joined)
    tensors, weights = stacked(3), [2.0, 1.0, 3.0]
    tensors["b"][1, 2] = float("nan")
    with pretended_gpu():
        sums = Sums(DEVICE)
        sent = {name: tensor.to(DEVICE) for name, tensor in tensors.items()}
        factors = torch.tensor(weights, dtype=torch.float64).to(DEVICE)
        counted = sums.add_weighted({"weights": sent}, [factors], torch.ones(3, dtype=torch.bool, device=DEVICE))
        mean = {name: values(tensor) for name, tensor in sums.mean("weights").items()}
    assert values(counted).tolist() == [True, False, True]
    for name, tensor in tensors.items():
        expected = (2.0 * tensor[0].double() + 3.0 * tensor[2].double()) / 5.0
        torch.testing.assert_close(mean[name], expected, rtol=1e-15, atol=1e-15)


def test_a_hundred_tensors_launch_as_many_kernels_as_ten():
    """Kernels of convolutions that lie channels last: their sum, the step from it, what is finite."""
    launches = []
    for number in (10, 100):
        with pretended_gpu():
            kernel = torch.ones(3, 2, 2, 2, device=DEVICE).contiguous(memory_format=torch.channels_last)
            sent = {f"w{i}": kernel + i for i in range(number)}
            sums, admissible = Sums(DEVICE), torch.ones(1, dtype=torch.bool, device=DEVICE)
            with counting() as counts:
                sums.add_weighted({"weights": {name: tensor[None] for name, tensor in sent.items()}}, [1.0], admissible)
                less_mean(sent, sums.mean("weights"))
                finite_rows([tensor[None] for tensor in sent.values()], 1)
        launches.append(counts.launches.total())
    assert launches[0] == launches[1]


def test_copies_of_a_kind_are_one_launch():
    """Lists with a counter of BatchNorm among the weights, or one that lies otherwise, would be copied one by one."""
    with pretended_gpu():
        sources = [torch.randn(3, 2, 2, 2), torch.arange(6).reshape(2, 3), torch.randn(4), torch.ones(2, 2, 3, 3)]
        sources = [source.to(DEVICE) for source in sources]
        targets = [torch.zeros_like(source) for source in sources]
        targets[3] = targets[3].contiguous(memory_format=torch.channels_last)
        with counting() as counts:
            copy_all(targets, sources)
        assert counts.launches.total() == 3
        assert all(torch.equal(values(target), values(source)) for target, source in zip(targets, sources, strict=True))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_one_bad_value_among_tensors_is_seen(bad):
    with pretended_gpu():
        tensors = [torch.ones(1, 3, 2).to(DEVICE), torch.tensor([[3e38, bad, 3e38]]).to(DEVICE)]
        assert values(finite_rows(tensors, 1)).tolist() == [[True], [bad == 3e38]]
