"""The weighted mean of state dicts against exact fractions."""

from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fl_lightning.functional import weighted_average
from fl_lightning.functional.aggregation import less_mean

PROPERTY = settings(max_examples=80, deadline=None, derandomize=True)


def test_a_boolean_is_what_more_than_half_of_the_weights_say():
    states = [{"mask": torch.tensor([True, True])}, {"mask": torch.tensor([False, True])}]
    assert weighted_average(states, [1, 9])["mask"].tolist() == [False, True]


def test_weighted_average_by_hand():
    """Weights 1 and 3 of (1, 2) and (5, -2): (1 + 15)/4 = 4 and (2 - 6)/4 = -1; a scalar 0 and 8 gives 6."""
    states = [{"w": torch.tensor([1.0, 2.0]), "b": torch.tensor(0.0)}, {"w": torch.tensor([5.0, -2.0]), "b": torch.tensor(8.0)}]
    mean = weighted_average(states, [1, 3])
    assert mean["w"].tolist() == [4.0, -1.0]
    assert mean["b"].item() == 6.0
    assert list(mean) == ["w", "b"]


def test_means_are_taken_from_tensors_that_lie_otherwise():
    """In the type and memory format of the tensors, rounded once: 1 + 2^-24 - 1, which float32 cannot hold, is 2^-24."""
    kernel = torch.arange(24.0).reshape(2, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    tensors = {"kernel": kernel, "bias": torch.ones(2, dtype=torch.bfloat16), "kept": torch.ones(1), "one": torch.ones(1)}
    means = {
        "bias": torch.tensor([0.5, 3.0], dtype=torch.float64),
        "kernel": torch.full((2, 3, 2, 2), 0.25, dtype=torch.float64),
        "one": torch.tensor([1 + 2**-24], dtype=torch.float64),
    }
    differences = less_mean(tensors, means)
    assert list(differences) == list(means)
    assert torch.equal(differences["kernel"], kernel - 0.25)
    assert differences["kernel"].stride() == kernel.stride()
    assert differences["bias"].dtype == torch.bfloat16
    assert differences["bias"].tolist() == [0.5, -2.0]
    assert differences["one"].tolist() == [-(2.0**-24)]
    assert less_mean(tensors, {}) == {}


def test_weights_need_not_sum_to_one():
    """Only the proportions matter: 8 and 16 weighted 1 to 3 give (8 + 48)/4 = 14, however the weights are scaled."""
    states = [{"w": torch.tensor([8.0])}, {"w": torch.tensor([16.0])}]
    for weights in ([1, 3], [25, 75], torch.tensor([2, 6]), torch.tensor([0.5, 1.5])):
        assert weighted_average(states, weights)["w"].item() == 14.0, weights


def test_weight_zero_leaves_a_state_out():
    """A client of weight 0 changes nothing."""
    assert weighted_average([{"w": torch.tensor([3.0])}, {"w": torch.tensor([1e30])}], [2, 0])["w"].item() == 3.0


def test_accumulation_is_in_float64():
    """One state holds 10001 and 10,000 hold 5e-4: the mean is (10001 + 5)/10001 = 1.0005.

    The first contributes 1 and each other 5e-8, less than half of float32's spacing at 1 (1.2e-7): float32 sums stay at 1.
    """
    states = [{"w": torch.tensor([10001.0])}] + [{"w": torch.tensor([5e-4])}] * 10000
    mean = weighted_average(states, [1.0] * 10001)["w"]
    assert mean.dtype == torch.float32
    assert mean.item() == pytest.approx(10006 / 10001, abs=1e-7)


def test_cancellation_survives():
    """1e8 + 1 - 1e8 is lost in float32 (spacing 8) and exact in float64: the mean of the three is 1/3."""
    states = [{"w": torch.tensor(value)} for value in (1e8, 1.0, -1e8)]
    assert weighted_average(states, [1, 1, 1])["w"].item() == pytest.approx(1 / 3, abs=1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.int32])
def test_dtype_of_every_tensor_is_kept(dtype):
    """The mean of 2 and 4 is 3 in each dtype."""
    mean = weighted_average([{"w": torch.tensor([2], dtype=dtype)}, {"w": torch.tensor([4], dtype=dtype)}], [1, 1])["w"]
    assert mean.dtype == dtype
    assert mean.item() == 3


def test_integers_are_truncated():
    """num_batches_tracked 3 and 4 with weights 1 and 3: 15/4 = 3.75, kept as 3; -3 and -4 give -3."""
    states = [{"n": torch.tensor(3), "m": torch.tensor(-3)}, {"n": torch.tensor(4), "m": torch.tensor(-4)}]
    mean = weighted_average(states, [1, 3])
    assert mean["n"].dtype == torch.int64
    assert mean["n"].item() == 3
    assert mean["m"].item() == -3


@PROPERTY
@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 2000)), min_size=1, max_size=20))
@example([(1, 1)] * 10)
@example([(7, 450)] * 10)
def test_integer_mean_is_the_truncated_exact_mean(pairs):
    """Equal counters stay what they are, others are the exact fraction cut off, for numbers of samples as weights."""
    exact = sum(Fraction(value * weight) for value, weight in pairs) / sum(weight for _, weight in pairs)
    mean = weighted_average([{"n": torch.tensor(value)} for value, _ in pairs], [weight for _, weight in pairs])
    assert mean["n"].item() == int(exact)


@PROPERTY
@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6, width=32), st.integers(1, 2000)), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_order_of_clients_does_not_matter(pairs, random):
    """Shuffled clients give the same float64 mean to rounding, which is that of exact fractions."""
    exact = float(sum(Fraction(value) * weight for value, weight in pairs) / sum(weight for _, weight in pairs))
    shuffled = random.sample(pairs, len(pairs))
    largest = max(abs(value) for value, _ in pairs)
    for order in (pairs, shuffled):
        states = [{"w": torch.tensor(value, dtype=torch.float64)} for value, _ in order]
        mean = weighted_average(states, [weight for _, weight in order])["w"].item()
        assert mean == pytest.approx(exact, abs=1e-14 * largest + 1e-300)


def test_arguments_are_left_alone_and_not_shared():
    """The states are not written to, and the mean of a single state is a copy of it."""
    state = {"w": torch.tensor([1.0, 2.0], dtype=torch.float64)}
    mean = weighted_average([state], [5])
    mean["w"] += 1
    assert state["w"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("states", "weights", "message"),
    [
        ([], [], "0 states and 0 weights"),
        ([{"w": torch.zeros(1)}], [1, 2], "1 states and 2 weights"),
        ([{"w": torch.zeros(1)}] * 2, [1], "2 states and 1 weights"),
        ([{"w": torch.zeros(1)}] * 2, [2, -1], r"weights are \[2.0, -1.0\]"),
        ([{"w": torch.zeros(1)}] * 2, [0, 0], r"weights are \[0.0, 0.0\]"),
        ([{"w": torch.zeros(1)}] * 2, [1, float("nan")], r"weights are \[1.0, nan\]"),
        ([{"w": torch.zeros(1)}, {"v": torch.zeros(1)}], [1, 1], "differ in their names"),
        ([{"w": torch.zeros(1)}, {"w": torch.zeros(1), "v": torch.zeros(1)}], [1, 1], "differ in their names"),
    ],
)
def test_errors_name_what_is_wrong(states, weights, message):
    """Counts, weights and names are checked before anything is averaged; a NaN weight is not at least 0 either."""
    with pytest.raises(ValueError, match=message):
        weighted_average(states, weights)
