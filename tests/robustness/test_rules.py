"""Robust rules against their equations in plain loops of float64, and against byzfl where it is installed."""

import math

import pytest
import torch
from torch import Tensor, nn

from fl_lightning import FedAvg
from fl_lightning.robustness import RFA, Aggregation, CenteredClipping, CoordinateMedian, Krum, TrimmedMean


def vectors(count: int, size: int = 7, seed: int = 0) -> Tensor:
    """Honest ones about (1, 1, ...), and a far one at the end."""
    drawn = 1 + torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    drawn[-1] *= -20
    return drawn


def combined(rule: Aggregation, x: Tensor) -> Tensor:
    """As a single weight of the net."""
    return rule.combine({"weight": x}, ["weight"])["weight"]


def norm(vector: list[float]) -> float:
    return math.sqrt(sum(value**2 for value in vector))


def less(one: list[float], other: list[float]) -> list[float]:
    return [a - b for a, b in zip(one, other, strict=True)]


def mean(rows: list[list[float]], weights: list[float] | None = None) -> list[float]:
    weights = weights or [1.0] * len(rows)
    columns = zip(*rows, strict=True)
    return [sum(w * value for w, value in zip(weights, column, strict=True)) / sum(weights) for column in columns]


def median(rows: list[list[float]]) -> list[float]:
    middle = len(rows) // 2
    columns = [sorted(column) for column in zip(*rows, strict=True)]
    return [column[middle] if len(rows) % 2 else (column[middle - 1] + column[middle]) / 2 for column in columns]


def trimmed(rows: list[list[float]], f: int) -> list[float]:
    kept = [sorted(column)[f : len(rows) - f] for column in zip(*rows, strict=True)]
    return [sum(column) / len(column) for column in kept]


def krum(rows: list[list[float]], f: int, m: int) -> list[float]:
    """Blanchard et al., Section 4: scores over the n - f - 2 closest others."""
    scores = []
    for i, row in enumerate(rows):
        squares = sorted(norm(less(row, other)) ** 2 for j, other in enumerate(rows) if j != i)
        scores.append((sum(squares[: len(rows) - f - 2]), i))
    return mean([rows[i] for _, i in sorted(scores)[:m]])


def weiszfeld(rows: list[list[float]], iterations: int, nu: float) -> list[float]:
    v = [0.0] * len(rows[0])
    for _ in range(iterations):
        v = mean(rows, [1 / max(nu, norm(less(row, v))) for row in rows])
    return v


def clipped(rows: list[list[float]], radius: float, iterations: int) -> list[float]:
    v = [0.0] * len(rows[0])
    for _ in range(iterations):
        steps = [[min(1.0, radius / norm(less(row, v))) * move for move in less(row, v)] for row in rows]
        v = [old + move for old, move in zip(v, mean(steps), strict=True)]
    return v


CASES = [
    (CoordinateMedian(), median),
    (TrimmedMean(0), lambda rows: trimmed(rows, 0)),
    (TrimmedMean(2), lambda rows: trimmed(rows, 2)),
    (Krum(0), lambda rows: krum(rows, 0, 1)),
    (Krum(2), lambda rows: krum(rows, 2, 1)),
    (Krum(2, kept=4), lambda rows: krum(rows, 2, 4)),
    (RFA(3), lambda rows: weiszfeld(rows, 3, 1e-6)),
    (RFA(40, nu=0.5), lambda rows: weiszfeld(rows, 40, 0.5)),
    (CenteredClipping(1.5), lambda rows: clipped(rows, 1.5, 1)),
    (CenteredClipping(0.5, iterations=6), lambda rows: clipped(rows, 0.5, 6)),
]


@pytest.mark.parametrize("count", [7, 10])
@pytest.mark.parametrize(("rule", "loop"), CASES, ids=lambda part: repr(part) if isinstance(part, Aggregation) else "")
def test_rules_equal_their_equations(rule, loop, count):
    x = vectors(count)
    torch.testing.assert_close(combined(rule, x), torch.tensor(loop(x.tolist()), dtype=torch.float64))


