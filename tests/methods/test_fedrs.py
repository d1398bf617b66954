"""FedRS against its equation in a plain loop."""

import pytest

from fl_lightning import FedAvg, FedRS


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "adam"], indirect=True)
def test_rounds_equal_equation_5(tiny):
    """Three rounds of ``-log(e^{a_y z_y} / sum_c e^{a_c z_c})``, a_c = .3 for the classes that the client has not."""
    method, net = tiny.train(FedRS, alpha=0.3), tiny.new_net()

    def objective(local, received, client, inputs, targets):
        present, losses = set(tiny.shard(client)[1].tolist()), []
        for z, y in zip(local(inputs), targets.tolist()):
            scaled = [z[c] if c in present else 0.3 * z[c] for c in range(len(z))]
            losses.append(-(scaled[y].exp() / sum(value.exp() for value in scaled)).log())
        return sum(losses) / len(losses)

    for round, cohort in tiny.rounds:
        locals = {client: tiny.visit(net, client, round, objective) for client in cohort}
        net.load_state_dict(tiny.mean(locals))
    tiny.assert_same(method.net, net)
    tiny.assert_moved(net)


def test_with_alpha_1_it_is_fedavg(tiny):
    """Bit for bit."""
    tiny.assert_same(tiny.train(FedRS, alpha=1.0).net, tiny.train(FedAvg).net, atol=0)


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan")])
def test_alpha_out_of_range_is_refused(tiny, alpha):
    with pytest.raises(ValueError) as error:
        FedRS(tiny.new_net(), alpha=alpha)
    assert str(error.value) == f"model.alpha is {alpha}, must be between 0 and 1: 1 is FedAvg"
