"""What is found out about a net by giving it a batch, against what its layers are documented to do."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fl_lightning.engines.net_behaviour import activation_bytes, counts_dropout, draws, mixes_samples


class CentersBatch(nn.Module):
    """No layer that anyone knows: takes the mean over the batch away."""

    def forward(self, inputs):
        return inputs - inputs.mean(dim=0)


class RemembersLast(nn.Module):
    """Each output depends on one sample alone; its buffer is that of the last sample."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(3))

    def forward(self, inputs):
        self.last.copy_(inputs[-1].mean(dim=(1, 2)).detach())
        return inputs


class Swapped(nn.Module):
    """Gives a layer the second dimension first."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, inputs):
        return self.layer(inputs.transpose(0, 1)).transpose(0, 1)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nn.BatchNorm2d(3), True),
        (nn.BatchNorm2d(3, track_running_stats=False), True),
        (nn.BatchNorm2d(3).eval(), False),
        (nn.InstanceNorm2d(3, track_running_stats=True), True),
        (CentersBatch(), True),
        (RemembersLast(), True),
        (nn.GroupNorm(3, 3), False),
        (nn.LayerNorm([3, 4, 4]), False),
        (nn.InstanceNorm2d(3), False),
        (nn.Dropout(0.5), False),
        (nn.Dropout2d(0.5), False),
        (nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU()), False),
        (nn.Sequential(nn.Flatten(), nn.Linear(48, 5), nn.BatchNorm1d(5)), True),
        (nn.Sequential(nn.Dropout(0.5), nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2)), True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else str(value),
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_which_layers_mix_samples(layer, expected, dtype):
    """BatchNorm in train mode, and whatever keeps something of the whole batch; norms of single samples and dropout do not."""
    inputs = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    assert mixes_samples(layer.to(dtype), inputs.to(dtype)) is expected


def test_initial_weights_do_not_hide_that_samples_are_mixed():
    """A last layer that starts at zero, as many do, shows nothing at first; its BatchNorm keeps no statistics either."""
    net = nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False), nn.Flatten(), nn.Linear(48, 4))
    nn.init.zeros_(net[2].weight)
    assert mixes_samples(net, torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize("value", [-1.0, 0.0, 1.0, 1e4])
def test_the_samples_at_hand_do_not_hide_that_they_are_mixed(value):
    """Two samples alike, black images for instance, in whatever units the data has them."""
    assert mixes_samples(nn.BatchNorm2d(3), torch.full((2, 3, 4, 4), value))


def test_a_net_is_asked_in_the_mode_that_it_is_in():
    """Single layers may be in evaluation mode while the net trains: a frozen BatchNorm mixes nothing."""
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).train()
    inputs = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    assert mixes_samples(net, inputs)
    net[1].eval()
    assert not mixes_samples(net, inputs)


def test_asking_leaves_the_net_and_the_generator_alone():
    """Weights, buffers, modes, gradients and torch's global generator are as before."""
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    inputs, state = torch.randn(2, 4), torch.get_rng_state()
    mixes_samples(net, inputs)
    draws(net, inputs)
    activation_bytes(net.eval(), inputs)
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(weight.grad is None for weight in net.parameters())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nn.Dropout(0.1), True),
        (nn.Dropout2d(0.5), True),
        (nn.RReLU(), True),
        (nn.TransformerEncoderLayer(4, 2, 8), True),
        (nn.Dropout(0.0), False),
        (nn.Dropout(0.5).eval(), False),
        (nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), False),
        (nn.BatchNorm2d(3), False),
        (nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU()), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else str(value),
)
def test_which_layers_draw(layer, expected):
    """Dropout in train mode, inside other layers too, and whatever else reads torch's generator."""
    shape = (2, 4) if isinstance(layer, nn.TransformerEncoderLayer) else (2, 3, 4, 4)
    assert draws(layer, torch.randn(shape, generator=torch.Generator().manual_seed(0))) is expected


class Recomputes(nn.Dropout):
    """Gradient checkpointing: its forward pass is run again in the backward pass."""

    def forward(self, inputs):
        return checkpoint(super().forward, inputs, use_reentrant=False)


class RecomputesAttention(nn.Module):
    """The same of attention with a mask, which saves other tensors than the dropout that stands for it."""

    def forward(self, inputs):
        mask = torch.zeros(3, 3)
        return checkpoint(lambda x: F.scaled_dot_product_attention(x, x, x, mask, 0.1), inputs, use_reentrant=False)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([nn.Dropout(0.1)], True),
        ([nn.Dropout1d(0.1), nn.LayerNorm(4)], True),
        ([nn.TransformerEncoderLayer(4, 2, 8)], True),
        ([nn.Dropout(0.1), nn.RReLU()], False),
        ([nn.AlphaDropout(0.1)], False),
        ([nn.Dropout(0.1), Recomputes(0.1)], False),
        ([RecomputesAttention()], False),
        ([nn.Dropout(0.0)], False),
        ([nn.ReLU()], False),
    ],
    ids=str,
)
def test_which_nets_draw_masks_that_can_be_counted(layers, expected):
    """Dropout alone, in the forward pass alone."""
    inputs = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    assert counts_dropout(nn.Sequential(nn.Linear(4, 4), *layers), inputs) is expected


@pytest.mark.parametrize("batch_first", [True, False])
def test_masks_of_tokens_before_samples_depend_on_the_size_of_the_batch(batch_first):
    """As of torch's transformers by default, (tokens, samples, features)."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=batch_first)
    net = layer if batch_first else Swapped(layer)
    assert mixes_samples(net, torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))) is not batch_first


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.float64, 8)])
def test_activations_of_an_mlp(dtype, size):
    """Per sample: the input (10), what ReLU gives, which both it and the next layer need (20), and the output (3)."""
    net = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 3)).to(dtype)
    assert activation_bytes(net, torch.randn(2, 10, dtype=dtype)) == (10 + 20 + 3) * size


def test_a_tensor_that_two_layers_keep_counts_once():
    """Two layers on one input of 10 and their outputs of 4, added: 10 + 4."""

    class Fork(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(10, 4), nn.Linear(10, 4)

        def forward(self, inputs):
            return self.left(inputs) + self.right(inputs)

    assert activation_bytes(Fork(), torch.randn(2, 10)) == (10 + 4) * 4


def test_weights_are_no_activations():
    """A layer of 4 million weights on an input of 2,000 keeps the input and gives 2,000 outputs, in 4 bytes each."""
    assert activation_bytes(nn.Linear(2000, 2000), torch.randn(2, 2000)) == 16_000
