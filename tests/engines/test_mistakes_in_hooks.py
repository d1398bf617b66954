"""A method whose hooks do what they must not is refused in one line, before the first round where possible."""

import pytest
import torch
import torch.nn.functional as F

from fl_lightning import FederatedDataModule, FederatedModule, Trainer, Visit
from fl_lightning.callbacks.federated_callback import FederatedCallback
from fl_lightning.models import MLP
from fl_lightning.protocol import Gathered, Update, Weighted


def fit(method, engine, rounds=1):
    data = FederatedDataModule("digits", num_clients=4, clients_per_round=2, batch_size=10)
    module = method(MLP, local_steps=2, engine=engine)
    Trainer(max_steps=rounds, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False).fit(
        module, datamodule=data
    )
    return module


class NetOfTheModule(FederatedModule):
    def client_loss(self, net, batch, client):
        return F.cross_entropy(self.net(batch.inputs), batch.targets, reduction="none")


class DetachedLoss(FederatedModule):
    def client_loss(self, net, batch, client):
        return super().client_loss(net, batch, client).detach()


class NoLoss(FederatedModule):
    def client_loss(self, net, batch, client):
        super().client_loss(net, batch, client)


class PenaltyOfEachWeight(FederatedModule):
    def client_penalty(self, net, client):
        return torch.stack([weight.square().sum() for weight in net.parameters()])


class GradientsAlone(FederatedModule):
    def client_gradients(self, net, batch, client):
        return super().client_gradients(net, batch, client)[0]


class NoUpdate(FederatedModule):
    def aggregate(self, reduced):
        super().aggregate(reduced)


class NoCarry(FederatedModule):
    def client_start(self, net, client):
        pass


class NoBroadcast(FederatedModule):
    def broadcast(self, client):
        pass


class NumberInUpload(FederatedModule):
    def client_result(self, net, client):
        return {**super().client_result(net, client), "x": Weighted({"x": 1.0}, 1.0)}


class BareTensorInUpload(FederatedModule):
    def client_result(self, net, client):
        return {**super().client_result(net, client), "x": torch.ones(1)}


class NoWeightsInUpload(FederatedModule):
    def client_result(self, net, client):
        return {"x": Weighted({"x": torch.ones(1)}, 1.0)}


class NumberInCarry(FederatedModule):
    def client_start(self, net, client):
        return {"group": {"n": 3}}


class NumberInState(FederatedModule):
    def client_result(self, net, client):
        client.state["moved"] = 1.5
        return super().client_result(net, client)


class NoWeight(FederatedModule):
    def update_weight(self, client):
        pass


class NoStep(FederatedModule):
    def num_local_steps(self, client):
        return 0


class ClientsAsNumbers(FederatedModule):
    def cohort(self, round):
        return [0, 1]


class ClientTwice(FederatedModule):
    def cohort(self, round):
        return [Visit(0), Visit(0)]


class ChangesBroadcast(FederatedModule):
    server_zeros = ("m",)

    def broadcast(self, client):
        return {"m": self.server_states.tensors("m")}

    def client_start(self, net, client):
        for tensor in client.broadcast["m"].values():
            tensor.add_(1)
        return {}


class ChangesReceived(FederatedModule):
    def client_result(self, net, client):
        client.received[0].mul_(2)
        return super().client_result(net, client)


class WeightOutsideTheNet(FederatedModule):
    def __init__(self, net, **common):
        super().__init__(net, **common)
        self.temperature = torch.nn.Parameter(torch.ones(1))

    def client_loss(self, net, batch, client):
        return F.cross_entropy(net(batch.inputs) / self.temperature, batch.targets, reduction="none")


class NoStepOfAVisit(FederatedModule):
    def cohort(self, round):
        return [Visit(0), Visit(1, num_steps=0)]


class NumberInBroadcast(FederatedModule):
    def broadcast(self, client):
        return {"group": {"round": 3.0}}


class GradientsByName(FederatedModule):
    def client_gradients(self, net, batch, client):
        gradients, loss = super().client_gradients(net, batch, client)
        return dict(zip(self.trained_weights(net), gradients, strict=True)), loss


class GradientMissing(FederatedModule):
    def client_gradients(self, net, batch, client):
        gradients, loss = super().client_gradients(net, batch, client)
        return gradients[:-1], loss


class ForeignWeight(FederatedModule):
    def client_result(self, net, client):
        upload = super().client_result(net, client)
        upload["weights"].tensors["prototype"] = torch.ones(1)
        return upload


