"""What a method needs to train a second model, and to train in phases: the hooks, against plain loops."""

import copy
import math
from functools import partial
from itertools import product

import pytest
import torch
from torch import nn

from fl_lightning import APFL, Ditto, FedAvg, Needs
from fl_lightning.tasks import L2SP

ENGINES = ["sequential", "vectorized", "captured"]


class LocalModel(FedAvg):
    """Each client trains a personal model from the initial weights, next to FedAvg."""

    needs = Needs(initial_model=True)

    def client_start(self, net, client):
        if "personal" not in client.state:
            client.state["personal"] = {name: tensor.clone() for name, tensor in self.initial_model.items()}
        return {}

    def client_step(self, net, batch, client):
        personal = client.state["personal"]
        gradients, _ = self.gradients_of_model(personal, net, batch, client)
        for name, gradient in gradients.items():
            personal[name] = personal[name] - client.learning_rate * gradient
        return super().client_step(net, batch, client)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.slow
def test_a_second_model_has_buffers_of_its_own(tiny, engine):
    """It is local training, running statistics included, from the initial weights also where the first visit is in round 2.

    The first one is FedAvg, whose running statistics see its steps alone.
    """
    method, expected = tiny.train(LocalModel, engine=engine), tiny.train(FedAvg, engine=engine)
    tiny.assert_same(method.net, expected.net)
    personal = {}
    for round, cohort in tiny.rounds:
        for client in cohort:
            personal[client] = tiny.visit(personal.get(client, tiny.new_net()), client, round)
    tiny.assert_states(method, {client: {"personal": net.state_dict()} for client, net in personal.items()})
    tiny.assert_same(method.initial_model, tiny.new_net(), atol=0)


def test_the_initial_model_survives_a_checkpoint(tiny, tmp_path):
    """A client whose first visit is after it begins where the run began."""
    tiny.train(LocalModel, rounds=1).trainer.save_checkpoint(tmp_path / "1.ckpt")
    method = tiny.train(LocalModel, ckpt_path=tmp_path / "1.ckpt")
    expected = tiny.visit(tiny.new_net(), 2, 2).state_dict()
    tiny.assert_same(method.stored.states.read(2).method["personal"], expected)


def test_initial_weights_of_a_file_are_where_the_run_begins(tiny, tmp_path):
    """The model of the file, not the one that was drawn."""
    before = tiny.train(FedAvg, rounds=1)
    before.trainer.save_checkpoint(tmp_path / "1.ckpt")
    method = tiny.train(LocalModel, initial_weights=str(tmp_path / "1.ckpt"))
    tiny.assert_same(method.initial_model, before.net, atol=0)


def trained_alone(tiny, pull=0.0, clip=math.inf, factor=lambda step: 1.0, rounds=None):
    """Nets by client after plain steps from the initial net, pulled towards it, their gradients clipped, with a factor."""
    start, nets = tiny.new_net(), {}
    for round, cohort in tiny.rounds[:rounds]:
        for client in cohort:
            net = nets.setdefault(client, tiny.new_net()).train()
            for step, (inputs, targets) in enumerate(tiny.batches(client, round)):
                loss = tiny.losses(net(inputs), targets, client).mean()
                gradients = torch.autograd.grad(loss, list(net.parameters()))
                with torch.no_grad():
                    gradients = [g + pull * (w - s) for g, w, s in zip(gradients, net.parameters(), start.parameters())]
                    scale = min(1.0, clip / (float(torch.cat([g.flatten() for g in gradients]).norm()) + 1e-6))
                    for weight, gradient in zip(net.parameters(), gradients):
                        weight -= tiny.rate(round) * factor(step) * scale * gradient
    return nets


def assert_second_models(tiny, method, nets):
    for client, net in nets.items():
        tiny.assert_same(method.stored.states.read(client).method["model"], dict(net.state_dict()))


