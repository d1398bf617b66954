"""Nets of other trainers: several inputs by name or in order, and logits in an object or a tuple."""

import copy
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import nn

from fl_lightning import FedAvg, FedReg, Trainer
from fl_lightning.data import from_arrays
from fl_lightning.functional.fisher import empirical_fisher
from fl_lightning.models import CNN2, MLP, CharacterTransformer
from fl_lightning.models.foreign_net import accept_foreign

GENERATOR = torch.Generator().manual_seed(0)
IDS, VALUES = torch.randint(0, 9, (60, 4), generator=GENERATOR), torch.randn(60, 3, generator=GENERATOR)
TARGETS = torch.randint(0, 3, (60,), generator=GENERATOR)
CLIENTS = [range(20), range(20, 40)]
RATE, STEPS, BATCH = 0.1, 3, 5


@dataclass
class Outputs:
    """What nets of Hugging Face return."""

    logits: torch.Tensor


class TwoInputs(nn.Module):
    """Token ids and values, as one net of text and numbers; the logits in an object."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.values, self.head = nn.Embedding(9, 5), nn.Linear(3, 5), nn.Linear(5, 3)

    def forward(self, ids, values):
        return Outputs(self.head(torch.tanh(self.embed(ids).mean(dim=1) + self.values(values))))


class InOrder(TwoInputs):
    """The same with a tuple, whose first are the logits."""

    def forward(self, *inputs):
        return super().forward(*inputs).logits, inputs[1]


NETS = {
    "by name": (TwoInputs, lambda rows: {"ids": IDS[rows], "values": VALUES[rows]}),
    "in order": (InOrder, lambda rows: (IDS[rows], VALUES[rows])),
}


def made(kind):
    torch.manual_seed(0)
    return NETS[kind][0]()


def federation(kind, **settings):
    inputs = NETS[kind][1]
    test = {"test_inputs": inputs(slice(40, 60)), "test_targets": TARGETS[40:]}
    return from_arrays(inputs(slice(40)), TARGETS[:40], CLIENTS, batch_size=BATCH, **{**test, **settings})


def fitted(method, data, rounds=2):
    trainer = Trainer(max_steps=rounds, accelerator="cpu", logger=False, enable_checkpointing=False)
    trainer.fit(method, datamodule=data)
    return trainer


def looped(kind):
    """FedAvg by a plain loop over the same batches, without hooks; the weights and the test accuracy."""
    net, data = made(kind), federation(kind)
    data.setup()
    for round in (1, 2):
        fits = []
        for client in range(2):
            copied = copy.deepcopy(net)
            for batch in data.client_batches().batches(client, round, STEPS):
                args = tuple(batch.inputs.values()) if kind == "by name" else batch.inputs
                outputs = copied(*args)
                logits = outputs.logits if kind == "by name" else outputs[0]
                loss = nn.functional.cross_entropy(logits, batch.targets)
                for weight, gradient in zip(copied.parameters(), torch.autograd.grad(loss, [*copied.parameters()])):
                    weight.data -= RATE * gradient
            fits.append(copied.state_dict())
        net.load_state_dict({name: sum(fit[name] for fit in fits) / 2 for name in fits[0]})
    logits = TwoInputs.forward(net, IDS[40:], VALUES[40:]).logits
    return net.state_dict(), (logits.argmax(dim=1) == TARGETS[40:]).float().mean()


@pytest.mark.parametrize("storage", ["device", "stream"])
@pytest.mark.parametrize("engine", ["sequential", "vectorized", "captured"])
@pytest.mark.parametrize("kind", NETS)
def test_several_inputs_train_as_in_a_plain_loop(kind, engine, storage):
    """The same weights and test accuracy under each engine, wherever the samples are."""
    method = FedAvg(made(kind), engine=engine, local_steps=STEPS, optimizer=lambda p: torch.optim.SGD(p, lr=RATE))
    trainer = fitted(method, federation(kind, storage=storage))
    expected, accuracy = looped(kind)
    for name, weight in method.net.state_dict().items():
        torch.testing.assert_close(weight, expected[name])
    assert float(trainer.callback_metrics["test/accuracy"]) == pytest.approx(float(accuracy))


def test_the_net_keeps_its_class_and_names():
    """A checkpoint of the run loads into the plain net."""
    method = FedAvg(made("by name"), local_steps=1)
    fitted(method, federation("by name"))
    assert type(method.net) is TwoInputs
    TwoInputs().load_state_dict(method.net.state_dict())


@pytest.mark.parametrize("kind", NETS)
def test_calls_with_keywords_or_several_arguments_return_what_the_net_does(kind):
    """After a fit, all that the net returns; one dict or tuple gives the logits."""
    method, inputs = FedAvg(made(kind), local_steps=1), NETS[kind][1](slice(40))
    fitted(method, federation(kind))
    several = method.net(**inputs) if kind == "by name" else method.net(*inputs)
    expected = several.logits if kind == "by name" else several[0]
    assert type(several) is (Outputs if kind == "by name" else tuple)
    assert torch.equal(method.net(inputs), expected)


def test_predictions_are_probabilities_of_all_samples():
    """``predict`` with several inputs a sample."""
    method, data = FedAvg(made("by name"), local_steps=1), federation("by name")
    predicted = torch.cat(fitted(method, data).predict(method, datamodule=data))
    expected = TwoInputs.forward(method.net, IDS[40:], VALUES[40:]).logits.softmax(dim=1)
    torch.testing.assert_close(predicted, expected)


def test_fisher_takes_several_inputs():
    """The mean of squared gradients of each sample, as by a loop over samples."""
    net = made("in order")
    foreign = copy.deepcopy(net)
    accept_foreign(foreign)
    loss = partial(nn.functional.cross_entropy, reduction="none")
    found = empirical_fisher(foreign, loss, [((IDS[:6], VALUES[:6]), TARGETS[:6])])
    squares = {name: torch.zeros_like(weight) for name, weight in net.named_parameters()}
    for row in range(6):
        value = loss(net(IDS[row : row + 1], VALUES[row : row + 1])[0], TARGETS[row : row + 1])[0]
        for name, gradient in zip(squares, torch.autograd.grad(value, [*net.parameters()])):
            squares[name] += gradient**2
    for name, value in found.items():
        torch.testing.assert_close(value, squares[name] / 6)


def test_methods_of_one_tensor_refuse_several():
    """FedReg climbs on the inputs."""
    with pytest.raises(ValueError, match="data.source gives several tensors a sample, but FedReg"):
        fitted(FedReg(made("in order")), federation("in order"))


@pytest.mark.parametrize("build", [MLP, CNN2, partial(CharacterTransformer, width=4, heads=1)])
@pytest.mark.parametrize("inputs", [{"a": IDS}, {"a": IDS, "b": IDS, "c": IDS}, (IDS, IDS, IDS)])
def test_nets_of_one_tensor_refuse_several(build, inputs):
    """Whether a shape is counted, compared or multiplied: one line with the shapes."""
    with pytest.raises(ValueError, match="^model.net .*(the data gives several tensors a sample, choose|the data gives shape)"):
        fitted(FedAvg(build), from_arrays(inputs, TARGETS, [[0, 1, 2], [3, 4, 5]]))


def test_a_net_that_takes_other_names_is_refused():
    """In one line, with the shapes that it was given."""
    with pytest.raises(ValueError, match=r"model.net cannot take inputs of shape \{'ids': \(4,\), 'values': \(3,\)\} .*values"):
        fitted(FedAvg(nn.Linear(4, 3)), federation("by name"))


def test_complex_weights_are_refused():
    net = nn.Sequential(nn.Flatten(), nn.Linear(3, 3, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r"^model.net has 1.weight of type torch.complex64, must be real: store"):
        fitted(FedAvg(net), from_arrays(torch.zeros(6, 3), [0, 1, 2] * 2, [[0, 1, 2], [3, 4, 5]]))


class OneDict(nn.Module):
    """It takes its batch as one dict."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 3)

    def forward(self, batch):
        return self.head(batch["values"])


