"""DP-SGD: clipping sample by sample against a plain loop, noise against its distribution, and what is refused."""

import copy
import io
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torchvision.models import VisionTransformer

from fl_lightning import FedAvg, FederatedStrategy
from fl_lightning.data import from_arrays
from fl_lightning.functional.aggregation import State
from fl_lightning.losses import Loss
from fl_lightning.models import CNN2, CNN10, LeNet, ResNet18
from fl_lightning.privacy import DPSGD
from fl_lightning.privacy.dp_sgd import clipped_sum, sample_norms
from fl_lightning.protocol.learner import objective_gradients

# Clipping ---------------------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    """Group norm, a block with a short cut, an embedding of each pixel's brightness, LayerNorm; a weight outside of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 4, 3, padding=1, stride=2), nn.GroupNorm(2, 4)
        self.block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False), nn.GroupNorm(4, 4), nn.Tanh())
        self.classifier = nn.Sequential(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 3))

    def forward(self, images):
        hidden = self.norm(self.stem(images)).tanh()
        return self.classifier(hidden + self.block(hidden))


class Words(nn.Module):
    """Each sample a few numbers, embedded, with a linear layer over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix, self.classifier = nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, inputs):
        return self.classifier(self.mix(self.embed(inputs.flatten(1)[:, :6].abs().long().clamp_max(4))).tanh().mean(dim=1))


def transformer() -> nn.Module:
    net = VisionTransformer(image_size=8, patch_size=4, num_layers=1, num_heads=2, hidden_dim=8, mlp_dim=8, num_classes=3)
    nn.init.normal_(net.heads.head.weight)  # zeros would hide what lies before it
    return net


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), (1, 8, 8)),
    "CNN2": (lambda: CNN2((1, 28, 28), 3, hidden=8), (1, 28, 28)),
    "LeNet": (lambda: LeNet((3, 16, 16), 3), (3, 16, 16)),
    "CNN10 with group norm": (lambda: CNN10((3, 32, 32), 3, width=8), (3, 32, 32)),
    "residual with group norm and layer norm": (Residual, (1, 8, 8)),
    "embedding": (Words, (1, 8, 8)),
    "transformer": (transformer, (3, 8, 8)),
}


def build(name: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A net in training mode and five samples, float64."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net, shape = NETS[name][0]().double().train(), NETS[name][1]
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(5, *shape, generator=generator, dtype=torch.float64)
    return net, inputs * torch.tensor([0.5, 1, 2, 1, 0.1]).reshape(5, 1, 1, 1), torch.tensor([0, 1, 2, 0, 1])


def trainable(net: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in net.parameters() if weight.requires_grad]


def single_gradients(net, inputs, targets) -> list[list[torch.Tensor]]:
    """One sample after another, each alone in its batch."""
    return [
        list(torch.autograd.grad(F.cross_entropy(net(inputs[i : i + 1]), targets[i : i + 1]), trainable(net)))
        for i in range(len(targets))
    ]


def norm_of(gradients) -> float:
    return math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))


def assert_sums_are_those_of_single_samples(net, inputs, targets) -> None:
    """For all five samples, one, and none: ``sum_i g_i min(1, C / (||g_i|| + 1e-6))``, C the median of the norms."""
    singles = single_gradients(net, inputs, targets)
    norms = [norm_of(gradients) for gradients in singles]
    limit = sorted(norms)[2]
    for count in (5, 1, 0):
        expected = [torch.zeros_like(weight) for weight in trainable(net)]
        for gradients, norm in zip(singles[:count], norms):
            for total, gradient in zip(expected, gradients):
                total += gradient * min(1.0, limit / (norm + 1e-6))

        def losses(count=count):
            return F.cross_entropy(net(inputs[:count]), targets[:count], reduction="none")

        actual, values = clipped_sum(net, trainable(net), losses, limit)
        torch.testing.assert_close(list(actual), expected, rtol=0, atol=1e-11)
        torch.testing.assert_close(values, losses(), rtol=0, atol=1e-12)
        assert norm_of(actual) <= count * limit
    found, _ = sample_norms(net, trainable(net), lambda: F.cross_entropy(net(inputs), targets, reduction="none"))
    assert found.tolist() == pytest.approx(norms, rel=1e-12)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", NETS)
def test_clipped_sums_are_those_of_single_samples(name):
    """For layers of many kinds, to 1e-11; two samples are clipped, two are not, one is at the limit."""
    net, inputs, targets = build(name)
    assert_sums_are_those_of_single_samples(net, inputs, targets)


def test_group_norm_resnets_are_clipped_sample_by_sample():
    """ResNet18 as the bundled configs have it, on two images of 17x17: norms of 11 million weights' gradients, to 1e-9."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = ResNet18((3, 17, 17), 3, norm="group").double()
        inputs = torch.randn(2, 3, 17, 17, dtype=torch.float64)
    targets = torch.tensor([0, 2])
    norms, _ = sample_norms(net, trainable(net), lambda: F.cross_entropy(net(inputs), targets, reduction="none"))
    assert norms.tolist() == pytest.approx([norm_of(single) for single in single_gradients(net, inputs, targets)], rel=1e-9)


