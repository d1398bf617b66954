"""What callbacks write, read back from the event files and compared with what it must be."""

import io
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from fl_lightning import FedAvg
from fl_lightning.callbacks import (
    ClientForgetting,
    Communication,
    FederatedCallback,
    LabelCounts,
    LossIncrease,
    PerClassAccuracy,
    PseudoDataFisher,
    RoundForgetting,
    RunSummary,
)
from fl_lightning.data import FederatedDataModule
from fl_lightning.report.log import read_log


class Recorder(FederatedCallback):
    """Keeps what every client's and every global model says of all training or test samples, asking as any callback may."""

    def __init__(self, every=1, part="train"):
        super().__init__(every)
        self.part = part
        self.clients, self.before, self.after, self.calls = {}, {}, {}, []

    def wants_models(self, round):
        return self.due(round)

    def on_round_start(self, trainer, module, round):
        self.calls.append(("start", round))

    def on_cohort_fit_end(self, trainer, module, round, models):
        self.calls.append(("fits", round))
        samples = module.data.train_set if self.part == "train" else module.data.test_set
        inputs = module.data.preparation.normalise(samples.inputs)
        self.clients[round] = models.clients
        self.before[round] = models.predict_received(inputs).argmax(-1)
        self.after[round] = models.predict(inputs).argmax(-1)

    def on_aggregate_end(self, trainer, module, round):
        self.calls.append(("aggregate", round))

    def on_round_end(self, trainer, module, round, report):
        self.calls.append(("end", round))


@pytest.fixture
def watched(fit, tmp_path, read_scalars):
    """A digits run with callbacks; gives scalars, figures by name and round, and the data."""

    def run(*callbacks, rounds=4, net=None, **settings):
        settings = {
            "num_clients": 8,
            "clients_per_round": 3,
            "batch_size": 32,
            "monitor_test": 1,
            "val_fraction": 0.3,
            **settings,
        }
        data = FederatedDataModule("digits", **settings)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            net = net or nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        trainer = fit(
            FedAvg(net, local_epochs=2), data, rounds, callbacks=list(callbacks), logger=True, default_root_dir=tmp_path
        )
        events = EventAccumulator(trainer.log_dir, size_guidance={"images": 0}).Reload()
        figures = {
            (name, event.step): np.asarray(Image.open(io.BytesIO(event.encoded_image_string)))
            for name in events.Tags()["images"]
            for event in events.Images(name)
        }
        return read_scalars(trainer.log_dir), figures, data

    return run


def test_hooks_come_in_the_order_of_a_round(watched):
    """start, fits, aggregate, end, once each; fits only in rounds in which models were asked for."""
    recorder = Recorder(every=2)
    watched(recorder, rounds=2)
    assert recorder.calls == [
        ("start", 1),
        ("aggregate", 1),
        ("end", 1),
        ("start", 2),
        ("fits", 2),
        ("aggregate", 2),
        ("end", 2),
    ]


def test_client_forgetting_is_that_of_a_naive_count(watched):
    """F_ki from a double loop over clients' models and validation parts; the picture in the chosen round only."""
    recorder = Recorder()
    scalars, figures, data = watched(recorder, ClientForgetting(every=3))
    clients = recorder.clients[3]
    values, of_data = [], {}
    for i in range(len(clients)):
        for k, owner in enumerate(clients):
            if i != k:
                part = data.shards.validation_indices(owner)
                targets = data.train_set.targets[part]
                after = (recorder.after[3][i][part] == targets).double().mean()
                before = (recorder.before[3][part] == targets).double().mean()
                values.append((after - before).item())
                of_data.setdefault(k, []).append(values[-1])
    assert scalars["forgetting/client_mean"] == {3: pytest.approx(np.mean(values))}
    assert scalars["forgetting/client_worst"] == {3: pytest.approx(min(map(np.mean, of_data.values())))}
    assert [key for key in figures if key[0] == "Overview/forgetting_clients"] == [("Overview/forgetting_clients", 3)]


