"""Gradients that are accumulated from parts of a batch are those of the batch."""

import pytest
import torch
from torch import nn

from fl_lightning import SCAFFOLD, FedAvg, FedDecorr, FedProx, FedReg, FedSAM, PFedMe, privacy
from fl_lightning.data import from_arrays
from fl_lightning.protocol import Batch

GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(19, 4, generator=GENERATOR, dtype=torch.float64)


def fitted(fit, kind, engine, **settings):
    """Two rounds with batches of 5: the client with 9 samples has one of 4, that with 10 none."""
    torch.manual_seed(0)
    data = from_arrays(INPUTS, torch.arange(19) % 3, [range(9), range(9, 19)], batch_size=5)
    method = kind(nn.Linear(4, 3).double(), engine=engine, local_steps=3, **settings)
    fit(method, data, 2, precision="64-true")
    return method


@pytest.mark.parametrize(
    ("kind", "engine"),
    [
        *((kind, engine) for kind in (FedProx, SCAFFOLD) for engine in ("sequential", "vectorized")),
        pytest.param(FedProx, "captured", marks=pytest.mark.slow),
    ],
)
def test_parts_add_up_to_the_batch(fit, kind, engine):
    """To rounding, with a penalty, variates and a clipped norm too."""
    settings = {"mu": 0.3} if kind is FedProx else {"clip_local_gradients": 0.2}
    whole = fitted(fit, kind, engine, **settings)
    for size in (2, 3) if engine != "captured" else (2,):
        parts = fitted(fit, kind, engine, micro_batch_size=size, **settings)
        for one, other in zip(whole.net.parameters(), parts.net.parameters(), strict=True):
            torch.testing.assert_close(one, other, atol=1e-12, rtol=0)
        assert parts.newest["train/loss"] == pytest.approx(whole.newest["train/loss"], abs=1e-12)


def test_a_batch_is_split_with_all_that_it_has():
    batch = Batch({"a": torch.arange(5), "b": torch.arange(10).reshape(5, 2)}, torch.arange(5), torch.arange(5) < 3)
    first, second, last = batch.split(2)
    assert [int(part.num_samples) for part in (first, second, last)] == [2, 1, 0]
    assert second.inputs["b"].tolist() == [[4, 5], [6, 7]]
    assert last.targets.tolist() == [4]
    assert last.sample_indices is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda net: FedAvg(net, micro_batch_size=0), "model.micro_batch_size is 0, must be at least 1"),
        (lambda net: FedAvg(net, micro_batch_size=2.5), "model.micro_batch_size is 2.5, must be a whole number$"),
        (lambda net: FedReg(net, micro_batch_size=2), "model.micro_batch_size is 2, but FedReg needs whole batches"),
        (lambda net: FedSAM(net, micro_batch_size=2), "model.micro_batch_size is 2, but FedSAM needs whole batches"),
        (lambda net: PFedMe(net, micro_batch_size=2), "model.micro_batch_size is 2, but PFedMe needs whole batches"),
        (lambda net: FedDecorr(net, micro_batch_size=2), "model.micro_batch_size is 2, but FedDecorr needs whole batches"),
        (lambda net: FedAvg(net, micro_batch_size=2, privacy=privacy.DPSGD(1.0)), "but DPSGD clips whole batches"),
    ],
)
def test_what_needs_whole_batches_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make(nn.Linear(4, 3))
