"""What torch and Lightning ask of a machine, answered as one with a single GPU would."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import lightning.fabric.accelerators.cuda as fabric_cuda
import lightning.pytorch.accelerators.cuda as lightning_cuda
import pytest
import torch
from torch.overrides import _get_current_function_mode

from fl_lightning.engines.cuda_graph import Stream
from pretended.counts import as_one_launch, counting, wait
from pretended.generators import Generator, default
from pretended.mode import PretendedGPU
from pretended.tensor import PretendedTensor, forget_pinned, is_pretended

optimizers = import_module("torch.optim.optimizer")  # torch.optim hides it
MEMORY = 80 << 30
PROPERTIES = SimpleNamespace(total_memory=MEMORY, name="pretended GPU", major=9, minor=0, multi_processor_count=132)
ANSWERS = {
    "_lazy_init": None,
    "is_available": True,
    "device_count": 1,
    "current_device": 0,
    "set_device": None,
    "empty_cache": None,
    "is_bf16_supported": True,
    "is_current_stream_capturing": False,
    "get_device_capability": (9, 0),
    "get_device_name": PROPERTIES.name,
    "get_device_properties": PROPERTIES,
    "mem_get_info": (MEMORY, MEMORY),
    "memory_allocated": 0,
    "max_memory_allocated": 0,
    "reset_peak_memory_stats": None,
    "graph_pool_handle": (0, 1),
}


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


class Autocast(torch.autocast):
    """C++ takes the device for the CPU, whose autocast it is."""

    def __init__(self, device_type: str, *args: Any, **kwargs: Any) -> None:
        super().__init__("cpu" if device_type.startswith("cuda") else device_type, *args, **kwargs)


def replayed(function: Callable[..., Any] | None = None, **_: Any) -> Callable[..., Any]:
    """In the place of ``torch.compile``: the function as it is, counted as the replay of one graph."""
    if function is None:
        return replayed

    def replay(*args: Any, **kwargs: Any) -> Any:
        with as_one_launch("replay of a graph"):
            return function(*args, **kwargs)

    return replay


def recorded(queue: Stream, function: Callable[[], Any]) -> Callable[[], Any]:
    """In the place of a CUDA graph: the function once more, which counts as one launch and gives its result where it was."""
    results: list[Any] = []

    def replay() -> Any:
        with as_one_launch("replay of a graph"):
            with counting() as counts:
                result = function()
            # A graph does what it did when it was recorded: a copy from the host would bring the values of that time.
            assert not counts.waits, f"a graph cannot wait: {counts}"
            assert not counts.copies, f"a graph cannot look at the host: {list(counts.copies)}"
            results[:] = results or [result.clone()]
            return results[0].copy_(result)

    return replay


class Queue:
    """A stream: work is done when it is asked for."""

    def __init__(self, device: torch.device) -> None:
        pass

    def wait_stream(self, other: "Queue") -> None:
        """Nothing is left to be done."""


@contextmanager
def pretended_gpu() -> Iterator[None]:
    """A block in which this process has a GPU."""
    compatible = torch._has_compatible_shallow_copy_type
    with pytest.MonkeyPatch.context() as patch, PretendedGPU():
        for name, answer in ANSWERS.items():
            patch.setattr(torch.cuda, name, _always(answer))
        patch.setattr(torch.cuda, "synchronize", lambda device=None: wait("synchronize"))
        patch.setattr(torch.accelerator, "current_device_index", _always(0))
        patch.setattr(torch.accelerator, "current_stream", _always(SimpleNamespace(is_capturing=_always(False))))
        _have_generators(patch)
        for module in (fabric_cuda, lightning_cuda):
            patch.setattr(module, "num_cuda_devices", _always(1), raising=False)
            for name in ("_check_cuda_matmul_precision", "_clear_cuda_memory"):
                patch.setattr(module, name, _always(None))
        patch.setattr(fabric_cuda, "is_cuda_available", _always(True))
        for module in (torch, torch.amp, torch.amp.autocast_mode):
            patch.setattr(module, "autocast", Autocast)
        patch.setattr(torch.autograd, "_engine_run_backward", _with_mode(torch.autograd._engine_run_backward))
        patch.setattr(torch, "compile", replayed)
        patch.setattr(Stream, "recorded", recorded)
        patch.setattr(torch.cuda, "Stream", Queue)
        patch.setattr(torch.cuda, "stream", nullcontext)
        patch.setattr(torch.cuda, "device", nullcontext)
        patch.setattr(torch.cuda, "current_stream", Queue)
        patch.setattr(torch.compiler, "cudagraph_mark_step_begin", _always(None))  # would import the compiler
        # Weights that go to the device are other objects there.
        patch.setattr(
            torch,
            "_has_compatible_shallow_copy_type",
            lambda one, other: is_pretended(one) == is_pretended(other) and compatible(one, other),
        )
        # By which an optimizer decides whether one call steps all weights.
        patch.setattr(optimizers, "_foreach_supported_types", [*optimizers._foreach_supported_types, PretendedTensor])
        try:
            yield
        finally:
            forget_pinned()


def _with_mode(function: Callable[..., Any]) -> Callable[..., Any]:
    """A mode is off while it handles a call, such as that of a backward pass, whose hooks call torch all the same."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with nullcontext() if _get_current_function_mode() is not None else PretendedGPU():
            return function(*args, **kwargs)

    return call


def _have_generators(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "Generator", Generator)
    patch.setattr(torch.cuda, "default_generators", (default,))
    patch.setattr(torch.cuda, "get_rng_state", lambda device="cuda": default.get_state())
    patch.setattr(torch.cuda, "set_rng_state", lambda state, device="cuda": default.set_state(state))
    patch.setattr(torch.cuda, "get_rng_state_all", lambda: [default.get_state()])
    patch.setattr(torch.cuda, "set_rng_state_all", lambda states: default.set_state(states[0]))
    for name in ("manual_seed", "manual_seed_all"):
        patch.setattr(torch.cuda, name, default.manual_seed)
