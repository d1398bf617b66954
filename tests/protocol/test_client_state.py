"""What a client keeps: sparse tensors, and all parts as one object."""

import math

import pytest
import torch

from fl_lightning.protocol import ClientState, LearnedTask, SparseTensor


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("shape", "share"), [((3, 2, 4, 5), 0.5), ((7, 10, 33, 64), 0.001), ((4, 4, 256, 64), 0.0001)])
def test_what_is_kept_sparse_comes_back(memory_format, shape, share):
    """Whatever the memory format, in one block or in several, of which some are empty: six bytes a value and four a block."""
    generator = torch.Generator().manual_seed(3)
    values, kept = torch.randn(shape, generator=generator), torch.rand(shape, generator=generator) < share
    kept.view(-1)[2**16 : 2**17] = False
    kept.view(-1)[[0, -1]] = True
    tensor = (values * kept).to(memory_format=memory_format)
    sparse = SparseTensor.of(tensor)
    assert torch.equal(sparse.dense(tensor.shape), tensor)
    assert torch.equal(sparse.positions, tensor.flatten().nonzero().flatten())
    num_blocks = math.ceil(tensor.numel() / 65536)
    assert (
        ClientState(tasks={0: LearnedTask(sparse={"a": sparse})}).num_bytes()
        == 6 * int(tensor.count_nonzero()) + 4 * num_blocks
    )
    assert torch.equal(SparseTensor.of(torch.zeros(3, 2)).dense(torch.Size((3, 2))), torch.zeros(3, 2))


def test_what_a_task_knows_of_others_is_no_weight():
    """It is a part of the task."""
    known, weight = torch.tensor([[2, 0], [1, 1]]), torch.randn(3)
    task = LearnedTask({"classifier.weight": weight}, known=known)
    assert ClientState(tasks={4: task}).num_bytes() == 3 * 4 + 4 * 8
