"""The empirical Fisher information against a loop over samples, and in closed form."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fl_lightning.functional import empirical_fisher, fisher


def cross_entropy(logits, targets):
    return F.cross_entropy(logits, targets, reduction="none")


def example(dtype=torch.float64):
    """A net with every kind of part, its data, and a frozen bias."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        layers = [nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(12, 4)]
        net = nn.Sequential(*layers).to(dtype)
        inputs, targets = torch.randn(7, 2, 4, 4).to(dtype), torch.randint(0, 4, (7,))
        net(inputs)  # statistics other than 0 and 1
    net[5].bias.requires_grad_(False)
    return net, inputs, targets


def per_sample_loop(net, inputs, targets):
    """1/n sum_i (gradient of sample i's loss)^2, in evaluation mode."""
    net = copy.deepcopy(net).eval()
    weights = {name: weight for name, weight in net.named_parameters() if weight.requires_grad}
    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for i in range(len(targets)):
        gradients = torch.autograd.grad(
            F.cross_entropy(net(inputs[i : i + 1]), targets[i : i + 1]), list(weights.values()), materialize_grads=True
        )
        for name, gradient in zip(weights, gradients):
            total[name] += gradient**2 / len(targets)
    return total


def assert_same(actual, expected, atol=1e-14):
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, atol=atol, rtol=0, msg=lambda text, name=name: f"{name}: {text}")


def split(inputs, targets, size):
    return list(zip(inputs.split(size), targets.split(size)))


@pytest.mark.parametrize("size", [1, 3, 7])
def test_equals_a_loop_over_samples(size):
    """Whatever the batches, also those of unequal size: the mean over samples. The frozen bias has none."""
    net, inputs, targets = example()
    expected = per_sample_loop(net, inputs, targets)
    assert "5.bias" not in expected
    assert_same(empirical_fisher(net, cross_entropy, split(inputs, targets, size)), expected)


class Odd(nn.Module):
    """Strides, gaps, borders, groups, tokens, a layer called twice, one called in vain, a shared weight, changes in place."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 3), bias=False)
        self.grouped = nn.Conv2d(4, 4, 1, groups=2)
        self.mirrored = nn.Conv2d(4, 4, 3, padding="same", padding_mode="reflect")
        self.relu = nn.ReLU(inplace=True)
        self.tokens, self.again, self.head = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.tied, self.rows, self.idle = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 5)
        self.tied.weight = self.again.weight

    def forward(self, images):
        features = self.relu(self.mirrored(self.grouped(self.relu(self.conv(images)))))
        tokens = self.relu(self.tokens(features.flatten(2).transpose(1, 2)))
        self.idle(tokens)
        tokens = self.tied(self.again(self.again(tokens).tanh()))
        return self.head(self.rows(tokens.flatten(0, 1)).tanh().reshape(tokens.shape).mean(dim=1))


@pytest.mark.parametrize("channels_at_a_time", [1, 8])
def test_layers_of_all_kinds_equal_a_loop_over_samples(monkeypatch, channels_at_a_time):
    """Convolutions as backward passes and, where their channels do not come by the number, as forward ones."""
    monkeypatch.setattr(fisher, "_CHANNELS_AT_A_TIME", channels_at_a_time)
    with torch.random.fork_rng():
        torch.manual_seed(4)
        net, inputs, targets = Odd().double(), torch.randn(5, 2, 8, 8).double(), torch.arange(5) % 3
    assert_same(empirical_fisher(net, cross_entropy, split(inputs, targets, 3)), per_sample_loop(net, inputs, targets))


class Tied(nn.Module):
    """Each layer is called once on a row a sample, and its weight counts once more outside."""

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 3), nn.Linear(3, 4), nn.Linear(3, 3)

    def forward(self, inputs):
        hidden = self.middle(self.first(inputs).tanh()).tanh()
        return self.last(F.linear(hidden, self.first.weight)) * self.last.bias.norm()


class TwoNames(nn.Module):
    """One layer under two names, called by one of them."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)
        self.encoder = self.first

    def forward(self, inputs):
        return self.last(self.encoder(inputs).tanh())


class Pieces(nn.Module):
    """The first layer is called on parts of the batch, the second by name of its argument and in vain without a gradient."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, inputs):
        hidden = torch.cat([self.first(inputs[:1]), self.first(inputs[1:])]).tanh()
        with torch.no_grad():
            self.last(hidden)
        return self.last(input=hidden)


class Sequence(nn.Module):
    """Tokens come first and samples second: of two samples with two tokens each, a row is no sample."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(2, 5), nn.Linear(5, 3)

    def forward(self, inputs):
        return self.last(self.first(inputs.reshape(-1, 2, 2).transpose(0, 1)).tanh().mean(dim=0))


