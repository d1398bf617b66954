"""All engines give the same results: every public method and one method for every hook, over nets, data and optimizers."""

import copy

import pytest
import torch
import torch.nn.functional as F
from engine_cases import (
    BOTH,
    COHORTS,
    HOOK_CASES,
    OLDER_TORCH,
    PUBLIC_CASES,
    SCAFFOLD,
    Case,
    ClientRates,
    Curvature,
    CustomStep,
    KeepsCount,
    Net,
    PersonalHead,
    Probing,
    Proximal,
    assert_engines_agree,
    assert_same,
    batch_norm_mlp,
    batch_norm_net,
    conv_net,
    equal,
    group_norm_net,
    mlp,
    momentum,
    name_of,
    ragged,
    ragged_pairs,
    random_slope_net,
    run,
    sgd,
)
from torch import nn
from torch.utils.checkpoint import checkpoint

from fl_lightning import FedAvg, methods
from fl_lightning.callbacks import FederatedCallback
from fl_lightning.engines import engine_choice, vectorized
from fl_lightning.engines.local_step import ELEMENTWISE, LocalStep, Scope
from fl_lightning.functional.random_streams import stream_seed
from fl_lightning.protocol import pack
from fl_lightning.protocol.client import mean_gradient


@pytest.mark.parametrize("case", PUBLIC_CASES, ids=name_of)
@pytest.mark.one_in(4)
def test_public_methods_give_the_same_under_every_engine(fit, case):
    """Two rounds in float64: weights, buffers, states, reports, probes and predictions to 1e-10, integers exactly."""
    assert_engines_agree(fit, case)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[mark for part, mark in OLDER_TORCH.items() if case[: len(part)] == part])
        for case in HOOK_CASES
    ],
    ids=name_of,
)
@pytest.mark.one_in(4)
def test_every_hook_gives_the_same_under_every_engine(fit, case):
    """As above, for methods that override each of a client's hooks."""
    assert_engines_agree(fit, case)


def optimizer_named(name, **settings):
    def build(parameters):
        return getattr(torch.optim, name)(parameters, **settings)

    build.__name__ = name
    return build


@pytest.mark.parametrize(
    "optimizer",
    [
        *(optimizer_named(optimizer.__name__) for optimizer in ELEMENTWISE),
        optimizer_named("SGD", momentum=0.9, nesterov=True, dampening=0.0, maximize=True),
        optimizer_named("Adam", amsgrad=True, weight_decay=0.1),
        optimizer_named("RMSprop", momentum=0.5, centered=True),
        optimizer_named("Adagrad", initial_accumulator_value=0.5, lr_decay=0.1),
        optimizer_named("Adam", foreach=True),
        optimizer_named("SGD", foreach=False, momentum=0.5),
    ],
    ids=lambda optimizer: optimizer.__name__,
)
@pytest.mark.one_in(3)
def test_every_optimizer_that_is_stacked_steps_as_it_does_alone(fit, optimizer):
    """Ragged shards, so that stacks shrink with moments in them; two rates, each in a separate stack."""
    assert_engines_agree(fit, Case(ClientRates, mlp, ragged, optimizer))


def test_engines_agree_in_float32(fit):
    """To 1e-5, after two rounds of a few steps."""
    assert_engines_agree(fit, Case(SCAFFOLD, conv_net, ragged, sgd, {}, BOTH), atol=1e-5, precision="32-true")


@pytest.mark.slow
@pytest.mark.compiled
def test_compiled_steps_give_the_same(fit):
    """The captured engine with a compiler: whole visits, buffers, a client's state, multiples that are added to gradients, of
    which torch 2.14 forgets the factor, and batches that are filled up.
    """
    assert_engines_agree(fit, Case(SCAFFOLD, batch_norm_mlp, equal, sgd, {}, ("captured",)))
    assert_engines_agree(fit, Case(methods.FedDyn, mlp, equal, sgd, {}, ("captured",)))
    assert_engines_agree(fit, Case(CustomStep, mlp, ragged, momentum, {"learning_rate_decay": 0.5}, ("captured",)))


# Against a plain loop -------------------------------------------------------------------------------------------------


