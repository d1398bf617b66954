"""Losses of torch as losses of clients, and class weights."""

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fl_lightning import FedAvg, Trainer
from fl_lightning.data import from_arrays
from fl_lightning.losses import (
    CrossEntropy,
    Loss,
    TokenCrossEntropy,
    TorchLoss,
    TruncatedCrossEntropy,
    WeightedCrossEntropy,
    as_loss,
)

LOGITS, TARGET, COUNTS = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]), torch.tensor([2, 0])


def test_torchs_losses_give_one_value_a_sample():
    """Smoothed by .1, two classes: .95 of the loss of the class and .05 of that of the other; by hand from log-softmax."""
    logs = LOGITS.double().log_softmax(dim=1)
    smoothed = as_loss(nn.CrossEntropyLoss(label_smoothing=0.1))(LOGITS.double(), TARGET, COUNTS)
    torch.testing.assert_close(smoothed, -(0.95 * logs[:, 0] + 0.05 * logs[:, 1]))
    torch.testing.assert_close(as_loss(nn.CrossEntropyLoss())(LOGITS.double(), TARGET, COUNTS), -logs[:, 0])
    torch.testing.assert_close(as_loss(nn.NLLLoss())(logs, TARGET, COUNTS), -logs[:, 0])


def test_the_loss_that_was_given_stays_as_it_is():
    """It goes on to give a mean."""
    given = nn.CrossEntropyLoss()
    as_loss(given)
    assert given(LOGITS, TARGET).shape == ()


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0])), r"with weight.*give fl_lightning\.losses\.WeightedCrossEntropy"),
        (nn.CrossEntropyLoss(reduction="sum"), "leave reduction out, and choose model.optimizer.lr for the mean$"),
        (nn.CrossEntropyLoss(ignore_index=0), "leave ignore_index out, and take the samples of that label out of the data$"),
        (nn.BCELoss(), "must be of fl_lightning.losses, or one of torch for classes, labels or values, .*: derive another"),
        (nn.BCEWithLogitsLoss(weight=torch.ones(2)), "leave weight out, or derive a loss from fl_lightning.losses.Loss$"),
        (nn.BCEWithLogitsLoss(pos_weight=torch.ones(2)), "with pos_weight.*leave pos_weight out, or derive a loss"),
        (F.cross_entropy, "must be of fl_lightning.losses"),
        ("CrossEntropy", "must be of fl_lightning.losses"),
        (CrossEntropy, r"the class CrossEntropy, .*: write CrossEntropy\(\)"),
    ],
)
def test_other_losses_are_refused(loss, message):
    """One line that names the key and the cure."""
    with pytest.raises(ValueError, match=rf"model\.loss is .*{message}") as caught:
        FedAvg(nn.Linear(2, 2), loss=loss)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_a_run_with_torchs_loss_is_one_with_ours(fit, toy_data, engine):
    """Bit for bit: both are torch's function."""
    weights = []
    for loss in (CrossEntropy(), nn.CrossEntropyLoss()):
        torch.manual_seed(0)
        net = nn.Linear(4, 3).double()
        fit(FedAvg(net, loss=loss, engine=engine), toy_data(), 2, precision="64-true")
        weights.append(net.weight.detach().clone())
    assert torch.equal(*weights)


class Shaped(Loss):
    """Cross entropy in another shape."""

    uses_label_counts = False

    def __init__(self, shape):
        self.shape = shape

    def __call__(self, logits, target, label_counts):
        losses = F.cross_entropy(logits, target, reduction="none")
        return losses.mean() if self.shape == "()" else losses[:, None]


@pytest.mark.parametrize(
    "settings",
    [{"engine": "auto"}, {"engine": "sequential"}, {"engine": "vectorized"}, {"micro_batch_size": 4}],
    ids=str,
)
@pytest.mark.parametrize("shape", ["()", "(4, 1)"])
def test_a_loss_of_another_shape_is_refused(shape, settings):
    """With padding its mean would be over pairs of samples, or over padding."""
    method = FedAvg(nn.Linear(4, 3), loss=Shaped(shape), **settings)
    data = from_arrays(torch.randn(11, 4), torch.arange(11) % 3, [range(4), range(4, 11)], batch_size=4)
    trainer = Trainer(max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False)
    with pytest.raises(ValueError, match=rf"model\.loss, or .* {re.escape(shape)} for 4 samples, must be \(4,\), one"):
        trainer.fit(method, datamodule=data)


def test_only_losses_with_label_counts_give_them_away():
    """What differential privacy has to say of a loss."""
    assert FedAvg(nn.Linear(2, 2), loss=nn.CrossEntropyLoss()).released_without_noise == ()
    assert FedAvg(nn.Linear(2, 2), loss=CrossEntropy()).released_without_noise == ()
    assert FedAvg(nn.Linear(2, 2), loss=TruncatedCrossEntropy()).released_without_noise == ("the label counts in the loss",)


