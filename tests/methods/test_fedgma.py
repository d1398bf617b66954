"""Gradient-masked averaging against its equation 4 in a plain loop."""

import pytest
import torch
from torch import nn

from fl_lightning import FedAvg
from fl_lightning.engines.cohort_share import Rows
from fl_lightning.engines.sums import Sums
from fl_lightning.methods import FedGMA
from fl_lightning.protocol import Reply, Weighted


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "sgd tce", "adam tce"], indirect=True)
@pytest.mark.parametrize("weighting", ["n_weighted", "uniform"])
def test_rounds_equal_equation_4(tiny, weighting):
    """``v <- 0.5 v + mask * sum p_k D_k``, ``x <- x + 0.7 v``: server momentum sees the masked change; three rounds.

    Signs count equally, whatever the clients weigh. With TCE the client of one class does not move at all: its sign is 0.
    Statistics are never masked.
    """
    threshold = 0.7  # below 1, above 2/3: of three clients all must agree
    server = {"server_optimizer": lambda weights: torch.optim.SGD(weights, lr=0.7, momentum=0.5)}
    method, net = tiny.train(FedGMA, threshold=threshold, server_weighting=weighting, **server), tiny.new_net()
    v, agreements = {name: torch.zeros_like(weight) for name, weight in net.named_parameters()}, set()
    for round, cohort in tiny.rounds:
        locals = {client: tiny.visit(net, client, round) for client in cohort}
        new = tiny.mean(locals, uniform=weighting == "uniform")
        for name, x in net.named_parameters():
            moves = [local.get_parameter(name).detach() - x.detach() for local in locals.values()]
            agreement = sum(move.sign() for move in moves).abs() / len(moves)
            agreements.update(agreement.flatten().tolist())
            mask = torch.where(agreement >= threshold, 1.0, agreement)
            v[name] = 0.5 * v[name] + mask * (new[name] - x.detach())
            new[name] = x.detach() + 0.7 * v[name]
        net.load_state_dict(new)
    tiny.assert_same(method.net, net)
    assert {0.0, 1 / 3, 1.0} <= agreements


def test_threshold_0_is_fedavg(tiny):
    """No mask anywhere: bit for bit."""
    tiny.assert_same(tiny.train(FedGMA, threshold=0.0).net, tiny.train(FedAvg).net, atol=0)


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        # Agreements 1, 1/2, 0 and 1/2 of four clients, mean changes 1, 1/2, 0 and 2/4.
        (0.5, [1.0, 0.5, 0.0, 0.5]),  # as good as the threshold is good enough
        (0.51, [1.0, 0.25, 0.0, 0.25]),
        (0.0, [1.0, 0.5, 0.0, 0.5]),
    ],
)
def test_mask_by_hand(threshold, expected):
    """Changes of four weights at four clients: all up; three up, one down; two and two; two up and two not at all."""
    changes = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, -1.0], [1.0, 1.0, -1.0, -1.0], [1.0, 1.0, 0.0, 0.0]])
    method, reduced = FedGMA(nn.Linear(4, 1, bias=False), threshold=threshold), Sums(torch.device("cpu"))
    start = method.net.weight.detach()
    for change in changes.t():
        sent = {"weights": Weighted({"weight": start + change}, 1.0), "buffers": Weighted({}, 1.0)}
        upload = {**sent, "sign": Weighted({"weight": change.sign()[None]}, 1.0)}
        Rows.of(Reply(1, 0, torch.zeros(1), upload), torch.zeros(1)).count(reduced)
    # The optimizer subtracts the pseudo-gradient.
    torch.testing.assert_close(-method.aggregate(reduced).pseudo_gradient["weight"], torch.tensor([expected]))


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan")])
def test_threshold_out_of_range_is_refused(tiny, threshold):
    """One line with the key, the value and what is allowed."""
    with pytest.raises(ValueError, match=rf"^model.threshold is {threshold}, must be between 0 and 1: 0 is FedAvg$"):
        FedGMA(tiny.new_net(), threshold=threshold)
