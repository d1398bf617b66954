"""What stays with a client: personal weights, tensors that a method keeps, and visits that do not send or receive."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fl_lightning import FedAvg, Needs
from fl_lightning.callbacks import Communication
from fl_lightning.protocol import Visit


def norm_net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).double()


def local_step(net, data, client):
    """One full-batch SGD step of rate 0.1 on a copy."""
    local = copy.deepcopy(net).train()
    indices = data.shards.train_indices(client)
    optimizer = torch.optim.SGD(local.parameters(), lr=0.1)
    F.cross_entropy(local(data.train_set.inputs[indices]), data.train_set.targets[indices]).backward()
    optimizer.step()
    return local


class PersonalHead(FedAvg):
    """The last layer stays with the client."""

    personal = ("3.*",)

    def client_start(self, net, client):
        moved = [(weight - received).abs().max() for weight, received in zip(net.parameters(), client.received)]
        assert max(moved) == 0  # what a client received is what its fit starts from, its personal head included
        return {}


def test_personal_weights_stay_with_the_client(fit, toy_data):
    """The head is never averaged; a client goes on from its head, as a plain loop that keeps heads aside does."""
    data, net = toy_data(cohorts=[[0, 1], [0, 1]]), norm_net()
    method = PersonalHead(copy.deepcopy(net), local_steps=1)
    fit(method, data, 2, precision="64-true")
    body, heads = copy.deepcopy(net), {0: net[3], 1: net[3]}
    for _ in range(2):
        states = []
        for client in (0, 1):
            start = copy.deepcopy(body)
            start[3] = heads[client]
            local = local_step(start, data, client)
            heads[client] = local[3]
            states.append(local.state_dict())
        mean = {name: (5 * states[0][name] + 10 * states[1][name]) / 15 for name in states[0]}
        mean = {name: value.to(states[0][name].dtype) for name, value in mean.items()}
        body.load_state_dict({**mean, "3.weight": net[3].weight, "3.bias": net[3].bias})
    assert torch.equal(method.net[3].weight, net[3].weight)
    torch.testing.assert_close(method.net[0].weight, body[0].weight, atol=1e-12, rtol=0)
    for client in (0, 1):
        kept = method.stored.states.read(client).weights["3.weight"]
        torch.testing.assert_close(kept, heads[client].weight.data, atol=1e-12, rtol=0)


def test_personal_weights_do_not_travel(fit, toy_data):
    """Without the head of 21 weights: 42 weights, 12 statistics and a counter of 8 bytes, one client, one round."""
    communication = Communication()
    fit(PersonalHead(norm_net()), toy_data(cohorts=[[0]]), 1, precision="64-true", callbacks=[communication])
    assert communication.total_down == communication.total_up == 8 * (24 + 6 + 12 + 12 + 1)


class ClientTwoKeepsQuiet(FedAvg):
    """Client 2 trains in every round and sends nothing."""

    def cohort(self, round):
        return [Visit(0), Visit(2, sends=False)]


def test_a_client_that_does_not_send_is_not_averaged(fit, toy_data):
    """The result equals rounds of client 0 alone, and only its bytes go up."""
    communication = Communication()
    quiet, alone = ClientTwoKeepsQuiet(norm_net()), FedAvg(norm_net())
    fit(quiet, toy_data(), 2, precision="64-true", callbacks=[communication])
    fit(alone, toy_data(cohorts=[[0]] * 2), 2, precision="64-true")
    assert torch.equal(quiet.net[0].weight, alone.net[0].weight)
    assert communication.total_down == 2 * communication.total_up


class ClientOneGoesOn(FedAvg):
    """Client 1 never receives after round 1, in a cohort that others train in before it."""

    needs = Needs(client_weights=True)

    def cohort(self, round):
        return [Visit(0), Visit(1, receives=round == 1, sends=False)]


def test_a_client_that_does_not_receive_goes_on_from_its_weights(fit, toy_data):
    """Three rounds are three steps of client 1 from the initial weights, whoever trained in between."""
    data, method = toy_data(), ClientOneGoesOn(norm_net(), local_steps=1)
    fit(method, data, 3, precision="64-true")
    expected = norm_net()
    for _ in range(3):
        expected = local_step(expected, data, 1)
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(method.stored.states.read(1).weights[name], value, atol=1e-12, rtol=0, msg=name)


def test_not_receiving_without_kept_weights_is_refused(fit, toy_data):
    """There would be nothing to go on from."""

    class Forgetful(ClientOneGoesOn):
        needs = Needs()

    with pytest.raises(ValueError, match=r"declare needs = fl_lightning\.Needs\(client_weights=True\)"):
        fit(Forgetful(norm_net()), toy_data(), 2, precision="64-true")


class KeepsLess(FedAvg):
    """All weights but those of the last layer, and a tensor whose name is like those of weights."""

    needs = Needs(client_weights=True)

    def client_start(self, net, client):
        client.state["0.weight"] = client.state.get("0.weight", torch.zeros(())) + 1
        return super().client_start(net, client)

    def kept_state(self, client, state):
        return replace(state, weights={name: tensor for name, tensor in state.weights.items() if not name.startswith("2.")})


@pytest.mark.parametrize("engine", ["sequential", "vectorized", "captured"])
def test_a_method_may_keep_less_under_every_engine(fit, toy_data, engine):
    """No other hook is needed for it."""
    method = KeepsLess(nn.Sequential(nn.Linear(4, 2), nn.Tanh(), nn.Linear(2, 3)).double(), engine=engine)
    fit(method, toy_data(), 3, precision="64-true")
    for client in range(3):
        state = method.stored.states.read(client)
        assert set(state.weights) == {"0.weight", "0.bias"}
        assert state.method == {"0.weight": 3}


class SendsNothing(FedAvg):
    """Nobody sends."""

    def cohort(self, round):
        return [Visit(client, sends=False) for client in range(3)]


def test_local_training_may_go_on_for_more_than_ten_rounds(fit, toy_data):
    """A round in which nobody was to send is no failed round; the global weights stay."""
    method = SendsNothing(norm_net())
    assert fit(method, toy_data(), 12, precision="64-true").global_step == 12
    assert torch.equal(method.net[0].weight, norm_net()[0].weight)


class CountsVisits(FedAvg):
    """Keeps the number of a client's visits; every third visit starts afresh. Says what it found in which round."""

    found: dict

    def client_start(self, net, client):
        self.found[client.round, client.index] = client.state.get("visits", torch.zeros(())).item()
        client.state["visits"] = client.state.get("visits", torch.zeros(())) + 1
        if client.state["visits"] == 3:
            client.state.clear()
        return {}


