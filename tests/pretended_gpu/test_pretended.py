"""The pretended GPU itself: it refuses what a GPU refuses, counts what the host asks, and leaves nothing behind."""

import re
from collections import Counter
from pathlib import Path

import lightning.fabric.accelerators.cuda as fabric_cuda
import pytest
import torch
from pretended import WrongDevice, counting, pretended_gpu, values
from pretended.machine import optimizers
from torch.func import grad, vmap

HERE = Path(__file__).name
PATCHED = [torch, torch.cuda, torch.accelerator, torch.amp, fabric_cuda, optimizers]


@pytest.fixture(autouse=True)
def _gpu():
    with pretended_gpu():
        yield


def reasons(counts: Counter) -> list[str]:
    return sorted(what for (what, _), number in counts.items() for _ in range(number))


def test_a_tensor_says_where_it_is():
    made, moved = torch.zeros(2, device="cuda"), torch.ones(2).to("cuda")
    for tensor in (made, moved, made + moved, moved[0], vmap(lambda x: x * 2)(moved)):
        assert tensor.device == torch.device("cuda", 0)
        assert tensor.is_cuda
    assert moved.cpu().device.type == "cpu"
    seen = []
    vmap(lambda x: seen.append(x.device) or x)(moved)
    assert seen == [made.device]


MIXES = {
    "sum": lambda device, host: device + host,
    "product": lambda device, host: host @ device,
    "values at an index": lambda device, host: device.index_put_((torch.tensor([0, 1, 2], device="cuda"),), host),
    "host at an index of the device": lambda device, host: host[device.long()],
    "stack": lambda device, host: torch.stack([device, host]),
    "foreach": lambda device, host: torch._foreach_add([device], [host]),
    "under vmap": lambda device, host: vmap(lambda x: x + host)(device[None]),
    "under grad": lambda device, host: grad(lambda x: (x * host).sum())(device),
    "data": lambda device, host: setattr(device, "data", host),
    "numpy": lambda device, host: device.numpy(),
    "generator": lambda device, host: torch.randn(3, device=device.device, generator=torch.Generator()),
    "generator in place": lambda device, host: device.normal_(generator=torch.Generator()),
}


@pytest.mark.parametrize("name", MIXES)
def test_devices_do_not_mix(name):
    """The message ends with the line that asked, in this file."""
    device, host = torch.zeros(3, device="cuda"), torch.ones(3)
    with pytest.raises(WrongDevice, match=rf", at tests/pretended_gpu/{HERE}:\d+$"):
        MIXES[name](device, host)


def test_numbers_of_the_cpu_are_welcome():
    device = torch.ones(3, device="cuda")
    with counting() as counts:
        result = device * torch.tensor(2.0) + 1 - torch.tensor(1, dtype=torch.float64)
    assert values(result).tolist() == [2.0, 2.0, 2.0]
    assert counts.waits.total() == 0
    assert counts.launches.total() == 3


WAITS = {
    "item": (lambda x: x.sum().item(), ["_local_scalar_dense"]),
    "truth": (lambda x: bool(x.any()), ["_local_scalar_dense"]),
    "tolist": (lambda x: x.tolist(), ["copy down, tolist"]),
    "cpu": (lambda x: x.cpu(), ["copy down, to"]),
    "copy down": (lambda x: torch.zeros(3).copy_(x), ["copy down, copy_"]),
    "copy up": (lambda x: x.copy_(torch.zeros(3)), ["copy up, copy_"]),
    "to": (lambda x: torch.zeros(3).to(x.device, non_blocking=True), ["copy up, to"]),
    "numbers": (lambda x: torch.tensor([1.0], device=x.device), ["copy up, tensor"]),
    "new_tensor": (lambda x: x.new_tensor([1.0]), ["copy up, new_tensor"]),
    "index list": (lambda x: x[[0, 2]], ["copy up, an index on the CPU"]),
    "mask": (lambda x: x[x > 0], ["a mask as index"]),
    "nonzero": (lambda x: x.nonzero(), ["nonzero"]),
    "unique": (lambda x: x.unique(), ["_unique2"]),
    "synchronize": (lambda x: torch.cuda.synchronize(), ["synchronize"]),
}


