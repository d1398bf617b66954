"""CCVR against moments of all features at once and a loop of gradient descent; what it leaves alone, and what it refuses."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from options import NO_PICTURES
from torch import nn

from fl_lightning import FedAvg, FederatedDataModule, FedPer, Trainer
from fl_lightning.callbacks import CCVR, RoundForgetting
from fl_lightning.callbacks.ccvr import _moments
from fl_lightning.data import Arrays
from fl_lightning.functional.class_gaussians import draw_features, pooled_moments
from fl_lightning.functional.random_streams import torch_stream
from fl_lightning.models import MLP
from fl_lightning.privacy import DPSGD
from fl_lightning.report.log import read_log
from fl_lightning.tasks import ClassLearner, ClassStream


def federation(**settings):
    return FederatedDataModule("digits", **{"num_clients": 6, "clients_per_round": 3, "monitor_test": 1, **settings})


def fitted(*callbacks, method=None, data=None, **settings):
    method = FedAvg(MLP, local_steps=3) if method is None else method
    settings = {"max_steps": 2, "logger": False, "enable_checkpointing": False, "val_check_interval": 1, **settings}
    trainer = Trainer(accelerator="cpu", callbacks=[*callbacks], **settings)
    trainer.fit(method, datamodule=federation() if data is None else data)
    return method


def rows_of(method, client):
    """Inputs of the last layer, by hand, and classes of a client's training samples."""
    data = method.data
    indices = data.shards.train_indices(client)
    inputs = data.preparation.for_evaluation(data.train_set.inputs[indices])
    with torch.no_grad():
        return method.net.eval().features(inputs).double().numpy(), data.train_set.targets[indices].numpy()


def test_the_moments_are_those_of_all_clients_features():
    """numpy over the features of all clients; the bytes are counts, means and half of each covariance, of held classes."""
    method = fitted(callback := CCVR(features=10, epochs=1))
    parts = [rows_of(method, client) for client in range(6)]
    rows, targets = np.concatenate([part for part, _ in parts]), np.concatenate([part for _, part in parts])
    pooled = pooled_moments(_moments(method, client) for client in range(6))
    width = rows.shape[1]
    for label in range(10):
        np.testing.assert_allclose(pooled.means[label], rows[targets == label].mean(axis=0), atol=1e-6)
        np.testing.assert_allclose(pooled.covariances[label], np.cov(rows[targets == label].T), atol=1e-6)
    values = 0
    for _, labels in parts:
        for count in np.bincount(labels):
            values += (count > 0) * (1 + width) + (count > 1) * width * (width + 1) // 2
    assert method.newest["ccvr/bytes_up"] == 4 * values
    assert method.newest["ccvr/bytes_down"] == 6 * 4 * sum(weight.numel() for weight in method.net.parameters())
    assert callback.calibrated is not method.net