ALONE = [(Ditto, {"penalty": 0.0}), (APFL, {"share": 1.0, "share_steps": "never"})]


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize(("method", "own"), ALONE)
def test_second_models_are_pulled_by_the_learner_of_tasks(tiny, method, own, engine):
    """Where the server's model does not touch them they are trained alone, with the same pull."""
    trained = tiny.train(method, tasks=L2SP(0.9), engine=engine, **own)
    assert_second_models(tiny, trained, trained_alone(tiny, pull=0.9))


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize(("method", "own"), ALONE)
def test_second_models_have_clipped_gradients_and_rates_by_step(tiny, method, own, engine):
    """With a limit that most gradients reach, and a rate that rises from .1 to 1 within four of up to six steps."""
    rising = partial(torch.optim.lr_scheduler.LinearLR, start_factor=0.1, total_iters=4)
    trained = tiny.train(method, clip_local_gradients=0.3, visit_lr_scheduler=rising, engine=engine, **own)
    nets = trained_alone(tiny, clip=0.3, factor=lambda step: min(1.0, 0.1 + 0.9 * step / 4))
    assert_second_models(tiny, trained, nets)


def test_the_global_models_pull_is_clipped_with_the_gradient(tiny):
    """In round 1 the received weights are the initial ones: Ditto's pull is one towards them."""
    trained = tiny.train(Ditto, rounds=1, penalty=5.0, clip_local_gradients=0.3)
    assert_second_models(tiny, trained, trained_alone(tiny, pull=5.0, clip=0.3, rounds=1))


class HeadThenBody(FedAvg):
    """The head rests in the steps after the second, the body in the first two; client 1 has a third step of its head."""

    def resting(self, client, step):
        is_head_phase = step < 2 + (client == 1)
        return [name for name in self.trained_weights(self.net) if name.startswith("classifier") != is_head_phase]


def in_phases(tiny, net, client, round, clip=None):
    """A client's net, by two optimizers that have a part of the weights each."""
    local = copy.deepcopy(net).train()
    optimizers = {part: tiny.optimizer(getattr(local, part).parameters()) for part in ("classifier", "features")}
    for step, (inputs, targets) in enumerate(tiny.batches(client, round)):
        part = "classifier" if step < 2 + (client == 1) else "features"
        optimizer = optimizers[part]
        optimizer.param_groups[0]["lr"] = tiny.rate(round)
        local.zero_grad()
        tiny.losses(local(inputs), targets, client).mean().backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(getattr(local, part).parameters(), clip)
        optimizer.step()
    return local


@pytest.mark.parametrize(
    ("tiny", "engine"),
    [*product(["momentum", "adam"], ["sequential", "vectorized"]), ("adam", "captured")],
    indirect=["tiny"],
)
def test_weights_that_rest_stay_as_they_are(tiny, engine):
    """Neither momentum nor decay nor Adam's moments move them: one optimizer does what one a phase would do."""
    cohorts = tiny.cohorts if engine != "captured" else [[1], [1]]  # each number of steps is traced anew
    method, net = tiny.train(HeadThenBody, tiny.new_data(cohorts=cohorts), engine=engine), tiny.new_net()
    for round, cohort in enumerate(cohorts, start=1):
        net.load_state_dict(tiny.mean({client: in_phases(tiny, net, client, round) for client in cohort}))
    tiny.assert_same(method.net, net)


def test_the_norm_that_is_clipped_is_that_of_what_moves(tiny):
    """With a limit that most gradients reach."""
    method, net = tiny.train(HeadThenBody, clip_local_gradients=0.1), tiny.new_net()
    for round, cohort in tiny.rounds:
        net.load_state_dict(tiny.mean({client: in_phases(tiny, net, client, round, clip=0.1) for client in cohort}))
    tiny.assert_same(method.net, net)


@pytest.mark.parametrize("engine", ENGINES)
def test_weights_that_always_rest_are_those_of_the_beginning(tiny, engine):
    """Bit for bit, under momentum and weight decay."""

    class BodyRests(FedAvg):
        def resting(self, client, step):
            return [name for name in self.trained_weights(self.net) if name.startswith("features")]

    decaying = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1)
    method = tiny.train(BodyRests, engine=engine, optimizer=decaying)
    start = tiny.new_net()
    for name, weight in method.net.named_parameters():
        assert torch.equal(weight, start.get_parameter(name)) == name.startswith("features"), name
