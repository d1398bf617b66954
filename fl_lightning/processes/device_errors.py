"""One-line errors, with a cure, for a GPU that is out of memory or accepts no work."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

FEWER_AT_A_TIME = "lower data.eval_batch_size; a fit can then resume, with --ckpt_path last"
FEWER_ON_DEVICE = (
    "set data.storage: stream or model.engine: sequential, or take a GPU with more memory; a fit can then resume, with "
    "--ckpt_path last"
)
_ELSEWHERE = "choose another GPU by CUDA_VISIBLE_DEVICES, or set trainer.accelerator: cpu"


@contextmanager
def saying_what_to_change(asker: str, cure: str) -> Iterator[None]:
    """A block, or a decorated function, that may need more memory than the device has.

    Args:
        asker: the part that needs it; it begins the message.
        cure: settings that need less, with which a run can continue.

    Raises:
        MemoryError: in one line, instead of torch's error.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise MemoryError(f"{asker} asked for {_what_was_asked(str(error))}: {cure}") from error


def device_error_line(error: Exception) -> str | None:
    """One line for torch's errors of a GPU that is full, busy or behind an old driver; None for all others."""
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError):
        return f"a tensor asked for {_what_was_asked(text)}: {_ELSEWHERE}"
    if found := re.search(r"NVIDIA driver on your system is too old \(found version (\d+)\)", text):
        return f"the NVIDIA driver is too old for torch (found version {found[1]}): update it, or set trainer.accelerator: cpu"
    if found := re.match(r"CUDA error: (.*(?:busy or unavailable|no CUDA-capable|out of memory|ALLOC_FAILED).*)", text):
        return f"the GPU takes no work ({found[1]}), as where another process holds it: {_ELSEWHERE}"
    return None


def _what_was_asked(text: str) -> str:
    """The requested memory, and other processes that hold some, from the message of CUDA's allocator."""
    asked = re.search(r"Tried to allocate ([\d.]+ \w+)", text)
    others = re.findall(r"Process (\d+) has ([\d.]+ \w+) memory in use", text)
    line = f"{asked[1]}, more than the device has left" if asked else "more memory than the device has left"
    return ", ".join([line, *(f"where process {number} holds {amount}" for number, amount in others)])
