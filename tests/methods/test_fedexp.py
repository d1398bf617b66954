"""FedExP against its Algorithm 1 in a plain loop."""

import pytest
import torch
from torch import nn

from fl_lightning import FedAvg
from fl_lightning.engines.cohort_share import Rows
from fl_lightning.engines.sums import Sums
from fl_lightning.methods import FedExP
from fl_lightning.protocol import Reply, Weighted


@pytest.mark.parametrize("tiny", ["sgd", "momentum tce", "adam"], indirect=True)
@pytest.mark.parametrize("weighting", ["n_weighted", "uniform"])
def test_rounds_equal_algorithm_1(tiny, weighting):
    """``x <- x + max(1, sum p_k |D_k|^2 / (2 (|D|^2 + eps))) D`` with ``D = sum p_k D_k`` over all weights, three rounds.

    Statistics of BatchNorm are averaged.
    """
    eps, factors = 1e-4, []
    method, net = tiny.train(FedExP, eps=eps, server_weighting=weighting), tiny.new_net()
    for round, cohort in tiny.rounds:
        locals = {client: tiny.visit(net, client, round) for client in cohort}
        new = tiny.mean(locals, uniform=weighting == "uniform")
        received = {name: x.detach().clone() for name, x in net.named_parameters()}
        sizes = {client: 1 if weighting == "uniform" else tiny.shard_sizes[client] for client in cohort}
        squares = {
            client: sum((w.detach() - received[name]).square().sum() for name, w in local.named_parameters())
            for client, local in locals.items()
        }
        spread = sum(size * squares[client] for client, size in sizes.items()) / sum(sizes.values())
        square = sum((new[name] - x).square().sum() for name, x in received.items())
        factors.append(max(1.0, float(spread / (2 * (square + eps)))))
        for name, x in received.items():
            new[name] = x + factors[-1] * (new[name] - x)
        net.load_state_dict(new)
    tiny.assert_same(method.net, net)
    assert max(factors) > 1.2


@pytest.mark.parametrize(
    ("moves", "eps", "expected"),
    [
        # Squared norms 1 on average, of the mean 1/3: 1 / (2/3), or with eps = 1/24, 1 / (2 * 9/24).
        ([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], 1e-12, 1.5),
        ([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], 1 / 24, 4 / 3),
        # All agree: 1/2, which 1 takes the place of.
        ([[1.0, 2.0, 0.0], [1.0, 2.0, 0.0], [1.0, 2.0, 0.0]], 1e-12, 1.0),
        # Nobody moves.
        ([[0.0, 0.0, 0.0]] * 3, 1e-3, 1.0),
    ],
)
def test_factor_by_hand(moves, eps, expected):
    """Three clients of equal weight, whose uploads are summed as an engine does."""
    method = FedExP(nn.Linear(3, 1, bias=False).double(), eps=eps)
    start, reduced = method.net.weight.detach(), Sums(torch.device("cpu"))
    moves = torch.tensor(moves, dtype=torch.float64)
    for move in moves:
        sent = {"weights": Weighted({"weight": start + move}, 1.0), "buffers": Weighted({}, 1.0)}
        upload = {**sent, "squared_norm": Weighted({"squared_norm": move.square().sum()}, 1.0)}
        Rows.of(Reply(1, 0, torch.zeros(1), upload), torch.zeros(1)).count(reduced)
    step = -method.aggregate(reduced).pseudo_gradient["weight"]
    torch.testing.assert_close(step, expected * moves.mean(dim=0)[None], atol=1e-9, rtol=0)


def test_a_large_eps_is_fedavg(tiny):
    """The factor is 1 in every round: bit for bit."""
    tiny.assert_same(tiny.train(FedExP, eps=1e300).net, tiny.train(FedAvg).net, atol=0)


@pytest.mark.parametrize("eps", [0.0, -1.0, float("nan")])
def test_eps_out_of_range_is_refused(tiny, eps):
    """One line with the key, the value and what is allowed."""
    with pytest.raises(ValueError, match=rf"^model.eps is {eps}, must be above 0: the authors' code has 0.001$"):
        FedExP(tiny.new_net(), eps=eps)
