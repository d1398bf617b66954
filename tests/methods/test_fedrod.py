"""FedRoD against its two objectives in a plain loop."""

from collections import OrderedDict

import pytest
import torch
from declared_by_tests import HEAD, Cost
from torch import nn

from fl_lightning import FedAvg, FedRoD
from fl_lightning.callbacks import FederatedCallback
from fl_lightning.data import from_arrays

LEARNS_ONE_CLASS = False


class Starts(FederatedCallback):
    def on_round_start(self, trainer, module, round):
        self.state = {name: tensor.clone() for name, tensor in module.net.state_dict().items()}


COSTS = {"FedRoD": Cost(client=(0, 0, HEAD))}


def rounds(tiny):
    """The server's net, and by client the personal head: two optimizers, two backward passes, no detached tensors."""
    net, heads = tiny.new_net(), {}
    for round, cohort in tiny.rounds:
        locals = {}
        for client in cohort:
            head = tiny.new_net().classifier
            head.load_state_dict(heads.get(client, head.state_dict()))
            fit_head = tiny.optimizer(head.parameters())
            fit_head.param_groups[0]["lr"] = tiny.rate(round)
            shares = torch.bincount(tiny.shard(client)[1], minlength=4).double() / len(tiny.shard(client)[1])

            def objective(local, received, client, inputs, targets, head=head, fit_head=fit_head, shares=shares):
                features = local.features(inputs)
                z = local.classifier(features)
                added = z.data + nn.functional.linear(features.data, head.weight, head.bias)
                loss = tiny.losses(added, targets, client).mean()
                for weight, gradient in zip(head.parameters(), torch.autograd.grad(loss, list(head.parameters()))):
                    weight.grad = gradient
                fit_head.step()
                rows = torch.arange(len(targets))
                return ((shares * z.exp()).sum(dim=1) / (shares[targets] * z[rows, targets].exp())).log().mean()

            locals[client] = tiny.visit(net, client, round, objective)
            heads[client] = {name: value.clone() for name, value in head.state_dict().items()}
        net.load_state_dict(tiny.mean(locals))
    return net, heads


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "adam", "sgd tce"], indirect=True)
def test_rounds_equal_both_objectives(tiny):
    """Three rounds: the global model, the heads that clients keep, and their models, client 4's with the initial head."""
    method, (net, heads) = tiny.train(FedRoD), rounds(tiny)
    trained = {name: value for name, value in method.net.state_dict().items() if not name.startswith("personal_head")}
    tiny.assert_same(trained, net)
    tiny.assert_moved(net)
    tiny.assert_kept(method, {k: {f"personal_head.{name}": t for name, t in head.items()} for k, head in heads.items()})
    inputs = tiny.shard(4)[0]
    net.eval()
    for client in range(5):
        head = heads.get(client, tiny.new_net().classifier.state_dict())
        shared = {name: tensor.detach() for name, tensor in (*method.net.named_parameters(), *method.net.named_buffers())}
        model = method.personal_model(shared, method.stored.states.read(client))
        used = tiny.new_net().eval()
        used.load_state_dict({name: tensor for name, tensor in model.items() if not name.startswith("personal_head")})
        expected = net(inputs) + net.features(inputs) @ head["weight"].T + head["bias"]
        torch.testing.assert_close(used(inputs), expected, atol=1e-9, rtol=0)
    assert method.keeps_models
    assert method.has_global_model


@pytest.mark.parametrize("settings", [{"batch_norm_buffers": "local"}, {"personal": ("features.0.*",)}])
def test_there_is_no_global_model_where_clients_keep_more_than_a_head(tiny, settings):
    """Its net would have initial values in the parts that clients keep: only their models are evaluated."""
    method = tiny.train(FedRoD, **settings)
    assert not method.has_global_model
    assert method.keeps_models