@pytest.mark.parametrize(
    ("name", "frozen"),
    [
        ("residual with group norm and layer norm", ["stem.weight", "norm.bias"]),
        (
            "residual with group norm and layer norm",
            ["stem.weight", "stem.bias", "norm.weight", "norm.bias", "classifier.2.bias"],
        ),
        ("linear", ["1.bias"]),
    ],
)
def test_frozen_weights_count_for_nothing(name, frozen):
    """Single weights of a layer, and whole layers: norms are over what is trained."""
    net, inputs, targets = build(name)
    for weight in frozen:
        net.get_parameter(weight).requires_grad_(False)
    assert_sums_are_those_of_single_samples(net, inputs, targets)


def test_weights_that_no_loss_depends_on_have_no_gradient():
    """A second class layer that nobody asks: zeros for it, and the sums of the others as without it."""
    net, inputs, targets = build("linear")

    def losses():
        return F.cross_entropy(net(inputs), targets, reduction="none")

    expected, _ = clipped_sum(net, trainable(net), losses, 1.0)
    both = nn.ModuleList([net, nn.Linear(2, 2).double()])
    *used, weight, bias = clipped_sum(both, trainable(both), losses, 1.0)[0]
    torch.testing.assert_close(used, list(expected), rtol=0, atol=0)
    assert not weight.any()
    assert not bias.any()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", ["CNN2", "residual with group norm and layer norm", "transformer"])
def test_nothing_is_left_on_the_net(name):
    """After a sum, one of no samples, and one that an error broke off: no hook, no attribute; deepcopy and pickle work."""
    net, inputs, targets = build(name)
    before = [set(vars(part)) for part in (*net.modules(), *net.parameters())]
    state = copy.deepcopy(net.state_dict())

    def broken():
        F.cross_entropy(net(inputs), targets)
        raise KeyError("in the loss")

    for count in (5, 0):
        clipped_sum(net, trainable(net), lambda count=count: net(inputs[:count]).sum(dim=1), 1.0)
    with pytest.raises(KeyError):
        clipped_sum(net, trainable(net), broken, 1.0)
    assert [set(vars(part)) for part in (*net.modules(), *net.parameters())] == before
    for layer in net.modules():
        for hooks in (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks):
            assert not hooks
    assert all(weight.grad is None for weight in net.parameters())
    torch.save(net, io.BytesIO())
    torch.testing.assert_close(copy.deepcopy(net).state_dict(), state, rtol=0, atol=0)


def test_weights_used_outside_their_layer_are_named():
    """Hooks do not see them."""
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"^1.weight is used outside the forward pass of its layer$"):
        sample_norms(net, trainable(net), lambda: F.linear(net[0](torch.ones(4, 3)), net[1].weight, net[1].bias).sum(dim=1))


# Noise ------------------------------------------------------------------------------------------------------------------


class Nothing(Loss):
    """Whose gradient is 0: what moves weights is noise."""

    def __call__(self, logits, targets, label_counts):
        return (logits * 0).sum(dim=1)


class Recorded(FedAvg):
    """Keeps what DP-SGD gives, by round, client and step."""

    def client_gradients(self, net, batch, client):
        gradients, loss = super().client_gradients(net, batch, client)
        # A rehearsal before round 1 takes a step of its first clients too: what it draws is drawn again.
        self.seen[client.round, client.index, client.step] = [gradient.clone() for gradient in gradients]
        return gradients, loss


