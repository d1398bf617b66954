"""Generators of the pretended GPU: they draw what those of the CPU draw, and only there are tensors of the device drawn."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

Bare = torch.Generator


class DeviceGenerator(Bare):
    """A generator that says ``cuda:0``."""

    device = property(lambda self: torch.device("cuda", 0))


class Generator(Bare):
    """In the place of ``torch.Generator``."""

    def __new__(cls, device: Any = "cpu") -> Bare:
        kind = DeviceGenerator if torch.device(device).type == "cuda" else Bare
        return kind.__new__(kind)


default = DeviceGenerator()


@contextmanager
def drawing_on_the_device(draws: bool = True) -> Iterator[None]:
    """Draws without a generator come from the device's."""
    if not draws:
        yield
        return
    host = torch.default_generator.get_state()
    torch.default_generator.set_state(default.get_state())
    try:
        yield
    finally:
        default.set_state(torch.default_generator.get_state())
        torch.default_generator.set_state(host)
