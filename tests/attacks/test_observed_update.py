"""What the attack sees is what the method sends: each against the method's equation, on six-by-six images in float64."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fl_lightning import SCAFFOLD, FedAvg, FedCurv, FedNova, FedProx, FedReg, FedSGD
from fl_lightning.attacks.observed_update import observe
from fl_lightning.data import from_arrays
from fl_lightning.objectives import Regression
from fl_lightning.privacy import DPSGD, UserLevelDP
from fl_lightning.protocol import ClientState, unpack
from fl_lightning.robustness import LabelFlip

RATE, SIZES = 0.1, (8, 12, 10)


def federation(**settings):
    """Three clients with images in [0, 1] of three classes, float64."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.rand(sum(SIZES), 1, 6, 6, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 3, (sum(SIZES),), generator=generator)
    clients = [range(0, 8), range(8, 20), range(20, 30)]
    return from_arrays(inputs, targets, clients, **{"batch_size": 4, **settings})


def small_net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def sgd(**settings):
    return lambda parameters: torch.optim.SGD(parameters, lr=RATE, **settings)


@pytest.fixture
def look(fit, tmp_path):
    """Train a method for two rounds and look at the step of client 1 in the third; also gives the checkpoint."""

    def run(kind, num_images=2, data=None, **settings):
        settings = {"optimizer": sgd(), **settings}
        before = kind(small_net(), **settings)
        trainer = fit(before, federation(**({"batch_size": None} if kind is FedSGD else {})), 2, precision="64-true")
        trainer.save_checkpoint(tmp_path / "last.ckpt")
        again = kind(small_net(), **{**settings, "local_steps": 1, "engine": "sequential"})
        data = data or federation(**({"batch_size": None} if kind is FedSGD else {}))
        seen = observe(again, data, tmp_path / "last.ckpt", [1], num_images, accelerator="cpu", precision="64-true")
        assert seen.round == 3
        for name, weight in seen.net.named_parameters():
            assert torch.equal(weight, before.net.get_parameter(name))
        return seen, torch.load(tmp_path / "last.ckpt", weights_only=False), data

    return run


def plain_gradient(seen):
    """Of the mean cross entropy on the attacked images, at the weights received."""
    (only,) = seen.observations
    loss = F.cross_entropy(seen.net(only.inputs), only.targets)
    return dict(zip(dict(seen.net.named_parameters()), torch.autograd.grad(loss, list(seen.net.parameters()))))


def assert_same(actual, expected):
    assert actual.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (FedAvg, {}),
        (FedAvg, {"optimizer": sgd(momentum=0.9)}),
        (FedAvg, {"optimizer": sgd(weight_decay=0.1)}),
        (FedAvg, {"learning_rate_decay": 0.5}),
        (FedProx, {"mu": 0.5}),
        (FedSGD, {}),
    ],
    ids=["FedAvg", "momentum", "weight decay", "falling rate", "FedProx", "FedSGD"],
)
def test_a_single_step_is_the_gradient(look, kind, settings):
    """(received - sent) / lr is the gradient: momentum starts at 0, nothing pulls yet, known weight decay is taken out."""
    seen, _, _ = look(kind, **settings)
    assert_same(seen.observations[0].gradient, plain_gradient(seen))


def test_the_images_are_the_clients_next(look):
    """The first of the client's order in that round, of one client; the pixels of data that are images already are theirs."""
    seen, _, data = look(FedAvg, num_images=3)
    of_client = data.train_set.inputs[data.shards.train_indices(1)]
    inputs = seen.observations[0].inputs
    assert inputs.shape == (3, 1, 6, 6)
    assert all((of_client == image).flatten(1).all(dim=1).any() for image in inputs)
    assert torch.equal(inputs, next(data.client_batches(batch_size=3).batches(1, 3, 1)).inputs)
    assert data.batch_size == 4
    assert torch.equal(seen.pixel_range.pixels(inputs), inputs)


def test_scaffold_sends_its_correction(look):
    """(received - sent) / lr = g - c_i + c, with the variates of two rounds: those of the checkpoint, none of them 0."""
    seen, checkpoint, _ = look(SCAFFOLD)
    of_client = unpack(ClientState, checkpoint["federated"]["client_states"]["states"][1]).method["variate"]
    server = {name: checkpoint["state_dict"][f"server_states.variate.{name}"] for name in of_client}
    assert all(tensor.any() for tensor in (*of_client.values(), *server.values()))
    gradient = plain_gradient(seen)
    assert_same(seen.observations[0].gradient, {name: gradient[name] - of_client[name] + server[name] for name in gradient})


