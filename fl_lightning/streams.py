"""Random streams with an address.

Nothing in a run reads a global generator: every draw comes from a stream named by what it is for, so the same run gives
the same draws in one process or several, resumed or not, whatever was drawn before.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import numpy as np
import torch


def stream_seed(seed: int, round: int, client: int, purpose: str) -> int:
    """A 63-bit seed from the address (seed, round, client, purpose); -1 stands for "none" in round and client."""
    digest = blake2b(f"{seed}/{round}/{client}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def torch_stream(seed: int, round: int, client: int, purpose: str) -> torch.Generator:
    """A CPU generator for that address."""
    return torch.Generator().manual_seed(stream_seed(seed, round, client, purpose))


def numpy_stream(seed: int, round: int, client: int, purpose: str) -> np.random.Generator:
    """A NumPy generator for that address."""
    return np.random.Generator(np.random.Philox(stream_seed(seed, round, client, purpose)))


@contextmanager
def seeded_layers(seed: int, round: int, client: int, purpose: str, device: torch.device) -> Iterator[None]:
    """Seed the global generators for a block and put them back after it.

    Layers such as dropout can draw from nothing else; within this block, and only there, their draws have an address too.
    """
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index])
    states = [generator.get_state() for generator in generators]
    try:
        for generator in generators:
            # torch.manual_seed would, without a GPU, queue a call with a stack trace for later: 20 times the cost of this.
            generator.manual_seed(stream_seed(seed, round, client, purpose))
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
