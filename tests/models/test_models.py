"""The papers' networks: parameter counts as published, norms, shapes, gradients and errors."""

import copy
from functools import partial
from inspect import signature

import pytest
import torch
from torch import nn

from fl_lightning.models import CNN2, MLP, MoonCNN, ResNet9, ResNet18


def count_parameters(build):
    """Number of trainable values; built without memory, since only shapes matter."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build().parameters())


def build_seeded(build):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build()


@pytest.mark.parametrize("norm", ["group", "batch", "mix"])
@pytest.mark.parametrize(
    ("input_shape", "num_classes", "expected"),
    [((3, 32, 32), 10, 11_178_762), ((3, 32, 32), 100, 11_224_932), ((1, 28, 28), 62, 11_204_286)],
)
def test_resnet18_parameter_counts(norm, input_shape, num_classes, expected):
    """The listing of Appendix B has 11,178,762 parameters for CIFAR-10, more for 100 or 62 classes, in all three variants."""
    assert count_parameters(lambda: ResNet18(input_shape, num_classes, norm)) == expected


def test_resnet18_count_by_hand():
    """A conv k x k from i to o has k^2*i*o + o values, a norm 2*o, the head 512*10 + 10.

    Stem 3->64; blocks of (3x3, norm, 3x3, norm), and a 1x1 shortcut with norm where the width doubles.
    """

    def conv(size, fan_in, fan_out):
        return size * size * fan_in * fan_out + fan_out + 2 * fan_out  # with its norm

    total = conv(3, 3, 64) + 512 * 10 + 10
    for fan_in, fan_out in ((64, 64), (64, 128), (128, 256), (256, 512)):
        total += conv(3, fan_in, fan_out) + 3 * conv(3, fan_out, fan_out) + (fan_in != fan_out) * conv(1, fan_in, fan_out)
    assert count_parameters(lambda: ResNet18((3, 32, 32), 10)) == total


@pytest.mark.parametrize(("norm", "batch_norms", "group_norms"), [("mix", 9, 11), ("batch", 20, 0), ("group", 0, 20)])
def test_resnet18_norms(norm, batch_norms, group_norms):
    """20 norms: stem 1, two a block in 8 blocks, 3 shortcuts; in ``mix`` stem and first norms (9) are BatchNorm.

    BatchNorm keeps torch's momentum .1, GroupNorm has 2 groups, eps is 1e-5 everywhere.
    """
    with torch.device("meta"):
        modules = list(ResNet18((3, 32, 32), 10, norm).modules())
    batch = [module for module in modules if isinstance(module, nn.BatchNorm2d)]
    group = [module for module in modules if isinstance(module, nn.GroupNorm)]
    assert (len(batch), len(group)) == (batch_norms, group_norms)
    assert {module.momentum for module in batch} <= {0.1}
    assert {module.num_groups for module in group} <= {2}
    assert {module.eps for module in batch + group} == {1e-5}


def test_resnet18_mix_puts_batch_norm_first_in_every_block():
    """Order of the norms in a forward pass: the stem's, then (first, second) a block; shortcuts have the second kind."""
    order = []
    with torch.device("meta"):
        net = ResNet18((3, 32, 32), 10, "mix")
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d | nn.GroupNorm):
                module.register_forward_hook(lambda module, *_: order.append(type(module).__name__[0]))
        net(torch.empty(2, 3, 32, 32))
    # Blocks 3, 5 and 7 of 8 have a shortcut norm, of the second kind.
    plain, widening = "BG", "BGG"
    assert "".join(order) == "B" + plain * 2 + (widening + plain) * 3