def test_fedcurv_sends_its_pull(look):
    """g + 2 lambda (sum F w - sum F theta) with the terms of the other clients, those of the last round."""
    seen, checkpoint, _ = look(FedCurv, penalty=0.5)
    expected = plain_gradient(seen)
    of_client = unpack(ClientState, checkpoint["federated"]["client_states"]["states"][1]).method
    for name, weight in seen.net.named_parameters():
        fisher, anchor = (
            checkpoint["state_dict"][f"server_states.{kind}.{name}"] - of_client[kind][name] for kind in ("fisher", "anchor")
        )
        expected[name] = expected[name] + 2 * 0.5 * (fisher * weight.detach() - anchor)
    assert_same(seen.observations[0].gradient, expected)


def climb(net, x, y, length):
    """Ten steps of ``length`` along the signs of the gradient of the summed loss."""
    for _ in range(10):
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(net(x), y, reduction="sum"), x)
        x = x.detach() + length * gradient.sign()
    return x


def gradient_of(net, loss):
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss(net), list(net.parameters()))])


def moved_to(net, vector):
    other = copy.deepcopy(net)
    nn.utils.vector_to_parameters(vector, other.parameters())
    return other


@pytest.mark.parametrize("modified_gradients", [False, True], ids=["FedReg", "MG"])
def test_fedreg_sends_its_projections(look, modified_gradients):
    """methods.md 4.2 in a few naive lines, on vectors of all weights: the step, both projections, and MG."""
    seen, _, data = look(FedReg, pseudo_step=0.05, modified_gradients=modified_gradients)
    net, (only,) = seen.net, seen.observations
    start = nn.utils.parameters_to_vector(net.parameters()).detach()
    g = gradient_of(net, lambda net: F.cross_entropy(net(only.inputs), only.targets))
    if modified_gradients:
        blurred = climb(net, only.inputs, only.targets, 0.05)
        u = gradient_of(net, lambda net: -net(blurred).log_softmax(dim=1).mean(dim=1).mean())
        g = g - (g @ u) / (u @ u) * u
    first = next(data.client_batches(batch_size=2).epoch(1, 3, "pseudo data"))
    pseudo, perturbed = (climb(net, first.inputs, first.targets, length) for length in (0.05, 0.0005))
    labels = net(pseudo).softmax(dim=1).detach()
    middle = moved_to(net, start - RATE * g / 2)
    g_s = gradient_of(middle, lambda net: -(labels * net(pseudo).log_softmax(dim=1)).sum(dim=1).mean())
    g_p = gradient_of(middle, lambda net: F.cross_entropy(net(perturbed), first.targets))
    delta = -RATE * g
    delta = delta - max(0, (delta @ g_s) / (g_s @ g_s)) * g_s
    delta = delta - max(0, (delta @ g_p) / (g_p @ g_p)) * g_p
    actual = torch.cat([part.flatten() for part in only.gradient.values()])
    torch.testing.assert_close(actual, -delta / RATE, atol=1e-9, rtol=0)
    assert (actual - g).norm() > 1e-3 * g.norm()  # the projections do something


def test_user_level_clipping_is_seen(look):
    """The client's change is bounded by C = .001 before it is sent; the noise comes after the server has seen it."""
    seen, _, _ = look(FedAvg, privacy=UserLevelDP(1.0, clipping_norm=0.001), server_weighting="uniform")
    norm = torch.cat([part.flatten() for part in seen.observations[0].gradient.values()]).norm().item()
    assert norm * RATE == pytest.approx(0.001, rel=1e-9)


@pytest.mark.parametrize("accounting", [False, True])
def test_dp_sgd_is_seen(look, accounting):
    """Two samples' gradients clipped to C = .1, their mean, and noise of deviation sigma C / 2 = .2: 323 draws of it."""
    seen, _, _ = look(FedAvg, privacy=DPSGD(noise_multiplier=4.0, clipping_norm=0.1, accounting=accounting))
    (only,), clipped = seen.observations, 0
    for x, y in zip(only.inputs, only.targets):
        g = gradient_of(seen.net, lambda net, x=x, y=y: F.cross_entropy(net(x[None]), y[None]))
        clipped = clipped + g * min(1, 0.1 / g.norm()) / 2
    noise = torch.cat([part.flatten() for part in only.gradient.values()]) - clipped
    assert noise.std().item() == pytest.approx(0.2, rel=0.15)
    assert abs(noise.mean().item()) < 0.05


