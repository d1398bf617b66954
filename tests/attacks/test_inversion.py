"""Gradient inversion: its parts against plain computations, and images that it does and does not recover."""

import math
from functools import partial
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from fl_lightning.attacks.inversion import Inversion, Inverter, recovered_labels
from fl_lightning.attacks.observed_update import Observation, PixelRange
from fl_lightning.functional.gradient_inversion import (
    cosine_distance,
    label_counts_from_bias,
    squared_distance,
    total_variation,
)
from fl_lightning.losses import CrossEntropy, TruncatedCrossEntropy


def digits(*labels):
    """The first of scikit-learn's digits of each label, (n, 1, 8, 8) in [0, 1], and the labels."""
    images, targets = load_digits(return_X_y=True)
    first = [int((targets == label).argmax()) for label in labels]
    return torch.from_numpy(images[first]).reshape(-1, 1, 8, 8).float() / 16, torch.tensor(labels)


def small_net(*hidden):
    """Flatten, linear layers with a sigmoid after each but the last, weights uniform(-.5, .5) as in the DLG paper."""
    torch.manual_seed(0)
    widths = (64, *hidden, 10)
    layers = [layer for a, b in pairwise(widths) for layer in (nn.Linear(a, b), nn.Sigmoid())]
    net = nn.Sequential(nn.Flatten(), *layers[:-1])
    for weight in net.parameters():
        nn.init.uniform_(weight, -0.5, 0.5)
    return net


def observe(net, images, targets, loss=F.cross_entropy):
    """The gradient of the mean loss, as an update of one plain step says it is."""
    gradient = torch.autograd.grad(loss(net(images), targets), list(net.parameters()))
    names = [name for name, _ in net.named_parameters()]
    return Observation(0, dict(zip(names, gradient)), targets.bincount(minlength=10), images, targets)


def pixel_range(images):
    return PixelRange(torch.zeros_like(images[:1]), torch.ones_like(images[:1]))


def attack(net, seen, **settings):
    defaults = {"distance": "l2", "tv": 0.0, "lr": 0.1, "iterations": 400}
    inverter = Inverter(net, CrossEntropy(), pixel_range(seen.inputs), Inversion(**{**defaults, **settings}))
    return inverter.invert(seen)


def psnr(recovered, images):
    """``10 log10(1 / MSE)``, the range being 1."""
    return -10 * math.log10(F.mse_loss(recovered, images).item())


# Parts ----------------------------------------------------------------------------------------------------------------


