"""Which layer of a net is its class layer: found by its name, or named."""

from functools import partial

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

from fl_lightning import MOON, FedAvg, FedBABU, FedDecorr, FedPer, FedRoD, LGFedAvg, Trainer
from fl_lightning.callbacks import FeatureDrift, HeadByClass
from fl_lightning.data import from_arrays
from fl_lightning.models import Network
from fl_lightning.models.network import (
    classifier_of,
    expose_features,
    features_of,
    find_class_layer,
    outputs_and_features,
)

GENERATOR = torch.Generator().manual_seed(0)
INPUTS, TARGETS = torch.randn(60, 4, generator=GENERATOR), torch.randint(0, 3, (60,), generator=GENERATOR)


class WithParts(Network):
    """Built by us."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.classifier = nn.Sequential(nn.Linear(4, 5), nn.Tanh()), nn.Linear(5, 3)


class WithHead(nn.Module):
    """The same of another library: its ``features`` are its own affair, and its class layer is in a part."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(4, 5), nn.Tanh()), nn.ModuleDict({"fc": nn.Linear(5, 3)})

    def forward(self, inputs):
        return self.head["fc"](self.body(inputs))


class WithFc(WithHead):
    """The same with a name that is found."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = self.head.pop("fc")
        del self.head

    def forward(self, inputs):
        return self.fc(self.body(inputs))


def federation():
    tested = {"test_inputs": INPUTS[40:], "test_targets": TARGETS[40:]}
    return from_arrays(INPUTS[:40], TARGETS[:40], [range(20), range(20, 40)], batch_size=5, **tested)


def fitted(method, net, layer, engine, *callbacks, **settings):
    """What the server has learned, in the order of the net's weights."""
    torch.manual_seed(0)
    module = method(net(), class_layer=layer, local_steps=3, engine=engine, **settings)
    trainer = Trainer(max_steps=2, accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[*callbacks])
    trainer.fit(module, datamodule=federation())
    numbers = {name: float(value) for name, value in module.newest.items() if name.startswith(("head/", "drift/"))}
    return [weight.detach() for weight in module.net.parameters()], numbers


@pytest.mark.parametrize(("net", "layer"), [(WithFc, None), (WithHead, "head.fc")])
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("method", [MOON, FedDecorr, FedRoD, FedPer, LGFedAvg, FedBABU])
def test_a_net_of_other_names_learns_as_one_with_parts(method, engine, net, layer):
    """Bit for bit: features are the inputs of the class layer, and ``classifier.*`` are its weights."""
    expected, _ = fitted(method, WithParts, None, engine)
    learned, _ = fitted(method, net, layer, engine)
    assert all(torch.equal(one, other) for one, other in zip(learned, expected, strict=True))


@pytest.mark.parametrize("method", [MOON, FedDecorr, FedRoD])
def test_a_captured_step_reads_the_features(method):
    """It can add no hook of its own; two clients of the same steps are one program."""
    expected, _ = fitted(method, WithParts, None, "captured")
    learned, _ = fitted(method, WithFc, None, "captured")
    assert all(torch.equal(one, other) for one, other in zip(learned, expected, strict=True))


class WithLogSoftmax(WithParts):
    """Logarithms of probabilities, for ``NLLLoss``."""

    def forward(self, inputs):
        return super().forward(inputs).log_softmax(dim=1)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("method", [MOON, FedDecorr])
def test_what_a_net_does_after_its_class_layer_counts(method, engine):
    """Negative log likelihood of a log softmax is cross entropy; of logits it would have no lower bound."""
    expected, _ = fitted(method, WithParts, None, engine)
    learned, _ = fitted(method, WithLogSoftmax, None, engine, loss=nn.NLLLoss())
    torch.testing.assert_close(learned, expected, rtol=0, atol=1e-6)


