"""ArrivingClasses against predictions counted one after another, other callbacks on such a stream, and the command line."""

import csv
import json
import math
import re
from itertools import pairwise

import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from options import NO_PICTURES

from fl_lightning.callbacks import (
    ArrivingClasses,
    ClientForgetting,
    Communication,
    FeatureDrift,
    FederatedCallback,
    ForgettingEvents,
    HeadByClass,
    LabelCounts,
    PerClassAccuracy,
    RoundForgetting,
)
from fl_lightning.callbacks.class_names import class_names
from fl_lightning.data import Dataset, Samples
from fl_lightning.data.sources.source import Source
from fl_lightning.report.log import read_log
from fl_lightning.report.measured_rounds import class_labels
from fl_lightning.report.run_figures import pictures
from fl_lightning.tasks import ClassLearner, ClassStream, DomainStream, ICaRL


class Newest(FederatedCallback):
    """What is known after each round."""

    def __init__(self) -> None:
        super().__init__()
        self.after = {}

    def on_round_end(self, trainer, module, round, report):
        self.after[round] = {name: value for name, value in module.newest.items() if "task" in name}


class Domains(Source):
    """Three classes from two sets."""

    def load(self, root):
        generator = torch.Generator().manual_seed(3)
        targets = torch.arange(120) % 6
        inputs = torch.randn(120, 2, 3, 3, generator=generator, dtype=torch.float64)
        train, test = Samples(inputs[:90], targets[:90]), Samples(inputs[90:], targets[90:])
        return Dataset(train, test, ("x/a", "x/b", "x/c", "y/a", "y/b", "y/c"), sources=("x",) * 3 + ("y",) * 3)


