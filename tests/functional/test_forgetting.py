"""Client and round forgetting against numbers worked out by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.functional import client_forgetting, forgetting_from_best, round_forgetting

NAN = float("nan")
PROPERTY = settings(max_examples=60, deadline=None, derandomize=True)
ACCURACY = st.one_of(st.floats(0, 1), st.just(NAN))


def assert_equal(actual, expected, what):
    expected = torch.tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=0, equal_nan=True, msg=lambda text: f"{what}: {text}")


def naive_mean(values):
    values = [value for value in values if value == value]
    return sum(values) / len(values) if values else NAN


def test_client_forgetting_from_personal_models_by_hand():
    """before ((.5, .8), (.2, .9)), row i the model that client i used: F is ((.9 - .5, .3 - .8), (.4 - .2, 1 - .9))."""
    before = torch.tensor([[0.5, 0.8], [0.2, 0.9]], dtype=torch.float64)
    after = torch.tensor([[0.9, 0.3], [0.4, 1.0]], dtype=torch.float64)
    scores = client_forgetting(before, after)
    assert_equal(scores.forgetting, [[0.4, -0.5], [0.2, 0.1]], "F")
    assert_equal(scores.per_model, [-0.5, 0.2], "per model")
    assert_equal(scores.per_data, [0.2, -0.5], "per data")


def test_client_forgetting_by_hand():
    """before (.5, .8); model 0 scores (.9, .3), model 1 (.4, 1): F is ((.4, -.5), (-.1, .2)).

    Off the diagonal each row and each column has one entry: per model (-.5, -.1), per data (-.1, -.5).
    """
    before = torch.tensor([0.5, 0.8], dtype=torch.float64)
    after = torch.tensor([[0.9, 0.3], [0.4, 1.0]], dtype=torch.float64)
    scores = client_forgetting(before, after)
    assert_equal(scores.forgetting, [[0.4, -0.5], [-0.1, 0.2]], "F")
    assert_equal(scores.per_model, [-0.5, -0.1], "mean per model")
    assert_equal(scores.per_data, [-0.1, -0.5], "mean per dataset")


def test_client_forgetting_of_three_clients_by_hand():
    """before 0, so F = after; per model are the row means and per data the column means without the diagonal.

    Rows (1, 2, 3), (4, 5, 6), (7, 8, 9) in tenths: rows (2+3)/2, (4+6)/2, (7+8)/2; columns (4+7)/2, (2+8)/2, (3+6)/2.
    """
    after = torch.arange(1, 10, dtype=torch.float64).reshape(3, 3) / 10
    scores = client_forgetting(torch.zeros(3, dtype=torch.float64), after)
    assert_equal(scores.per_model, [0.25, 0.5, 0.75], "mean per model")
    assert_equal(scores.per_data, [0.55, 0.5, 0.45], "mean per dataset")


def test_row_mean_of_the_printed_heatmap():
    """A row of ten entries .02, .4, .28, .58, rest 0: 1.28 / 9 = .142, the .14 that the heatmap prints in its last column.

    The diagonal entry, here .9 for the data that the model was trained on, is left out.
    """
    row = [0.02, 0.9, 0.4, 0.0, 0.28, 0.0, 0.58, 0.0, 0.0, 0.0]
    after = torch.zeros(10, 10, dtype=torch.float64)
    after[1] = torch.tensor(row)
    scores = client_forgetting(torch.zeros(10, dtype=torch.float64), after)
    assert scores.per_model[1].item() == pytest.approx(1.28 / 9, abs=1e-7)
    assert f"{scores.per_model[1].item():.2f}" == "0.14"
    # The same entries, one a column, over nine models.
    assert_equal(scores.per_data.float(), [0.02 / 9, 0, 0.4 / 9, 0, 0.28 / 9, 0, 0.58 / 9, 0, 0, 0], "mean per dataset")


def test_client_without_data_is_left_out():
    """Client 1 has no data: its column is NaN and is skipped in the row means, its model still counts in the column means.

    F = ((.1, nan, .3), (.5, nan, .7), (.2, nan, .4)): per model (.3, (.5+.7)/2, .2), per data ((.5+.2)/2, nan, (.3+.7)/2).
    """
    before = torch.tensor([0.0, NAN, 0.0], dtype=torch.float64)
    after = torch.tensor([[0.1, NAN, 0.3], [0.5, NAN, 0.7], [0.2, NAN, 0.4]], dtype=torch.float64)
    scores = client_forgetting(before, after)
    assert_equal(scores.per_model, [0.3, 0.6, 0.2], "mean per model")
    assert_equal(scores.per_data, [0.35, NAN, 0.5], "mean per dataset")


def test_single_client_has_no_others():
    """K = 1: F is the gain on the data of the model itself, both means are over nothing."""
    scores = client_forgetting(torch.tensor([0.25]), torch.tensor([[0.75]]))
    assert_equal(scores.forgetting, [[0.5]], "F")
    assert_equal(scores.per_model, [NAN], "mean per model")
    assert_equal(scores.per_data, [NAN], "mean per dataset")


@PROPERTY
@given(st.integers(1, 5).flatmap(lambda k: st.tuples(*[st.lists(ACCURACY, min_size=k, max_size=k)] * (k + 1))))
def test_client_forgetting_matches_naive_loops(rows):
    """Entry by entry, with NaN anywhere, for up to five clients."""
    before, after = rows[0], list(rows[1:])
    size = len(before)
    expected = [[after[i][k] - before[k] for k in range(size)] for i in range(size)]
    scores = client_forgetting(torch.tensor(before, dtype=torch.float64), torch.tensor(after, dtype=torch.float64))
    assert_equal(scores.forgetting, expected, "F")
    per_model = [naive_mean(expected[i][k] for k in range(size) if k != i) for i in range(size)]
    per_data = [naive_mean(expected[i][k] for i in range(size) if i != k) for k in range(size)]
    assert_equal(scores.per_model, per_model, "mean per model")
    assert_equal(scores.per_data, per_data, "mean per dataset")


def test_client_forgetting_leaves_its_arguments_alone():
    """Neither argument is written to."""
    before, after = torch.tensor([0.1, 0.2]), torch.tensor([[0.3, 0.4], [0.5, 0.6]])
    copies = before.clone(), after.clone()
    client_forgetting(before, after)
    assert torch.equal(before, copies[0])
    assert torch.equal(after, copies[1])


@pytest.mark.parametrize(("before", "after"), [((3,), (3, 2)), ((3,), (2, 3)), ((3,), (3,)), ((3, 1), (3, 3)), ((), (1, 1))])
def test_client_forgetting_names_wrong_shapes(before, after):
    """Anything but (K,) and (K, K) is refused with both shapes in the message."""
    with pytest.raises(ValueError) as error:
        client_forgetting(torch.zeros(before), torch.zeros(after))
    assert str(before) in str(error.value)
    assert str(after) in str(error.value)


def test_round_forgetting_counts_drops_only():
    """(.9, .5, .2, .4) to (.6, .7, .2, .3): drops .3, 0, 0, .1 over four classes, .4 / 4 = .1."""
    previous = torch.tensor([0.9, 0.5, 0.2, 0.4], dtype=torch.float64)
    current = torch.tensor([0.6, 0.7, 0.2, 0.3], dtype=torch.float64)
    assert_equal(round_forgetting(previous, current), 0.1, "F_t")


def test_gains_are_not_counted_and_do_not_cancel():
    """Gains alone give 0; a gain of .5 and a drop of .5 leave .5 / 2."""
    low, high = torch.tensor([0.1, 0.2]), torch.tensor([0.8, 0.9])
    assert round_forgetting(low, high).item() == 0.0
    assert round_forgetting(torch.tensor([0.0, 0.5]), torch.tensor([0.5, 0.0])).item() == 0.25


def test_all_forgotten_is_one():
    """From all right to all wrong every class drops by 1."""
    assert round_forgetting(torch.ones(7), torch.zeros(7)).item() == 1.0


@pytest.mark.parametrize(
    ("previous", "current", "expected"),
    [
        ([0.8, NAN, 0.4], [0.5, 0.9, 0.3], 0.4 / 2),
        ([0.8, 0.1, 0.4], [0.5, NAN, 0.3], 0.4 / 2),
        ([NAN, 0.6], [0.3, NAN], NAN),
    ],
)
def test_classes_without_samples_are_left_out(previous, current, expected):
    """A NaN on either side drops the class from the sum and from C: (.3 + .1) / 2; with no class left the result is NaN."""
    previous, current = (torch.tensor(values, dtype=torch.float64) for values in (previous, current))
    assert_equal(round_forgetting(previous, current), expected, "F_t")


@PROPERTY
@given(st.lists(st.tuples(ACCURACY, ACCURACY), min_size=1, max_size=8))
def test_round_forgetting_matches_naive_loop_and_is_never_negative(pairs):
    """-(1/C) sum min(0, new - old) over classes with both values, in [0, 1]."""
    previous, current = (torch.tensor(values, dtype=torch.float64) for values in zip(*pairs, strict=True))
    actual = round_forgetting(previous, current)
    expected = naive_mean(-min(0.0, new - old) for old, new in pairs if old == old and new == new)
    assert_equal(actual, expected, "F_t")
    assert actual.isnan() or 0 <= actual.item() <= 1


def test_round_forgetting_names_wrong_shapes():
    """Different numbers of classes are refused with both shapes in the message."""
    with pytest.raises(ValueError, match=r"previous has shape \(10,\) and current \(9,\)"):
        round_forgetting(torch.zeros(10), torch.zeros(9))


def test_forgetting_from_best_by_hand():
    """Classes (.9, .4, .6), (.2, .5, .7) and one without samples: (.9 - .6, .5 - .7), mean (.3 - .2) / 2 = .05."""
    accuracies = torch.tensor([[0.9, 0.2, NAN], [0.4, 0.5, NAN], [0.6, 0.7, NAN]], dtype=torch.float64)
    assert_equal(forgetting_from_best(accuracies), 0.05, "F")
    assert_equal(forgetting_from_best(accuracies[:, 2:]), NAN, "F of no class")


def test_forgetting_from_best_wants_two_rounds():
    with pytest.raises(ValueError, match=r"accuracies has shape \(1, 3\), must be \(T, C\) with T at least 2"):
        forgetting_from_best(torch.zeros(1, 3))