def test_resnet18_every_convolution_has_a_bias():
    """20 convolutions (1 stem, 16 in blocks, 3 shortcuts), all with a bias, as the listing prints."""
    with torch.device("meta"):
        convolutions = [module for module in ResNet18((3, 32, 32), 10).modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 20
    assert all(convolution.bias is not None for convolution in convolutions)


def plain_resnet18_mix(net, images):
    """Appendix B once more in functional calls, parameters taken in the order in which the listing prints them."""
    values = iter(net.parameters())

    def conv(x, stride, padding):
        return nn.functional.conv2d(x, next(values), next(values), stride=stride, padding=padding)

    def batch_norm(x):
        return nn.functional.batch_norm(x, None, None, next(values), next(values), training=True)

    def group_norm(x):
        return nn.functional.group_norm(x, 2, next(values), next(values))

    x = batch_norm(conv(images, 1, 1)).relu()
    for stride in (1, 1, 2, 1, 2, 1, 2, 1):
        inner = batch_norm(conv(x, stride, 1)).relu()
        inner = group_norm(conv(inner, 1, 1))
        x = (inner + (group_norm(conv(x, stride, 0)) if stride == 2 else x)).relu()
    x = nn.functional.avg_pool2d(x, 3, stride=2).flatten(1)
    return nn.functional.linear(x, next(values), next(values))


def test_resnet18_forward_matches_the_listing():
    """The ``mix`` network in train mode equals the listing written with torch.nn.functional, in float64."""
    net = build_seeded(lambda: ResNet18((3, 32, 32), 10, "mix")).double()
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(net(images), plain_resnet18_mix(net, images), atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    ("input_shape", "num_classes", "expected"),
    [((3, 32, 32), 10, 2_156_490), ((1, 28, 28), 10, 1_663_370), ((1, 28, 28), 62, 1_690_046)],
)
def test_cnn2_parameter_counts(input_shape, num_classes, expected):
    """CIFAR, MNIST and FEMNIST as published; MNIST: 832 + 51,264 + (64*7*7*512 + 512 = 1,606,144) + 5,130 = 1,663,370."""
    assert count_parameters(lambda: CNN2(input_shape, num_classes)) == expected


def test_cnn2_forward_matches_the_listing():
    """conv5 - relu - pool2 - conv5 - relu - pool2 - linear - relu - linear, written with torch.nn.functional."""
    functional = nn.functional
    net = build_seeded(lambda: CNN2((3, 10, 12), 4, hidden=7))
    images = torch.randn(2, 3, 10, 12, generator=torch.Generator().manual_seed(0))
    w1, b1, w2, b2, w3, b3, w4, b4 = net.parameters()
    x = functional.max_pool2d(functional.conv2d(images, w1, b1, padding=2).relu(), 2)
    x = functional.max_pool2d(functional.conv2d(x, w2, b2, padding=2).relu(), 2)
    x = functional.linear(functional.linear(x.flatten(1), w3, b3).relu(), w4, b4)
    torch.testing.assert_close(net(images), x)


@pytest.mark.parametrize(("hidden", "expected"), [((64,), 64 * 64 + 64 + 640 + 10), ((), 650), ((5, 6), 325 + 36 + 70)])
def test_mlp_parameter_counts(hidden, expected):
    """8x8 inputs, 10 classes: (fan_in + 1) * fan_out a layer; without hidden layers 65 * 10 = 650."""
    assert count_parameters(lambda: MLP((1, 8, 8), 10, hidden)) == expected


def test_mlp_forward_by_hand():
    """Hidden (relu(1 - 2), relu(3 - 2)) = (0, 1), output 10 * 0 + 1 * 1 + .5 = 1.5."""
    net = MLP((2,), 1, hidden=(2,))
    for parameter, value in zip(net.parameters(), (torch.eye(2), [-2.0, -2.0], [[10.0, 1.0]], [0.5]), strict=True):
        parameter.data = torch.as_tensor(value)
    assert net(torch.tensor([[1.0, 3.0]])).tolist() == [[1.5]]


def test_mlp_without_hidden_layers_is_linear():
    """f(2x) - f(0) = 2 (f(x) - f(0)), which one ReLU would break."""
    net = build_seeded(lambda: MLP((6,), 4, hidden=()))
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    origin = net(torch.zeros(5, 6))
    torch.testing.assert_close(net(-2 * x) - origin, -2 * (net(x) - origin))


SHAPES = [
    (lambda shape: CNN2(shape, 7), (1, 28, 28)),
    (lambda shape: CNN2(shape, 7), (3, 32, 32)),
    (lambda shape: CNN2(shape, 7), (3, 30, 21)),
    (lambda shape: CNN2(shape, 7), (2, 4, 4)),
    (lambda shape: MLP(shape, 7), (5,)),
    (lambda shape: MLP(shape, 7), (3, 6, 4)),
    (lambda shape: ResNet18(shape, 7), (3, 32, 32)),
    (lambda shape: ResNet18(shape, 7), (1, 28, 28)),
    (lambda shape: ResNet18(shape, 7), (3, 24, 24)),
    (lambda shape: ResNet18(shape, 7), (3, 17, 17)),
    (lambda shape: ResNet18(shape, 7), (3, 40, 64)),
    (lambda shape: ResNet18(shape, 7), (3, 65, 33)),
]


@pytest.mark.parametrize(("build", "input_shape"), SHAPES)
def test_output_has_one_logit_a_class(build, input_shape):
    """(B, *input_shape) gives (B, C), from the smallest allowed image to uneven sides, without running the arithmetic."""
    with torch.device("meta"):
        assert build(input_shape)(torch.empty(3, *input_shape)).shape == (3, 7)


@pytest.mark.parametrize("norm", ["group", "batch", "mix"])
def test_gradient_reaches_every_parameter_of_resnet18(norm):
    """No parameter is unused: each has a gradient, not all of it 0.

    A bias right before BatchNorm is cancelled by it, so there only the presence of a gradient is asked for.
    """
    net = build_seeded(lambda: ResNet18((3, 32, 32), 10, norm))
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    nn.functional.cross_entropy(net(images), torch.tensor([1, 4, 7, 0])).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        if norm == "group" or parameter.ndim > 1:
            assert (parameter.grad != 0).any(), name


@pytest.mark.parametrize("build", [lambda: CNN2((3, 8, 8), 10, hidden=32), lambda: MLP((3, 8, 8), 10, hidden=(16, 8))])
def test_gradient_reaches_every_parameter_of_small_nets(build):
    """Each parameter has a gradient, not all of it 0."""
    net = build_seeded(build)
    images = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    nn.functional.cross_entropy(net(images), torch.arange(16) % 10).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert (parameter.grad != 0).any(), name


def test_group_norm_resnet18_has_no_buffers():
    """Without BatchNorm there is nothing to average but parameters; with it each has mean, variance and a counter."""
    with torch.device("meta"):
        assert list(ResNet18((3, 32, 32), 10, "group").buffers()) == []
        assert len(list(ResNet18((3, 32, 32), 10, "mix").buffers())) == 9 * 3


def test_unknown_norm_is_named():
    """Key, value and the three choices."""
    with pytest.raises(ValueError, match=r"model.net.norm is 'layer', must be one of group, batch, mix"):
        ResNet18((3, 32, 32), 10, "layer")


@pytest.mark.parametrize(
    ("net", "smallest", "shapes"), [(CNN2, "4x4", [(64,), (1, 3, 8), (1, 8, 3)]), (ResNet18, "17x17", [(64,), (3, 16, 32)])]
)
def test_too_small_inputs_are_named(net, smallest, shapes):
    """What the net needs, what the data gives and which net to use instead."""
    for shape in shapes:
        with pytest.raises(ValueError, match=rf"model.net {net.__name__} needs images of at least {smallest}") as error:
            net(shape, 10)
        assert str(shape) in str(error.value)
        assert "use" in str(error.value)


def test_cnn2_norms():
    """GroupNorm with 2 groups behind each convolution: 2 (32 + 64) parameters more."""
    with torch.device("meta"):
        features = CNN2((3, 32, 32), 10, norm_groups=2).features
    assert [type(module).__name__ for module in features[:8]] == 2 * ["Conv2d", "GroupNorm", "MaxPool2d", "ReLU"]
    assert {module.num_groups for module in features if isinstance(module, nn.GroupNorm)} == {2}
    assert count_parameters(lambda: CNN2((3, 32, 32), 10, norm_groups=2)) == 2_156_490 + 192
    with pytest.raises(ValueError, match="model.net.norm_groups is 3, must be a divisor of 32: ResNet18 has 2"):
        CNN2((3, 32, 32), 10, norm_groups=3)


@pytest.mark.parametrize("build", [CNN2, partial(CNN2, norm_groups=2), MoonCNN, partial(ResNet9, width=8, norm_groups=2)])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_relu_after_pooling_gives_the_bits_of_relu_before_it(build, order):
    """Outputs and gradients."""
    net = build_seeded(lambda: build((3, 32, 32), 10)).to(memory_format=order)
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0)).contiguous(memory_format=order)
    nn.init.normal_(net.classifier.weight)
    twin = copy.deepcopy(net)
    layers = list(twin.features)
    pools = [i for i, layer in enumerate(layers) if isinstance(layer, nn.MaxPool2d) and isinstance(layers[i + 1], nn.ReLU)]
    assert len(pools) >= 2
    for i in pools:
        layers[i : i + 2] = layers[i + 1], layers[i]
    twin.features = nn.Sequential(*layers)
    of_net, of_twin = (
        [outputs, *torch.autograd.grad(outputs.square().sum(), list(of.parameters()))]
        for of in (net, twin)
        for outputs in [of(images)]
    )
    assert all(torch.equal(*pair) for pair in zip(of_net, of_twin, strict=True))


def test_cnn2_shares_no_key_with_resnet18():
    """Else a config's value for ResNet18 would stay where --model.net CNN2 replaces it."""
    shared = set(signature(CNN2).parameters) & set(signature(ResNet18).parameters)
    assert shared == {"input_shape", "num_classes"}
