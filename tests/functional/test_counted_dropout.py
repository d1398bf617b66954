"""Dropout from counters: its masks against SplitMix64 in plain Python, its shares, and attention against torch's."""

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import binomtest
from torch import nn

from fl_lightning.functional.counted_dropout import CountedDropout

KEY = torch.tensor(1234567890123456789)
_WORD = 1 << 64


def splitmix(key, counter):
    """The reference, on Python's integers of any size."""
    bits = (key + (counter + 1) * 0x9E3779B97F4A7C15) % _WORD
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 % _WORD
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % _WORD
    return (bits ^ (bits >> 31)) >> 1


def kept_by_hand(call, count, p):
    """Two entries from each draw, first its low 31 bits, then the 31 highest of its 63."""
    draws = [splitmix(int(KEY), (call << 40) + number) for number in range((count + 1) // 2)]
    words = [word for draw in draws for word in (draw % 2**31, draw >> 32)]
    return [word >= p * 2**31 for word in words[:count]]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("inplace", [False, True])
def test_masks_are_those_of_the_counters(p, inplace):
    """The second call of a mode has other masks than the first; what is kept grows by 1 / (1 - p)."""
    inputs = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with CountedDropout(KEY) as dropout:
        for call in range(2):
            dropped = F.dropout(inputs.clone(), p, inplace=inplace)
            kept = torch.tensor(kept_by_hand(call, 15, p)).view(3, 5)
            torch.testing.assert_close(dropped, torch.where(kept, inputs / (1 - p), 0.0), rtol=1e-12, atol=0)
    assert dropout.shapes == [(3, 5), (3, 5)]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.73])
def test_the_share_of_what_is_dropped_is_p(p):
    """Of 200,000 entries, and independent from call to call."""
    with CountedDropout(KEY):
        first, second = (F.dropout(torch.ones(200_000), p) == 0 for _ in range(2))
    for dropped, share in ((first, p), (second, p), (first & second, p * p)):
        assert binomtest(int(dropped.sum()), 200_000, share).pvalue > 1e-4


@pytest.mark.parametrize(("function", "dims"), [(F.dropout1d, 1), (F.dropout2d, 2), (F.dropout3d, 3)])
def test_whole_channels_are_dropped(function, dims):
    with CountedDropout(KEY) as dropout:
        dropped = function(torch.ones(20, 30, *[2] * dims), 0.5).flatten(2)
    assert torch.equal(dropped, dropped[..., :1].expand_as(dropped))
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert dropout.shapes == [(20, 30, *[1] * dims)]


@pytest.mark.parametrize(("p", "training"), [(0.0, True), (1.0, True), (0.5, False)])
def test_without_chance_nothing_is_counted(p, training):
    with CountedDropout(KEY) as dropout:
        assert torch.equal(F.dropout(torch.ones(9), p, training), torch.ones(9) * (p != 1.0))
        assert torch.equal(F.dropout2d(torch.ones(1, 9, 1, 1), p, training), torch.ones(1, 9, 1, 1) * (p != 1.0))
    assert dropout.shapes == []


MASK = torch.tensor([[[True, False, True], [True, True, False]]])
PADDED = torch.tensor([[[True, False, True], [False, False, False]]])  # on the left: a place that sees none


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": MASK},
        {"attn_mask": MASK.double().log1p()},
        {"attn_mask": PADDED},
        {"attn_mask": PADDED.double().log()},
        {"enable_gqa": True},
    ],
    ids=str,
)
def test_attention_is_torchs(options):
    """Averaged over 20,000 masks the output is that without dropout, to five standard errors; its mask is the scores'."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(4, size, 4, generator=generator, dtype=torch.float64) for size in (2, 3, 3))
    if options.get("enable_gqa"):
        key, value = key[:2], value[:2]
    expected = F.scaled_dot_product_attention(query, key, value, **options)
    keys = torch.arange(20_000)

    def attend(key_of_masks):
        with CountedDropout(key_of_masks) as dropout:
            outputs = F.scaled_dot_product_attention(query, key, value, dropout_p=0.2, **options)
        assert dropout.shapes == [(4, 2, 3)]
        return outputs

    outputs = torch.vmap(attend, randomness="error")(keys)
    error = outputs.std(dim=0) / 20_000**0.5
    assert ((outputs.mean(dim=0) - expected).abs() <= 5 * error + 1e-12).all()
    torch.testing.assert_close(outputs[7], attend(keys[7]))


@pytest.mark.parametrize("mask", [PADDED, PADDED.double().log()], ids=["bool", "float"])
def test_a_place_that_sees_none_has_no_gradient(mask):
    """It gives 0 whatever its query is, as torch's attention does."""
    query, key, value = (torch.ones(1, size, 4, dtype=torch.float64, requires_grad=True) for size in (2, 3, 3))
    with CountedDropout(KEY):
        output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=0.2)
    gradients = torch.autograd.grad(output.sum(), [query, key, value])
    assert all(part.isfinite().all() for part in (output, *gradients))
    assert not output[0, 1].any()
    assert not gradients[0][0, 1].any()


@pytest.mark.parametrize(
    "layer",
    [
        nn.Dropout(0.5),
        nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True),
        nn.TransformerDecoderLayer(4, 2, 8, dropout=0.3, batch_first=True),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_draw_nothing_else_and_a_longer_batch_changes_no_mask(layer):
    """Also where torch's attention is written in Python."""
    layer = layer.double().train()
    inputs = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def outputs(inputs):
        arguments = (inputs, inputs) if isinstance(layer, nn.TransformerDecoderLayer) else (inputs,)
        with CountedDropout(KEY) as dropout:
            return layer(*arguments), dropout.shapes

    state = torch.get_rng_state()
    alone, shapes = outputs(inputs)
    together, _ = outputs(torch.cat([inputs, inputs]))
    assert torch.equal(torch.get_rng_state(), state)
    assert shapes
    torch.testing.assert_close(together[:3], alone)
    assert not torch.allclose(together[3:], alone)