@pytest.mark.parametrize("name", WAITS)
def test_waits_are_counted(name):
    """With the line that asks for them."""
    ask, expected = WAITS[name]
    device = torch.ones(3, device="cuda")
    with counting() as counts:
        ask(device)
    assert reasons(counts.waits) == expected
    assert all(re.fullmatch(rf"tests/pretended_gpu/{HERE}:\d+", line) for _, line in counts.waits)


def test_pinned_memory_waits_for_nothing():
    with counting() as counts:
        up = torch.arange(4.0).pin_memory().to("cuda", non_blocking=True)
        also = torch.tensor([1.0, 2.0], pin_memory=True)[:1].to("cuda", non_blocking=True)
    assert values(up).tolist() == [0.0, 1.0, 2.0, 3.0]
    assert values(also).tolist() == [1.0]
    assert (counts.copies.total(), counts.waits.total()) == (2, 0)


def test_a_copy_that_is_not_waited_for_is_not_there_yet():
    with counting() as counts:
        host = torch.arange(4.0, device="cuda").to("cpu", non_blocking=True)
        assert counts.waits.total() == 0
        assert host.tolist() == [99.0] * 4
        torch.cuda.synchronize()
        assert host.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_launches_are_counted_and_views_are_none():
    """A linear layer and its step: product with bias, two gradients and a sum, and one fused step for both weights."""
    layer = torch.nn.Linear(3, 2).to("cuda")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, fused=True)
    inputs = torch.ones(5, 3, device="cuda")
    with counting() as counts:
        outputs = layer(inputs)
        gradients = torch.autograd.grad(outputs, list(layer.parameters()), grad_outputs=torch.ones_like(outputs))
        for weight, gradient in zip(layer.parameters(), gradients):
            weight.grad = gradient.view(weight.shape)
        optimizer.step()
    assert reasons(counts.launches) == ["_fused_sgd_", "addmm", "mm", "ones_like", "sum"]


def test_lists_of_tensors_are_one_launch_where_they_lie_alike():
    """Else one a tensor, as with types that differ, but for copies."""
    kernels = [torch.ones(2, 3, 4, 4, device="cuda") for _ in range(3)]
    turned = [kernel.contiguous(memory_format=torch.channels_last) for kernel in kernels]
    doubles = [kernel.double() for kernel in kernels]
    for operator, others, launches in [
        (torch._foreach_sub_, kernels, 1),
        (torch._foreach_copy_, doubles, 1),
        (torch._foreach_copy_, turned, 3),
        (torch._foreach_add_, turned, 3),
        (torch._foreach_add, doubles, 3),
    ]:
        with counting() as counts:
            operator(kernels, others)
        assert counts.launches.total() == launches


def test_compiled_steps_are_one_launch():
    step = torch.compile(lambda x: (x + 1).sum() * 2)
    with counting() as counts:
        step(torch.ones(3, device="cuda"))
    assert reasons(counts.launches) == ["ones", "replay of a graph"]


def test_draws_leave_the_generator_of_the_cpu_alone():
    before = torch.get_rng_state()
    torch.cuda.manual_seed(3)
    first = torch.randn(4, device="cuda")
    torch.cuda.manual_seed(3)
    again = torch.empty(4, device="cuda").normal_()
    assert torch.equal(values(first), values(again))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("error", [None, KeyError])
def test_a_machine_is_itself_again(error):
    """After a block, also one that ends with an error, torch is as it was before: the fixture's, here."""
    before = [dict(vars(module)) for module in PATCHED]
    try:
        with pretended_gpu():
            assert [dict(vars(module)) for module in PATCHED] != before
            if error is not None:
                raise error
    except KeyError:
        pass
    assert [dict(vars(module)) for module in PATCHED] == before