def noise_data(**settings):
    """Three clients of 6, 10 and 3 samples with 60 features; two of them a round, in batches of 4."""
    inputs = torch.randn(19, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    clients = [list(range(6)), list(range(6, 16)), list(range(16, 19))]
    settings = {"batch_size": 4, "cohorts": [[0, 1], [1, 2], [0, 2]], "classes": [str(i) for i in range(40)], **settings}
    return from_arrays(inputs, torch.arange(19) % 40, clients, **settings)


def noise_net():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(60, 40), nn.Linear(40, 40)).double()


def train_on_noise(fit, rounds=3, **settings):
    method = Recorded(noise_net(), **{"loss": Nothing(), "privacy": DPSGD(0.7, clipping_norm=2.0), "seed": 5, **settings})
    method.seen = {}
    fit(method, noise_data(), rounds, precision="64-true")
    return method


def test_noise_has_the_variance_asked_for(fit):
    """sigma = 0.7, C = 2, B samples: N(0, (1.4 / B)^2) in each of 4,080 coordinates, of every step of clients and rounds.

    With n draws the mean has standard deviation 1 / sqrt(n), the variance sqrt(2 / n), and the correlation of two steps
    1 / sqrt(n): 5 of them are more than ten thousand tests like this would show.
    """
    method = train_on_noise(fit)
    # Steps of a round: 2 of client 0 (4 and 2 samples), 3 of client 1 (4, 4, 2), 1 of client 2 (3).
    sizes = {0: [4, 2], 1: [4, 4, 2], 2: [3]}
    cohorts = [[0, 1], [1, 2], [0, 2]]
    steps = [
        (round, client, step)
        for round, cohort in enumerate(cohorts, start=1)
        for client in cohort
        for step in range(len(sizes[client]))
    ]
    assert sorted(method.seen) == sorted(steps)
    standard = []
    for round, client, step in steps:
        drawn = method.seen[round, client, step]
        standard.append(torch.cat([part.flatten() for part in drawn]) * sizes[client][step] / 1.4)
        for part in drawn:  # each weight by itself
            variance = float((part * sizes[client][step] / 1.4).square().mean())
            assert variance == pytest.approx(1, abs=5 * math.sqrt(2 / part.numel()))
    drawn = torch.stack(standard)
    assert drawn.shape == (12, 60 * 40 + 40 + 40 * 40 + 40)
    assert drawn.mean(dim=1).abs().max() < 5 / math.sqrt(4080)
    assert (drawn.square().mean(dim=1) - 1).abs().max() < 5 * math.sqrt(2 / 4080)
    assert (torch.corrcoef(drawn) - torch.eye(12)).abs().max() < 5 / math.sqrt(4080)  # never the same draws twice
    halves = drawn[:, :4000].reshape(12, 2, 2000)
    assert (halves[:, 0] * halves[:, 1]).mean(dim=1).abs().max() < 5 / math.sqrt(2000)  # nor within one


def test_weights_move_by_the_noise_of_a_round(fit):
    """One client, one step of rate 1 on 4 samples: the global weights move by N(0, (0.7 * 2 / 4)^2), whatever they learn.

    A loss that learns, and one that does not, differ by the mean of clipped gradients, which the loop takes.
    """

    def moved(loss):
        method = FedAvg(
            noise_net(),
            loss=loss,
            optimizer=lambda weights: torch.optim.SGD(weights, lr=1.0),
            local_steps=1,
            privacy=DPSGD(0.7, clipping_norm=2.0),
        )
        fit(method, noise_data(cohorts=[[1]]), 1, precision="64-true")
        parts = zip(noise_net().parameters(), method.net.parameters())
        return torch.cat([(before - after).detach().flatten() for before, after in parts]), method

    pure, method = moved(Nothing())
    assert float(pure.var()) == pytest.approx((0.7 * 2 / 4) ** 2, rel=5 * math.sqrt(2 / 4080))
    learned, _ = moved(FedAvg(noise_net()).loss)
    (batch,) = method.data.client_batches().batches(1, 1, 1)
    total = sum(
        torch.cat([gradient.flatten() for gradient in single]) * min(1.0, 2 / (norm_of(single) + 1e-6))
        for single in single_gradients(noise_net(), batch.inputs, batch.targets)
    )
    torch.testing.assert_close(learned - pure, total / 4, rtol=0, atol=1e-12)


