"""Lightning's averages of the weights, EMA and SWA, over the server's weights after each round."""

import math

import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint, WeightAveraging
from torch import nn

from fl_lightning import FedAvg, FederatedDataModule, Trainer
from fl_lightning.callbacks import CCVR, ArrivingClasses, FederatedCallback, ForgettingEvents, Unlearning
from fl_lightning.data import from_arrays
from fl_lightning.models import MLP
from fl_lightning.protocol import predict_in_batches
from fl_lightning.tasks import ClassLearner, ClassStream, TaskLearner, TaskStream

ROUNDS, DECAY = 4, 0.9


class Kept(FederatedCallback):
    """The global weights after each round."""

    def __init__(self):
        super().__init__()
        self.weights = []

    def on_round_end(self, trainer, module, round, report):
        self.weights.append(module.net.weight.detach().clone())


def fit(folder, average, ckpt=None):
    torch.manual_seed(0)
    method, kept = FedAvg(nn.Linear(3, 3).double(), local_steps=3), Kept()
    inputs = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    data = from_arrays(inputs, torch.arange(12) % 3, [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11]], batch_size=None)
    checkpoints = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    settings = {"accelerator": "cpu", "precision": "64-true", "logger": False, "callbacks": [average(), kept, checkpoints]}
    Trainer(max_steps=ROUNDS, **settings).fit(method, datamodule=data, ckpt_path=ckpt)
    return method.net.weight.detach(), kept.weights


@pytest.mark.parametrize(
    ("average", "weights"),
    [
        (lambda: EMAWeightAveraging(decay=DECAY), [DECAY**3, *((1 - DECAY) * DECAY ** (3 - round) for round in (1, 2, 3))]),
        (WeightAveraging, [1 / ROUNDS] * ROUNDS),
    ],
    ids=["EMA", "SWA"],
)
def test_the_average_and_its_resume(tmp_path, average, weights):
    """The net ends as the weighted mean of those after each round; from a checkpoint in between, as the same bits."""
    whole, after = fit(tmp_path / "whole", average)
    torch.testing.assert_close(whole, sum(w * one for w, one in zip(weights, after, strict=True)), atol=1e-12, rtol=0)
    resumed, rest = fit(tmp_path / "resumed", average, tmp_path / "whole" / "step=2.ckpt")
    assert torch.equal(resumed, whole)
    assert torch.equal(rest[-1], after[-1])  # clients get the newest weights, not their average


def test_it_is_an_option_of_the_command_line(main, tmp_path):
    """Lightning copies the method, but neither its trainer nor its data."""
    average = "--trainer.callbacks+ lightning.pytorch.callbacks.EMAWeightAveraging --trainer.callbacks.decay 0.9"
    code, _, error = main(*f"fit --config digits_wsm.yaml --trainer.max_steps 2 {average}".split())
    assert code == 0, error
    stored = torch.load(next(tmp_path.rglob("last.ckpt")), weights_only=True)
    assert not torch.equal(
        stored["state_dict"]["net.classifier.weight"], stored["current_model_state"]["net.classifier.weight"]
    )


@pytest.mark.parametrize("last", [False, True], ids=["EMA first", "EMA last"])
def test_callbacks_measure_the_average(last):
    """As validation does, whichever callback comes first."""
    torch.manual_seed(0)
    method, average = FedAvg(MLP, local_steps=3), EMAWeightAveraging(decay=0.5)
    data = FederatedDataModule("digits", num_clients=4, clients_per_round=4, monitor_test=1)
    others = [Unlearning(client=0), CCVR(features=10, epochs=1), ForgettingEvents(every=0, rounds=[3], samples=10_000)]
    fit_digits(method, data, [*others, average] if last else [average, *others])
    accuracy = method.newest["test/accuracy"]
    assert method.newest["ccvr/accuracy_before"] == pytest.approx(accuracy)
    assert method.newest["events/never_learned"] == pytest.approx(1 - accuracy)
    inputs, targets, _ = data.evaluation.training_samples([0])
    right = predict_in_batches(method.net, 500, inputs).argmax(dim=1) == targets
    assert method.newest["unlearning/forget_accuracy"] == pytest.approx(float(right.double().mean()))


