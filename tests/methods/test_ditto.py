"""Ditto against its equation in a plain loop."""

import pytest
from declared_by_tests import Cost

from fl_lightning import Ditto, FedAvg

COSTS = {"Ditto": Cost(client=(1, 0, 0), server=(1, 0, 0))}  # clients draw the initial model from the seed


def personal_models(tiny, penalty, rate=None):
    """``v <- v - eta (g(v) + lambda (v - w_t))`` from the initial net, next to FedAvg, whose w_t these are; by client."""
    net, personal = tiny.new_net(), {}
    for round, cohort in tiny.rounds:
        received = dict(net.named_parameters())
        scale = 1.0 if rate is None else rate / tiny.rate(round)

        def direction(name, weight, gradient, received=received, scale=scale):
            return scale * (gradient + penalty * (weight - received[name]))

        for client in cohort:
            personal[client] = tiny.steps_of_sgd(personal.get(client, tiny.new_net()), client, round, direction)
        net = load(tiny, tiny.mean({client: tiny.visit(net, client, round) for client in cohort}))
    return personal


def load(tiny, state):
    net = tiny.new_net()
    net.load_state_dict(state)
    return net


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "adam tce"], indirect=True)
def test_personal_models_follow_the_equation(tiny):
    """Three rounds, personal running statistics; the global model is FedAvg's to rounding."""
    method, personal = tiny.train(Ditto, penalty=0.7), personal_models(tiny, 0.7)
    tiny.assert_same(method.net, tiny.train(FedAvg).net)
    tiny.assert_states(method, {client: {"model": net.state_dict()} for client, net in personal.items()})
    for client, net in personal.items():
        tiny.assert_personal(method, client, net)
    tiny.assert_personal(method, 4, tiny.new_net())  # never took part: v is where it begins
    assert method.keeps_models
    assert method.has_global_model


def test_a_rate_of_their_own(tiny):
    method, personal = tiny.train(Ditto, personal_learning_rate=0.05), personal_models(tiny, 1.0, rate=0.05)
    tiny.assert_states(method, {client: {"model": net.state_dict()} for client, net in personal.items()})


def test_with_penalty_0_personal_models_are_trained_alone(tiny):
    """Plain visits, one after another, from the initial net."""
    method, personal = tiny.train(Ditto, penalty=0.0), {}
    for round, cohort in tiny.rounds:
        for client in cohort:
            personal[client] = tiny.visit(personal.get(client, tiny.new_net()), client, round)
    tiny.assert_states(method, {client: {"model": net.state_dict()} for client, net in personal.items()})


def test_arguments_out_of_range_are_refused(tiny):
    with pytest.raises(ValueError, match="model.penalty is -1, must be at least 0"):
        Ditto(tiny.new_net(), penalty=-1)
    with pytest.raises(ValueError, match="model.personal_learning_rate is 0, must be above 0"):
        Ditto(tiny.new_net(), personal_learning_rate=0)