@pytest.mark.parametrize("build", [Tied, TwoNames, Pieces, Sequence])
@pytest.mark.parametrize("size", [2, 6])
def test_weights_that_a_layers_one_call_does_not_show(build, size):
    """To a loop over samples, names in the net's order, and the net is left with the parameters that it had."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net, inputs, targets = build().double(), torch.randn(6, 4).double(), torch.arange(6) % 3
    held = dict(net.named_parameters(remove_duplicate=False))
    actual, expected = empirical_fisher(net, cross_entropy, split(inputs, targets, size)), per_sample_loop(net, inputs, targets)
    assert_same(actual, expected)
    assert list(actual) == list(expected)
    assert all(weight is held[name] for name, weight in net.named_parameters(remove_duplicate=False))


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
def test_a_layer_whose_weight_is_made_of_others():
    """The older ``weight_norm`` keeps a Linear layer, with other parameters than its weight."""
    net = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 3)).double()
    inputs, targets = torch.randn(6, 4).double(), torch.arange(6) % 3
    actual = empirical_fisher(net, cross_entropy, [(inputs, targets)])
    weights = dict(net.named_parameters())
    squares = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for i in range(6):
        gradients = torch.autograd.grad(F.cross_entropy(net(inputs[i : i + 1]), targets[i : i + 1]), list(weights.values()))
        for name, gradient in zip(weights, gradients):
            squares[name] += gradient**2 / 6
    assert_same(actual, squares)


def test_memory_does_not_grow_with_the_batch(monkeypatch):
    """Two samples' gradients at a time give what seven do."""
    net, inputs, targets = example()
    num_weights = sum(weight.numel() for weight in net.parameters() if weight.requires_grad)
    monkeypatch.setattr(fisher, "_GRADIENT_VALUES", 2 * num_weights)
    assert_same(empirical_fisher(net, cross_entropy, [(inputs, targets)]), per_sample_loop(net, inputs, targets))
    monkeypatch.setattr(fisher, "_GRADIENT_VALUES", 1)
    assert_same(empirical_fisher(net, cross_entropy, [(inputs, targets)]), per_sample_loop(net, inputs, targets))


@pytest.mark.parametrize("training", [True, False])
def test_the_net_is_left_as_it_was(training):
    """Mode, weights, statistics and gradients."""
    net, inputs, targets = example()
    net.train(training)
    before = copy.deepcopy(net.state_dict())
    result = empirical_fisher(net, cross_entropy, [(inputs, targets)])
    assert all(module.training == training for module in net.modules())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(weight.grad is None for weight in net.parameters())
    assert not any(value.requires_grad for value in result.values())


def test_closed_form_of_a_linear_model():
    """Gradients of softmax regression are (p - onehot) x^T: their squares are (p - onehot)^2 (x^2)^T."""
    net, inputs = nn.Linear(3, 4).double(), torch.randn(6, 3, dtype=torch.float64)
    targets = torch.arange(6) % 4
    residual = net(inputs).softmax(dim=1).detach() - F.one_hot(targets, 4)
    expected = {"weight": (residual**2).t() @ inputs**2 / 6, "bias": (residual**2).mean(dim=0)}
    assert_same(empirical_fisher(net, cross_entropy, [(inputs, targets)]), expected)


@pytest.mark.parametrize("size", [2, 7])
def test_soft_labels(size):
    """Gradients of the cross entropy with labels q are (p - q) x^T for a linear model; a label of one class is a hard one."""
    net, inputs = nn.Linear(3, 4).double(), torch.randn(7, 3, dtype=torch.float64)
    soft = torch.randn(7, 4, dtype=torch.float64).softmax(dim=1)
    residual = net(inputs).softmax(dim=1).detach() - soft
    expected = {"weight": (residual**2).t() @ inputs**2 / 7, "bias": (residual**2).mean(dim=0)}
    assert_same(empirical_fisher(net, cross_entropy, split(inputs, soft, size)), expected)
    hard = torch.arange(7) % 4
    one_hot = F.one_hot(hard, 4).double()
    expected = empirical_fisher(net, cross_entropy, [(inputs, hard)])
    assert_same(empirical_fisher(net, cross_entropy, split(inputs, one_hot, size)), expected)


def test_it_is_not_the_square_of_the_mean_gradient():
    """Two samples that pull in opposite directions matter, though their mean gradient is 0."""
    net = nn.Linear(1, 2, bias=False).double()
    nn.init.zeros_(net.weight)
    value = empirical_fisher(net, cross_entropy, [(torch.ones(2, 1, dtype=torch.float64), torch.tensor([0, 1]))])
    assert value["weight"].tolist() == [[0.25], [0.25]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keeps_the_dtype_of_the_weights(dtype):
    """Near the float64 value in float32 and, more roughly, in bfloat16."""
    net, inputs, targets = example()
    expected = per_sample_loop(net, inputs, targets)
    actual = empirical_fisher(net.to(dtype), cross_entropy, [(inputs.to(dtype), targets)])
    for name, value in expected.items():
        assert actual[name].dtype == dtype
        rough = 1e-5 if dtype == torch.float32 else 0.1
        torch.testing.assert_close(actual[name].double(), value, atol=rough * value.max().item(), rtol=0)


def test_autocast_changes_nothing():
    """Squares are taken in the weights' precision; BatchNorm, which torch.vmap cannot take under autocast, is none of it."""
    net, batch = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5)), (torch.randn(6, 3), torch.arange(6) % 5)
    expected = empirical_fisher(net, cross_entropy, [batch])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = empirical_fisher(net, cross_entropy, [batch])
    assert_same(actual, expected)


class Recurrent(nn.Module):
    """The last step of a recurrent layer, and a linear one, on images as sequences of their rows."""

    def __init__(self, layer, width, **settings):
        super().__init__()
        self.body, self.head = layer(8, 5, batch_first=True, **settings), nn.Linear(width, 4)

    def forward(self, images):
        return self.head(self.body(images.movedim(1, 2).flatten(2))[0][:, -1])


@pytest.mark.parametrize(
    ("layer", "width", "settings"),
    [(nn.LSTM, 5, {}), (nn.LSTM, 3, {"proj_size": 3}), (nn.GRU, 10, {"bidirectional": True}), (nn.RNN, 5, {"num_layers": 2})],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_recurrent_layers(layer, width, settings, dtype):
    """torch.vmap cannot take them: their samples go one by one."""
    _, inputs, targets = example(dtype)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        net = Recurrent(layer, width, **settings).to(dtype)
    expected = per_sample_loop(net, inputs, targets)
    assert_same(
        empirical_fisher(net, cross_entropy, split(inputs, targets, 3)), expected, 1e-14 if dtype == torch.float64 else 1e-6
    )
