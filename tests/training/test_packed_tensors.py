"""Tensors of any type and layout as bytes and back, also by a pickled description."""

import pickle

import torch

from fl_lightning.exchange import ClientState
from fl_lightning.exchange.client_state import LearnedTask, SparseTensor
from fl_lightning.training.packed_tensors import pack, unpack


def states() -> dict[int, ClientState]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, 4, 5, generator=generator)
    kept = {
        "number": torch.tensor(2.5, dtype=torch.float64),
        "counts": torch.arange(3, dtype=torch.int16),
        "flags": torch.tensor([True, False, True]),
        "half": torch.randn(7, generator=generator).bfloat16(),
        "none": torch.zeros(0, 4),
        "group": {"channels_last": images.contiguous(memory_format=torch.channels_last), "turned": images[0, 0].t()},
    }
    sparse = {"layer": SparseTensor.of(torch.tensor([0.0, 3.0, 0.0, torch.inf]))}
    task = LearnedTask({"w": torch.randn(2, 2, generator=generator)}, sparse, torch.tensor([[1, 0]]))
    return {7: ClientState(method=kept, moments={1: {"step": torch.tensor(3)}}, tasks={0: task}), 9: ClientState()}


def test_what_comes_back_is_what_was_packed():
    """Values, types, shapes, and strides: what is computed from them later is the same to the last bit."""
    contents, row = pack(states())
    back = unpack(pickle.loads(pickle.dumps(contents)), row.clone())
    assert list(back) == [7, 9]
    assert not back[9]
    found, expected = back[7].tensors(), states()[7].tensors()
    assert back[7].to_plain().keys() == states()[7].to_plain().keys()
    assert back[7].method.keys() == states()[7].method.keys()
    for one, other in zip(found, expected, strict=True):
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_a_tensor_that_is_kept_keeps_no_other():
    """Each has memory of its own size."""
    contents, row = pack({"small": torch.zeros(1), "large": torch.zeros(1000)})
    small = unpack(contents, row)["small"]
    assert small.untyped_storage().nbytes() == 4


def test_nothing_is_an_empty_row():
    contents, row = pack({})
    assert len(row) == contents.num_bytes == 0
    assert unpack(contents, row) == {}
