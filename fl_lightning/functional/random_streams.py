"""Random streams with an address.

Nothing in a run reads a global generator: every draw comes from a stream named by its purpose, so the same run gives the same
draws in one process or several, resumed or not, whatever was drawn before. A local step draws with :func:`random_bits`, which
has no state at all: it runs on the device, for many clients at once, also under ``torch.vmap``, and gives the same bits on
every device.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

# SplitMix64's constants, as signed numbers, and the inverse of the first.
_GOLDEN_GAMMA, _MIX_1, _MIX_2 = (value - (1 << 64) for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_INVERSE = pow(_GOLDEN_GAMMA, -1, 1 << 64) - (1 << 64)


def stream_seed(seed: int, round: int, client: int, purpose: str) -> int:
    """A 63-bit seed from the address (seed, round, client, purpose); -1 means "none" in round and client."""
    digest = blake2b(f"{seed}/{round}/{client}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def torch_stream(seed: int, round: int, client: int, purpose: str) -> torch.Generator:
    """A CPU generator for that address."""
    return torch.Generator().manual_seed(stream_seed(seed, round, client, purpose))


def numpy_stream(seed: int, round: int, client: int, purpose: str) -> np.random.Generator:
    """A NumPy generator for that address."""
    return np.random.Generator(np.random.Philox(stream_seed(seed, round, client, purpose)))


def random_bits(keys: Tensor, counters: Tensor) -> Tensor:
    """The ``counters``-th draws of the streams with these keys: integers, uniform over [0, 2^63), on their device.

    SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), read at any position.

    Args:
        keys: int64, from :func:`stream_seed`; any shape that broadcasts with ``counters``.
        counters: int64, at least 0; different draws of a stream need different ones.
    """
    # keys + (counters + 1) * gamma: int64 arithmetic wraps, as the generator requires. A compiler, which multiplies constants
    # without wrapping, has none to multiply here.
    bits = (counters + (keys * _INVERSE + 1)).mul_(_GOLDEN_GAMMA)
    bits = _xor_shifted(bits, 30).mul_(_MIX_1)  # in place: of millions of draws, memory takes most of the time
    bits = _xor_shifted(bits, 27).mul_(_MIX_2)
    return (_xor_shifted(bits, 31) >> 1).bitwise_and_((1 << 63) - 1)


def _xor_shifted(bits: Tensor, count: int) -> Tensor:
    """Xor with the bits shifted right. Zeros come in from the left, where ``>>`` on a signed integer repeats the sign."""
    return (bits >> count).bitwise_and_((1 << (64 - count)) - 1).bitwise_xor_(bits)


@contextmanager
def seeded_layers(seed: int, round: int, client: int, purpose: str, device: torch.device) -> Iterator[None]:
    """Seed the global generators for a block and restore them after it.

    Layers such as dropout can draw only from these; within this block, and only there, their draws have an address too.
    """
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index])
    states = [generator.get_state() for generator in generators]
    try:
        for generator in generators:
            # torch.manual_seed would, without a GPU, queue a call with a stack trace for later, which costs far more.
            generator.manual_seed(stream_seed(seed, round, client, purpose))
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