def test_noise_depends_on_its_address_alone(fit):
    """Not on the global seed or on who else is there; on the run's seed, the round, the client and the step."""
    torch.manual_seed(1)
    first = train_on_noise(fit)
    torch.manual_seed(2)
    again, other = train_on_noise(fit), train_on_noise(fit, seed=6)
    assert first.seen.keys() == again.seen.keys() == other.seen.keys()
    for address, drawn in first.seen.items():
        assert all(torch.equal(a, b) for a, b in zip(drawn, again.seen[address])), address
        assert not any(torch.equal(a, b) for a, b in zip(drawn, other.seen[address])), address


def end_of(folder, fit, **settings) -> State:
    """The last checkpoint's weights of three rounds with accounting."""
    method = FedAvg(noise_net(), local_epochs=2, privacy=DPSGD(0.7, accounting=True), server_weighting="uniform", seed=5)
    keep = ModelCheckpoint(folder, filename="last", every_n_train_steps=3)
    fit(method, noise_data(), 3, precision="64-true", callbacks=[keep], enable_checkpointing=True, **settings)
    return torch.load(folder / "last.ckpt", weights_only=True)["state_dict"]


def test_two_processes_draw_what_one_draws(fit, tmp_path):
    """The same noise and the same Poisson batches wherever a client is: weights to 1e-12."""
    one = end_of(tmp_path / "one", fit)
    two = end_of(tmp_path / "two", fit, strategy=FederatedStrategy(start_method="fork"), devices=2)
    torch.testing.assert_close(two, one, rtol=0, atol=1e-12)
    assert one["net.0.weight"].var() > noise_net()[0].weight.var() * 1.1


# What is refused --------------------------------------------------------------------------------------------------------


class Centred(nn.Module):
    """Takes the mean over the batch away: samples see each other, and no hook sees that."""

    def forward(self, inputs):
        return inputs - inputs.mean(dim=0)