def test_the_global_model_of_balanced_clients_is_fedavgs(tiny):
    """Clients with each class equally often: the balanced softmax is cross entropy, whatever heads do."""
    targets = torch.tensor([0, 1, 2, 3] * 3)
    inputs = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    settings = {"clients": [range(12)], "cohorts": [[0], [0]], "batch_size": 3, "classes": list("abcd")}
    ours, plain = (tiny.train(method, from_arrays(inputs, targets, **settings)) for method in (FedRoD, FedAvg))
    tiny.assert_same({name: ours.net.state_dict()[name] for name in plain.net.state_dict()}, plain.net, atol=1e-12)


def test_another_method_begins_with_its_global_net(tiny, tmp_path):
    """Without the second class layer, which it adds."""
    before = tiny.train(FedRoD, tiny.new_data(cohorts=[[0, 1]]))
    before.trainer.save_checkpoint(tmp_path / "1.ckpt")
    starts = Starts()
    tiny.train(FedAvg, tiny.new_data(cohorts=[[2]]), initial_weights=str(tmp_path / "1.ckpt"), watch=[starts])
    trained = before.net.state_dict()
    assert [name for name in trained if name not in starts.state] == ["personal_head.weight", "personal_head.bias"]
    tiny.assert_same(starts.state, {name: trained[name] for name in starts.state}, atol=0)


@pytest.mark.parametrize("before", [FedAvg, FedRoD])
def test_from_a_checkpoint_clients_begin_with_its_generic_head(tiny, tmp_path, before):
    """Whatever the checkpoint holds of personal heads, none or those that its run began with."""
    earlier = tiny.train(before, rounds=2)
    earlier.trainer.save_checkpoint(tmp_path / "2.ckpt")
    method = tiny.train(FedRoD, tiny.new_data(cohorts=[[1]]), initial_weights=str(tmp_path / "2.ckpt"))
    client = method.stored.states.read(4)  # never took part
    shared = dict((*method.net.named_parameters(), *method.net.named_buffers()))
    trained, generic = shared["classifier.weight"], earlier.net.classifier.weight
    assert not torch.equal(trained, generic)
    tiny.assert_same({"weight": method.personal_model(shared, client)["classifier.weight"]}, {"weight": trained + generic})


def test_a_frozen_class_layer_is_refused(tiny):
    """A client would have nothing of its own to train."""
    message = r"^model.trained leaves classifier of model.net frozen, but FedRoD trains two of it: add classifier\.\*$"
    with pytest.raises(ValueError, match=message):
        tiny.train(FedRoD, trained=["features.*"])


@pytest.mark.parametrize(
    "net",
    [
        nn.Linear(3, 4),
        nn.Sequential(OrderedDict(features=nn.Linear(3, 5), classifier=nn.Linear(5, 4))),  # would call the third layer too
    ],
)
def test_a_net_that_cannot_have_a_second_class_layer_is_refused(tiny, net):
    """One line, before round 1."""

    class Plain(FedRoD):
        def __init__(self, _, **common):
            super().__init__(net.double(), **common)

    with pytest.raises(ValueError, match=rf"^model.net .*{type(net).__name__}.* FedRoD gives clients a second"):
        tiny.train(Plain)


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.classifier = nn.Linear(3, 5).double(), nn.Linear(5, 4).double()

    def forward(self, inputs):
        return self.classifier(self.features(inputs)).log_softmax(dim=1)


def test_a_net_that_changes_the_outputs_of_its_class_layer_is_refused(tiny):
    """The sum of two log softmaxes is none, and their losses would not be bounded."""

    class Plain(FedRoD):
        def __init__(self, _, **common):
            super().__init__(Normalised(), **common)

    with pytest.raises(ValueError) as error:
        tiny.train(Plain, loss=nn.NLLLoss())
    assert str(error.value) == (
        "model is FedRoD, which adds up the outputs of two class layers of model.net, but Normalised changes its outputs: let "
        "the net return them as they are, or use FedPer"
    )