def test_compiled_steps_read_outputs_and_features():
    """In one graph, which a second call does not compile again; nothing of them is left in the net."""
    net, inputs = WithLogSoftmax(), INPUTS[:5]
    expose_features(net, "")
    expose_features(net, "")
    backend = CompileCounter()
    compiled = torch.compile(lambda inputs: outputs_and_features(net, inputs), fullgraph=True, backend=backend)
    for _ in range(2):
        outputs, features = compiled(inputs)
        assert torch.equal(features, net.features(inputs))
        assert torch.equal(outputs, net.classifier(features).log_softmax(dim=1))
    assert backend.frame_count == 1
    assert vars(net.classifier)["_caught_inputs"] is None
    assert len(net.classifier._forward_pre_hooks) == 1


class WithHiddenFc(nn.Module):
    """Its layer of a known name is not the last one, and has as many outputs as the net."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Sequential(nn.Linear(4, 5), nn.Tanh()), nn.Linear(5, 3)
        self.out = nn.Linear(3, 3)

    def forward(self, inputs):
        return self.out(self.fc(self.body(inputs)).tanh())


@pytest.mark.parametrize(
    "method", [MOON, FedDecorr, FedRoD, FedPer, LGFedAvg, FedBABU, partial(FedAvg, trained=["classifier.*"])]
)
def test_a_known_name_in_the_middle_is_refused(method):
    """It would be the head, and the class layer would be shared, or not trained."""
    taken = "which is taken for its class layer by the name: set model.class_layer, such as to out"
    with pytest.raises(ValueError, match=rf"^model.net WithHiddenFc has the layer out after fc, {taken}$"):
        fitted(method, WithHiddenFc, None, "sequential")


def test_a_known_name_in_the_middle_is_of_no_concern_without_a_class_layer():
    """FedAvg and named patterns; with ``class_layer`` the last layer is the head."""
    for method, layer in ((FedAvg, None), (partial(FedPer, personal=["out.*"]), None), (FedPer, "out")):
        fitted(method, WithHiddenFc, layer, "sequential")
    module = FedPer(WithHiddenFc(), class_layer="out")
    module.configure_model()
    assert module.personal == ("out.*",)


def test_the_next_method_with_a_net_finds_its_own_class_layer():
    """Not the one that an earlier method was given."""
    net = WithParts()
    FedAvg(net, class_layer="features.0").configure_model()
    second = FedPer(net)
    second.configure_model()
    assert second.personal == ("classifier.*",)


def test_callbacks_measure_the_same_layer():
    measured = [
        fitted(FedAvg, net, layer, "sequential", HeadByClass(every=1), FeatureDrift(every=1))[1]
        for net, layer in ((WithParts, None), (WithHead, "head.fc"))
    ]
    assert measured[0]
    torch.testing.assert_close(measured[0], measured[1], rtol=0, atol=0, equal_nan=True)


def test_timm_tells_its_class_layer():
    """``head.fc``, before which timm pools."""
    timm = pytest.importorskip("timm")
    net, images = timm.create_model("test_convnext", num_classes=5).eval(), torch.randn(2, 3, 64, 64, generator=GENERATOR)
    names = list(net.state_dict())
    find_class_layer(net)
    assert (expose_features(net, ""), list(net.state_dict())) == ("head.fc", names)
    torch.testing.assert_close(classifier_of(net)(features_of(net, images)), net(images))
    torch.testing.assert_close(features_of(net, images), net.forward_head(net.forward_features(images), pre_logits=True))


def test_a_layer_that_is_not_there_is_refused():
    with pytest.raises(
        ValueError, match=r"^model.class_layer is 'haed', no layer of model.net WithHead: the last are .*head.fc$"
    ):
        fitted(MOON, WithHead, "haed", "sequential")


@pytest.mark.parametrize("layer", ["body", "body.0"])
def test_a_layer_in_the_middle_is_refused(layer):
    """With an adapter it would train this layer and leave the class layer as it was drawn."""
    cure = r"which does not give the outputs of model.net, of shape \(3,\): name the last layer of the net"
    with pytest.raises(ValueError, match=rf"^model.class_layer is '{layer}', {cure}"):
        fitted(FedAvg, WithHead, layer, "sequential")
