"""LeNet, CNN5, CNN10, ResNet9, DenseNet121, torchvision's and timm's models: counts, forward passes, weight files, errors."""

import math
from collections import OrderedDict
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

from fl_lightning.config_files.reading import config_values
from fl_lightning.models import (
    CNN2,
    CNN5,
    CNN10,
    MLP,
    DenseNet121,
    LeNet,
    MoonCNN,
    ResNet9,
    ResNet18,
    TimmModel,
    TorchvisionModel,
)
from fl_lightning.models.lenet import _LocalResponseNorm, _same_pool
from fl_lightning.models.torchvision_model import load_all_but_class_layer


def resnet18(shape, num_classes):
    return TorchvisionModel(shape, num_classes, "resnet18")


def vit_b_32(shape, num_classes):
    return TimmModel(shape, num_classes, "vit_base_patch32_384")


def shufflenet(shape, num_classes):
    return TorchvisionModel(shape, num_classes, "shufflenet_v2_x0_5")


def small_cnn10(shape, num_classes):
    return CNN10(shape, num_classes, width=4)


def count_parameters(build):
    """Number of trainable values; built without memory, since only shapes matter."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build().parameters())


def build_seeded(build, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build()


def noise(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@torch.no_grad()
def shake(net, seed=0):
    """Move every weight a little, so that none is at the special value that it starts from."""
    generator = torch.Generator().manual_seed(seed)
    for weight in net.parameters():
        weight += 0.05 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
    return net


def loss_of(net, images, num_classes=10):
    return F.cross_entropy(net(images), torch.arange(len(images)) % num_classes)


# All nets ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("net", "input_shape", "num_classes", "expected"),
    [
        (LeNet, (3, 32, 32), 5, 2_987_870 + 2_505),
        (CNN5, (1, 28, 28), 10, 228_010),
        (MoonCNN, (3, 32, 32), 10, 92_626),
        (ResNet9, (3, 32, 32), 10, 6_568_673),
        (ResNet9, (3, 32, 32), 100, 6_614_843),
        # 9 * (3 * 16 + 16 * 32 + 2 * 32**2 + 32 * 64 + 64 * 128 + 2 * 128**2) weights of convolutions, 23 scalars
        (partial(ResNet9, width=16), (3, 32, 32), 10, 410_544 + 23 + 1_290),
        # Two weights a channel of the norms, in the place of the scalars.
        (partial(ResNet9, width=16, norm_groups=2), (3, 32, 32), 10, 410_544 + 2 * (16 + 3 * 32 + 64 + 3 * 128) + 1_290),
        (CNN10, (3, 128, 128), 2, 15_676_418),
        (DenseNet121, (3, 224, 224), 2, 6_955_906),
        (DenseNet121, (3, 64, 64), 2, 6_955_906),
        # torchvision's ResNet-18 has 11,689,512 for 1000 classes.
        (resnet18, (3, 32, 32), 1000, 11_689_512),
        (resnet18, (3, 32, 32), 10, 11_689_512 - 990 * 513),
        # torchvision's ViT-B/32 has 88,224,232 for 224 pixels, that is 7x7 + 1 positions, and 1000 classes.
        (vit_b_32, (3, 384, 384), 100, 88_224_232 + (12 * 12 - 7 * 7) * 768 - 900 * 769),
    ],
)
def test_parameter_counts(net, input_shape, num_classes, expected):
    """As published, or as torchvision states for its models."""
    assert count_parameters(lambda: net(input_shape, num_classes)) == expected


def test_moon_cnn_has_the_papers_shapes():
    """Encoder of 5x5 convolutions to 6 and 16 and layers of 120 and 84, projection head 84, 84, 256, output layer 256 to 10.

    456 + 2,416 + 48,120 + 10,164 + (7,140 + 21,760) + 2,570 = 92,626 parameters; after the convolutions 28, 14, 10, 5 pixels.
    """
    with torch.device("meta"):
        net = MoonCNN((3, 32, 32), 10)
        weights = [tuple(weight.shape) for weight in net.parameters() if weight.ndim > 1]
        sizes, inputs = [], torch.empty(1, 3, 32, 32)
        for layer in net.features:
            inputs = layer(inputs)
            sizes.append(inputs.shape[-1])
    assert weights == [(6, 3, 5, 5), (16, 6, 5, 5), (120, 400), (84, 120), (84, 84), (256, 84), (10, 256)]
    assert sizes == [28, 14, 14, 10, 5, 5, 400, 120, 120, 84, 84, 84, 84, 256]


def test_moon_cnn_forward_matches_the_listing():
    """conv5 - relu - pool2 twice, two hidden layers, the projection head without a ReLU at its end, the output layer."""
    net, images = build_seeded(lambda: MoonCNN((3, 32, 32), 10)), noise(2, 3, 32, 32)
    values = iter(net.parameters())
    x = images
    for _ in range(2):
        x = F.max_pool2d(F.conv2d(x, next(values), next(values)).relu(), 2)
    x = x.flatten(1)
    for _ in range(3):
        x = F.linear(x, next(values), next(values)).relu()
    z = F.linear(x, next(values), next(values))
    torch.testing.assert_close(net.features(images), z)
    torch.testing.assert_close(net(images), F.linear(z, next(values), next(values)))


def test_lenet_has_the_published_total_with_ten_class_layers():
    """Body 1,520 + 25,050 + 2,560,800 + 400,500 = 2,987,870; ten class layers of 5 outputs make it 3,012,920."""
    body = count_parameters(lambda: LeNet((3, 32, 32), 5).features)
    head = count_parameters(lambda: LeNet((3, 32, 32), 5).classifier)
    assert (body, body + 10 * head) == (2_987_870, 3_012_920)


@pytest.mark.parametrize(
    ("net", "input_shape"),
    [
        *[(LeNet, shape) for shape in [(3, 32, 32), (1, 28, 28), (3, 30, 21), (2, 1, 1), (1, 2, 5)]],
        *[(CNN5, shape) for shape in [(1, 28, 28), (3, 32, 32), (3, 20, 41)]],
        *[(MoonCNN, shape) for shape in [(3, 32, 32), (1, 28, 28), (3, 16, 41)]],
        *[(ResNet9, shape) for shape in [(3, 32, 32), (1, 33, 70)]],
        *[(CNN10, shape) for shape in [(3, 128, 128), (1, 3, 7)]],
        *[(DenseNet121, shape) for shape in [(3, 224, 224), (1, 64, 64), (3, 29, 33)]],
        *[(resnet18, shape) for shape in [(3, 224, 224), (3, 28, 32)]],
    ],
)
@pytest.mark.one_in(4)
def test_output_has_one_logit_a_class(net, input_shape):
    """(B, *input_shape) gives (B, C), from the smallest allowed image to uneven sides, without running the arithmetic."""
    with torch.device("meta"):
        assert net(input_shape, 7)(torch.empty(3, *input_shape)).shape == (3, 7)


SMALL = [
    (LeNet, (3, 16, 16)),
    (CNN2, (1, 8, 8)),
    (MLP, (5,)),
    (CNN5, (1, 20, 20)),
    (MoonCNN, (3, 16, 16)),
    (ResNet18, (1, 17, 17)),
    (ResNet9, (1, 32, 32)),
    (small_cnn10, (3, 12, 12)),
    (DenseNet121, (1, 32, 32)),
    (shufflenet, (3, 32, 32)),
]


@pytest.mark.parametrize(("net", "input_shape"), SMALL)
@pytest.mark.one_in(3)
def test_classifier_of_features_is_the_net_and_the_seed_decides(net, input_shape):
    """classifier(features(x)) = net(x), so other code can take features; the same seed gives the same weights and logits."""
    first, again = (build_seeded(lambda: net(input_shape, 10)).eval() for _ in range(2))
    other = build_seeded(lambda: net(input_shape, 10), seed=1)
    assert all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), again.state_dict().values(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters()))
    images = noise(2, *input_shape)
    with torch.no_grad():
        shake(first)
        shake(again)
        logits = first(images)
        assert logits.std() > 0
        assert torch.equal(logits, again(images))
        assert torch.equal(logits, first.classifier(first.features(images)))


@pytest.mark.parametrize(("net", "input_shape"), SMALL)
@pytest.mark.one_in(3)
def test_gradient_reaches_every_parameter(net, input_shape):
    """No parameter is unused: away from the initial zeros each has a finite gradient, not all of it 0."""
    model = shake(build_seeded(lambda: net(input_shape, 10)))
    loss_of(model, noise(4, *input_shape)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert (parameter.grad != 0).any(), name


@pytest.mark.parametrize(("net", "input_shape"), [(LeNet, (3, 16, 16)), (CNN5, (1, 20, 20)), (ResNet9, (3, 32, 32))])
def test_stacked_clients_equal_single_ones(net, input_shape):
    """Under vmap over stacked weights, two clients have the losses and gradients that they have one by one."""
    clients = [shake(build_seeded(lambda: net(input_shape, 10)), seed) for seed in range(2)]
    images = noise(2, 3, *input_shape)
    stacked, _ = torch.func.stack_module_state(clients)

    def loss(weights, inputs):
        return F.cross_entropy(torch.func.functional_call(clients[0], weights, inputs), torch.tensor([1, 4, 7]))

    gradients, losses = torch.vmap(torch.func.grad_and_value(loss))(stacked, images)
    for index, client in enumerate(clients):
        alone = F.cross_entropy(client(images[index]), torch.tensor([1, 4, 7]))
        alone.backward()
        torch.testing.assert_close(losses[index], alone.detach())
        for name, weight in client.named_parameters():
            assert (weight.grad - gradients[name][index]).norm() <= 1e-4 * weight.grad.norm(), name


@pytest.mark.parametrize(
    ("net", "message", "shapes"),
    [
        (LeNet, "LeNet needs images.*use MLP", [(64,)]),
        (CNN5, "CNN5 needs images of at least 20x20.*use CNN2", [(64,), (1, 19, 28), (1, 28, 19)]),
        (MoonCNN, "MoonCNN needs images of at least 16x16.*use CNN2", [(64,), (3, 15, 16), (3, 16, 15)]),
        (ResNet9, "ResNet9 needs images of at least 32x32.*data.Pad", [(64,), (3, 31, 32), (1, 28, 28)]),
        (CNN10, "CNN10 needs images of at least 3x3.*use MLP", [(64,), (3, 2, 3)]),
        (DenseNet121, "DenseNet121 needs images of at least 29x29.*data.Resize", [(64,), (3, 28, 32)]),
        (resnet18, "TorchvisionModel needs colour images.*data.ToRGB to data.augment", [(64,), (1, 32, 32)]),
    ],
)
def test_inputs_that_do_not_fit_are_named(net, message, shapes):
    """What the net needs, what the data gives and the cure, in one line."""
    for shape in shapes:
        with pytest.raises(ValueError, match=rf"^model.net {message}") as error:
            net(shape, 10)
        assert str(shape) in str(error.value)
        assert "\n" not in str(error.value)


# LeNet ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_local_response_norm_is_the_closed_form(memory_format):
    """y_c = x_c / (1 + .001 / 9 * sum of x_d^2 over |c - d| <= 4)^.75, summed one by one; inputs are large enough to tell."""
    inputs = 60 * noise(2, 12, 3, 2, dtype=torch.float64)
    expected = torch.empty_like(inputs)
    for c in range(12):
        squares = sum(inputs[:, d] ** 2 for d in range(12) if abs(c - d) <= 4)
        expected[:, c] = inputs[:, c] / (1 + 0.001 / 9 * squares) ** 0.75
    torch.testing.assert_close(_LocalResponseNorm()(inputs.to(memory_format=memory_format)), expected)


def test_local_response_norm_has_torchs_derivatives():
    """First and second ones, sample by sample under vmap too: Fisher information and gradient inversion ask for them."""
    inputs = (40 * noise(3, 12, 3, 2, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(_LocalResponseNorm(), inputs)
    assert torch.autograd.gradgradcheck(_LocalResponseNorm(), inputs)

    def weighed(norm, image):
        return (norm(image[None]) * torch.arange(72.0, dtype=torch.float64).reshape(1, 12, 3, 2)).sum()

    def torchs(images):
        return F.local_response_norm(images, 9, alpha=1e-3, beta=0.75, k=1.0)

    expected = torch.stack([torch.func.grad(partial(weighed, torchs))(image) for image in inputs.detach()])
    actual = torch.func.vmap(torch.func.grad(partial(weighed, _LocalResponseNorm())))(inputs.detach())
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize(("height", "width"), [(32, 32), (6, 6), (5, 5), (6, 9), (7, 4), (1, 2)])
def test_pooling_pads_as_tensorflow_does(height, width):
    """'same' gives ceil(n / 2) values a side and pads max(2 * ceil(n / 2) + 1 - n, 0) in all, the smaller half in front.

    For an even side that is one at the right or bottom and none in front.
    """
    images = noise(2, 3, height, width)
    padding = []
    for size in (width, height):  # F.pad begins with the last dimension
        total = max(2 * math.ceil(size / 2) + 1 - size, 0)
        padding += [total // 2, total - total // 2]
    if height % 2 == width % 2 == 0:
        assert padding == [0, 1, 0, 1]
    expected = F.max_pool2d(F.pad(images, padding, value=-math.inf), 3, stride=2)
    assert expected.shape[2:] == (math.ceil(height / 2), math.ceil(width / 2))
    assert torch.equal(_same_pool(height, width)(images), expected)


def test_lenet_forward_matches_the_listing():
    """conv5 - relu - lrn - pool, twice, then linear - relu - linear - relu - linear, with torch's LRN on images."""
    net = shake(build_seeded(lambda: LeNet((3, 12, 8), 4))).double()
    images = 20 * noise(2, 3, 12, 8, dtype=torch.float64)
    w1, b1, w2, b2, w3, b3, w4, b4, w5, b5 = net.parameters()
    x = images
    for weight, bias in ((w1, b1), (w2, b2)):
        x = F.local_response_norm(F.conv2d(x, weight, bias, padding=2).relu(), 9, alpha=1e-3, beta=0.75, k=1.0)
        x = F.max_pool2d(F.pad(x, (0, 1, 0, 1), value=-math.inf), 3, stride=2)
    x = F.linear(F.linear(x.flatten(1), w3, b3).relu(), w4, b4).relu()
    torch.testing.assert_close(net(images), F.linear(x, w5, b5))
    torch.testing.assert_close(net.to(memory_format=torch.channels_last)(images), F.linear(x, w5, b5))


