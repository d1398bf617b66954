"""B * sigmoid(m) + A, its parts, and what is kept of it."""

import pytest
import torch
from torch import nn

from fl_lightning.tasks.decomposition import decompose, part_name, threshold

LAYERS = [nn.Linear(5, 3), nn.Conv1d(2, 3, 2), nn.Conv2d(2, 3, 2), nn.Conv3d(2, 3, 1), nn.Conv2d(4, 6, 1, groups=2)]


@pytest.mark.parametrize("layer", LAYERS, ids=repr)
def test_a_mask_has_a_number_for_each_output(layer):
    """``theta[o, ...] = B[o, ...] / (1 + exp(-m[o])) + A[o, ...]``, entry by entry; A begins at a third of the weight."""
    net, weight = nn.ModuleDict({"body": layer}), layer.weight.detach().clone()
    assert decompose(net) == ["body"]
    base, mask, adaptive = (net.get_parameter(part_name("body", part)) for part in ("base", "mask", "adaptive"))
    assert torch.equal(base, weight)
    assert mask.shape == (len(weight),)
    torch.testing.assert_close(adaptive, weight / 3)
    expected = torch.empty_like(weight)
    for index in torch.cartesian_prod(*map(torch.arange, weight.shape)).tolist():
        index = tuple(index)
        expected[index] = weight[index] / (1 + torch.exp(-mask[index[0]])) + weight[index] / 3
    torch.testing.assert_close(net["body"].weight, expected)


def test_masks_begin_at_variance_scaling_over_outputs():
    """A standard deviation of 1 over the square root of the number of outputs, which are 10,000 here."""
    net = nn.ModuleDict({"body": nn.Linear(1, 10000)})
    decompose(net)
    mask = net.get_parameter(part_name("body", "mask")).detach()
    assert float(mask.std()) == pytest.approx(0.01, rel=0.03)
    assert abs(float(mask.mean())) < 0.0005


def test_parts_may_be_left_out():
    """Without mask and A it is the weight itself; the classifier, biases and other layers stay as they are."""
    net = nn.ModuleDict({"body": nn.Sequential(nn.Linear(2, 3), nn.GroupNorm(1, 3)), "classifier": nn.Linear(3, 2)})
    weight = net["body"][0].weight.detach().clone()
    assert decompose(net, mask=False, adaptive=False, num_foreign=4, num_earlier=2) == ["body.0"]
    assert torch.equal(net["body"][0].weight, weight)
    shapes = {name: tuple(tensor.shape) for name, tensor in net.named_parameters()}
    assert shapes == {
        "body.0.bias": (3,),
        "body.0.parametrizations.weight.original": (3, 2),
        "body.0.parametrizations.weight.0.earlier": (2, 3, 2),
        "body.0.parametrizations.weight.0.attention": (4,),
        "body.1.weight": (3,),
        "body.1.bias": (3,),
        "classifier.weight": (2, 3),
        "classifier.bias": (2,),
    }
    assert net.get_parameter("body.0.parametrizations.weight.0.attention").tolist() == [0.25] * 4


def test_a_weight_of_two_layers_is_refused():
    """One line that names both; a layer that is called twice, or has two names, has one decomposition."""
    net = nn.ModuleDict({"first": nn.Linear(3, 3), "second": nn.Linear(3, 3), "classifier": nn.Linear(3, 2)})
    net["second"].weight = net["first"].weight
    with pytest.raises(ValueError) as error:
        decompose(net)
    assert str(error.value) == (
        "model.net has one weight in the layers first and second, which would be decomposed twice: give each layer a "
        "weight, or use one layer twice"
    )
    net["second"] = net["first"]
    assert decompose(net) == ["first"]


def test_a_net_with_nothing_to_decompose_is_refused():
    """One line."""
    with pytest.raises(ValueError) as error:
        decompose(nn.ModuleDict({"classifier": nn.Linear(3, 2)}))
    assert str(error.value) == (
        "model.net has no linear or convolutional layer other than classifier: there is nothing to decompose"
    )


def test_the_threshold_is_hard():
    """Entries of that size are gone, larger ones as they were."""
    values = torch.tensor([-0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3])
    assert threshold(values, 0.2).tolist() == values.where(values.abs() > 0.2, 0).tolist()
    assert torch.equal(threshold(values, 0.0), values)