def test_total_variation_against_a_loop():
    """Mean over all vertical neighbours plus mean over all horizontal ones, pixel by pixel."""
    images = torch.rand(2, 3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    vertical, horizontal = [], []
    for n in range(2):
        for c in range(3):
            for y in range(4):
                for x in range(5):
                    if y > 0:
                        vertical.append(abs(images[n, c, y, x] - images[n, c, y - 1, x]))
                    if x > 0:
                        horizontal.append(abs(images[n, c, y, x] - images[n, c, y, x - 1]))
    expected = sum(vertical) / len(vertical) + sum(horizontal) / len(horizontal)
    torch.testing.assert_close(total_variation(images), expected, atol=1e-12, rtol=0)


def test_distances_against_long_vectors():
    """Over all tensors together: of (3, 4, 0, 0) and (0, 4, 3, 0) the squared distance is 18, the cosine 16/25."""
    first = [torch.tensor([[3.0, 4.0]]).double(), torch.zeros(2).double()]
    second = [torch.tensor([[0.0, 4.0]]).double(), torch.tensor([3.0, 0.0]).double()]
    assert squared_distance(first, second).item() == 18
    assert cosine_distance(first, second).item() == pytest.approx(1 - 16 / 25, abs=1e-14)
    generator = torch.Generator().manual_seed(2)
    first, second = ([torch.randn(4, 3, generator=generator).double(), torch.randn(5).double()] for _ in range(2))
    a, b = (torch.cat([part.flatten() for part in parts]).numpy() for parts in (first, second))
    assert squared_distance(first, second).item() == pytest.approx(((a - b) ** 2).sum(), abs=1e-12)
    assert cosine_distance(first, second).item() == pytest.approx(1 - a @ b / ((a @ a) * (b @ b)) ** 0.5, abs=1e-12)


def test_the_distance_from_a_gradient_of_zero_is_finite():
    assert cosine_distance([torch.zeros(3)], [torch.ones(3)]).item() == 1


@pytest.mark.parametrize("labels", [[3], [0, 9], [1, 2, 4, 8], [5, 5, 5, 2], [7, 7], [6, 6, 6, 6, 0, 0, 1, 3]])
def test_labels_of_a_batch_are_recovered(labels):
    """Distinct or repeated, at weights as they are initialised: from the bias of the last layer alone."""
    net, generator = small_net(32), torch.Generator().manual_seed(3)
    for layer in net:
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()
    images, targets = digits(*labels)
    seen = observe(net, images, targets)
    guesses = torch.rand(16, 1, 8, 8, generator=generator)
    assert recovered_labels(net, CrossEntropy(), seen, guesses).tolist() == sorted(labels)


def test_labels_are_recovered_under_tce():
    """The probabilities of TCE run over the client's classes alone, and the gradients of the others are 0."""
    net = small_net(32)
    images, targets = digits(4, 4, 8, 9)
    counts = targets.bincount(minlength=10)
    seen = observe(net, images, targets, lambda logits, y: TruncatedCrossEntropy()(logits, y, counts).mean())
    guesses = torch.rand(64, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    assert recovered_labels(net, TruncatedCrossEntropy(), seen, guesses).tolist() == [4, 4, 8, 9]


def test_label_counts_by_hand():
    """Three images: -3g = (1.8, -.3, -1.5) leaves two of class 0; the third goes to where 3 (p - g) is furthest from full.

    With p = (.1, .4, .5) that is 3 (.7, .3, 0) = (2.1, .9, 0), and less (2, 0, 0): class 1.
    """
    counts = label_counts_from_bias(torch.tensor([-0.6, 0.1, 0.5]), torch.tensor([0.1, 0.4, 0.5]), 3)
    assert counts.tolist() == [2, 1, 0]


def test_a_net_without_biases_gives_no_labels_away():
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10, bias=False))
    seen = observe(net, *digits(3))
    with pytest.raises(ValueError, match="labels is recovered, but .* no bias .*: set labels to known"):
        attack(net, seen)
    assert attack(net, seen, labels="known", iterations=1).labels.tolist() == [3]


def test_the_rate_falls_after_three_five_and_seven_eighths(monkeypatch):
    """Of 80 steps the first 30 are at .5, the next 20 at .05, 20 at .005 and the last 10 at .0005."""
    rates = []
    plain = torch.optim.Adam.step
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self: (rates.append(self.param_groups[0]["lr"]), plain(self))[1])
    attack(small_net(), observe(small_net(), *digits(3)), lr=0.5, iterations=80)
    assert rates == pytest.approx([0.5] * 30 + [0.05] * 20 + [0.005] * 20 + [0.0005] * 10)


def test_compiled_and_plain_steps_agree():
    """What is compiled, before it is compiled, gives the gradients of plain autograd."""
    net, (images, targets) = small_net(16), digits(1, 7)
    seen = observe(net, images, targets)
    inverter = Inverter(net, CrossEntropy(), pixel_range(images), Inversion(tv=0.1, restarts=3))
    points = inverter.starting_points(seen)
    plain = inverter._one_after_another(points, targets, seen.gradient, seen.label_counts)
    functional = torch.vmap(inverter._functional_gradient, in_dims=(0, None, None, None))
    for a, b in zip(plain, functional(points, targets, seen.gradient, seen.label_counts)):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)