class TensorGathered(FederatedModule):
    def client_result(self, net, client):
        return {**super().client_result(net, client), "x": Gathered(torch.ones(1))}


class MeanOfGathered(FederatedModule):
    def client_result(self, net, client):
        return {**super().client_result(net, client), "x": Gathered({"x": torch.ones(1)})}

    def aggregate(self, reduced):
        reduced.mean("x")
        return super().aggregate(reduced)


class UpdateByOtherNames(FederatedModule):
    def aggregate(self, reduced):
        update = super().aggregate(reduced)
        return Update({f"net.{name}": gradient for name, gradient in update.pseudo_gradient.items()}, update.buffers)


class UpdateOfOtherShapes(FederatedModule):
    def aggregate(self, reduced):
        update = super().aggregate(reduced)
        return Update({name: gradient.flatten() for name, gradient in update.pseudo_gradient.items()}, update.buffers)


class UpdateAsDict(FederatedModule):
    def aggregate(self, reduced):
        return super().aggregate(reduced).pseudo_gradient


class RestsMisspelt(FederatedModule):
    def resting(self, client, step):
        return ["clasifier.weight"]


class EvaluatesMisspelt(FederatedModule):
    def client_start(self, net, client):
        client.evaluate({"classifier.weigth": net.classifier.weight}, lambda net: net.classifier.weight.sum())
        return {}


class KindMisspelt(FederatedModule):
    server_zeros = ("velocity",)

    def broadcast(self, client):
        return self.server_states.tensors("velocty")


class HalfAStep(FederatedModule):
    def num_local_steps(self, client):
        return 2.5


class NoRate(FederatedModule):
    def client_learning_rate(self, round, client):
        pass


class NetBeforeTheData(FederatedModule):
    def __init__(self, net, **common):
        super().__init__(net, **common)
        self.register_buffer("prototypes", torch.zeros_like(self.net.classifier.weight))


class NoServerStep(FederatedModule):
    def server_step(self, update):
        pass


class TwoServerSteps(FederatedModule):
    def server_step(self, update):
        super().server_step(update)
        self.step_server_optimizer()


UNCONNECTED = "minimises something that depends on no trained weight: in hooks use the argument net, not self.net, and do not"
MISTAKES = {
    NetOfTheModule: f"NetOfTheModule {UNCONNECTED}",
    DetachedLoss: f"DetachedLoss {UNCONNECTED}",
    NoLoss: "client_loss of the method, gives None for 10 samples, must be (10,), one value per sample",
    PenaltyOfEachWeight: "minimises a tensor of shape (4,), must be a scalar: take the sum in client_penalty",
    GradientsAlone: "GradientsAlone.client_gradients must return the gradients, in the order of the weights, and the loss",
    NoUpdate: "NoUpdate.aggregate returns None, must return an Update, as super().aggregate does",
    NoCarry: "NoCarry.client_start returns None, must return a dict of tensors by name",
    NoBroadcast: "NoBroadcast.broadcast returns None, must return a dict of tensors by name",
    NumberInUpload: "NumberInUpload.client_result has 'x', must be tensors by name in a Weighted",
    BareTensorInUpload: "BareTensorInUpload.client_result has 'x', must be tensors by name in a Weighted",
    NoWeightsInUpload: "aggregate reads 'weights', but client_result sends ['x']: send it too",
    NumberInCarry: "NumberInCarry.client_start returns a part of type int, must be a tensor: give torch.tensor(...)",
    NumberInState: "keeps 'moved' of type float in client.state, must be a tensor, or a dict of tensors by name",
    NoWeight: "in round 1 the weight None, must be a number",
    NoStep: "NoStep.num_local_steps is 0 for client 1, must be a whole number from 1 on",
    HalfAStep: "HalfAStep.num_local_steps is 2.5 for client 1, must be a whole number from 1 on",
    NoRate: "NoRate.client_learning_rate returns None, must return a number",
    NumberInBroadcast: "NumberInBroadcast.broadcast returns a part of type float, must be a tensor",
    GradientsByName: "GradientsByName.client_gradients returns gradients in a dict, must return a list of 4",
    GradientMissing: "GradientMissing.client_gradients returns 3 gradients, must return 4: one for each trained weight",
    ForeignWeight: "ForeignWeight.client_result has 'prototype' among the net's weights: send it under an upload name",
    TensorGathered: "TensorGathered.client_result has 'x', must be tensors by name in a Weighted",
    MeanOfGathered: "aggregate reads the mean of 'x', which client_result sends in a Gathered: use gathered",
    UpdateByOtherNames: "has 'net.classifier.bias' in pseudo_gradient, which the net has not: did you mean classifier.bias?",
    UpdateOfOtherShapes: "has 'classifier.weight' in pseudo_gradient of shape (640,), must be (10, 64)",
    UpdateAsDict: "UpdateAsDict.aggregate returns a value of type dict, must return an Update",
    RestsMisspelt: "names 'clasifier.weight', which is not a trained weight of the net: did you mean classifier.weight?",
    EvaluatesMisspelt: "client.evaluate is given 'classifier.weigth', which the net has not: did you mean classifier.weight?",
    KindMisspelt: "self.server_states has no 'velocty': did you mean velocity?",
    NoServerStep: "NoServerStep.server_step calls step_server_optimizer 0 times, must call it once",
    TwoServerSteps: "TwoServerSteps.server_step calls step_server_optimizer 2 times, must call it once",
    ClientsAsNumbers: "ClientsAsNumbers.cohort gives [0, 1], must give visits: [Visit(client), ...]",
    ClientTwice: "ClientTwice.cohort has a client twice in round 1: give each one visit",
    NoStepOfAVisit: "NoStepOfAVisit.cohort gives a visit of fewer than 1 local step: leave its client out",
    ChangesBroadcast: "ChangesBroadcast changes server_states m of features.1.weight in place, which all clients read",
    WeightOutsideTheNet: "minimises a loss that depends on temperature, which no step trains because it is outside the net:",
    ChangesReceived: "ChangesReceived changes received_state features.1.weight in place, which all clients read",
}


