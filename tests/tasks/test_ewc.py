"""EWC against a sum over tasks, one after another, with a Fisher information of samples, one after another."""

import pytest
import torch
from pairs import Pair

from fl_lightning.methods import FedAvg, FedProx, LocalOnly
from fl_lightning.tasks import EWC

PENALTY, MU = 2.0, 0.3


@pytest.mark.parametrize("method", [Pair(kind, EWC) for kind in (LocalOnly, FedAvg, FedProx)])
def test_all_tasks_equal_the_sum_over_tasks(tiny, method):
    """``lambda/2 * sum_j sum_i F_ji (w_i - theta_ji)^2`` on the body, j over the client's earlier tasks.

    theta_j are the client's weights when task j ended, not the mean of clients. FedProx's pull comes on top.
    """
    learned = {}

    def penalty(visit, weights):
        earlier = [learned[visit.client, j] for j in range(visit.position)]
        value = PENALTY / 2 * sum((F[n] * (weights[n] - theta[n]) ** 2).sum() for F, theta in earlier for n in tiny.body)
        pull = sum(((weights[n] - visit.received[n]) ** 2).sum() for n in tiny.body)
        return value + (method.method is FedProx) * MU / 2 * pull

    def after_fit(visit, weights):
        if visit.is_last:
            learned[visit.client, visit.position] = (tiny.fisher(weights, visit.client), dict(weights))

    settings = {"mu": MU} if method.method is FedProx else {}
    trained = tiny.train(method, penalty=PENALTY, **settings)
    expected = tiny.plain(penalty, after_fit=after_fit, federated=method.is_federated)
    tiny.assert_plain(trained, expected)
    tiny.assert_moved(expected.now[0], tiny.body)
    for client in range(3):
        state = trained.stored.states.read(client)
        for name in tiny.body:
            sums = torch.stack([learned[client, j][0][name] for j in range(3)]).sum(dim=0)
            torch.testing.assert_close(state.method["tasks"]["earlier_fisher"][name], sums, atol=1e-9, rtol=0)
        assert state.method["tasks"]["earlier_fisher"].keys() == state.method["tasks"]["earlier_anchor"].keys() == {*tiny.body}
    assert all(report.bytes_up == report.bytes_down == 0 for report in trained.seen.rounds) == (not method.is_federated)


def test_clients_that_are_sampled_now_and_then(tiny):
    """A task's Fisher information is taken at the client's last visit in it."""
    learned = {}

    def penalty(visit, weights):
        earlier = [learned[visit.client, j] for j in range(visit.position) if (visit.client, j) in learned]
        return PENALTY / 2 * sum((F[n] * (weights[n] - theta[n]) ** 2).sum() for F, theta in earlier for n in tiny.body)

    def after_fit(visit, weights):
        if visit.is_last:
            learned[visit.client, visit.position] = (tiny.fisher(weights, visit.client), dict(weights))

    trained = tiny.train(EWC, tiny.new_data(cohorts=tiny.cohorts), penalty=PENALTY)
    tiny.assert_plain(trained, tiny.plain(penalty, after_fit=after_fit, cohorts=tiny.cohorts))


def test_settings_out_of_range_are_refused(tiny):
    """One line with the key, the value and what is allowed."""
    with pytest.raises(ValueError, match=r"^model.tasks.penalty is -1.0, must be at least 0: 0 holds nothing back$"):
        EWC(penalty=-1.0)