def test_lenet_with_dropout_has_the_same_weights():
    """Dropout holds none: the same draws give the same values, in order."""
    plain, dropping = (build_seeded(lambda p=p: LeNet((3, 12, 8), 4, dropout=p)) for p in (0.0, 0.5))
    assert not any(isinstance(layer, nn.Dropout) for layer in plain.modules())
    for one, other in zip(plain.parameters(), dropping.parameters(), strict=True):
        assert torch.equal(one, other)


def test_lenet_drops_outputs_of_its_hidden_layers_in_training_alone():
    """At .25 a quarter of what ReLU leaves becomes 0, and the others 4/3 of what they were; seen at the last hidden layer."""
    net = build_seeded(lambda: LeNet((3, 12, 8), 4, dropout=0.25))
    layers = [type(layer).__name__ for layer in net.features]
    assert layers[8:] == ["Flatten", "Linear", "ReLU", "Dropout", "Linear", "ReLU", "Dropout"]
    images = noise(40, 3, 12, 8)
    hidden = net.features[:-1].eval()(images)
    assert torch.equal(net.eval().features(images), hidden)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        dropped = net.features[-1].train()(hidden)
    there = hidden > 0
    assert (dropped[there] == 0).float().mean().item() == pytest.approx(0.25, abs=0.02)
    torch.testing.assert_close(dropped[dropped != 0], hidden[dropped != 0] / 0.75)


