"""Random streams: a function of the address alone, one address one stream."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fl_lightning.functional.random_streams import numpy_stream, random_bits, seeded_layers, stream_seed, torch_stream

ADDRESSES = list(itertools.product((0, 1, 12, 2**40), (-1, 0, 1, 23), (-1, 0, 3, 100000), ("cohort", "batch order", "noise")))


@pytest.mark.parametrize(
    ("address", "digest"),
    [((7, 3, 12, "batch order"), "808d13e026b91881"), ((0, -1, -1, "partition"), "b7a869a52cfc6e25")],
)
def test_seed_is_the_blake2b_digest_of_the_address(address, digest):
    """``printf '%s' 7/3/12/batch\\ order | b2sum -l 64``, read as a little-endian integer, without its lowest bit.

    Fixed for ever: a change would change every published run.
    """
    assert stream_seed(*address) == int.from_bytes(bytes.fromhex(digest), "little") // 2


def test_addresses_do_not_share_seeds():
    """Any difference in seed, round, client or purpose gives another seed; all fit torch's and NumPy's 63 bits."""
    seeds = {stream_seed(*address) for address in ADDRESSES}
    assert len(seeds) == len(ADDRESSES)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_digits_do_not_run_together():
    """Round 1 of client 23 is not round 12 of client 3."""
    assert stream_seed(0, 1, 23, "x") != stream_seed(0, 12, 3, "x")
    assert stream_seed(1, 23, 0, "x") != stream_seed(12, 3, 0, "x")


@pytest.mark.parametrize("stream", [torch_stream, numpy_stream])
def test_same_address_same_draws(stream):
    """Two generators of one address agree draw by draw, whatever the global generators and other streams do in between."""

    def draws(generator):
        if isinstance(generator, torch.Generator):
            return torch.rand(5, generator=generator).tolist()
        return generator.random(5).tolist()

    first = stream(7, 3, 12, "batch order")
    expected = draws(first), draws(first)
    torch.manual_seed(0)
    np.random.seed(0)
    draws(stream(7, 3, 12, "noise"))
    again = stream(7, 3, 12, "batch order")
    assert (draws(again), draws(again)) == expected
    for other in ((8, 3, 12, "batch order"), (7, 4, 12, "batch order"), (7, 3, 13, "batch order"), (7, 3, 12, "noise")):
        assert draws(stream(*other)) != expected[0], other


def test_streams_leave_global_generators_alone():
    """Neither making a stream nor drawing from it moves torch's or NumPy's global state."""
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    torch.rand(3, generator=torch_stream(0, 1, 2, "x"))
    numpy_stream(0, 1, 2, "x").random(3)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()


def test_neighbouring_addresses_are_uncorrelated():
    """Means of 2,000 clients' first uniform draws: .5 with standard error .0065; neighbours' correlation 0 with error .022."""
    draws = np.array(
        [
            [numpy_stream(0, 1, client, "x").random(), torch.rand((), generator=torch_stream(0, 1, client, "x"))]
            for client in range(2000)
        ]
    )
    assert draws.mean(axis=0) == pytest.approx([0.5, 0.5], abs=0.03)
    for column in draws.T:
        assert abs(np.corrcoef(column[:-1], column[1:])[0, 1]) < 0.1


def test_splitmix64_is_the_published_one(splitmix64):
    """What the tests compare with: the first draws of Vigna's reference program (prng.di.unimi.it/splitmix64.c)."""
    assert [splitmix64(0, i) for i in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert [splitmix64(1234567, i) for i in range(5)] == expected


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 2))
def test_random_bits_are_splitmix64_without_the_lowest_bit(splitmix64, key, counter):
    """For every key that ``stream_seed`` gives and every counter, those whose products wrap included."""
    assert random_bits(torch.tensor(key), torch.tensor(counter)).item() == splitmix64(key, counter) >> 1