@pytest.mark.parametrize("engine", ["auto", "sequential", "vectorized"])
@pytest.mark.parametrize("method", MISTAKES)
def test_a_mistake_is_named(method, engine):
    with pytest.raises((TypeError, ValueError)) as error:
        fit(method, engine)
    assert MISTAKES[method] in str(error.value)


def test_a_net_that_is_not_built_yet_says_so():
    with pytest.raises(AttributeError, match="model.net has no classifier yet, as it is built from the data: use it in config"):
        NetBeforeTheData(MLP)


def test_needs_must_be_of_their_type():
    with pytest.raises(
        TypeError, match=r"Wants.needs is \{'client_weights': True\}, must be Needs, as in needs = fl_lightning"
    ):

        class Wants(FederatedModule):
            needs = {"client_weights": True}


def test_an_update_in_float64_is_stepped_in_the_type_of_the_weights():
    class InDouble(FederatedModule):
        def aggregate(self, reduced):
            update = super().aggregate(reduced)
            return Update({name: gradient.double() for name, gradient in update.pseudo_gradient.items()}, update.buffers)

    found, expected = (fit(method, "sequential", rounds=2).net.state_dict() for method in (InDouble, FederatedModule))
    for name, weight in expected.items():
        assert torch.equal(found[name], weight)


def test_a_round_without_an_update_counts_where_the_servers_step_leaves_it_out():
    """As a lost round, or one in which nobody is drawn."""

    class Plain(FederatedModule):
        def cohort(self, round):
            return [] if round == 2 else super().cohort(round)

    class OnlyUpdates(Plain):
        def server_step(self, update):
            if update is not None:
                super().server_step(update)

    found, expected = (fit(method, "sequential", rounds=3) for method in (OnlyUpdates, Plain))
    assert found.trainer.global_step == 3
    for name, weight in expected.net.state_dict().items():
        assert torch.equal(found.net.state_dict()[name], weight)


def test_what_only_an_engine_cannot_do_is_still_said_as_such():
    class Decides(FederatedModule):
        def client_loss(self, net, batch, client):
            losses = super().client_loss(net, batch, client)
            return losses if losses.mean() > 0 else 2 * losses

    with pytest.raises(ValueError, match="model.engine is vectorized, under which Decides cannot run .* to sequential"):
        fit(Decides, "vectorized")


class GrowsState(FederatedModule):
    def client_step(self, net, batch, client):
        loss = super().client_step(net, batch, client)
        client.state["losses"] = torch.cat([client.state.get("losses", loss.new_zeros(0)), loss.reshape(1)])
        return loss


class KeepsTheLoss(FederatedModule):
    total = 0.0

    def client_step(self, net, batch, client):
        loss = super().client_step(net, batch, client)
        self.total = self.total + loss
        return loss