def test_a_captured_attack_ends_where_the_plain_one_does(monkeypatch):
    """The whole step is captured as one graph; it is run as it is, since generating code for it would take a minute."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    net, (images, targets) = small_net(), digits(6)
    seen = observe(net, images, targets)
    plain, compiled = (attack(net, seen, iterations=20, compile=compile) for compile in (False, True))
    torch.testing.assert_close(plain.inputs, compiled.inputs, atol=1e-3, rtol=0)


# Attacks --------------------------------------------------------------------------------------------------------------


def test_a_linear_model_gives_its_image_away():
    """Of a row of the weight the gradient is ``(p_c - y_c) x``, of the bias ``p_c - y_c``: their quotient is the image.

    DLG gets there too.
    """
    net, (images, targets) = small_net(), digits(3)
    seen = observe(net, images, targets)
    exact = (seen.gradient["1.weight"] / seen.gradient["1.bias"][:, None]).reshape(10, 1, 8, 8)
    torch.testing.assert_close(exact, images.expand(10, -1, -1, -1), atol=1e-5, rtol=0)
    recovered = attack(net, seen)
    assert recovered.labels.tolist() == [3]
    assert psnr(recovered.inputs, images) > 60


@pytest.mark.parametrize(
    "settings",
    [{"distance": "l2"}, {"distance": "cosine", "tv": 1e-4, "signed": True}, {"distance": "l2", "lr": 1.0, "tv": 1e-8}],
    ids=["DLG", "Geiping", "FedReg paper"],
)
@pytest.mark.slow
def test_a_small_network_gives_its_image_away(settings):
    """To more than 25 dB; with noise of ten times the gradient's norm, to less than 12."""
    net, (images, targets) = small_net(128), digits(5)
    seen = observe(net, images, targets)
    assert psnr(attack(net, seen, **settings).inputs, images) > 25
    generator = torch.Generator().manual_seed(4)
    for name, gradient in seen.gradient.items():
        noise = torch.randn(gradient.shape, generator=generator)
        seen.gradient[name] = gradient + 10 * gradient.norm() * noise / noise.norm()
    assert psnr(attack(net, seen, **settings).inputs, images) < 12


def test_several_images_are_recovered_from_one_gradient():
    """Two digits of different labels, in the order of the labels, which ascend."""
    net, (images, targets) = small_net(128), digits(2, 7)
    recovered = attack(net, observe(net, images, targets), iterations=1000)
    assert recovered.labels.tolist() == [2, 7]
    assert psnr(recovered.inputs, images) > 25


def test_the_best_of_several_restarts_is_kept():
    """The restart with the lowest objective, whose image has just that objective; others start elsewhere."""
    net, (images, targets) = small_net(16), digits(5)
    seen = observe(net, images, targets)
    recovered = attack(net, seen, restarts=3, iterations=30)
    assert len(set(recovered.objectives)) == 3
    again = observe(net, recovered.inputs, targets)
    lowest = squared_distance(list(again.gradient.values()), list(seen.gradient.values())).item()
    assert lowest == pytest.approx(min(recovered.objectives), rel=1e-4)


def test_the_seed_decides():
    net = small_net(16)
    seen = observe(net, *digits(5))
    first, same, other = (attack(net, seen, iterations=20, seed=seed).inputs for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_images_stay_in_their_range():
    """With a rate that throws them far."""
    net = small_net(16)
    inputs = attack(net, observe(net, *digits(5)), iterations=3, lr=100.0).inputs
    assert inputs.min() >= 0
    assert inputs.max() <= 1


class FrozenNorm(nn.BatchNorm2d):
    """One that stays in evaluation mode."""

    def train(self, mode=True):
        return super().train(False)


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, FrozenNorm])
def test_batch_norm_has_the_statistics_of_a_clients_step(norm):
    """Those of the batch, or, frozen, the running ones: the true images match to rounding."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), norm(4), nn.Sigmoid(), nn.Flatten(), nn.Linear(144, 10))
    images, targets = digits(2, 7)
    seen = observe(net.train(), images, targets)
    inverter = Inverter(net, CrossEntropy(), pixel_range(images), Inversion(distance="l2", tv=0.0))
    _, objectives = inverter._one_after_another(images[None], targets, seen.gradient, seen.label_counts)
    assert objectives.item() < 1e-10
    assert net[1].running_mean is not None  # the caller's net is left alone


def test_a_net_that_does_not_change_with_the_image_is_refused():
    class Steps(nn.Module):
        def forward(self, images):
            return images.round()

    net = nn.Sequential(Steps(), nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(ValueError, match="gradients that do not change with the image"):
        attack(net, observe(net, *digits(5)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"iterations": 0}, "iterations is 0, must be at least 1"),
        ({"restarts": 0}, "restarts is 0, must be at least 1"),
        ({"tv": -1.0}, "tv is -1.0, must be at least 0"),
        ({"tv": math.nan}, "tv is nan, must be at least 0"),
        ({"lr": 0.0}, "lr is 0.0, must be above 0"),
        ({"distance": "l1"}, "distance is 'l1', must be one of l2, cosine"),
        ({"labels": "guessed"}, "labels is 'guessed', must be one of recovered, known"),
    ],
)
def test_bad_settings_are_one_line(settings, message):
    with pytest.raises(ValueError, match=message):
        Inversion(**settings)