def test_pixels_of_stored_images(fit, tmp_path):
    """uint8 images: with mean .5 and deviation .25 the net gets (x / 255 - .5) / .25, and pixels come back as x / 255."""
    stored = torch.randint(0, 256, (8, 3, 6, 6), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)

    def data():
        return from_arrays(stored, torch.arange(8) % 2, [range(8)], mean=[0.5] * 3, std=[0.25] * 3)

    def method(**settings):
        torch.manual_seed(0)
        return FedAvg(nn.Sequential(nn.Flatten(), nn.Linear(108, 2)), **settings)

    fit(method(), data(), 1).save_checkpoint(tmp_path / "last.ckpt")
    seen = observe(method(local_steps=1, engine="sequential"), data(), tmp_path / "last.ckpt", [0], 2, accelerator="cpu")
    pixels = seen.pixel_range.pixels(seen.observations[0].inputs)
    torch.testing.assert_close(seen.observations[0].inputs, (pixels - 0.5) / 0.25, atol=1e-5, rtol=0)
    assert all((stored == (255 * image).round()).flatten(1).all(dim=1).any() for image in pixels)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": lambda p: torch.optim.Adam(p, lr=0.01)}, "model.optimizer of the run is Adam with its settings"),
        ({"optimizer": sgd(momentum=0.9, nesterov=True)}, "model.optimizer of the run is SGD with its settings"),
        ({"num_images": 0}, "num_images is 0, must be at least 1"),
        ({"num_images": 13}, "num_images is 13, but client 1 has 12 training samples: lower it"),
    ],
)
def test_what_cannot_be_attacked_is_refused(look, settings, message):
    with pytest.raises(ValueError, match=message):
        look(FedAvg, **settings)


def test_samples_without_a_class_are_refused(tmp_path):
    """Images with a value each."""
    data = from_arrays(torch.rand(2, 1, 4, 4), torch.tensor([0.5, 1.5]), [[0, 1]], objective=Regression())
    with pytest.raises(
        ValueError, match=r"^data\.source of the run has Regression\(.*\), but the attack .*: choose another run$"
    ):
        observe(FedAvg(nn.Linear(4, 3)), data, tmp_path / "none.ckpt", [0], 1)


def test_the_truth_of_a_hostile_client_is_what_it_trains_on(look):
    """Of three clients, two are hostile, client 1 too: class 2 - c."""
    hostile = LabelFlip(0.7)
    seed = next(seed for seed in range(9) if 1 in hostile.clients(3, seed))
    seen, _, _ = look(FedAvg, hostile=hostile, seed=seed)
    assert_same(seen.observations[0].gradient, plain_gradient(seen))


def test_images_outside_the_range_are_refused(look):
    """Floats that are used as they are, from 0 to 2."""
    data = federation()
    data.source = copy.copy(data.source)
    data.setup()
    data.train_set.inputs.mul_(2)
    with pytest.raises(ValueError, match=r"client 1 has an image with values from 0\.\d+ to [12]\.\d+, must lie in \[0, 1\]"):
        look(FedAvg, data=data)


def test_samples_that_are_no_images_are_refused(toy_data, tmp_path):
    with pytest.raises(ValueError, match=r"samples of shape \(4,\), but the attack is on images"):
        observe(FedAvg(nn.Linear(4, 3)), toy_data(), tmp_path / "none.ckpt", [0], 1)


def test_whole_numbers_are_refused(tmp_path):
    """Pictures of int64 reach the net as they are, and have no gradient."""
    data = from_arrays(torch.zeros(2, 1, 4, 4).long(), torch.tensor([0, 1]), [[0, 1]])
    with pytest.raises(ValueError, match=r"data\.source of the run gives whole numbers .*: choose another run"):
        observe(FedAvg(nn.Linear(4, 3)), data, tmp_path / "none.ckpt", [0], 1)


@pytest.mark.parametrize("settings", [{}, {"optimizer": sgd(momentum=0.9, weight_decay=0.1)}], ids=["", "momentum"])
def test_fednova_gives_away_what_fedavg_does(look, settings):
    """It sends the change divided by ``||a||_1``, and that norm: both together are the change, hence the gradient."""
    seen, _, _ = look(FedNova, **settings)
    assert_same(seen.observations[0].gradient, plain_gradient(seen))
    # Clients that take one step each all the time have equal weights under both.
    nova, average = (look(kind, **settings, local_steps=1)[0] for kind in (FedNova, FedAvg))
    assert_same(nova.observations[0].gradient, average.observations[0].gradient)
