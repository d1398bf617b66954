"""Tensors of any type and layout as bytes and back."""

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy

from fl_lightning.processes.process_group import ProcessGroup, from_bytes, to_bytes


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, 4, 5, generator=generator)
    return {
        "number": torch.tensor(2.5, dtype=torch.float64),
        "counts": torch.arange(3, dtype=torch.int16),
        "flags": torch.tensor([True, False, True]),
        "half": torch.randn(7, generator=generator).bfloat16(),
        "infinite": torch.tensor([torch.inf, torch.nan]),
        "Lagen/höhe": images.contiguous(memory_format=torch.channels_last),
        "turned": images[0, 0].t(),
        "every other": images[0, 0, 0, ::2],
        "none": torch.zeros(0, 4),
    }


def test_what_comes_back_is_what_was_sent():
    """Values, types, shapes, and the order of strides: what is computed from them later is the same to the last bit."""
    back = from_bytes(to_bytes(tensors()))
    assert list(back) == list(tensors())
    for name, expected in tensors().items():
        dense = expected.contiguous() if name == "every other" else expected
        assert (back[name].dtype, back[name].shape, back[name].stride()) == (dense.dtype, dense.shape, dense.stride()), name
        torch.testing.assert_close(back[name], expected, rtol=0, atol=0, equal_nan=True)


def test_a_tensor_that_is_kept_keeps_no_other():
    """Each has memory of its own size."""
    small = from_bytes(to_bytes({"small": torch.zeros(1), "large": torch.zeros(1000)}))["small"]
    assert small.untyped_storage().nbytes() == 4


def test_nothing_is_an_empty_row():
    row = to_bytes({})
    assert len(row) == 0
    assert from_bytes(row) == {}


def test_a_plain_value_is_broadcast_without_a_pickle(monkeypatch):
    """As JSON has it: a tuple becomes a list."""
    monkeypatch.setattr(torch.distributed, "broadcast_object_list", None)
    group = ProcessGroup(SingleDeviceStrategy(), rank=0, size=1)
    assert group.broadcast((8080, "wörd", None, {"auto": 0.5})) == [8080, "wörd", None, {"auto": 0.5}]