class LossOfRounds(FederatedCallback):
    def __init__(self):
        super().__init__()
        self.losses = []

    def on_round_start(self, trainer, module, round):
        self.losses.append(module.newest["test/loss"])


def test_what_counts_is_not_averaged():
    """The classes seen and the clocks of tasks are those of the newest round; a weight's average lags behind."""
    counts = []
    for average in ([], [EMAWeightAveraging(decay=0.9)]):
        method, losses = FedAvg(MLP, local_steps=3, tasks=ClassLearner(rounds_per_task=2)), LossOfRounds()
        data = FederatedDataModule("digits", num_clients=4, clients_per_round=4, monitor_test=1, tasks=ClassStream(num_tasks=2))
        fit_digits(method, data, [*average, losses])
        seen = [int(buffer) for name, buffer in method.net.named_buffers() if name.endswith("num_seen")]
        counts.append([seen, *(buffer.tolist() for buffer in method.tasks.buffers())])
    assert counts[0] == counts[1]
    assert counts[1][0] == [10]
    assert all(math.isfinite(loss) for loss in [*losses.losses, method.newest["test/loss"]])


def test_an_average_of_clients_with_models_of_their_own_is_refused():
    method = FedAvg(MLP, local_steps=3, tasks=TaskLearner(rounds_per_task=2))
    data = FederatedDataModule("digits", num_clients=4, clients_per_round=4, tasks=TaskStream(classes_per_task=5))
    with pytest.raises(
        ValueError, match="trainer.callbacks has EMAWeightAveraging, but clients that learn tasks are evaluated"
    ):
        fit_digits(method, data, [EMAWeightAveraging(decay=0.9)])


def test_classes_that_arrive_are_scored_by_the_average():
    torch.manual_seed(0)
    method = FedAvg(MLP, local_steps=3, tasks=ClassLearner(rounds_per_task=2))
    data = FederatedDataModule("digits", num_clients=4, clients_per_round=4, monitor_test=1, tasks=ClassStream(num_tasks=2))
    fit_digits(method, data, [ArrivingClasses(), EMAWeightAveraging(decay=0.5)])
    assert method.newest["tasks/accuracy"] == pytest.approx(method.newest["test/accuracy"])


def fit_digits(method, data, callbacks):
    quiet = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    Trainer(max_steps=4 if data.tasks else 3, val_check_interval=1, callbacks=callbacks, **quiet).fit(method, datamodule=data)


def test_the_average_begins_with_initial_weights(tmp_path):
    """Lightning copies the net before they are read: rounds before the first average would be evaluated with drawn weights."""
    start, file = nn.Linear(3, 3).double(), tmp_path / "start.pt"
    torch.save(start.state_dict(), file)
    seen = []

    class Evaluated(FederatedCallback):
        def on_validation_batch_end(self, trainer, module, *_):
            seen.append(module.net.weight.detach().clone())

    method = FedAvg(nn.Linear(3, 3).double(), initial_weights=str(file))
    inputs = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    test = {"test_inputs": inputs, "test_targets": torch.arange(12) % 3, "batch_size": None}
    data = from_arrays(inputs, torch.arange(12) % 3, [range(12)], **test)
    callbacks = [EMAWeightAveraging(decay=DECAY, update_starting_at_step=5), Evaluated()]
    settings = {"accelerator": "cpu", "precision": "64-true", "logger": False, "enable_checkpointing": False}
    Trainer(max_steps=2, val_check_interval=1, callbacks=callbacks, **settings).fit(method, datamodule=data)
    assert len(seen) >= 2
    assert all(torch.equal(weight, start.weight) for weight in seen)