@pytest.mark.parametrize("dropout", [-0.1, 1.0])
def test_lenet_refuses_a_dropout_out_of_range(dropout):
    with pytest.raises(ValueError, match=rf"^model\.net\.dropout is {dropout}, must be at least 0 and below 1"):
        LeNet((3, 12, 8), 4, dropout=dropout)


def test_lenet_starts_with_scaled_variance():
    """Weights have variance 1 / fan_in and none beyond 2 / .8796 standard deviations of that; biases are 0."""
    net = build_seeded(lambda: LeNet((3, 32, 32), 100))
    fans_in = {"features.0": 75, "features.4": 500, "features.9": 3200, "features.11": 800, "classifier": 500}
    for name, fan_in in fans_in.items():
        layer = net.get_submodule(name)
        assert layer.weight.std().item() == pytest.approx(fan_in**-0.5, rel=0.03), name
        largest = layer.weight.abs().max().item() * fan_in**0.5
        assert 2.1 < largest <= 2 / 0.8796, name
        assert not layer.bias.any(), name


# CNN5 and CNN10 ---------------------------------------------------------------------------------------------------------


def test_cnn5_forward_matches_the_listing():
    """conv5 - relu - conv5 - pool - relu - conv5 - pool - relu - linear - relu - linear, no padding."""
    net = build_seeded(lambda: CNN5((2, 22, 25), 4)).double()
    images = noise(2, 2, 22, 25, dtype=torch.float64)
    w1, b1, w2, b2, w3, b3, w4, b4, w5, b5 = net.parameters()
    x = F.conv2d(images, w1, b1).relu()
    x = F.max_pool2d(F.conv2d(x, w2, b2), 2).relu()
    x = F.max_pool2d(F.conv2d(x, w3, b3), 2).relu()
    x = F.linear(x.flatten(1), w4, b4).relu()
    torch.testing.assert_close(net(images), F.linear(x, w5, b5))