@pytest.mark.parametrize(("cadence", "name"), [(1, "forgetting/round"), (2, "forgetting/every_2")])
def test_round_forgetting_is_that_of_the_class_curves(watched, cadence, name):
    """F_t recomputed from the logged per-class accuracies, round 0 left out; its name says how many rounds it spans."""
    scalars, figures, _ = watched(PerClassAccuracy(every=0), RoundForgetting(every=4), monitor_test=cadence)
    curves = np.array(
        [[curve[r] for r in sorted(curve)] for tag, curve in sorted(scalars.items()) if tag.startswith("class_accuracy/")]
    )
    assert curves.shape == (10, 4 // cadence + 1)
    drops = np.clip(curves[:, :-1] - curves[:, 1:], 0, None).mean(axis=0)
    rounds = range(2 * cadence, 5, cadence)
    assert scalars[name] == {round: pytest.approx(drop, abs=1e-6) for round, drop in zip(rounds, drops[1:], strict=True)}
    assert ("Overview/forgetting_drops", 4) in figures
    # F of equation 2, the untrained model's evaluation left out.
    from_best = {
        number: np.mean([max(of_class[1:number]) - of_class[number] for of_class in curves.tolist()])
        for number in range(2, curves.shape[1])
    }
    expected = {number * cadence: pytest.approx(value, abs=1e-6) for number, value in from_best.items()}
    assert scalars["forgetting/from_best"] == expected


def test_local_forgetting_is_that_of_a_naive_count(watched):
    """F_kt: for each client the mean over classes of its drops on the test set against the model it started from."""
    recorder = Recorder(every=2, part="test")
    scalars, _, data = watched(RoundForgetting(every=0, clients_every=2), recorder, rounds=2)
    targets, forgetting = data.test_set.targets, []
    for predictions in recorder.after[2]:
        drops = []
        for label in range(10):
            ours = targets == label
            before = (recorder.before[2][ours] == label).double().mean().item()
            after = (predictions[ours] == label).double().mean().item()
            drops.append(max(before - after, 0))
        forgetting.append(sum(drops) / 10)
    assert sum(forgetting) > 0
    assert scalars["forgetting/local_mean"] == {2: pytest.approx(sum(forgetting) / 3, abs=1e-6)}


@pytest.mark.parametrize(
    ("chosen", "drawn"),
    [({"every": 3}, [3, 4]), ({"every": 0}, []), ({"rounds": [2]}, [2, 4]), ({"every": 0, "rounds": []}, [])],
)
def test_heatmaps_are_drawn_in_the_last_round_too_unless_never(watched, chosen, drawn):
    _, figures, _ = watched(PerClassAccuracy(**chosen), RoundForgetting(**chosen))
    for name in ("class_accuracy/heatmap", "Overview/forgetting_drops"):
        assert [round for tag, round in figures if tag == name] == drawn


def test_local_forgetting_is_off_unless_asked_for(watched):
    """It costs a pass over the test set for every client."""
    scalars, _, _ = watched(RoundForgetting(every=0), rounds=2)
    assert "forgetting/local_mean" not in scalars


def test_a_run_that_ends_early_has_its_last_pictures(watched):
    """As with max_time, or when all tasks are learned."""

    class Ends(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            trainer.should_stop = trainer.global_step == 2

    _, figures, _ = watched(Ends(), PerClassAccuracy(), RoundForgetting(), rounds=4)
    assert sorted(figures) == [("Overview/forgetting_drops", 2), ("class_accuracy/heatmap", 2)]


def test_per_class_accuracy_averages_to_the_accuracy(watched):
    """Weighted by the test set's class sizes, the class curves give test/accuracy in every round, round 0 included."""
    scalars, figures, data = watched(PerClassAccuracy(rounds=[1, 4], clients_every=2))
    sizes = data.test_set.targets.bincount(minlength=10).double() / len(data.test_set)
    for round in range(5):
        mean = sum(sizes[c].item() * scalars[f"class_accuracy/{c}"][round] for c in range(10))
        assert mean == pytest.approx(scalars["test/accuracy"][round], abs=1e-6)
    assert {key for key in figures if key[0] == "class_accuracy/heatmap"} == {
        ("class_accuracy/heatmap", 1),
        ("class_accuracy/heatmap", 4),
    }
    assert {key for key in figures if key[0] == "class_accuracy/one_round"} == {("class_accuracy/one_round", r) for r in (2, 4)}


def test_label_counts_are_those_of_the_partition(watched, tmp_path):
    """Counts of the cohort's clients against a count of the labels; no curves; the partition's picture before round 1."""
    recorder = Recorder()
    scalars, figures, data = watched(LabelCounts(every=2), recorder, rounds=2)
    (logged,) = read_log(tmp_path / "lightning_logs" / "version_0").tensors["label_counts/clients"].values()
    parts = [torch.cat([data.shards.train_indices(c), data.shards.validation_indices(c)]) for c in recorder.clients[2]]
    for row, part in zip(logged, parts, strict=True):
        assert row.tolist() == [int((data.train_set.targets[part] == label).sum()) for label in range(10)]
    assert not [name for name in scalars if name.startswith("label_counts/")]
    assert set(figures) == {("label_counts/partition", 0), ("label_counts/cohort", 2)}


def test_communication_counts_every_round_and_the_total(watched, tmp_path):
    """Three clients, 64*32+32 + 2*32 + 32*10+10 weights and 2*32 statistics of 4 bytes, one counter of 8; who they were."""
    scalars, _, _ = watched(Communication(), rounds=3, cohorts=[[0, 1, 2], [0, 1, 2], [1, 2, 7]])
    a_round = 3 * (4 * (64 * 32 + 32 + 2 * 32 + 32 * 10 + 10 + 2 * 32) + 8)
    for direction in ("up", "down"):
        assert scalars[f"communication/{direction}"] == {1: a_round, 2: a_round, 3: a_round}
        assert scalars[f"communication/total_{direction}"] == {1: a_round, 2: 2 * a_round, 3: 3 * a_round}
    (record,) = tmp_path.rglob("record.jsonl")
    logged = read_log(record.parent).tensors["clients/round_cohort"]
    assert {round: clients.tolist() for round, clients in logged.items()} == {1: [0, 1, 2], 3: [1, 2, 7]}


@pytest.mark.parametrize("kind", [Communication, RoundForgetting])
def test_what_has_been_counted_survives_a_resume(kind):
    """What ``load_state_dict`` takes is what ``state_dict`` gave."""
    callback, other = kind(), kind()
    if kind is Communication:
        callback.total_down, callback.of_tasks = 7, {"down_01": 3.5}
    else:
        callback.best = torch.tensor([0.5, 0.25])
    other.load_state_dict(callback.state_dict())
    for name, value in callback.state_dict().items():
        restored = other.state_dict()[name]
        assert torch.equal(restored, value) if isinstance(value, torch.Tensor) else restored == value, name


def test_another_run_starts_anew(fit, toy_data, tmp_path):
    """The same objects under a second trainer log and keep what new ones do; from a checkpoint they go on."""

    def run(callbacks, rounds, ckpt_path=None):
        torch.manual_seed(0)
        method = FedAvg(nn.Linear(4, 3).double())
        return fit(method, toy_data(monitor_test=1), rounds, ckpt_path, precision="64-true", callbacks=callbacks), method.newest

    def new():
        return [Communication(), RoundForgetting(), PerClassAccuracy(), RunSummary()]

    used, once = new(), new()
    trainer, _ = run(used, 3)
    trainer.save_checkpoint(tmp_path / "3.ckpt")
    assert run(used, 2)[1] == run(once, 2)[1]
    assert used[-1].state_dict() == once[-1].state_dict()
    assert run(used, 4, tmp_path / "3.ckpt")[1] == run(new(), 4)[1]


def test_client_forgetting_without_validation_samples_warns_if_it_is_due(watched):
    """With the option that gives some; not if no chosen round is in the run, as in short runs of the command line."""
    with pytest.warns(UserWarning, match=r"ClientForgetting measures nothing, as .*: set data.val_fraction above 0"):
        watched(ClientForgetting(every=0, rounds=[2]), rounds=2, val_fraction=0.0)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "callback ClientForgetting")
        watched(ClientForgetting(every=100), rounds=2, val_fraction=0.0)


def test_a_cohort_without_validation_samples_has_no_mean():
    """One round of NaN would spoil the mean over all rounds."""
    logged, nothing = [], torch.full((2, 2), torch.nan)
    module = SimpleNamespace(data=SimpleNamespace(has_validation=True), log_round=lambda metrics, round: logged.append(metrics))
    models = SimpleNamespace(clients=[0, 1], accuracies_at_sites=lambda: (nothing[0], nothing))
    ClientForgetting(every=1).on_cohort_fit_end(SimpleNamespace(loggers=[], is_global_zero=True), module, 1, models)
    assert logged == []


def test_figures_are_not_blank(watched):
    """Every picture has at least ten colours and is no smaller than 300 by 200."""
    others = (kind(every=2) for kind in (ClientForgetting, RoundForgetting, LabelCounts))
    _, figures, _ = watched(PerClassAccuracy(every=2, clients_every=2), *others, rounds=2)
    assert len(figures) == 6
    for (name, _), pixels in figures.items():
        assert pixels.shape[0] >= 200, name
        assert pixels.shape[1] >= 300, name
        assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) >= 10, name


KINDS = [PerClassAccuracy, ClientForgetting, RoundForgetting, LabelCounts, Communication, LossIncrease, PseudoDataFisher]


@pytest.mark.parametrize("kind", KINDS)
def test_cadence(kind):
    """every: multiples, 0 never; rounds: those too; negative is refused."""
    assert [r for r in range(1, 7) if kind(every=3).due(r)] == [3, 6]
    assert not any(kind(every=0).due(r) for r in range(1, 7))
    assert [r for r in range(1, 7) if kind(every=0, rounds=[1, 4]).due(r)] == [1, 4]
    assert [r for r in range(1, 7) if kind(every=3, rounds=[1, 4]).due(r)] == [1, 3, 4, 6]
    with pytest.raises(ValueError, match=r"callbacks\.(\w+\.)?every is -1, must be at least 0"):
        kind(every=-1)