def test_state_lasts_from_visit_to_visit_and_can_be_cleared(fit, toy_data, tmp_path):
    """Counts 0, 1, 2, 0 for a client in four rounds, across a checkpoint too; a client that never came has none.

    The rehearsal of a local step before the first round finds what that round finds, and leaves nothing.
    """

    def build():
        method = CountsVisits(norm_net())
        method.found = {}
        return method

    first, second = build(), build()
    fit(first, toy_data(cohorts=[[0], [0, 2]]), 2, precision="64-true").save_checkpoint(tmp_path / "x.ckpt")
    cohorts = [[0], [0, 2], [0], [0]]
    fit(second, toy_data(cohorts=cohorts), 4, precision="64-true", ckpt_path=tmp_path / "x.ckpt")
    assert first.found == {(1, 0): 0, (2, 0): 1, (2, 2): 0}
    assert second.found == {(3, 0): 2, (4, 0): 0}
    assert [client for client in range(3) if second.stored.states.read(client)] == [0, 2]


class PoisonedOnce(PersonalHead):
    """Client 0's loss is not a number in round 1."""

    def client_loss(self, net, batch, client):
        loss = super().client_loss(net, batch, client)
        return loss * float("nan") if (client.index, client.round) == (0, 1) else loss


def test_a_client_recovers_from_a_round_that_was_not_finite(fit, toy_data):
    """Its personal head is as it was before that round, and its later updates count."""
    method = PoisonedOnce(norm_net())
    fit(method, toy_data(cohorts=[[0, 1]] * 3), 3, precision="64-true")
    assert method.newest["train/nonfinite_clients"] == 0
    kept = [value for client in (0, 1) for value in method.stored.states.read(client).weights.values()]
    assert len(kept) == 4
    assert all(value.isfinite().all() for value in kept)


def test_buffers_outside_the_state_dict_start_from_the_global_ones(fit, toy_data):
    """A counter that is not saved is still no client's to hand to the next."""

    class Counting(nn.Linear):
        def __init__(self):
            super().__init__(4, 3, dtype=torch.float64)
            self.register_buffer("seen", torch.zeros((), dtype=torch.float64), persistent=False)

        def forward(self, inputs):
            if self.training:
                self.seen += 1
            return super().forward(inputs)

    method = FedAvg(Counting(), local_steps=2)
    fit(method, toy_data(cohorts=[[0, 1, 2]] * 2), 2, precision="64-true")
    assert method.net.seen.item() == 4  # 2 steps in each of 2 rounds; handed on it would be more