@pytest.mark.parametrize("count", [9, 12])
def test_rules_equal_byzfl(count):
    """Its Krum sums over one neighbour more, as if f were less by one, and its Multi-Krum then keeps n - f - 1."""
    byzfl = pytest.importorskip("byzfl", reason="byzfl is not installed")
    x = vectors(count, seed=count)
    pairs = [
        (CoordinateMedian(), byzfl.Median()),
        (TrimmedMean(2), byzfl.TrMean(2)),
        (Krum(2), byzfl.Krum(3)),
        (Krum(2, kept=count - 3), byzfl.MultiKrum(3)),
        (RFA(4, nu=0.1), byzfl.GeometricMedian(nu=0.1, T=4)),
        (CenteredClipping(2.0, iterations=3), byzfl.CenteredClipping(L=3, tau=2.0)),
    ]
    for ours, theirs in pairs:
        expected = torch.as_tensor(theirs(x.numpy()))  # of a tensor it takes the lower of two medians
        torch.testing.assert_close(combined(ours, x), expected, msg=lambda text, rule=ours: f"{rule}: {text}")


@pytest.mark.parametrize("rule", [CoordinateMedian(), TrimmedMean(1), Krum(1), Krum(1, kept=4), RFA(), CenteredClipping()])
def test_one_hostile_vector_moves_the_result_little(rule):
    """However far it is, where the mean follows it."""
    near, far = vectors(8), vectors(8)
    near[-1], far[-1] = 1.0, 1e6
    assert (combined(rule, far) - combined(rule, near)).norm() < 3
    assert (far.mean(dim=0) - near.mean(dim=0)).norm() > 1e5


@pytest.mark.parametrize("rest", [0.0, 1e-4, 0.01])
@pytest.mark.parametrize("far", [1.0, 1e3, 1e6])
def test_rfa_ends_at_the_geometric_median(rest, far):
    """Where unit vectors to all updates cancel; also if two clients change nothing or little, where the iterations begin."""
    x = vectors(10)
    x[:2] *= rest
    x[-1] *= far
    directions = x - combined(RFA(), x)
    assert (directions / directions.norm(dim=1, keepdim=True)).sum(dim=0).norm() < 1e-6


@pytest.mark.parametrize("rule", [rule for rule, _ in CASES])
def test_the_order_of_clients_does_not_matter(rule):
    x = vectors(10)
    torch.testing.assert_close(combined(rule, x.flip(0)), combined(rule, x))


@pytest.mark.parametrize("rule", [CoordinateMedian(), TrimmedMean(1), Krum(1), RFA()])
def test_equal_vectors_are_the_result(rule):
    """Distances of 0 among them."""
    equal = torch.full((7, 3), 2.0, dtype=torch.float64)
    torch.testing.assert_close(combined(rule, equal), equal[0])


@pytest.mark.parametrize(
    ("rule", "least"), [(CoordinateMedian(), 1), (TrimmedMean(3), 7), (Krum(2), 7), (Krum(1, kept=6), 7), (RFA(), 1)]
)
def test_a_rule_combines_as_few_vectors_as_it_needs(rule, least):
    assert rule.least == least
    assert combined(rule, vectors(least)).isfinite().all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TrimmedMean(-1), "model.aggregation.hostile is -1, must be at least 0: 0 is the mean"),
        (lambda: Krum(-1), "model.aggregation.hostile is -1, must be at least 0"),
        (lambda: Krum(kept=0), "model.aggregation.kept is 0, must be at least 1: 1 is Krum"),
        (lambda: RFA(0), "model.aggregation.iterations is 0, must be at least 1: such as 100"),
        (lambda: RFA(nu=0.0), "model.aggregation.nu is 0.0, must be above 0 and finite: 1e-6 is the paper's"),
        (lambda: CenteredClipping(math.inf), "model.aggregation.radius is inf, must be above 0 and finite: it is the norm of"),
        (lambda: TrimmedMean(0.1), "model.aggregation.hostile is 0.1, must be a whole number: 0 is the mean"),
        (lambda: Krum(1.0), "model.aggregation.hostile is 1.0, must be a whole number"),
        (lambda: Krum(kept=1.5), "model.aggregation.kept is 1.5, must be a whole number: 1 is Krum"),
        (lambda: RFA(1.5), "model.aggregation.iterations is 1.5, must be a whole number: such as 100"),
        (lambda: CenteredClipping(iterations=1.5), "model.aggregation.iterations is 1.5, must be a whole number: 1 is the"),
        (lambda: CenteredClipping(iterations=0), "model.aggregation.iterations is 0, must be at least 1: 1 is the paper's"),
    ],
)
def test_values_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("rule", [CoordinateMedian(), RFA(), CenteredClipping()])
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_running_statistics_keep_no_graph(fit, toy_data, engine, rule):
    """The shares of some rules are functions of the clients' weights: a graph would keep the models of all rounds."""
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()
    method = FedAvg(net, aggregation=rule, engine=engine)
    fit(method, toy_data(cohorts=[[0, 1, 2]] * 2), 2, precision="64-true")
    assert not any(buffer.requires_grad for buffer in method.net.buffers())