class Tied(nn.Module):
    """Uses a layer's weight a second time, where no hook sees it."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, inputs):
        return self.last(F.linear(self.first(inputs), self.first.weight.T))


class Buffered(nn.Linear):
    """A layer with a buffer, as one that counts."""

    def __init__(self):
        super().__init__(4, 3)
        self.register_buffer("count", torch.zeros(()))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.last = nn.MultiheadAttention(4, 2), nn.Linear(4, 3)

    def forward(self, inputs):
        return self.last(self.attention(inputs, inputs, inputs)[0])


def sequence(*layers):
    return nn.Sequential(nn.Linear(4, 4), *layers, nn.Linear(4, 3)).double()


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (
            sequence(nn.BatchNorm1d(4)),
            "model.net has the layer 1, BatchNorm1d, which lets samples of a batch see each other, so DP-SGD cannot bound what "
            "one contributes: use group norm (torch.nn.GroupNorm, model.net.norm group)",
        ),
        (sequence(nn.BatchNorm1d(4, affine=False)), "model.net has the layer 1, BatchNorm1d, which lets samples of a batch"),
        (sequence(Centred()), "model.net has a layer of which Opacus finds wrong gradients by sample (norm "),
        (Tied().double(), "model.net has a layer of which Opacus finds wrong gradients by sample (norm "),
        (Buffered().double(), "model.net has a layer that Opacus cannot take gradients of by sample (NotImplementedError: "),
        (Attention().double(), "model.net has a layer that Opacus cannot take gradients of by sample ("),
        (
            sequence(weight_norm(nn.Linear(4, 4))),
            "model.net under FedAvg has the layer 1, whose weights are made of several, which DP-SGD cannot clip by sample: ",
        ),
    ],
    ids=["BatchNorm", "BatchNorm without weights", "mean over the batch", "tied", "buffer", "attention", "weight norm"],
)
def test_layers_that_cannot_be_clipped_are_refused(fit, toy_data, net, message):
    """Before round 1, in one line, with what to use instead; the net is as it was."""
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(ValueError) as error:
        fit(FedAvg(net, privacy=DPSGD(1.0)), toy_data(), 1, precision="64-true")
    assert str(error.value).startswith(message)
    assert ": use " in str(error.value)
    assert "\n" not in str(error.value)
    torch.testing.assert_close(net.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("net", [sequence(nn.Dropout(0.5)), sequence(nn.GroupNorm(2, 4)), sequence(nn.LayerNorm(4))])
def test_layers_that_can_be_clipped_train(fit, toy_data, net):
    """Dropout draws once for both passes; the net then runs under another engine without privacy."""
    fit(FedAvg(net, privacy=DPSGD(1.0)), toy_data(), 1, precision="64-true")
    if not isinstance(net[1], nn.Dropout):
        fit(FedAvg(net, engine="vectorized"), toy_data(), 1, precision="64-true")


def test_nets_that_cannot_take_an_empty_batch_are_not_asked(fit, toy_data):
    """``view(len(x), -1)`` fails on no samples; rates of 1 / 5 and less give many such batches."""

    class Viewed(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(4, 3).double()

        def forward(self, inputs):
            return self.last(inputs.view(len(inputs), -1))

    data = toy_data(batch_size=1)
    fit(FedAvg(Viewed(), privacy=DPSGD(1.0, accounting=True)), data, 1, precision="64-true")
    batches = data.client_batches(poisson=True)
    steps = {client: data.steps_per_epoch(client) for client in range(3)}
    sizes = [len(batch.targets) for client in steps for batch in batches.batches(client, 1, steps[client])]
    assert 0 in sizes


@pytest.mark.parametrize("engine", ["vectorized", "captured", "tune"])
def test_engines_that_hooks_do_not_work_under_are_refused(engine):
    message = f"^model.engine is {engine}, but DP-SGD clips sample by sample with hooks in the layers: set model.engine to seq"
    with pytest.raises(ValueError, match=message):
        FedAvg(nn.Linear(4, 3), engine=engine, privacy=DPSGD(1.0))


def test_auto_means_sequential(fit, toy_data, capsys):
    """Where a net as small as this would be stacked."""
    fit(FedAvg(nn.Linear(4, 3).double(), privacy=DPSGD(1.0)), toy_data(), 1, precision="64-true")
    assert "Engine: sequential (DP-SGD clips sample by sample with hooks in the layers)" in capsys.readouterr().out


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_low_precision_is_refused(fit, toy_data, precision):
    with pytest.raises(ValueError, match=f"^trainer.precision is {precision}, but DP-SGD takes norms in full .*: use 32-true$"):
        fit(FedAvg(nn.Linear(4, 3), privacy=DPSGD(1.0)), toy_data(), 1, precision=precision)


class OneColumn(Loss):
    """A loss of shape (B, 1)."""

    uses_label_counts = False

    def __call__(self, logits, target, label_counts):
        return F.cross_entropy(logits, target, reduction="none")[:, None]


def test_a_loss_of_another_shape_is_refused(fit, toy_data):
    with pytest.raises(ValueError, match=r"^model\.loss, or .* \((\d+), 1\) for \1 samples, must be \(\1,\), one"):
        fit(FedAvg(nn.Linear(4, 3), loss=OneColumn(), privacy=DPSGD(1.0)), toy_data(), 1)


def test_a_step_past_the_noise_is_refused(fit, toy_data):
    """Before round 1: ``client.differentiate`` has neither clipping nor noise. Two estimates of a step have different noise."""
    twice = []

    class Plain(FedAvg):
        def client_gradients(self, net, batch, client):
            def objective():
                loss = batch.mean(self.client_loss(net, batch, client))
                return loss + self.total_penalty(net, client), loss

            return client.differentiate(objective)

    class Estimated(FedAvg):
        def client_gradients(self, net, batch, client):
            return objective_gradients(self, net, batch, client)

    class Twice(FedAvg):
        def client_gradients(self, net, batch, client):
            (one, loss), (other, _) = (objective_gradients(self, net, batch, client) for _ in range(2))
            twice.append(torch.cat([(a - b).flatten() for a, b in zip(one, other, strict=True)]))
            return one, loss

    net, common = nn.Linear(4, 3).double(), {"local_steps": 1, "privacy": DPSGD(1.0)}
    fit(Twice(copy.deepcopy(net), **common), toy_data(batch_size=5), 1)
    assert (torch.stack(twice).abs() > 1e-6).all()
    with pytest.raises(ValueError, match=r"^Plain.client_step takes gradients without client.estimate, .* UserLevelDP"):
        fit(Plain(copy.deepcopy(net), **common), toy_data(batch_size=5), 1)
    own, plain = Estimated(copy.deepcopy(net), **common), FedAvg(copy.deepcopy(net), **common)
    for method in (own, plain):
        fit(method, toy_data(batch_size=5), 1)
    assert torch.equal(own.net.weight, plain.net.weight)


def test_a_net_in_half_precision_is_refused(fit, toy_data):
    with pytest.raises(ValueError, match=r"^model.net has weight in torch.bfloat16, but DP-SGD takes .*: give net.float\(\)$"):
        fit(FedAvg(nn.Linear(4, 3).bfloat16(), privacy=DPSGD(1.0)), toy_data(), 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((0.0,), "model.privacy.noise_multiplier is 0.0, must be above 0"),
        ((-1.0,), "model.privacy.noise_multiplier is -1.0, must be above 0"),
        ((math.nan,), "model.privacy.noise_multiplier is nan, must be above 0"),
        ((math.inf,), "model.privacy.noise_multiplier is inf, must be above 0 and finite"),
        ((1.0, 0.0), "model.privacy.clipping_norm is 0.0, must be above 0"),
        ((1.0, math.nan), "model.privacy.clipping_norm is nan, must be above 0"),
        ((1.0, 1.0, True, 0.0), "model.privacy.delta is 0.0, must be above 0 and below 1: 1e-5 is usual"),
        ((1.0, 1.0, True, 1.0), "model.privacy.delta is 1.0, must be above 0 and below 1: 1e-5 is usual"),
        ((1.0, 1.0, True, math.nan), "model.privacy.delta is nan, must be above 0 and below 1: 1e-5 is usual"),
    ],
)
def test_values_out_of_range_are_refused(settings, message):
    """One line with the key and the value."""
    with pytest.raises(ValueError) as error:
        DPSGD(*settings)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


DP = ["fit", "--config", "digits_tce.yaml", "--model.privacy", "DPSGD", "--model.privacy.noise_multiplier"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["0"], "model.privacy.noise_multiplier is 0.0, must be above 0"),
        ([".nan"], "error: model.privacy.noise_multiplier is nan, must be a finite number"),
        (["1", "--model.privacy.clipping_norm", "-1"], "model.privacy.clipping_norm is -1.0, must be above 0"),
        (["1", "--model.privacy.delta", "1"], "model.privacy.delta is 1.0, must be above 0 and below 1"),
        (["1", "--model.engine", "captured"], "model.engine is captured, but DP-SGD clips sample by sample"),
        (["1", "--trainer.precision", "bf16-mixed"], "trainer.precision is bf16-mixed, but DP-SGD takes norms"),
        (["1", "--model.privacy.sigma", "1"], "model.privacy.sigma is not an option here"),
        (
            ["1", "--model.privacy", "DPSDG"],
            "did you mean DPSGD?",
        ),
        (
            ["1", "--model.net", "torchvision.models.resnet18", "--data.augment+=ToRGB"],
            "model.net has the layer features.bn1, BatchNorm2d, which lets samples of a batch see each other",
        ),
    ],
)
@pytest.mark.one_in(3)
def test_bad_input_on_the_command_line_is_one_line(main, tmp_path, arguments, message):
    """Key, value and cure, and no run folder left."""
    code, _, error = main(*DP, *arguments)
    lines = [line for line in error.splitlines() if line.startswith("fl-lightning: error: ")]
    assert code != 0
    assert len(lines) == 1
    assert message in lines[0]
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


def test_accounting_on_task_streams_is_refused(main):
    """A client's samples, and with them its rate, change from task to task."""
    code, _, error = main(
        *("fit", "--config", "digits_fedweit.yaml", "--model.net", "LeNet", "--model.privacy", "DPSGD"),
        *("--model.privacy.noise_multiplier", "1", "--model.privacy.accounting", "true"),
    )
    assert code != 0
    assert (
        "model.privacy.accounting is true, but a client's samples change with its tasks in data.tasks: set it to false" in error
    )
