"""FedDF against Algorithm 1 in a plain loop."""

import copy
import math

import pytest
import torch

from fl_lightning import FedAvg
from fl_lightning.functional.random_streams import seeded_layers
from fl_lightning.methods import FedDF, Flashback

NEEDS = ({"public_size": 12}, {"distillation_steps": 2})

PUBLIC, BATCH = 20, 6


class OftenChecked(FedDF):
    """Looks at the held-out samples after every second step."""

    _CHECK_EVERY = 2


def ensemble_divergence(student, teachers, temperature):
    """``KL(softmax(mean z_k / T) || softmax(z / T))``, class by class, the mean over samples."""
    p = (sum(teachers) / len(teachers) / temperature).softmax(dim=1)
    q = (student / temperature).softmax(dim=1)
    return (p * (p.log() - q.log())).sum(dim=1).mean()


def distil(net, inputs, teachers, round, steps, temperature, patience):
    """Adam on all but a tenth of the samples, down a cosine; the weights with the lowest loss on that tenth."""
    with seeded_layers(0, round, -1, "server", torch.device("cpu")):
        order = torch.randperm(PUBLIC)
        held_out, rest = order[: PUBLIC // 10], order[PUBLIC // 10 :]
        batches = []
        while len(batches) < steps:
            batches += rest[torch.randperm(len(rest))].split(BATCH)

    def held_out_loss():
        with torch.no_grad():
            return ensemble_divergence(
                copy.deepcopy(net).eval()(inputs[held_out]), [t[held_out] for t in teachers], temperature
            )

    best, kept, when = held_out_loss(), copy.deepcopy(net.state_dict()), 0
    net.train()
    m, v = ({name: torch.zeros_like(w) for name, w in net.named_parameters()} for _ in range(2))
    for step, where in enumerate(batches[:steps], start=1):
        loss = ensemble_divergence(net(inputs[where]), [t[where] for t in teachers], temperature)
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        norm = math.sqrt(sum(float(g.square().sum()) for g in gradients))
        rate = 0.05 * (1 + math.cos(math.pi * (step - 1) / steps)) / 2
        with torch.no_grad():
            for (name, weight), gradient in zip(net.named_parameters(), gradients):
                gradient = gradient * min(1.0, 5.0 / (norm + 1e-6))
                m[name] = 0.9 * m[name] + 0.1 * gradient
                v[name] = 0.999 * v[name] + 0.001 * gradient**2
                weight -= rate * (m[name] / (1 - 0.9**step)) / ((v[name] / (1 - 0.999**step)).sqrt() + 1e-8)
        if step % 2 == 0 or step == steps:
            loss = held_out_loss()
            if loss < best:
                best, kept, when = loss, copy.deepcopy(net.state_dict()), step
            if step - when >= patience:
                break
    net.load_state_dict(kept)
    return step


@pytest.mark.parametrize("patience", [4, 100])
def test_rounds_equal_algorithm_1(tiny, patience):
    """Three rounds of the mean, then distillation without labels; one of the cases stops early somewhere."""
    data = tiny.new_data(public_size=PUBLIC)
    settings = {"distillation_rate": 0.05, "distillation_batch_size": BATCH, "temperature": 1.5}
    method = tiny.train(OftenChecked, data, distillation_steps=15, distillation_patience=patience, **settings)
    tiny.data, net, lengths = data, tiny.new_net(), []
    inputs = torch.cat(list(data.public.inputs().split(100)))
    for round, cohort in tiny.rounds:
        locals = {client: tiny.visit(net, client, round) for client in cohort}
        net.load_state_dict(tiny.mean(locals))
        with torch.no_grad():
            teachers = [copy.deepcopy(model).eval()(inputs) for model in locals.values()]
        lengths.append(distil(net, inputs, teachers, round, 15, 1.5, patience))
    assert (min(lengths) < 15) == (patience == 4)
    tiny.assert_same(method.net, net, atol=1e-8)


def test_labels_play_no_part(tiny):
    """Other labels of the public samples, the same model."""
    data = [tiny.new_data(public_size=PUBLIC) for _ in range(2)]
    for part in data:
        part.setup()
    data[1].train_set.targets[data[1].public.indices] = 0
    first, second = (tiny.train(FedDF, part, distillation_steps=5).net for part in data)
    tiny.assert_same(first, second, atol=0)


def test_streamed_samples_give_the_same(tiny):
    """The held-out samples are judged in the middle of a pass over the others."""
    first, second = (
        tiny.train(OftenChecked, tiny.new_data(public_size=PUBLIC, storage=storage, num_workers=0), distillation_steps=5).net
        for storage in ("device", "stream")
    )
    tiny.assert_same(first, second, atol=0)


def test_distillation_leaves_the_mean(tiny):
    """The student starts from FedAvg's model, and ends elsewhere."""
    actual, expected = (
        tiny.train(kind, tiny.new_data(public_size=PUBLIC), rounds=1, **settings).net
        for kind, settings in ((FedDF, {"distillation_steps": 200}), (FedAvg, {}))
    )
    difference = max((a - b).abs().max() for a, b in zip(actual.parameters(), expected.parameters()))
    assert 1e-4 < difference < 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"distillation_steps": 0}, "model.distillation_steps is 0, must be above 0"),
        ({"distillation_rate": -1.0}, "model.distillation_rate is -1.0, must be above 0"),
        ({"distillation_batch_size": 0}, "model.distillation_batch_size is 0, must be above 0"),
        ({"distillation_patience": 0}, "model.distillation_patience is 0, must be above 0"),
        ({"temperature": 0.0}, "model.temperature is 0.0, must be above 0: the paper uses 1"),
    ],
)
def test_settings_out_of_range_are_refused(tiny, settings, message):
    with pytest.raises(ValueError) as error:
        FedDF(tiny.new_net(), **settings)
    assert str(error.value) == message


@pytest.mark.parametrize("method", [FedDF, Flashback])
@pytest.mark.parametrize("stays", [{"personal": ("classifier.*",)}, {"batch_norm_buffers": "local"}])
def test_parts_that_stay_with_clients_are_refused(tiny, method, stays):
    """The server would train them, and clients that come later would begin with them."""
    with pytest.raises(ValueError, match=f"model is {method.__name__}, which trains the whole net at the server, but parts of"):
        tiny.train(method, tiny.new_data(public_size=20), **stays)


@pytest.mark.parametrize("size", [0, 9])
def test_public_samples_are_asked_for(tiny, size):
    with pytest.raises(ValueError, match=f"data.public_size is {size}, but FedDF distils on public samples"):
        tiny.train(FedDF, tiny.new_data(public_size=size))


@pytest.mark.parametrize(("method", "count", "steps"), [(FedDF, 21, {"distillation_steps": 5}), (Flashback, 19, {})])
def test_a_distillation_batch_of_one_sample_is_refused_before_round_1(tiny, method, count, steps):
    """FedDF holds a tenth of the public samples out."""
    message = r"^model.distillation_batch_size is 6, which leaves a batch of one of 19 public samples, but BatchNorm in model"
    with pytest.raises(ValueError, match=message):
        tiny.train(method, tiny.new_data(public_size=count), distillation_batch_size=6)
    tiny.train(method, tiny.new_data(public_size=count), norm=False, distillation_batch_size=6, **steps)