@pytest.mark.parametrize(
    ("method", "why"),
    [(GrowsState, "Sizes of tensors must match"), (KeepsTheLoss, "a hook keeps a client's tensor as self.total")],
)
def test_auto_takes_the_engine_that_can_run_what_hooks_keep(method, why):
    with pytest.raises(ValueError, match=f"model.engine is vectorized, under which {method.__name__} cannot run .*{why}"):
        fit(method, "vectorized")
    free, kept = fit(FederatedModule, "sequential", rounds=2), fit(method, "auto", rounds=2)
    for name, weight in free.net.state_dict().items():
        assert torch.equal(kept.net.state_dict()[name], weight)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_a_rate_of_0_is_no_mistake(engine):
    class Resting(FederatedModule):
        def client_learning_rate(self, round, client):
            return 0.0

    fit(Resting, engine)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_a_carry_of_the_nets_own_weights_stays_as_it_was(engine):
    """Of a client's net, which its fit changes in place."""

    class Pulls(FederatedModule):
        def client_start(self, net, client):
            return {"start": {name: weight.detach() for name, weight in net.named_parameters()}}

        def client_penalty(self, net, client):
            return 5 * sum((weight - client.carry["start"][name]).square().sum() for name, weight in net.named_parameters())

    class Copies(Pulls):
        def client_start(self, net, client):
            return {"start": {name: weight.detach().clone() for name, weight in net.named_parameters()}}

    found, expected, free = (fit(method, engine).net.state_dict() for method in (Pulls, Copies, FederatedModule))
    for name, weight in expected.items():
        assert torch.equal(found[name], weight)
    assert any((free[name] - weight).abs().max() > 1e-3 for name, weight in expected.items())


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_a_fit_starts_where_client_start_left_the_net(engine):
    """With weights of 0 in the class layer the first gradient of the other layers is 0."""

    class Zeroes(FederatedModule):
        def client_start(self, net, client):
            with torch.no_grad():
                net.classifier.weight.zero_()
            return {}

        def client_step(self, net, batch, client):
            gradients, loss = self.client_gradients(net, batch, client)
            client.state.setdefault("first", gradients[0].detach().clone())
            client.apply(gradients)
            return loss

        def client_result(self, net, client):
            assert client.state.pop("first").abs().max() == 0
            return super().client_result(net, client)

    fit(Zeroes, engine)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_a_state_of_the_nets_own_weights_stays_as_it_was_at_the_start(engine):
    seen = {}

    class Remembers(FederatedModule):
        def client_start(self, net, client):
            client.state["start"] = dict(net.named_parameters())
            return {}

        def client_result(self, net, client):
            for name, weight in client.state["start"].items():
                seen[name] = (weight - client.received_state[name]).abs().max(), (net.get_parameter(name) - weight).abs().max()
            return super().client_result(net, client)

    fit(Remembers, engine)
    assert len(seen) == 4
    for from_received, moved in seen.values():
        assert from_received == 0
        assert moved > 1e-4


def test_a_state_of_the_nets_own_weights_is_refused_in_a_local_step():
    """Under sequential it would follow the fit, under vectorized it would not."""

    class Follows(FederatedModule):
        def client_step(self, net, batch, client):
            client.state["of_step"] = {name: weight.detach() for name, weight in net.named_parameters()}
            return super().client_step(net, batch, client)

    with pytest.raises(
        ValueError, match="Follows keeps 'features.1.weight' in client.state, which is a tensor of the net that"
    ):
        fit(Follows, "sequential")


@pytest.mark.parametrize("engine", ["auto", "sequential", "vectorized"])
def test_the_cohort_that_was_asked_for_last_is_the_one_that_rehearses(engine, tmp_path):
    """A method may prepare what it broadcasts in ``cohort``, also where a run is resumed."""

    class Places(FederatedModule):
        def cohort(self, round):
            visits = super().cohort(round)
            self.places = {visit.client: place for place, visit in enumerate(visits)}
            return visits

        def broadcast(self, client):
            seen.append(self.round)
            return {"place": torch.tensor(float(self.places[client]))}

    seen = []

    def run(rounds, checkpoint=None):
        data = FederatedDataModule("digits", num_clients=20, clients_per_round=2, batch_size=10)
        trainer = Trainer(max_steps=rounds, accelerator="cpu", default_root_dir=tmp_path, logger=False)
        module = Places(MLP, local_steps=2, engine=engine)
        trainer.fit(module, datamodule=data, ckpt_path=checkpoint)
        trainer.save_checkpoint(tmp_path / f"{rounds}.ckpt")
        return module.net.state_dict()

    run(2)
    assert {*seen} == {1, 2}
    seen.clear()
    found = run(4, tmp_path / "2.ckpt")
    assert {*seen} == {3, 4}
    for name, weight in run(4).items():
        assert torch.equal(found[name], weight)