def test_the_last_layer_is_that_of_a_loop():
    """Softmax minus one-hot, momentum 0.9, 64 virtual features a step in the stream's order, from the final weights."""
    method = fitted(callback := CCVR(features=30, epochs=2, learning_rate=0.05))
    generator = torch_stream(method.seed, -1, -1, "CCVR")
    moments = pooled_moments(_moments(method, client) for client in range(6))
    features, targets = draw_features(moments, 30, generator)
    head = [layer for layer in method.net.classifier.modules() if isinstance(layer, nn.Linear)][-1]
    weight, bias = head.weight.detach().double(), head.bias.detach().double()
    speed = [torch.zeros_like(weight), torch.zeros_like(bias)]
    for _ in range(2):
        order = torch.randperm(len(targets), generator=generator)
        for start in range(0, len(order), 64):
            chosen = order[start : start + 64]
            error = (features[chosen] @ weight.T + bias).softmax(dim=1) - F.one_hot(targets[chosen], 10)
            speed = [0.9 * v + g for v, g in zip(speed, (error.T @ features[chosen] / len(chosen), error.mean(dim=0)))]
            weight, bias = weight - 0.05 * speed[0], bias - 0.05 * speed[1]
    calibrated = [layer for layer in callback.calibrated.classifier.modules() if isinstance(layer, nn.Linear)][-1]
    torch.testing.assert_close(calibrated.weight.double(), weight, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(calibrated.bias.double(), bias, atol=1e-5, rtol=1e-4)


def test_scores_are_those_of_both_nets():
    """Accuracy by hand, F of each class's best evaluation before less what the net has, mean over classes."""
    method = fitted(callback := CCVR(), forgetting := RoundForgetting(every=0))
    data = method.data
    inputs, targets = data.preparation.for_evaluation(data.test_set.inputs), data.test_set.targets
    for net, ending in ((method.net, "_before"), (callback.calibrated, "")):
        with torch.no_grad():
            right = (net.eval()(inputs).argmax(dim=1) == targets).double()
        assert method.newest[f"ccvr/accuracy{ending}"] == pytest.approx(float(right.mean()))
        drops = [forgetting.best[label] - right[targets == label].mean() for label in range(10)]
        assert method.newest[f"ccvr/from_best{ending}"] == pytest.approx(float(sum(drops) / 10))
    assert method.newest["ccvr/accuracy_before"] == pytest.approx(method.newest["test/accuracy"])
    assert method.newest["ccvr/from_best_before"] == pytest.approx(method.newest["forgetting/from_best"])
    assert not torch.equal(callback.calibrated.classifier.weight, method.net.classifier.weight)


def test_the_run_is_the_same_with_it_and_it_is_the_same_twice():
    with_it, again, without = fitted(first := CCVR()), fitted(second := CCVR()), fitted()
    for net in (with_it.net, again.net):
        assert all(map(torch.equal, net.parameters(), without.net.parameters()))
    assert all(map(torch.equal, first.calibrated.parameters(), second.calibrated.parameters()))


class Halved(nn.Module):
    """A net whose outputs are not those of its last layer."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.features, self.classifier = nn.Flatten(), nn.Linear(64, num_classes)

    def forward(self, inputs):
        return self.classifier(self.features(inputs)) / 2


def no_test_set():
    return FederatedDataModule(Arrays(torch.zeros(8, 3), [0, 1] * 4), num_clients=2, clients_per_round=2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CCVR(features=0), "CCVR.features is 0"),
        (lambda: CCVR(epochs=0), "CCVR.epochs is 0"),
        (lambda: CCVR(learning_rate=0.0), r"CCVR.learning_rate is 0\.0"),
        (lambda: fitted(CCVR(), method=FedPer(MLP)), "CCVR: model is FedPer, whose clients keep parts"),
        (lambda: fitted(CCVR(), method=FedAvg(MLP, privacy=DPSGD(1.0))), "CCVR: model.privacy is .*adds no noise to means"),
        (
            lambda: fitted(
                CCVR(),
                method=FedAvg(MLP, tasks=ClassLearner(rounds_per_task=1)),
                data=federation(tasks=ClassStream(num_tasks=2), val_fraction=0.0),
            ),
            "CCVR: data.tasks is .*only samples of the last task",
        ),
        (lambda: fitted(CCVR(), data=no_test_set()), "CCVR measures models on test samples"),
        (lambda: fitted(CCVR(), method=FedAvg(Halved)), "last linear layer of model.net, but Halved changes its outputs"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(make, message):
    """In one line, before round 1."""
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_it_is_an_option_of_the_command_line(main, tmp_path):
    """Its net begins another run, whose untrained accuracy is that of the calibrated one."""
    (tmp_path / "ccvr.yaml").write_text("trainer:\n  callbacks:\n  - class_path: fl_lightning.callbacks.CCVR\n")
    few = ["fit", "--config", "digits_wsm.yaml", "--trainer.max_steps", "2", "--data.monitor_test", "1", *NO_PICTURES]
    code, out, error = main(*few, "--config", "ccvr.yaml")
    assert code == 0, error
    assert "test accuracy after CCVR" in out
    (net,) = tmp_path.rglob("ccvr.pt")
    calibrated = read_log(net.parent).scalars["ccvr/accuracy"].values[-1]
    code, _, error = main(*few, "--model.initial_weights", str(net), "--trainer.default_root_dir", "after")
    assert code == 0, error
    (record,) = (tmp_path / "after").rglob("record.jsonl")
    assert read_log(record.parent).scalars["test/accuracy"].values[0] == pytest.approx(calibrated)