def test_cnn10_forward_matches_the_listing():
    """3-w-2w-2w-4w-4w-4w(norm), pool 3, 4w-4w(norm)-4w, flatten, linear; ReLU after each; the norm is that of one group."""
    net = shake(build_seeded(lambda: small_cnn10((3, 10, 13), 4))).double()
    images = noise(2, 3, 10, 13, dtype=torch.float64)
    values = iter(net.parameters())
    x, widths = images, []
    for layer in range(1, 10):
        weight, bias = next(values), next(values)
        widths.append(len(weight))
        x = F.conv2d(x, weight, bias, padding=1)
        if layer in (6, 8):
            x = F.layer_norm(x, x.shape[1:]) * next(values)[:, None, None] + next(values)[:, None, None]
        x = x.relu()
        if layer == 6:
            x = F.max_pool2d(x, 3)
    assert widths == [4, 8, 8, 16, 16, 16, 16, 16, 16]
    torch.testing.assert_close(net(images), F.linear(x.flatten(1), next(values), next(values)))


# ResNet9 ----------------------------------------------------------------------------------------------------------------


def plain_resnet9(weights, images):
    """Section by section in functional calls, weights and scalars taken by name."""

    def conv(x, name):
        return F.conv2d(x, weights[f"{name}.weight"], padding=1)

    def layer(x, name):
        shift, scale, bias = (weights[f"{name}.{part}"] for part in ("shift.bias", "scale", "bias"))
        return conv(x + shift, f"{name}.conv") * scale + bias

    def block(x, name):
        b1a, b1b = weights[f"{name}.shift.bias"], weights[f"{name}.bias"]
        b2a, s, b2b = (weights[f"{name}.conv2.{part}"] for part in ("shift.bias", "scale", "bias"))
        hidden = (conv(x + b1a, f"{name}.conv1") + b1b).relu()
        return (conv(hidden + b2a, f"{name}.conv2.conv") * s + b2b + x).relu()

    x = layer(images, "features.0").relu()
    x = block(F.max_pool2d(layer(x, "features.2").relu(), 2), "features.5")
    x = F.max_pool2d(layer(x, "features.6").relu(), 2)
    x = block(F.max_pool2d(layer(x, "features.9").relu(), 2), "features.12")
    x = F.max_pool2d(x, 4).flatten(1) + weights["features.15.bias"]
    return F.linear(x, weights["classifier.weight"], weights["classifier.bias"])