class Raising(nn.Module):
    """Whatever it is given, it raises an error."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.head, self.error = nn.Linear(3, 3), error

    def forward(self, ids, values):
        raise self.error


AS_KEYWORDS = "its forward gets ids, values as keyword arguments: give it these, or choose one that fits the data"


@pytest.mark.parametrize(
    ("net", "reason", "cure"),
    [
        (OneDict(), r"OneDict.forward\(\) got an unexpected keyword argument 'ids'", AS_KEYWORDS),
        (Raising(KeyError("ids")), "KeyError: 'ids'", AS_KEYWORDS),
        (Raising(AttributeError("no decoder_start_token_id")), "AttributeError: no decoder_start_token_id", AS_KEYWORDS),
        (Raising(AssertionError()), "AssertionError", "choose one that fits the data"),
        (Raising(RuntimeError("too\nlong")), "too", "choose one that fits the data"),
    ],
)
def test_errors_of_a_net_are_one_line(net, reason, cure):
    """With the names that it is given, where they can be at fault."""
    with pytest.raises(ValueError, match=rf"^model.net cannot take inputs .* \({reason}\): {cure}$"):
        fitted(FedAvg(net), federation("by name"))


def test_a_text_that_is_too_long_has_no_wrong_token():
    """Positions beyond the net's table are another fault than tokens."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places, self.head = nn.Embedding(9, 5), nn.Embedding(3, 5), nn.Linear(5, 3)

        def forward(self, ids):
            return self.head((self.tokens(ids) + self.places(torch.arange(ids.shape[1]))).mean(dim=1))

    data = from_arrays(IDS, TARGETS, [range(60)])
    with pytest.raises(ValueError, match=r"model.net cannot take inputs of shape \(4,\) .* \(IndexError: index out of range"):
        fitted(FedAvg(Positions()), data)


def test_a_number_beyond_its_table_is_named():
    """One a sample, not of token ids."""

    class Domains(TwoInputs):
        def forward(self, values, domain):
            return self.head(self.embed(domain) + self.values(values))

    for wrong in (9, -1):
        data = from_arrays({"values": VALUES, "domain": torch.where(TARGETS == 1, wrong, 3)}, TARGETS, [range(60)])
        with pytest.raises(ValueError, match=f"^data.source has {wrong} in 'domain', which is beyond the embeddings"):
            fitted(FedAvg(Domains()), data)


@pytest.mark.parametrize("row", [0, 13])
@pytest.mark.parametrize("name", ["ids", "input_ids"])
@pytest.mark.parametrize("token", [9, -1])
def test_tokens_beyond_the_embeddings_are_refused_before_round_1(name, token, row):
    """Wherever they are: the first sample has one or none, and those of clients may have none."""
    ids, right = torch.zeros(2, 20, 4, dtype=torch.int64)
    ids[row, 2] = token
    inputs, others = (one if name == "ids" else {name: one} for one in (ids, right))

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(9, 5), nn.Linear(5, 3)

        def forward(self, input_ids):
            return self.head(self.embed(input_ids).mean(dim=1))

    targets, clients = torch.arange(20) % 3, [range(10), range(10, 20)]
    for train, test in ((inputs, others), (others, inputs)):
        data = from_arrays(train, targets, clients, batch_size=2, test_inputs=test, test_targets=targets)
        with pytest.raises(ValueError, match=f"data.source has the token {token}, which is beyond the embeddings of model.net"):
            fitted(FedAvg(Tokens()), data)
