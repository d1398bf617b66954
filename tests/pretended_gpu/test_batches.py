"""On a GPU a client's steps are read and changed together, and each sees what it sees on the CPU."""

import pytest
import torch
from pretended import DEVICE, counting, pretended_gpu, values
from pretended.runs import new_data

from fl_lightning.data import client_batches

STEPS = 7  # of 4 samples, of shards of 9 to 14: short batches at the ends of epochs


def batches(device, poisson, full):
    """Of two clients."""
    data = new_data()
    data.setup()
    data.to(device, torch.float32)
    served = data.client_batches(True, poisson, None)
    with counting() as counts:
        found = [batch for client in (0, 1) for batch in served.batches(client, 3, STEPS, full)]
    assert all(len(values(batch.inputs)) == len(values(batch.targets)) for batch in found)
    return [[None if part is None else values(part) for part in batch] for batch in found], counts


@pytest.mark.parametrize(("most", "together"), [(1 << 24, STEPS), (2 * 4 * 75, 2), (1, 1)])
@pytest.mark.parametrize(("poisson", "full"), [(False, False), (False, True), (True, False)])
@pytest.mark.one_in(3)
def test_steps_that_are_read_together_are_those_of_the_cpu(monkeypatch, most, together, poisson, full):
    monkeypatch.setattr(client_batches, "_READ_TOGETHER", most)
    expected, _ = batches(torch.device("cpu"), poisson, full)
    with pretended_gpu():
        found, counts = batches(DEVICE, poisson, full)
    assert len(found) == len(expected) == 2 * STEPS
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    if full:
        assert sum(number for (what, _), number in counts.launches.items() if what == "addcmul") == 2 * -(-STEPS // together)