def test_resnet9_forward_matches_the_formulas():
    """Every scalar away from its initial 0 or 1, the net equals its formulas in float64, on 64x32 images too."""
    net = shake(build_seeded(lambda: ResNet9((3, 64, 32), 10))).double()
    images = noise(2, 3, 64, 32, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(net(images), plain_resnet9(dict(net.named_parameters()), images))
    with pytest.raises(ValueError, match="model.net.width is 0, must be at least 1"):
        ResNet9((3, 64, 32), 10, width=0)


def test_resnet9_with_norms_matches_the_formulas():
    """Norms after convolutions, before ReLU and a block's sum, by mean and variance of halves of the channels."""

    def norm(x, name):
        halves = x.unflatten(1, (2, -1))
        variance, mean = torch.var_mean(halves, dim=(2, 3, 4), correction=0, keepdim=True)
        x = ((halves - mean) / (variance + 1e-5).sqrt()).flatten(1, 2)
        return x * weights[f"{name}.weight"][:, None, None] + weights[f"{name}.bias"][:, None, None]

    def layer(x, name):
        return norm(F.conv2d(x, weights[f"{name}.conv.weight"], padding=1), f"{name}.norm")

    def block(x, name):
        return (x + layer(layer(x, f"{name}.conv1").relu(), f"{name}.conv2")).relu()

    net = shake(build_seeded(lambda: ResNet9((3, 64, 32), 10, width=4, norm_groups=2))).double()
    weights, images = dict(net.named_parameters()), noise(2, 3, 64, 32, dtype=torch.float64)
    with torch.no_grad():
        x = layer(images, "features.0").relu()
        x = block(F.max_pool2d(layer(x, "features.2").relu(), 2), "features.5")
        x = F.max_pool2d(layer(x, "features.6").relu(), 2)
        x = F.max_pool2d(block(F.max_pool2d(layer(x, "features.9").relu(), 2), "features.12"), 4).flatten(1)
        torch.testing.assert_close(net(images), F.linear(x, weights["classifier.weight"], weights["classifier.bias"]))
    for groups in (0, 3):
        with pytest.raises(ValueError, match=f"norm_groups is {groups}, must be a divisor of model.net.width, which is 4"):
            ResNet9((3, 64, 32), 10, width=4, norm_groups=groups)


def test_resnet9_starts_as_fixup_says():
    """Standard deviations sqrt(2 / (9 * out)), in a block's first convolution over sqrt(2); zeros, ones and zero biases."""
    net = build_seeded(lambda: ResNet9((3, 32, 32), 10))
    widths = {"0.conv": 64, "2.conv": 128, "5.conv1": 256, "6.conv": 256, "9.conv": 512, "12.conv1": 1024}
    for name, width in widths.items():  # a block's first convolution as if twice as wide: that is the factor 1 / sqrt(2)
        weight = net.features.get_parameter(f"{name}.weight")
        assert weight.std().item() == pytest.approx(math.sqrt(2 / (9 * width)), rel=0.03), name
    for name, value in net.named_parameters():
        if "conv2.conv" in name or "classifier" in name or name.endswith("bias"):
            assert not value.any(), name
        elif name.endswith("scale"):
            assert value.item() == 1, name
    inputs = noise(1, 128, 4, 4)
    assert torch.equal(net.features[5](inputs), inputs.relu())


def test_resnet9_wakes_up_in_three_steps():
    """The zeros of Fixup hold gradients back: first all but the class layer's, then a block's before its second convolution.

    With conv2 = 0 nothing in the block before its output depends on conv1, b1a, b1b, b2a or s.
    """
    net = build_seeded(lambda: ResNet9((3, 32, 32), 10))
    images = noise(10, 3, 32, 32)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    inner = {"conv1.weight", "shift.bias", "bias", "conv2.shift.bias", "conv2.scale"}
    held_back = {f"features.{block}.{name}" for block in (5, 12) for name in inner}
    everything = {name for name, _ in net.named_parameters()}
    for moving in ({"classifier.weight", "classifier.bias"}, everything - held_back, everything):
        optimizer.zero_grad()
        loss_of(net, images).backward()
        assert {name for name, weight in net.named_parameters() if weight.grad.any()} == moving
        optimizer.step()


# DenseNet121 ------------------------------------------------------------------------------------------------------------


def plain_densenet121(net, images):
    """Huang et al., table 1, in functional calls: norm - relu - conv 1x1 - norm - relu - conv 3x3, outputs concatenated."""

    def active(x, norm):
        return F.group_norm(x, 4, norm.weight, norm.bias).relu()

    layers = net.features[0]
    x = F.conv2d(images, layers.conv0.weight, stride=2, padding=3)
    x = F.max_pool2d(active(x, layers.norm0), 3, stride=2, padding=1)
    for number, depth in enumerate((6, 12, 24, 16), start=1):
        for index in range(1, depth + 1):
            layer = layers.get_submodule(f"denseblock{number}.denselayer{index}")
            new = F.conv2d(active(x, layer.norm1), layer.conv1.weight)
            new = F.conv2d(active(new, layer.norm2), layer.conv2.weight, padding=1)
            x = torch.cat([x, new], dim=1)
        if number < 4:
            halve = layers.get_submodule(f"transition{number}")
            x = F.avg_pool2d(F.conv2d(active(x, halve.norm), halve.conv.weight), 2)
    return net.classifier(active(x, layers.norm5).mean(dim=(2, 3)))


def test_densenet121_forward_matches_the_table():
    """Group norms of 4 everywhere, ReLU after the last, then the average; on 64x64, where it averages 2x2 values."""
    net = shake(build_seeded(lambda: DenseNet121((3, 64, 64), 5))).double()
    images = noise(2, 3, 64, 64, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(net(images), plain_densenet121(net, images))


@pytest.mark.parametrize("channels", [1, 3])
def test_densenet121_norms_and_initial_weights(channels):
    """1 + 58 * 2 + 3 + 1 = 121 norms, all GroupNorm(4), no buffers; Kaiming: standard deviation sqrt(2 / fan_in)."""
    net = build_seeded(lambda: DenseNet121((channels, 64, 64), 5))
    groups = [module.num_groups for module in net.modules() if isinstance(module, nn.GroupNorm)]
    assert groups == [4] * 121
    assert not list(net.buffers())
    convolutions = [module for module in net.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 1 + 58 * 2 + 3
    for convolution in convolutions:
        fan_in = convolution.weight[0].numel()
        assert convolution.weight.std().item() == pytest.approx(math.sqrt(2 / fan_in), rel=0.05)


# FedReg's ViT-B/32 ----------------------------------------------------------------------------------------------------

GRID, WIDTH, HEADS, HIDDEN, PATCH, CLASSES = 2, 12, 3, 10, 4, 5


def google_arrays(grid=GRID, num_classes=CLASSES):
    """Random weights of a small net under the names and in the layouts of Google's .npz files."""
    shapes = {
        "cls": (1, 1, WIDTH),
        "embedding/kernel": (PATCH, PATCH, 3, WIDTH),
        "embedding/bias": (WIDTH,),
        "Transformer/posembed_input/pos_embedding": (1, grid**2 + 1, WIDTH),
        "Transformer/encoder_norm/scale": (WIDTH,),
        "Transformer/encoder_norm/bias": (WIDTH,),
        "head/kernel": (WIDTH, num_classes),
        "head/bias": (num_classes,),
    }
    for layer in range(2):
        block = f"Transformer/encoderblock_{layer}"
        for norm in ("LayerNorm_0", "LayerNorm_2"):
            shapes |= {f"{block}/{norm}/scale": (WIDTH,), f"{block}/{norm}/bias": (WIDTH,)}
        attention = f"{block}/MultiHeadDotProductAttention_1"
        for part in ("query", "key", "value"):
            shapes |= {f"{attention}/{part}/kernel": (WIDTH, HEADS, WIDTH // HEADS)}
            shapes |= {f"{attention}/{part}/bias": (HEADS, WIDTH // HEADS)}
        shapes |= {f"{attention}/out/kernel": (HEADS, WIDTH // HEADS, WIDTH), f"{attention}/out/bias": (WIDTH,)}
        mlp = f"{block}/MlpBlock_3"
        shapes |= {f"{mlp}/Dense_0/kernel": (WIDTH, HIDDEN), f"{mlp}/Dense_0/bias": (HIDDEN,)}
        shapes |= {f"{mlp}/Dense_1/kernel": (HIDDEN, WIDTH), f"{mlp}/Dense_1/bias": (WIDTH,)}
    generator = np.random.default_rng(0)
    return {name: generator.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def plain_vit(arrays, images):
    """Dosovitskiy et al., equations (1) to (4), in matrix products on Google's layouts; images (B, height, width, 3)."""

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
        return normed * arrays[f"{name}/scale"] + arrays[f"{name}/bias"]

    def dense(x, name):
        return x @ arrays[f"{name}/kernel"] + arrays[f"{name}/bias"]

    def split(x, name):
        return np.einsum("bnd,dhe->bhne", x, arrays[f"{name}/kernel"]) + arrays[f"{name}/bias"][:, None]

    arrays = {name: array.astype(np.float64) for name, array in arrays.items()}
    starts = range(0, images.shape[1], PATCH)
    patches = [images[:, row : row + PATCH, column : column + PATCH] for row in starts for column in starts]
    kernel = arrays["embedding/kernel"].reshape(-1, WIDTH)
    x = np.stack([patch.reshape(len(images), -1) for patch in patches], axis=1) @ kernel + arrays["embedding/bias"]
    x = np.concatenate([np.repeat(arrays["cls"], len(images), axis=0), x], axis=1)
    x = x + arrays["Transformer/posembed_input/pos_embedding"]
    for layer in range(2):
        block = f"Transformer/encoderblock_{layer}"
        attention = f"{block}/MultiHeadDotProductAttention_1"
        y = norm(x, f"{block}/LayerNorm_0")
        query, key, value = (split(y, f"{attention}/{part}") for part in ("query", "key", "value"))
        scores = np.exp(query @ key.swapaxes(-1, -2) / math.sqrt(WIDTH // HEADS))
        mixed = scores / scores.sum(-1, keepdims=True) @ value
        x = x + np.einsum("bhne,hed->bnd", mixed, arrays[f"{attention}/out/kernel"]) + arrays[f"{attention}/out/bias"]
        y = dense(norm(x, f"{block}/LayerNorm_2"), f"{block}/MlpBlock_3/Dense_0")
        y = y * (1 + np.vectorize(math.erf)(y / math.sqrt(2))) / 2
        x = x + dense(y, f"{block}/MlpBlock_3/Dense_1")
    return dense(norm(x, "Transformer/encoder_norm")[:, 0], "head")


def small_vit(arrays, folder, grid=GRID, num_classes=CLASSES):
    """The net of the config in small, from an .npz file: 4x4 patches, 2 blocks, 3 heads of 4, hidden layer 10."""
    np.savez(folder / "vit.npz", **arrays)
    side, sizes = PATCH * grid, {"patch_size": PATCH, "embed_dim": WIDTH, "depth": 2, "num_heads": HEADS}
    sizes |= {"img_size": side, "mlp_ratio": HIDDEN / WIDTH, "checkpoint_path": str(folder / "vit.npz")}
    given = config_values("fedreg_cifar100_vit_fedavg.yaml")["model"]["init_args"]["net"]["init_args"]
    return TimmModel((3, side, side), num_classes, given["name"], options={**given["options"], **sizes})


@pytest.fixture
def torch_file(tmp_path):
    """Write a state dict and return the file's path."""

    def write(state):
        torch.save(state, tmp_path / "weights.pth")
        return str(tmp_path / "weights.pth")

    return write


def test_vit_from_google_matches_matrix_products(tmp_path):
    """Loaded from an .npz file, the net computes what the arrays say in their layout; the class layer comes along."""
    arrays = google_arrays()
    net = small_vit(arrays, tmp_path).double().eval()
    images = noise(3, 3, PATCH * GRID, PATCH * GRID, dtype=torch.float64)
    expected = torch.from_numpy(plain_vit(arrays, images.permute(0, 2, 3, 1).numpy()))
    assert expected.std() > 0.1
    with torch.no_grad():
        torch.testing.assert_close(net(images), expected, atol=1e-5, rtol=0)


def test_vit_class_layer_that_does_not_fit_starts_at_zero(tmp_path):
    arrays = google_arrays()
    features, net = small_vit(arrays, tmp_path).features.state_dict(), small_vit(arrays, tmp_path, num_classes=CLASSES + 1)
    assert not any(value.any() for value in net.classifier.parameters())
    for name, value in net.features.state_dict().items():
        assert torch.equal(value, features[name]), name


def resnet18_from(file):
    return TorchvisionModel((3, 32, 32), CLASSES, "resnet18", weights=str(file))


def test_weight_files_that_cannot_be_read_are_named(tmp_path, torch_file):
    """No such file; no weights in it; more than weights in it."""
    with pytest.raises(FileNotFoundError, match=r"^model.net.weights is .*none.pth, which does not exist: give a local"):
        resnet18_from(tmp_path / "none.pth")
    contents = {"a.pth": b"text", "b.pth": b"", "c.pth": b"PK\x03\x04 cut off"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"^model.net.weights is .*{name}, which torch cannot read") as error:
            resnet18_from(tmp_path / name)
        assert "\n" not in str(error.value)
    for content in ({"state_dict": {}, "epoch": 3}, torch.zeros(3), nn.Linear(2, 3)):
        with pytest.raises(ValueError, match=r"^model.net.weights is .*weights.pth, which .*: save the net's state_dict\(\)"):
            resnet18_from(torch_file(content))


# TorchvisionModel -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "resnet18", "shufflenet_v2_x0_5", "squeezenet1_1", "mnasnet0_5"])
def test_torchvision_model_is_the_same_net(torch_file, name):
    """From the same weights, the logits of torchvision's net; with one class fewer all but the class layer is the same."""
    plain = build_seeded(lambda: torchvision.models.get_model(name, num_classes=5)).eval()
    file = torch_file(plain.state_dict())
    images = noise(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(TorchvisionModel((3, 64, 64), 5, name, weights=file).eval()(images), plain(images))
    fewer = build_seeded(lambda: TorchvisionModel((3, 64, 64), 4, name, weights=file), seed=1).eval()
    fresh = build_seeded(lambda: TorchvisionModel((3, 64, 64), 4, name), seed=1).eval()
    for key, value in fewer.features.state_dict().items():
        assert torch.equal(value, plain.state_dict()[f"features.{key}" if name == "squeezenet1_1" else key]), key
    for key, value in fewer.classifier.state_dict().items():
        assert torch.equal(value, fresh.classifier.state_dict()[key]), key
    with torch.no_grad():
        assert fewer(images).shape == (2, 4)


@pytest.mark.parametrize(
    ("name", "size", "options"),
    [
        ("alexnet", 224, None),
        ("convnext_tiny", 64, None),
        ("efficientnet_b0", 64, None),
        ("googlenet", 64, None),
        ("inception_v3", 299, None),
        ("maxvit_t", 224, None),
        ("resnext50_32x4d", 64, None),
        ("swin_t", 64, None),
        ("vgg11", 64, None),
        ("vit_b_32", 64, {"image_size": 64}),
    ],
)
@pytest.mark.one_in(3)
def test_torchvision_families_have_a_class_layer(name, size, options):
    """In train mode too the output is one tensor (B, C), and ``classifier`` is the linear layer that gives it."""
    with torch.device("meta"):
        net = TorchvisionModel((3, size, size), 7, name, options).train()
        assert net(torch.empty(2, 3, size, size)).shape == (2, 7)
    assert type(net.classifier) is nn.Linear
    assert net.classifier.out_features == 7


def test_torchvision_options_reach_the_model():
    """mobilenet_v3_small's dropout is .2 by default."""
    with torch.device("meta"):
        net = TorchvisionModel((3, 64, 64), 7, "mobilenet_v3_small", {"dropout": 0.75})
    assert [module.p for module in net.modules() if isinstance(module, nn.Dropout)] == [0.75]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("squeezenet1_1", {"droput": 0.5}),
        ("squeezenet1_1", {"dropout": 2.0}),
        ("squeezenet1_1", {"num_classes": 3}),
        ("squeezenet1_1", {"weights": "DEFAULT"}),
        ("squeezenet1_1", {"pretrained": True}),
        ("vit_b_32", {"image_size": 33}),
    ],
)
def test_torchvision_options_that_do_not_fit_are_named(name, options):
    """Unknown, out of range, or ours to give; nothing is downloaded, even if the classes would fit torchvision's weights."""
    with pytest.raises(ValueError, match=rf"^model.net.options is .*, which {name} does not take \(.*\): change them") as error:
        TorchvisionModel((3, 64, 64), 1000, name, options)
    assert str(options) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("resnet-18", "resnet18"), ("ViT_B_32", "vit_b_32"), ("fcn_resnet50", "resnet50"), ("torchvision.models.vgg16", "vgg16")],
)
def test_unknown_torchvision_names_get_the_nearest(name, nearest):
    """Typing errors and models that do not classify."""
    with pytest.raises(ValueError, match=rf"^model.net.name is '{name}', no classification model.*did you mean {nearest}\?"):
        TorchvisionModel((3, 64, 64), 7, name)


def test_torchvision_weights_of_another_model_are_named(torch_file):
    """Twice as wide; and another family altogether."""
    wider = torchvision.models.shufflenet_v2_x1_0(num_classes=7)
    with pytest.raises(ValueError, match=r"^model.net.weights is .*, where .* is \(.*\) and must be \(.*\): give weights"):
        TorchvisionModel((3, 64, 64), 7, "shufflenet_v2_x0_5", weights=torch_file(wider.state_dict()))
    other = torchvision.models.squeezenet1_1(num_classes=7)
    with pytest.raises(ValueError, match=r"^model.net.weights is .*, where .* is missing: give weights of.*ShuffleNet"):
        TorchvisionModel((3, 64, 64), 7, "shufflenet_v2_x0_5", weights=torch_file(other.state_dict()))


def test_torchvision_weights_that_are_not_finite_are_named(torch_file):
    """Of a run that diverged, say; the message names the first weight."""
    state = torchvision.models.squeezenet1_1(num_classes=7).state_dict()
    state["features.3.squeeze.bias"][2] = torch.nan
    with pytest.raises(
        ValueError, match=r"^model.net.weights is .*, where features.3.squeeze.bias has values .*: give an older"
    ):
        TorchvisionModel((3, 64, 64), 7, "squeezenet1_1", weights=torch_file(state))


def test_auxiliary_heads_in_a_file_are_left_out(torch_file):
    """torchvision's files of GoogLeNet and Inception hold auxiliary heads, which the net is built without."""
    plain = torchvision.models.googlenet(num_classes=7, aux_logits=False, init_weights=False).eval()
    state = plain.state_dict() | {"aux1.fc2.weight": torch.zeros(1000, 1024), "AuxLogits.fc.bias": torch.zeros(1000)}
    net = TorchvisionModel((3, 64, 64), 7, "googlenet", weights=torch_file(state)).eval()
    with torch.no_grad():
        assert torch.equal(net(noise(1, 3, 64, 64)), plain(noise(1, 3, 64, 64)))


def test_old_names_of_densenets_are_read():
    """torchvision's files of DenseNets say ``norm.1`` where the nets say ``norm1``; a class layer may also be missing."""
    shape = {"growth_rate": 4, "block_config": (2, 1), "num_init_features": 4, "num_classes": 3}
    plain, net = (build_seeded(lambda: torchvision.models.DenseNet(**shape), seed) for seed in range(2))
    present = plain.state_dict()
    old = OrderedDict((key, value) for key, value in present.items() if not key.startswith("classifier"))
    for key in [key for key in old if "denselayer" in key]:
        old[key.replace("norm1", "norm.1").replace("norm2", "norm.2").replace("conv1", "conv.1")] = old.pop(key)
    assert "features.denseblock1.denselayer2.norm.2.running_var" in old
    head = net.classifier.weight.detach().clone()
    load_all_but_class_layer(net, old, "classifier", "densenet.pth")
    assert torch.equal(net.classifier.weight, head)
    for key, value in net.features.state_dict().items():
        assert torch.equal(value, present[f"features.{key}"]), key
