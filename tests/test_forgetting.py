"""Every definition of forgetting against loops written from its source, and how the definitions convert into each other."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from fl_lightning.forgetting import DEFINITIONS
from fl_lightning.functional import (
    average_forgetting,
    average_incremental_accuracy,
    backward_transfer,
    fed_mammoth_forgetting,
    forward_transfer,
    intransigence,
    loss_increase,
    mammoth_forgetting,
)

PROPERTY = settings(max_examples=50, deadline=None, derandomize=True)


def matrices(least: float = 0.0, square: bool = True) -> SearchStrategy[list[list[float]]]:
    """Of two to five rows; with as many columns, or some."""

    def of(rows: int) -> SearchStrategy[list[list[float]]]:
        columns = st.just(rows) if square else st.integers(1, 4)
        value = st.floats(least, 1)
        return columns.flatmap(lambda n: st.lists(st.lists(value, min_size=n, max_size=n), min_size=rows, max_size=rows))

    return st.integers(2, 5).flatmap(of)


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def client(f):
    return mean(f[i][k] for i in range(len(f)) for k in range(len(f)) if i != k)


def client_worst(f):
    return min(mean(f[i][k] for i in range(len(f)) if i != k) for k in range(len(f)))


def flashback_round(a):
    classes = range(len(a[0]))
    return mean(-mean(min(0, a[t][c] - a[t - 1][c]) for c in classes) for t in range(1, len(a)))


def flashback(a):
    return mean(max(a[t][c] - a[-1][c] for t in range(len(a) - 1)) for c in range(len(a[0])))


def chaudhry(a):
    return mean(max(a[t][i] - a[-1][i] for t in range(i, len(a) - 1)) for i in range(len(a) - 1))


def gem(a):
    return mean(a[-1][i] - a[i][i] for i in range(len(a) - 1))


def mammoth(a):
    """Rows as long as tasks were learned, filled with zeros."""
    rows = [[*row[: t + 1], *[0.0] * (len(a) - t - 1)] for t, row in enumerate(a)]
    return mean(max(row[i] for row in rows) - rows[-1][i] for i in range(len(a) - 1))


def fed_mammoth(a):
    return mean(a[i][i] - a[-1][i] for i in range(len(a)))


def flashback_local(f):
    return mean(mean(-min(0, change) for change in client) for client in f)


def fedreg(f):
    return mean(mean(row[i] for row in f) for i in range(len(f[0])))


def average_incremental(a):
    return mean(mean(a[t][: t + 1]) for t in range(len(a)))


def forward(a, untrained):
    return mean(a[i - 1][i] - untrained[i] for i in range(1, len(a)))


def intransigent(a, joint):
    return mean(joint[i] - a[i][i] for i in range(len(a)))


def avalanche(a):
    """As the stream's metric is kept: the first accuracy on each experience when it was trained on, and the last one after;
    that of the experience just trained on has no last one."""
    first, last = {}, {}
    for t, row in enumerate(a):
        last.clear()
        for i, value in enumerate(row):
            (first if i == t else last)[i] = value
    return mean(first[i] - last[i] for i in first if i in last)


LOOPS = {
    "flashback_local": flashback_local,
    "fedreg": fedreg,
    "average_accuracy": lambda a: mean(a[-1]),
    "average_incremental_accuracy": average_incremental,
    "forward_transfer": forward,
    "intransigence": intransigent,
    "client": client,
    "client_worst": client_worst,
    "flashback_round": flashback_round,
    "flashback": flashback,
    "fedntd": flashback,
    "chaudhry": chaudhry,
    "gem": gem,
    "mammoth": mammoth,
    "fed_mammoth": fed_mammoth,
}


@pytest.mark.parametrize("name", DEFINITIONS)
@PROPERTY
@given(data=st.data())
def test_a_definition_is_the_loop_of_its_source_and_within_its_range(name, data):
    one = DEFINITIONS[name]
    is_change = one.matrix in ("clients", "local", "losses")
    matrix = data.draw(matrices(-1.0 if is_change else 0.0, square=one.matrix in ("clients", "tasks")))
    references = [data.draw(st.lists(st.floats(0, 1), min_size=len(matrix), max_size=len(matrix)))] if one.reference else []
    tensors = [torch.tensor(values, dtype=torch.float64) for values in (matrix, *references)]
    score = float(one.score(*tensors))
    assert score == pytest.approx(LOOPS[name](matrix, *references), abs=1e-12)
    assert one.low <= score <= one.high
    assert one.shown(*tensors) == (one.sign or 1) * score


@pytest.mark.parametrize("name", [name for name, one in DEFINITIONS.items() if one.matrix == "tasks" and one.sign])
def test_one_task_forgets_nothing(name):
    assert DEFINITIONS[name].score(torch.tensor([[0.7]])) == 0


@PROPERTY
@given(matrices())
def test_how_the_definitions_of_tasks_convert(rows):
    """fed-mammoth's is -(T-1)/T of backward transfer; mammoth's counts a gain of Chaudhry's as 0; both are Chaudhry's where
    every task is best right after it was learned, up to the factor."""
    a = torch.tensor(rows, dtype=torch.float64)
    T = len(a)
    torch.testing.assert_close(fed_mammoth_forgetting(a), -(T - 1) / T * backward_transfer(a))
    drops = [max(0.0, max(float(a[t, i] - a[-1, i]) for t in range(i, T - 1))) for i in range(T - 1)]
    assert float(mammoth_forgetting(a)) == pytest.approx(mean(drops), abs=1e-12)
    assert avalanche(rows) == pytest.approx(-float(backward_transfer(a)), abs=1e-12)
    falling = a.cummin(dim=0).values
    torch.testing.assert_close(average_forgetting(falling), mammoth_forgetting(falling))
    torch.testing.assert_close(average_forgetting(falling), -backward_transfer(falling))


def test_transfer_intransigence_and_incremental_accuracy_by_hand():
    """Forward ((.3 - .1) + (.4 - .2)) / 2; intransigence (0 + .1 - .1) / 3; (.9 + (.6 + .5) / 2 + (.3 + .6 + .9) / 3) / 3."""
    a = torch.tensor([[0.9, 0.3, 0.0], [0.6, 0.5, 0.4], [0.3, 0.6, 0.9]], dtype=torch.float64)
    assert float(forward_transfer(a, torch.tensor([0.5, 0.1, 0.2]))) == pytest.approx(0.2)
    assert float(intransigence(a, torch.tensor([0.9, 0.6, 0.8]))) == pytest.approx(0.0, abs=1e-7)
    assert float(average_incremental_accuracy(a)) == pytest.approx((0.9 + 0.55 + 0.6) / 3)
    assert forward_transfer(a[:1, :1], torch.tensor([0.5])) == 0


@pytest.mark.parametrize(("score", "name"), [(forward_transfer, "untrained"), (intransigence, "joint")])
def test_a_reference_of_another_length_is_named(score, name):
    with pytest.raises(ValueError, match=rf"{name} has shape \(3,\), must be \(2,\)"):
        score(torch.zeros(2, 2), torch.zeros(3))


@pytest.mark.parametrize("name", ["flashback", "flashback_round", "fedntd"])
def test_a_single_round_is_refused(name):
    with pytest.raises(ValueError, match=r"accuracies has shape \(1, 3\), must be \(T, C\) with T at least 2"):
        DEFINITIONS[name].shown(torch.zeros(1, 3))


def test_lost_models_are_left_out_of_the_loss_increase():
    """The first model is NaN: (1 - .5 + 2 - 1) / 2."""
    after = torch.tensor([[math.nan, math.inf], [1.0, 2.0]])
    assert float(loss_increase(torch.tensor([0.5, 1.0]), after)) == 0.75


def test_missing_values_are_left_out():
    """Classes and clients without samples are NaN; a federation of one client has no other."""
    classes = torch.tensor([[0.5, math.nan], [0.25, math.nan]])
    assert float(DEFINITIONS["flashback"].score(classes)) == float(DEFINITIONS["flashback_round"].score(classes)) == 0.25
    change = torch.tensor([[0.5, math.nan], [-0.25, math.nan]])
    assert DEFINITIONS["client"].shown(change) == DEFINITIONS["client_worst"].shown(change) == 0.25
    assert math.isnan(DEFINITIONS["client"].shown(torch.tensor([[0.5]])))