def plain_visit(splitmix64, net, data, client, round, batch_size, epochs, optimizer):
    """One client's fit on a copy; returns the trained net and the mean loss."""
    local = copy.deepcopy(net).train()
    stepper, losses = optimizer(local.parameters()), []
    indices, key = data.shards.train_indices(client), stream_seed(data.seed, round, client, "batch order")
    for epoch in range(epochs):
        drawn = [splitmix64(key, (epoch << 32) + position) >> 1 for position in range(len(indices))]
        order = sorted(range(len(indices)), key=drawn.__getitem__)
        for first in range(0, len(indices), batch_size):
            chosen = indices[order[first : first + batch_size]]
            stepper.zero_grad()
            loss = F.cross_entropy(local(data.train_set.inputs[chosen]), data.train_set.targets[chosen])
            loss.backward()
            stepper.step()
            losses.append(loss.item())
    return local, sum(losses) / len(losses)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("net", [batch_norm_net, batch_norm_mlp, group_norm_net])
def test_rounds_equal_a_plain_loop(fit, splitmix64, engine, net):
    """Momentum, weight decay, two epochs of ragged shards and BatchNorm, weights, buffers and losses to 1e-12 in float64.

    Counters of batches are averaged and truncated: sum_k n_k * count_k / sum_k n_k.
    """
    start = Start()
    actual = run(fit, Case(FedAvg, net, ragged_pairs, momentum), engine, callbacks=[start])
    plain, (data, _) = start.net, ragged_pairs()
    data.setup()
    for round, cohort in enumerate(COHORTS, start=1):
        fits = [plain_visit(splitmix64, plain, data, client, round, 4, 2, momentum) for client in cohort]
        assert actual["reports"][round - 1]["losses"] == pytest.approx([loss for _, loss in fits], abs=1e-12)
        weights = torch.tensor([float(data.num_train(client)) for client in cohort], dtype=torch.float64)
        for name, value in plain.state_dict().items():
            states = torch.stack([local.state_dict()[name].double() for local, _ in fits])
            value.copy_(torch.tensordot(weights, states, dims=1) / weights.sum())
    for name, value in plain.state_dict().items():
        found = {**actual["weights"], **{name.removeprefix("net."): t for name, t in actual["buffers"].items()}}[name]
        torch.testing.assert_close(found.detach(), value, atol=1e-12, rtol=0, msg=lambda text, name=name: f"{name}: {text}")


class Start(FederatedCallback):
    """Keeps the net that a run starts from."""

    def on_round_start(self, trainer, module, round):
        if round == 1:
            self.net = copy.deepcopy(module.net)


# What an engine refuses, leaves out and chooses -----------------------------------------------------------------------


class Poison(FederatedCallback):
    """After round 1, makes an input of client 2 infinite; keeps the state that it has by then."""

    def on_round_end(self, trainer, module, round, report):
        if round == 1:
            self.state = pack(module.stored.states.read(2))
            module.data.train_set.inputs[module.data.shards.train_indices(2)[0]] = float("inf")


class PoisonAndWatch(Poison):
    """Asks for the cohort's models, too."""

    def wants_models(self, round):
        return True

    def on_cohort_fit_end(self, trainer, module, round, models):
        inputs = module.data.evaluation.test_inputs()
        self.seen = models.clients, models.predict(inputs), models.predict_before(inputs)


@pytest.mark.parametrize(("engine", "method"), [("sequential", KeepsCount), ("vectorized", FedAvg), ("captured", FedAvg)])
def test_callbacks_do_not_see_a_model_that_is_not_finite(fit, engine, method):
    watch = PoisonAndWatch()
    run(fit, Case(method, mlp, ragged, momentum), engine, callbacks=[watch])
    clients, after, before = watch.seen
    assert clients == [1, 3, 4]
    assert after.isfinite().all()
    assert len(after) == len(before) == 3


@pytest.mark.parametrize(
    ("engine", "method"),
    [
        ("sequential", KeepsCount),
        ("vectorized", FedAvg),
        ("vectorized", KeepsCount),
        ("vectorized", Probing),
        ("captured", KeepsCount),
    ],
)
def test_a_client_that_is_not_finite_is_left_out(fit, engine, method):
    """The others are averaged as if it had not come, it is reported, and its state is as before.

    A stack where one of the clients is not a number leaves the others alone.
    """
    poison, case = Poison(), Case(method, mlp, ragged, momentum)
    actual = run(fit, case, engine, callbacks=[poison])
    expected = run(fit, case._replace(data=lambda: ragged(cohorts=[COHORTS[0], [1, 3, 4]])), "sequential")
    assert actual["reports"][1]["nonfinite"] == [2]
    assert actual["reports"][1]["num_updates"] == 3
    assert_same(actual["weights"], expected["weights"], 1e-10, "weights")
    if method is KeepsCount:
        assert_same(actual["states"], expected["states"], 1e-10, "states")
        assert_same(actual["states"][2], poison.state, 0, "state of client 2")
        assert poison.state["method/visits"] == 1


