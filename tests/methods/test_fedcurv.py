"""FedCurv against equation 3 in a plain loop that sums over the other clients one by one."""

import pytest
from declared_by_tests import Cost

from fl_lightning import FedAvg
from fl_lightning.methods import FedCurv

COSTS = {
    "FedCurv": Cost(down=(1, 2, 0), up=(1, 1, 0), client=(0, 2, 8), server=(0, 2, 0)),
    "FedCurv, all": Cost((1, 2, 0), (1, 2, 0), (0, 2, 8), (0, 2, 0), settings={"remember": "all"}),
}

PENALTY = 0.7


def plain_fedcurv(tiny, remember, rounds, lost=()):
    """``f_s(w) + lambda sum_{j != s} sum_i F_ji (w_i - theta_ji)^2``; returns the weights and (F_j, theta_j) by client.

    Args:
        lost: clients whose uploads do not count.
    """
    net, known = tiny.new_net(), {}

    def objective(local, received, client, inputs, targets):
        value = tiny.losses(local(inputs), targets, client).mean()
        for j, (fisher, theta) in known.items():
            for name, w in local.named_parameters():
                value = value + (j != client) * PENALTY * (fisher[name] * (w - theta[name]) ** 2).sum()
        return value

    for round, cohort in rounds:
        locals = {client: tiny.visit(net, client, round, objective) for client in cohort if client not in lost}
        known = {} if remember == "last_round" else known
        for client, local in locals.items():
            theta = {name: weight.detach().clone() for name, weight in local.named_parameters()}
            known[client] = (tiny.fisher(local, client), theta)
        if locals:
            net.load_state_dict(tiny.mean(locals))
    return net, known


def sums(known):
    """``sum_j F_j`` and ``sum_j F_j theta_j``."""
    names = next(iter(known.values()))[0]
    return (
        {name: sum(fisher[name] for fisher, _ in known.values()) for name in names},
        {name: sum(fisher[name] * theta[name] for fisher, theta in known.values()) for name in names},
    )


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "sgd tce", "adam tce"], indirect=True)
@pytest.mark.parametrize("remember", ["last_round", "all"])
def test_rounds_equal_equation_3(tiny, remember):
    """Three rounds: weights, and the server's sums, of the last round's clients or the latest of all that ever came.

    In round 3 client 1 takes its term out, which lies in the sums of ``last_round``; client 0, who paused, takes its term
    out of those of ``all`` alone. The sums stay whole for whoever comes after. The Fisher information is of the data's loss
    without the penalty, sample by sample, in evaluation mode; statistics of BatchNorm have none.
    """
    method = tiny.train(FedCurv, penalty=PENALTY, remember=remember)
    net, known = plain_fedcurv(tiny, remember, tiny.rounds)
    tiny.assert_same(method.net, net)
    tiny.assert_moved(net)
    assert sorted(known) == ([0, 1] if remember == "last_round" else [0, 1, 2, 3])
    fisher, anchor = sums(known)
    tiny.assert_same(method.server_states.tensors("fisher"), fisher)
    tiny.assert_same(method.server_states.tensors("anchor"), anchor)
    assert sorted(method.stored.states.clients()) == [0, 1, 2, 3]


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.one_in(3)
def test_weights_that_count_twice(tied, engine):
    """Their Fisher information is of the whole gradient of each sample, where a layer's call shows a part."""
    method = tied.train(FedCurv, penalty=PENALTY, engine=engine)
    net, known = plain_fedcurv(tied, "last_round", tied.rounds)
    tied.assert_same(method.net, net)
    tied.assert_same(method.server_states.tensors("fisher"), sums(known)[0])


@pytest.mark.parametrize("remember", ["last_round", "all"])
def test_the_penalty_matters(tiny, remember):
    """From round 2 on the result is another than that of FedAvg; in round 1 it is FedAvg, bit for bit."""
    for cohorts, smallest in (([[0, 1, 3]], 0.0), ([[0, 1, 3], [1, 2]], 1e-3)):
        data = tiny.new_data(cohorts=cohorts)
        curved, plain = tiny.train(FedCurv, data, penalty=PENALTY, remember=remember).net, tiny.train(FedAvg, data).net
        apart = (curved.classifier.weight - plain.classifier.weight).abs().max()
        assert apart == 0 if smallest == 0 else apart > smallest


@pytest.mark.parametrize("remember", ["last_round", "all"])
def test_a_round_without_update_is_remembered_as_such(tiny, remember):
    """In round 2 client 3 alone comes and sends what is not finite: then nobody was there in the last round.

    Where all are remembered, the terms of round 1 still count in round 3.
    """
    cohorts = [[0, 1], [3], [0, 1]]
    data = tiny.new_data(cohorts=cohorts)
    data.setup()
    data.train_set.inputs[data.shards.train_indices(3)] = float("inf")
    method = tiny.train(FedCurv, data, penalty=PENALTY, remember=remember)
    net, _ = plain_fedcurv(tiny, remember, list(enumerate(cohorts, start=1)), lost=[3])
    tiny.assert_same(method.net, net)


@pytest.mark.parametrize("remember", ["last_round", "all"])
def test_without_penalty_it_is_fedavg(tiny, remember):
    """lambda = 0: bit for bit."""
    tiny.assert_same(tiny.train(FedCurv, penalty=0.0, remember=remember).net, tiny.train(FedAvg).net, atol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"penalty": -1.0}, "model.penalty is -1.0, must be at least 0: 0 is FedAvg"),
        ({"remember": "some"}, "model.remember is 'some', must be one of last_round, all"),
    ],
)
def test_settings_out_of_range_are_refused(tiny, settings, message):
    """One line with the key, the value and what is allowed."""
    with pytest.raises(ValueError) as error:
        FedCurv(tiny.new_net(), **settings)
    assert str(error.value) == message