def test_random_bits_broadcast_and_can_be_stacked(splitmix64):
    """Keys down, counters across; the same under ``torch.vmap`` over either."""
    keys, counters = torch.tensor([3, 2**62, 2**63 - 1]), torch.tensor([0, 7, 2**40, 2**33 + 1])
    bits = random_bits(keys[:, None], counters)
    expected = [[splitmix64(key, counter) >> 1 for counter in counters.tolist()] for key in keys.tolist()]
    assert bits.dtype == torch.int64
    assert bits.tolist() == expected
    assert torch.equal(torch.vmap(random_bits, in_dims=(0, None))(keys, counters), bits)
    assert torch.equal(torch.vmap(random_bits, in_dims=(None, 0), out_dims=1)(keys, counters), bits)


def test_random_bits_are_uniform_in_every_bit():
    """Of 20,000 draws each of 63 bits is 1 in half, sd 0.0035, within 5 sd; none is negative; none occurs twice."""
    bits = random_bits(torch.tensor(stream_seed(0, 1, 2, "x")), torch.arange(20_000))
    assert (bits >= 0).all()
    assert len(bits.unique()) == 20_000
    ones = ((bits[:, None] >> torch.arange(63)) & 1).double().mean(dim=0)
    assert (ones - 0.5).abs().max() < 5 * 0.0035


@pytest.mark.parametrize("spread", ["keys that differ by one", "keys of neighbouring clients", "keys half a step apart"])
def test_streams_of_near_keys_are_independent(spread):
    """10,000 draws of two streams: their correlation is 0 with sd 0.01, their bits agree in half with sd 0.0006.

    Keys that are a whole step of the generator apart give one stream, shifted by one: :func:`stream_seed`, a hash, gives them
    by a chance of 2^-63 a pair.
    """
    key = stream_seed(0, 1, 2, "x")
    other = {
        "keys that differ by one": key ^ 1,
        "keys of neighbouring clients": stream_seed(0, 1, 3, "x"),
        "keys half a step apart": (key + 0x9E3779B97F4A7C15 // 2) % 2**63,
    }[spread]
    first, second = random_bits(torch.tensor([[key], [other]]), torch.arange(10_000))
    uniform = torch.stack([first, second]).double() / 2**63
    assert uniform.mean(dim=1).sub(0.5).abs().max() < 5 * 0.0029
    for shift in (0, 1):
        a, b = uniform[0, : 10_000 - shift], uniform[1, shift:]
        assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 0.05
    agree = (~(first ^ second)[:, None] >> torch.arange(63)) & 1
    assert abs(agree.double().mean().item() - 0.5) < 5 * 0.00063


def test_neighbouring_draws_are_independent():
    """Along one stream: correlation of each draw with the next and the one after is 0 with sd 0.01."""
    draws = random_bits(torch.tensor(stream_seed(0, 1, 2, "x")), torch.arange(10_000)).double()
    for shift in (1, 2):
        assert abs(torch.corrcoef(torch.stack([draws[shift:], draws[:-shift]]))[0, 1]) < 0.05


def test_layers_draw_from_their_address_and_the_global_state_returns():
    """Dropout inside the block is the same for one address and differs for another; after it, or an error, nothing moved."""
    state = torch.get_rng_state()

    def dropped(*address):
        with seeded_layers(*address, torch.device("cpu")):
            return torch.nn.functional.dropout(torch.ones(50)).tolist()

    first = dropped(0, 1, 2, "layers")
    torch.rand(3)
    assert dropped(0, 1, 2, "layers") == first
    for other in ((1, 1, 2, "layers"), (0, 2, 2, "layers"), (0, 1, 3, "layers"), (0, 1, 2, "other")):
        assert dropped(*other) != first, other
    torch.set_rng_state(state)
    with pytest.raises(ValueError, match="broken"), seeded_layers(0, 1, 2, "layers", torch.device("cpu")):
        torch.rand(3)
        raise ValueError("broken")
    assert torch.equal(torch.get_rng_state(), state)