class Checkpointed(nn.Module):
    """Computes its layer again in the backward pass."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, inputs):
        return checkpoint(self.layer, inputs, use_reentrant=False)


def checkpointed_dropout_net(shape, classes):
    return Net(7, nn.Flatten(), nn.Linear(72, 7), Checkpointed(nn.Dropout(0.5)), nn.ReLU())


def refusal(fit, case, engine):
    with pytest.raises(ValueError) as error:
        run(fit, case, engine)
    assert "\n" not in str(error.value)
    return str(error.value)


def cumulative_norm_net(shape, classes):
    """Its BatchNorm averages over all batches: it reads its counter on the host."""
    return Net(3 * 36, nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3, momentum=None), nn.ReLU())


@pytest.mark.parametrize("net", [random_slope_net, checkpointed_dropout_net, cumulative_norm_net])
def test_nets_that_cannot_be_stacked(fit, capsys, monkeypatch, net):
    """Refused in one line with the cure; ``auto``, where it would stack, runs them one by one and says why: the same bits."""
    monkeypatch.setattr(engine_choice, "by_rule", lambda *_: engine_choice.Choice("vectorized", "small"))
    case = Case(FedAvg, net, ragged_pairs, sgd)
    text = refusal(fit, case, "vectorized")
    assert text.startswith("model.engine is vectorized, under which FedAvg cannot run (")
    assert text.endswith("set model.engine to sequential")
    assert "vmap: It looks like" not in text
    capsys.readouterr()
    chosen = run(fit, case, "auto")
    assert "Engine: sequential (FedAvg on Net cannot be vectorized: " in capsys.readouterr().out
    assert_same(chosen, run(fit, case, "sequential"), 0)


def adafactor(parameters):
    return torch.optim.Adafactor(parameters, lr=0.01)


def test_an_optimizer_that_looks_at_whole_weights_cannot_be_stacked(fit, capsys):
    """Adafactor's step of one entry depends on the others: refused by name, and ``auto`` knows."""
    case = Case(FedAvg, mlp, ragged, adafactor)
    text = refusal(fit, case, "vectorized")
    assert "model.optimizer Adafactor" in text
    assert text.count("set model.engine to sequential") == 1
    capsys.readouterr()
    chosen = run(fit, case, "auto")
    assert "Engine: sequential (Adafactor cannot be stacked)" in capsys.readouterr().out
    assert_same(chosen, run(fit, case, "sequential"), 0)


class AppliesTwice(FedAvg):
    def client_step(self, net, batch, client):
        gradients, loss = self.client_gradients(net, batch, client)
        client.apply(gradients)
        client.apply(gradients)
        return loss


class NeverApplies(FedAvg):
    def client_step(self, net, batch, client):
        return self.client_gradients(net, batch, client)[1]


@pytest.mark.parametrize("engine", ["sequential", "auto", "vectorized"])
@pytest.mark.parametrize(("method", "times"), [(AppliesTwice, 2), (NeverApplies, 0)])
def test_a_step_that_does_not_apply_once_is_refused(fit, engine, method, times):
    """A stacked or captured step hands its gradients over at its end: said before round 1, with the number of calls."""
    text = refusal(fit, Case(method, mlp, ragged, sgd), engine)
    assert text.endswith(f"{method.__name__}.client_step calls client.apply {times} times, must call it once")


