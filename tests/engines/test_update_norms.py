"""Norms of clients' updates, by hand and against float64."""

import pytest
import torch

from fl_lightning.engines.update_norms import update_norm, update_norms


def test_by_hand():
    """Client 0 goes from (1, 2) to (4, 6), 5 far; client 1 stays there and sends (6, 8) as well; a counter is no change."""
    sent = {
        "weights": {"w": torch.tensor([[4.0, 6.0], [1.0, 2.0]])},
        "buffers": {"count": torch.tensor([7, 9])},
        "variate": {"w": torch.tensor([[0.0, 0.0], [6.0, 8.0]])},
    }
    origins = {"weights": {"w": torch.tensor([1.0, 2.0])}, "buffers": {"count": torch.tensor(0)}}
    norms = update_norms(sent, origins, 2)
    assert norms.tolist() == [5.0, 10.0]
    assert norms.dtype == torch.float64
    for client, norm in enumerate([5.0, 10.0]):
        one = {name: {key: tensor[client] for key, tensor in tensors.items()} for name, tensors in sent.items()}
        assert update_norm(one, origins).tolist() == [norm]


def test_nothing_sent_is_no_change():
    assert update_norm({}, {}).tolist() == update_norm({"weights": {"empty": torch.zeros(0)}}, {}).tolist() == [0.0]
    assert update_norms({}, {}, 2).tolist() == [0.0, 0.0]
    assert update_norms({"weights": {"empty": torch.zeros(2, 0)}}, {}, 2).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("value", [1e30, 3e38, 1e-30])
def test_squares_neither_overflow_nor_vanish(value):
    """Of 100 float32 values, and of more than are taken at a time, whose squares would."""
    for count in (100, 200_000):
        sent = {"weights": {"w": torch.full((1, count), value)}}
        for norm in (update_norms(sent, {}, 1), update_norm(sent, {})):
            assert norm.item() == pytest.approx(count**0.5 * value, rel=1e-6)


@pytest.mark.parametrize("num_clients", [1, 3])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_large_tensors_in_any_layout(num_clients, layout):
    """147,456 values, more than are taken at a time: ``||a - b||`` in float64."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(128, 128, 3, 3, generator=generator)
    sent = torch.randn(num_clients, *start.shape, generator=generator)
    expected = [(one.double() - start.double()).norm().item() for one in sent]
    laid_out = torch.stack([one.contiguous(memory_format=layout) for one in sent])
    origin = start.contiguous(memory_format=layout)
    norms = update_norms({"weights": {"w": laid_out}}, {"weights": {"w": origin}}, num_clients)
    assert norms.tolist() == pytest.approx(expected, rel=1e-6)
    for received in (origin, start):  # the latter lies otherwise under channels last
        alone = update_norm({"weights": {"w": sent[0].contiguous(memory_format=layout)}}, {"weights": {"w": received}})
        assert alone.item() == pytest.approx(expected[0], rel=1e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("count", [3, 200_000])
def test_a_value_that_is_not_finite_shows_in_the_norm(value, count):
    """At the end of a small tensor or a large one, as a change or as a new value; the other client's norm is finite."""
    sent = torch.ones(2, count)
    sent[1, -1] = value
    for origins in ({}, {"weights": {"w": torch.zeros(count)}}):
        assert update_norms({"weights": {"w": sent}}, origins, 2).isfinite().tolist() == [True, False]
        finite = [update_norm({"weights": {"w": one}}, origins).isfinite().item() for one in sent]
        assert finite == [True, False]


@pytest.mark.parametrize("count", [3, 200_000])
def test_a_change_that_float32_does_not_hold(count):
    """From -3e38 to 3e38 is infinite under every engine, whatever the size of the tensor; in float64 it is 6e38."""
    for dtype, norm in ((torch.float32, float("inf")), (torch.float64, count**0.5 * 6e38)):
        new, old = torch.full((count,), 3e38, dtype=dtype), torch.full((count,), -3e38, dtype=dtype)
        assert update_norm({"weights": {"w": new}}, {"weights": {"w": old}}).item() == pytest.approx(norm, rel=1e-6)
        assert update_norms({"weights": {"w": new[None]}}, {"weights": {"w": old}}, 1).item() == pytest.approx(norm, rel=1e-6)