@pytest.mark.parametrize("engine", ["auto", "sequential"])
def test_a_penalty_of_a_weight_outside_the_net_is_named_under_large_layers_too(engine):
    """Of which the gradient is not written."""

    class Scaled(FederatedModule):
        def __init__(self, net, **common):
            super().__init__(net, **common)
            self.scale = torch.nn.Parameter(torch.ones(()))

        def client_penalty(self, net, client):
            return self.scale * sum(weight.square().sum() for weight in net.parameters())

    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10))
    data = FederatedDataModule("digits", num_clients=4, clients_per_round=2, batch_size=10)
    trainer = Trainer(max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False)
    with pytest.raises(ValueError, match="Scaled minimises a loss that depends on scale, which no step trains"):
        trainer.fit(Scaled(net, local_steps=2, engine=engine), datamodule=data)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_a_probe_of_the_nets_own_weights_is_each_clients(engine):
    """Not those of the client that was fitted last."""
    seen = []

    class Probes(FederatedModule):
        def probe(self, net, client):
            return {"bias": net.classifier.bias.detach()}

        def after_server_step(self, probes):
            seen.extend(probe["bias"] for probe in probes)

    fit(Probes, engine)
    assert len(seen) == 2
    assert (seen[0] - seen[1]).norm() > 1e-3


@pytest.mark.parametrize("engine", ["auto", "sequential", "vectorized"])
def test_weights_outside_the_net_may_be_used_without_a_gradient(engine):
    class Distills(FederatedModule):
        def __init__(self, net, **common):
            super().__init__(net, **common)
            self.teacher = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))

        def client_loss(self, net, batch, client):
            with torch.no_grad():
                targets = self.teacher(batch.inputs).softmax(-1)
            return F.cross_entropy(net(batch.inputs), targets, reduction="none")

    fit(Distills, engine)


def test_a_name_next_to_a_hooks_is_warned_of():
    with pytest.warns(UserWarning, match="MyMethod.client_los is not a hook, so no run reads it: did you mean client_loss?"):

        class MyMethod(FederatedModule):
            def client_los(self, net, batch, client): ...

    with pytest.warns(UserWarning, match="MyCallback.on_round_ends is not a hook, .* did you mean on_round_end?"):

        class MyCallback(FederatedCallback):
            def on_round_ends(self, trainer, module, round, report): ...


def test_names_of_ones_own_are_free(recwarn):
    class MyMethod(FederatedModule):
        server_zeros = ("m",)

        def distance(self, net): ...

        def _client_losses(self, net): ...

        def client_loss(self, net, batch, client):
            return super().client_loss(net, batch, client)

    assert not recwarn


def test_a_text_is_no_list_of_names():
    with pytest.raises(ValueError, match=r"MyMethod.server_zeros is 'variate', must be a list: give \['variate'\]"):

        class MyMethod(FederatedModule):
            server_zeros = "variate"


def test_a_callback_sees_the_models_of_chosen_rounds_as_soon_as_it_has_the_hook():
    seen = []

    class Looks(FederatedCallback):
        def on_cohort_fit_end(self, trainer, module, round, models):
            seen.append(round)

    data = FederatedDataModule("digits", num_clients=4, clients_per_round=2, batch_size=10)
    trainer = Trainer(max_steps=5, accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[Looks(every=2)])
    trainer.fit(FederatedModule(MLP, local_steps=1), datamodule=data)
    assert seen == [2, 4]


def test_a_net_class_that_takes_other_arguments_is_told_which():
    class OfClasses(torch.nn.Linear):
        def __init__(self, num_classes):
            super().__init__(64, num_classes)

    data = FederatedDataModule("digits", num_clients=4, clients_per_round=2)
    with pytest.raises(ValueError, match=r"takes 2 positional .*: a net class takes \(input_shape, num_classes\)"):
        Trainer(max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False).fit(
            FederatedModule(OfClasses), datamodule=data
        )


def test_a_net_without_a_type_is_told_of(tmp_path, monkeypatch, main):
    code = "from fl_lightning import FederatedModule\n\n\nclass Mine(FederatedModule):\n"
    code += "    def __init__(self, net, **common):\n        super().__init__(net, **common)\n"
    (tmp_path / "without_type.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    _, _, error = main("fit", "--config", "digits_tce.yaml", "--model", "without_type.Mine")
    assert "Mine has a net without a type: annotate it in __init__, net: fl_lightning.Net" in error.splitlines()[-1]