@pytest.mark.parametrize("engine", ["sequential", "vectorized", "captured"])
def test_what_an_evaluation_leaves_out_is_what_the_client_received(fit, engine):
    """Of weights alone on a net with BatchNorm, in round 2: not the statistics that the run began with."""

    class Teaches(FedAvg):
        def client_loss(self, net, batch, client):
            names = client.received_state if self.complete else client.weight_names
            sent = {name: client.received_state[name] for name in names}
            said = client.evaluate(sent, lambda received: received(batch.inputs))
            return super().client_loss(net, batch, client) + (net(batch.inputs) - said).square().mean(dim=1)

    class Whole(Teaches):
        complete = True

    class WeightsOnly(Teaches):
        complete = False

    whole, part = (run(fit, Case(method, batch_norm_net, equal, sgd), engine, rounds=2) for method in (Whole, WeightsOnly))
    assert_same(part, whole, 0)


def test_batches_inside_a_local_step_are_refused(fit):
    """They are Python's loop, which no stacked step can hold."""

    class LoopsInside(FedAvg):
        def client_loss(self, net, batch, client):
            next(iter(client.batches()))
            return super().client_loss(net, batch, client)

    assert "client.batches, epoch or samples inside a local step" in refusal(
        fit, Case(LoopsInside, mlp, ragged, sgd), "vectorized"
    )


def test_a_local_step_changes_no_argument(fit):
    """What ``torch.vmap`` and ``torch.compile`` need: weights, buffers, batch and facts are as before."""
    data, steps = equal()
    method = CustomStep(batch_norm_net, optimizer=sgd, engine="sequential", **steps)
    fit(method, data, 1, precision="64-true")
    step, net = LocalStep(method, method.net, Scope(copy.deepcopy(method.net)), mean_gradient), method.net
    trained, untrained = dict(net.named_parameters()), dict(net.named_buffers())
    counts = data.label_counts[0]
    facts = {name: torch.tensor(1.0) for name in ("index", "num_train", "num_steps", "learning_rate")}
    facts |= {"label_counts": counts, "train_label_counts": counts, "broadcast": {}, "carry": {}}
    facts["received_state"] = dict(net.state_dict())
    facts["state"] = {"steps": torch.tensor(3.0, dtype=torch.float64)}
    before = copy.deepcopy((trained, untrained, facts))
    result = step(trained, untrained, next(iter(data.client_batches().batches(0, 1, 1))), 1, torch.tensor(0), facts)
    assert_same([trained, untrained, facts], list(before), 0)
    assert result.state["steps"] == 4
    assert result.untrained["features.1.num_batches_tracked"] == before[1]["features.1.num_batches_tracked"] + 1


@pytest.mark.parametrize("case", [HOOK_CASES[0], HOOK_CASES[4], HOOK_CASES[13], HOOK_CASES[15]], ids=name_of)
@pytest.mark.parametrize("num_bytes", [1, 60_000])
@pytest.mark.one_in(3)
def test_stacks_that_do_not_fit_into_memory_are_taken_in_turn(fit, monkeypatch, case, num_bytes):
    """One client a stack, or two or three: the same results as with all of them side by side."""
    sizes = []
    fit_stack = vectorized.VectorizedEngine._fit_stack

    def note(self, round, members, *arguments):
        sizes.append(len(members))
        fit_stack(self, round, members, *arguments)

    monkeypatch.setattr(vectorized.VectorizedEngine, "_fit_stack", note)
    monkeypatch.setattr(vectorized, "_CPU_STACK_BYTES", num_bytes)
    actual = run(fit, case, "vectorized")
    assert (max(sizes) == 1) == (num_bytes == 1), sizes
    assert len(sizes) > 4
    monkeypatch.undo()
    assert_same(actual, run(fit, case, "sequential"), 1e-10)


def test_cohorts_of_changing_sizes(fit):
    """Five clients, one, three: stacks use the memory of larger ones before them."""

    def changing():
        return ragged(cohorts=[[0, 1, 2, 3, 4], [1], [0, 2, 4]])

    for method, net in ((PersonalHead, mlp), (Curvature, group_norm_net)):
        assert_engines_agree(fit, Case(method, net, changing, momentum), rounds=3)


@pytest.mark.slow
def test_captured_runs_one_after_another_in_one_process(fit):
    """More runs than torch's limit of graphs for one function, each with another constant: none is refused or mixed up."""
    with torch._dynamo.config.patch(recompile_limit=2):
        for strength in range(3):

            class Pulled(Proximal):
                pull = float(strength)

                def client_penalty(self, net, client):
                    return self.pull * super().client_penalty(net, client)

            assert_engines_agree(fit, Case(Pulled, mlp, equal, sgd, {}, ("captured",)), rounds=1)