def test_a_loss_prints_as_it_was_given():
    """In summaries and results."""
    assert repr(TorchLoss(nn.NLLLoss())) == "NLLLoss"
    assert repr(TorchLoss(nn.CrossEntropyLoss(label_smoothing=0.1))) == "CrossEntropyLoss(label_smoothing=0.1)"


@pytest.mark.parametrize("engine", ["sequential", "vectorized", "captured"])
@pytest.mark.parametrize("class_weights", [None, [0.5, 2.0, 1.0, 3.0]])
def test_clients_follow_class_weights(engine, class_weights):
    """One round of one full step at each client: ``mean_i a_{y_i} CE_i``, with balanced weights ``n / (C_k n_c)``."""
    inputs = torch.randn(9, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    targets, parts = torch.tensor([0, 0, 0, 1, 2, 2, 3, 3, 3]), [[0, 1, 2, 3], [4, 5, 6, 7, 8]]
    net = nn.Linear(3, 4).double()
    method = FedAvg(copy.deepcopy(net), loss=WeightedCrossEntropy(class_weights), engine=engine, local_steps=1)
    data = from_arrays(inputs, targets, parts, batch_size=None)
    settings = {"accelerator": "cpu", "precision": "64-true", "logger": False, "enable_checkpointing": False}
    Trainer(max_steps=1, **settings).fit(method, datamodule=data)
    weights = {name: torch.zeros_like(value) for name, value in net.named_parameters()}
    for part in parts:
        labels, counts = targets[part], torch.bincount(targets[part], minlength=4)
        balanced = [len(part) / ((counts > 0).sum() * n) if n > 0 else 0.0 for n in counts]
        factor = torch.tensor(class_weights or balanced, dtype=torch.float64)
        losses = nn.functional.cross_entropy(net(inputs[part]), labels, reduction="none")
        gradients = torch.autograd.grad((factor[labels] * losses).mean(), [*net.parameters()])
        for (name, value), gradient in zip(net.named_parameters(), gradients):
            weights[name] += len(part) / 9 * (value - 0.1 * gradient).detach()
    for name, value in method.net.named_parameters():
        torch.testing.assert_close(value, weights[name], atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WeightedCrossEntropy([1.0, -1.0]), r"model\.loss\.class_weights .*-1\.0"),
        (lambda: WeightedCrossEntropy(torch.tensor([1.0, -1.0])), r"model\.loss\.class_weights .*-1\.0"),
        (
            lambda: WeightedCrossEntropy([0.0, 0.0]),
            r"model\.loss\.class_weights is \[0\.0, 0\.0\], with which no sample",
        ),
        (
            lambda: WeightedCrossEntropy([1.0])(torch.zeros(1, 3), torch.tensor([0]), torch.ones(3)),
            r"^model\.loss\.class_weights has 1 weight, there are 3 classes: give one a class$",
        ),
    ],
)
def test_class_weights_that_do_not_fit_are_refused(make, message):
    """Where they are called; a fit asks before round 1, and not in a client."""
    with pytest.raises(ValueError, match=message):
        make()


def test_class_weights_of_another_number_of_classes_are_refused_before_round_1():
    """As the net is built: no client has begun, and the line is not about one."""
    method = FedAvg(nn.Linear(2, 3), loss=WeightedCrossEntropy([1.0, 2.0]))
    method.federation = from_arrays(torch.ones(6, 2), torch.arange(6) % 3, [range(6)])
    method.federation.setup()
    with pytest.raises(ValueError, match=r"^model\.loss\.class_weights has 2 weights, there are 3 classes: give one a class$"):
        method.configure_model()


def test_cross_entropy_of_half_precision_is_computed_in_float32():
    """As that of the other losses, with which it is compared."""
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).bfloat16()
    found = CrossEntropy()(logits, torch.tensor([0, 1, 2, 0]), torch.ones(3))
    assert torch.equal(found, F.cross_entropy(logits.float(), torch.tensor([0, 1, 2, 0]), reduction="none"))
    tokens = torch.tensor([[0, 1], [2, 0]])
    found = TokenCrossEntropy()(logits.reshape(2, 2, 3), tokens, torch.ones(3))
    assert torch.equal(found, F.cross_entropy(logits.float(), tokens.flatten(), reduction="none").reshape(2, 2).sum(1) / 2)


def test_a_loss_of_torch_shows_what_it_was_given():
    assert repr(as_loss(nn.HuberLoss(delta=0.1))) == "HuberLoss(delta=0.1)"
    assert repr(as_loss(nn.SmoothL1Loss())) == "SmoothL1Loss"