@pytest.mark.parametrize("blurry", [0.0, 0.3])
def test_scalars_of_each_task(arriving, blurry):
    """From the model's predictions after rounds 2, 4 and 6, counted in plain Python; a class that leaks is new in its task."""
    newest, data = Newest(), arriving.new_data(ClassStream(3, blurry=blurry))
    trained = arriving.train(
        ClassLearner, data, callbacks=[ArrivingClasses(), newest], softmax_over="seen" if blurry else "new"
    )
    targets = trained.data.test_set.targets.tolist()
    table, accuracies = {}, []
    for t, round in enumerate((2, 4, 6)):
        said, after = trained.seen.logits[round - 1].argmax(dim=1).tolist(), newest.after[round]
        true = [label for label in targets if label < 2 * t + 2]
        pairs = list(zip(said, true, strict=True))

        def accuracy(pairs):
            return sum(p == c for p, c in pairs) / len(pairs)

        accuracies.append(accuracy(pairs))
        for i in range(t + 1):
            table[t, i] = accuracy([pair for pair in pairs if pair[1] // 2 == i])
            assert after[f"task_accuracy/{i + 1:02d}"] == pytest.approx(table[t, i])
        drops = [max(table[past, i] for past in range(i, t)) - table[t, i] for i in range(t)]
        inside = [pair for pair in pairs if pair[0] // 2 == pair[1] // 2]
        expected = {
            "accuracy": accuracies[-1],
            "average_incremental_accuracy": sum(accuracies) / len(accuracies),
            "forgetting": sum(drops) / t if t else 0.0,
            "backward_transfer": sum(table[t, i] - table[i, i] for i in range(t)) / t if t else 0.0,
            "task_found": len(inside) / len(pairs),
            "right_where_found": accuracy(inside) if inside else math.nan,
        }
        if t:
            expected |= {
                "old_accuracy": accuracy([pair for pair in pairs if pair[1] < 2 * t]),
                "new_accuracy": accuracy([pair for pair in pairs if pair[1] >= 2 * t]),
            }
        for name, value in expected.items():
            assert after[f"tasks/{name}"] == pytest.approx(value), (name, round)
    assert "tasks/forgetting_by_class" in newest.after[6]
    assert "tasks/nearest_mean_accuracy" not in newest.after[6]


def test_a_resumed_run_knows_the_tasks_before(arriving, tmp_path):
    newest = Newest()
    arriving.train(ICaRL, memory=8, rounds=4, callbacks=[ArrivingClasses()], checkpoints=tmp_path)
    resumed = arriving.train(ICaRL, memory=8, callbacks=[ArrivingClasses(), newest], ckpt_path=tmp_path / "step=4.ckpt")
    whole = arriving.train(ICaRL, memory=8, callbacks=[ArrivingClasses()])
    names = [name for name in whole.newest if "task" in name]
    assert "tasks/nearest_mean_accuracy" in names
    assert {name: resumed.newest[name] for name in names} == {name: whole.newest[name] for name in names}


@pytest.mark.parametrize("stream", ["classes", "domains"])
def test_what_needs_tasks_that_were_not_measured_is_not_logged(arriving, tmp_path, stream):
    """The callback joins a resumed run after the first task."""

    def run(rounds, **settings):
        data, classes = (arriving.new_data(), 6) if stream == "classes" else (arriving.domains(3), 2)
        return arriving.train(ClassLearner, data, arriving.new_net(classes), rounds, **settings)

    run(3, checkpoints=tmp_path)
    resumed = run(4, callbacks=[ArrivingClasses()], ckpt_path=tmp_path / "step=3.ckpt")
    assert "tasks/accuracy" in resumed.newest
    assert "tasks/average_incremental_accuracy" not in resumed.newest
    assert not any(math.isnan(value) for value in resumed.newest.values())


def test_domains_have_a_table_and_no_confusion(arriving):
    data = arriving.new_data(DomainStream())
    data.source = Domains()
    newest = Newest()
    trained = arriving.train(ClassLearner, data, arriving.new_net(3), callbacks=[ArrivingClasses(), newest])
    assert trained.tasks.is_over
    assert newest.after[4].keys() == {
        *(f"tasks/{name}" for name in ("accuracy", "average_incremental_accuracy", "forgetting", "backward_transfer")),
        "task_accuracy/01",
        "task_accuracy/02",
    }


def test_accuracy_on_domains_before_they_are_learned(arriving, tmp_path):
    """In round 0 on both, after the first on the second, counted in plain Python; the run's bits do not change."""
    predictions = {}

    class Predictions(FederatedCallback):
        def predict(self, module, round):
            test = module.data.test_set
            predictions[round] = module.net.eval()(test.inputs).argmax(dim=1) == test.targets

        def on_train_start(self, trainer, module):
            self.predict(module, 0)

        def on_aggregate_end(self, trainer, module, round):
            self.predict(module, round)

    weights = []
    for callbacks in ([Predictions(), ArrivingClasses()], []):
        data, net = arriving.new_data(DomainStream()), arriving.new_net(3)
        data.source = Domains()
        logger = TensorBoardLogger(tmp_path, name="", version="") if callbacks else False
        trained = arriving.train(ClassLearner, data, net, callbacks=callbacks, logger=logger)
        weights.append(torch.cat([weight.flatten() for weight in trained.net.parameters()]))
    assert weights[0].equal(weights[1])
    ahead = read_log(tmp_path).tensors["tasks/ahead"]
    of_y = torch.arange(30) % 6 >= 3  # of the 30 test samples
    shares = {round: [right[~of_y].double().mean(), right[of_y].double().mean()] for round, right in predictions.items()}
    assert ahead.keys() == {0, 2}
    assert ahead[0].tolist() == pytest.approx(torch.tensor(shares[0]).tolist())
    assert math.isnan(ahead[2][0])
    assert ahead[2][1] == pytest.approx(float(shares[2][1]))


def test_drift_of_features_leaves_out_classes_to_come(arriving, tmp_path):
    """``absent`` is the mean over what has arrived and the client lacks."""
    data = arriving.new_data(ClassStream(3))
    logger = TensorBoardLogger(tmp_path, name="", version="")
    arriving.train(ClassLearner, data, callbacks=[FeatureDrift(every=1)], logger=logger)
    log = read_log(tmp_path)
    absent = log.scalars["drift/absent"]
    for round, value in zip(absent.rounds.tolist(), absent.values.tolist(), strict=True):
        drift, holds = (log.tensors[f"drift/{name}"][round] for name in ("class", "holds"))
        seen = 2 * ((round - 1) // 2) + 2
        lacked = drift[:, :seen][holds[:, :seen] == 0]
        assert value == pytest.approx(lacked.mean(), nan_ok=True)
    assert len(absent.rounds) == 6


@pytest.mark.parametrize("blurry", [0.0, 0.3])
def test_a_fit_is_measured_on_what_others_held_before(arriving, blurry):
    """F_ki on each client's validation samples of all tasks so far, the mean over pairs, in plain Python."""
    found, expected = {}, {}

    class Counted(FederatedCallback):
        def on_cohort_fit_end(self, trainer, module, round, models):
            found[round] = module.newest["forgetting/client_mean"]
            data, task, drops = module.data, (round - 1) // 2, []
            for k, client in enumerate(models.clients):
                parts = [data.present_shards.shards.validation_indices(3 * client + past) for past in range(task + 1)]
                held = torch.cat(parts)
                held = held[data.train_set.targets[held] < 2 * task + 2]
                if len(held) == 0:
                    continue
                inputs, targets = data.train_set.inputs[held], data.train_set.targets[held]
                before = (models.predict_received(inputs).argmax(dim=-1) == targets).double().mean()
                after = (models.predict(inputs).argmax(dim=-1) == targets).double().mean(dim=1)
                drops += [float(after[i] - before) for i in range(len(models.clients)) if i != k]
            expected[round] = sum(drops) / len(drops)

    data = arriving.new_data(ClassStream(3, blurry=blurry), val_fraction=0.2)
    arriving.train(ClassLearner, data, callbacks=[ClientForgetting(every=1), Counted(every=1)], softmax_over="seen")
    assert found.keys() == set(range(1, 7))
    assert found == pytest.approx(expected)


def test_evaluations_of_other_samples_are_not_compared(arriving, tmp_path):
    """The second domain arrives in round 3, and F_t and F begin anew with the test set of both."""
    accuracies = {}

    class Accuracies(FederatedCallback):
        def on_validation_end(self, trainer, module):
            accuracies[trainer.global_step] = module.evaluation.scores["test"].class_accuracy.double()

    data, net = arriving.new_data(DomainStream()), arriving.new_net(3)
    data.source = Domains()
    callbacks = [RoundForgetting(every=0), Accuracies(every=0)]
    arriving.train(ClassLearner, data, net, callbacks=callbacks, logger=TensorBoardLogger(tmp_path, name="", version=""))
    scalars = read_log(tmp_path).scalars
    for name, sign in (("forgetting/round", 0), ("forgetting/from_best", -1)):
        drops = {late: accuracies[late - 1] - accuracies[late] for late in (2, 4)}
        means = {late: float(drop.clamp_min(sign).mean()) for late, drop in drops.items()}
        assert scalars[name].by_round() == pytest.approx(means)


def test_probes_leave_out_classes_to_come(arriving):
    """Events of the test samples seen, counted in plain Python, and finite changes of the head."""
    newest = {}

    class AfterEach(FederatedCallback):
        def on_round_end(self, trainer, module, round, report):
            newest[round] = dict(module.newest)

    trained = arriving.train(
        ClassLearner, callbacks=[ForgettingEvents(every=1), HeadByClass(every=1), AfterEach()], softmax_over="seen"
    )
    targets = trained.data.test_set.targets
    was_right = [[] for _ in targets]
    for round, logits in enumerate(trained.seen.logits, 1):
        seen = (targets < 2 * ((round - 1) // 2) + 2).nonzero().flatten().tolist()
        for sample, said in zip(seen, logits.argmax(dim=1).tolist(), strict=True):
            was_right[sample].append(said == targets[sample])
        events = [sum(a and not b for a, b in pairwise(was_right[sample])) for sample in seen]
        never = [not any(was_right[sample]) for sample in seen]
        assert newest[round]["events/mean"] == pytest.approx(sum(events) / len(seen))
        assert newest[round]["events/never_learned"] == pytest.approx(sum(never) / len(seen))
    of_head = {name: value for name, value in newest[2].items() if name.startswith("head/")}
    assert len(of_head) == 7
    assert all(map(math.isfinite, of_head.values()))


def test_a_record_that_is_cut_names_the_classes_as_they_arrive(arriving, tmp_path):
    data = arriving.new_data()
    arriving.train(
        ClassLearner, data, rounds=1, callbacks=[PerClassAccuracy()], logger=TensorBoardLogger(tmp_path, name="", version="")
    )
    log = read_log(tmp_path)
    assert log.classes == list(data.classes) != sorted(data.classes)
    assert class_labels(log, 6) == list(data.classes)
    assert class_labels(log, 2) == list(data.classes[:2])


@pytest.mark.slow
def test_other_callbacks_show_a_class_from_its_task_on(arriving, tmp_path, read_scalars, raw_records):
    """Per-class accuracy and F_t live, and the pictures of the tasks, which what was logged draws again."""
    callbacks = [PerClassAccuracy(every=1, clients_every=3), RoundForgetting(every=1, clients_every=3), ArrivingClasses()]
    callbacks += [LabelCounts(rounds=[3]), Communication()]
    logger = TensorBoardLogger(tmp_path, name="", version="")
    data = arriving.new_data(ClassStream(num_tasks=3, class_order="labels"))
    arriving.train(ClassLearner, data, callbacks=callbacks, logger=logger)
    scalars = read_scalars(tmp_path)
    for label, name in enumerate("abcdef"):
        assert min(scalars[f"class_accuracy/{name}"]) == (2 * (label // 2) + 1 if label > 1 else 0)
    assert all(math.isfinite(value) for curve in scalars.values() for value in curve.values())
    assert {"forgetting/round", "forgetting/from_best", "forgetting/local_mean"} <= scalars.keys()
    tags = {tag for _, tag, _ in raw_records(tmp_path)}
    assert {"tasks/accuracy_table", "tasks/confusion", "tasks/classes", "class_accuracy/heatmap"} <= tags
    log = read_log(tmp_path)
    found = {picture.tag: picture for picture in pictures(log)}
    again = {tag: picture.draw(picture.rounds[-1]) for tag, picture in found.items()}
    images = {"tasks/accuracy_table", "tasks/confusion", "tasks/classes", "class_accuracy/heatmap", "class_accuracy/one_round"}
    assert images | {"forgetting/drops", "label_counts/partition", "label_counts/cohort"} == again.keys()
    assert again.keys() - {"forgetting/drops"} | {"Overview/forgetting_drops"} <= tags
    held = {round: rows[-1].nonzero()[0].tolist() for round, rows in log.tensors["label_counts/first_clients"].items()}
    assert held == {0: [0, 1], 2: [2, 3], 4: [4, 5]}  # classes of all clients, before each task
    assert found["label_counts/partition"].chosen([2, 4]) == [2, 4]
    bars = again["label_counts/cohort"].axes[0].containers
    assert [label for label, bar in enumerate(bars) if bar[-1].get_width() > 0] == [2, 3]  # of all clients in round 3
    rows = [label.get_text().split(",")[0] for label in again["tasks/classes"].axes[0].get_yticklabels()]
    assert rows == [f"{name} (rounds {2 * (label // 2) + 1} to {2 * (label // 2) + 2})" for label, name in enumerate("abcdef")]


@pytest.mark.parametrize(
    ("settings", "spans"),
    [
        ({}, [(1, 2), (3, 4), (5, 6)]),
        ({"cumulative": True}, [(1, 6), (3, 6), (5, 6)]),
        ({"moving": 0.5}, [(1, 6), (3, 6), (5, 6)]),  # of three clients one moves at a time
    ],
)
def test_pictures_say_when_a_class_came_and_went(arriving, settings, spans):
    """Between them clients have samples: two classes a task of two rounds."""
    data = arriving.new_data(ClassStream(num_tasks=3, class_order="labels", **settings))
    trained = arriving.train(ClassLearner, data, rounds=1, softmax_over="seen")
    expected = [f"{name} (rounds {first} to {last})" for name, (first, last) in zip("abcdef", sorted(2 * spans))]
    assert class_names(trained) == expected


@pytest.mark.slow
def test_on_the_command_line(main, tmp_path):
    """Two tasks of one round each, on from the checkpoint, evaluated and applied."""
    short = (
        "--model.tasks.rounds_per_task 1 --model.net.hidden 16 --data.batch_size 60 --trainer.enable_progress_bar false".split()
    )
    short += [*NO_PICTURES, "--callbacks.client_forgetting.every", "2"]
    code, out, error = main("fit", "--config", "digits_classes.yaml", *short, "--trainer.max_steps", "2")
    assert code == 0, error
    assert "tasks/accuracy" in out
    assert "best test accuracy" not in out
    (folder,) = tmp_path.glob("runs/*/version_0")
    results = json.loads((folder / "results.json").read_text())
    assert results["tasks"]["tasks/accuracy"] == pytest.approx(results["test_accuracy"]["last"])
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["last.ckpt"]
    config = ["--config", str(folder / "config.yaml"), "--ckpt_path", "last"]
    code, out, error = main("test", *config)
    assert code == 0, error
    (shown,) = re.findall(r"test/accuracy +│ +([\d.]+)", out)
    assert float(shown) == pytest.approx(results["test_accuracy"]["last"])
    code, _, error = main("predict", *config)
    assert code == 0, error
    (predictions,) = tmp_path.glob("runs/**/predictions.csv")
    with open(predictions, newline="") as file:
        rows = list(csv.DictReader(file))
    assert 0 < len(rows) < 300  # four of ten digits
    code, out, error = main("export", "--ckpt_path", "last")
    assert code == 0, error
    assert "probabilities of 10 classes" in out
    code, _, error = main("fit", *config, "--trainer.max_steps", "3")
    assert code == 0, error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data.tasks.num_tasks", "11"], "data.tasks.num_tasks is 11, but data.source has 10 classes: lower it"),
        (["--data.tasks.classes", "[['0','1'],['1']]"], "data.tasks.classes names 1 twice: give each class to one task"),
        (
            ["--model.tasks", "Replay", "--model.tasks.memory", "5000"],
            "model.tasks.memory is 5000, but no client has more than",
        ),
        (["--data.tasks.joining", "2"], "data.tasks.joining is 2 at each of 4 tasks, which leaves none of data.num_clients 5"),
        (["--data.partition", "Natural"], "data.partition is Natural(min_samples=1), but each task of data.tasks has"),
        (["--model.tasks", "null"], "data.tasks is ClassStream(5 tasks), but FedAvg learns no tasks"),
    ],
)
@pytest.mark.one_in(3)
def test_mistakes_are_one_line(main, tmp_path, arguments, message):
    """Before the first round, and no folder is left."""
    if arguments[0] == "--data.tasks.classes":
        arguments = ["--data.tasks.num_tasks", "null", *arguments]
    extra = [] if arguments[1] == "null" else ["--model.tasks.rounds_per_task", "1"]
    code, _, error = main("fit", "--config", "digits_classes.yaml", *arguments, *extra)
    assert code != 0
    assert error.splitlines()[-1].startswith(f"fl-lightning: error: {message}")
    assert len(error.splitlines()) == 1
    assert not list(tmp_path.glob("runs/*/version_0"))
