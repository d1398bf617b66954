"""What TensorBoard makes of runs, read back by TensorBoard's code; and what other loggers get."""

import csv
import json
from collections import Counter

import pytest
import torch
import yaml
from lightning.pytorch.loggers import TensorBoardLogger
from options import NO_PICTURES
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.custom_scalar.custom_scalars_plugin import CustomScalarsPlugin
from tensorboard.plugins.hparams.api_pb2 import STATUS_RUNNING, STATUS_SUCCESS, ListSessionGroupsRequest
from tensorboard.plugins.hparams.backend_context import Context
from tensorboard.plugins.hparams.list_session_groups import Handler

from fl_lightning import FedAvg
from fl_lightning.callbacks import Dashboard, RoundForgetting, RunSummary
from fl_lightning.callbacks.dashboard import flat_config

SMALL = "fit --config digits_tce.yaml --model.net.hidden 16 --callbacks.client_forgetting.every 0".split()


class Opened:
    """TensorBoard's back end on a folder of runs."""

    def __init__(self, folder):
        events = EventMultiplexer().AddRunsFromDirectory(str(folder))
        events.Reload()
        self.context = TBContext(data_provider=MultiplexerDataProvider(events, str(folder)), plugin_name_to_instance={})

    def layout(self):
        """Category -> chart -> tags, as Custom Scalars draws them."""
        layout = json.loads(CustomScalarsPlugin(self.context).layout_impl(RequestContext(), ""))
        return {
            category["title"]: {chart["title"]: chart["multiline"]["tag"] for chart in category["chart"]}
            for category in layout["category"]
        }

    def hparams(self):
        """The table of HParams: its columns that differ, and a row for each run."""
        context = Context(self.context)
        written = context.hparams_metadata(RequestContext(), "")
        experiment = context.experiment_from_metadata(RequestContext(), "", True, written, [])
        request = ListSessionGroupsRequest(start_index=0, slice_size=99, allowed_statuses=[STATUS_RUNNING, STATUS_SUCCESS])
        groups = Handler(RequestContext(), context, "", request).run().session_groups
        differing = {info.name for info in experiment.hparam_infos if info.differs}
        return differing, {group.sessions[0].name: group for group in groups}


@pytest.mark.slow
def test_two_methods_stand_side_by_side(main, tmp_path):
    """One layout without empty charts, one table: a row a run with what only one method has, and the final accuracies; resuming
    adds no row.
    """
    assert main(*SMALL, "--trainer.max_steps", "2")[0] == 0
    code, _, error = main(*SMALL, "--trainer.max_steps", "3", "--ckpt_path", "last")
    assert code == 0, error
    assert main(*SMALL, "--trainer.max_steps", "2", "--model", "FedProx", "--model.mu", "0.5")[0] == 0
    opened = Opened(tmp_path / "runs")
    layout = opened.layout()
    assert list(layout) == ["Accuracy", "Forgetting", "Class accuracy", "Communication"]
    assert layout["Accuracy"] == {"validation": ["val/accuracy$"], "test": ["test/accuracy$"]}
    assert list(layout["Forgetting"]) == ["of the global model, from one evaluation to the next"]  # no client was asked
    differing, rows = opened.hparams()
    assert differing == {"1 method"}
    assert sorted(rows) == ["digits_tce/version_0", "digits_tce/version_1"]
    first, second = (rows[name] for name in sorted(rows))
    begins = [[first.hparams[name].string_value for name in ("1 method", "2 loss", "3 net")] for first in (first, second)]
    assert begins == [["FedAvg", "TruncatedCrossEntropy", "CNN2"], ["FedProx", "TruncatedCrossEntropy", "CNN2"]]
    assert second.hparams["model.mu"].number_value == 0.5
    assert first.hparams["4 rate"].number_value == pytest.approx(0.1)
    assert "5 alpha" in first.hparams
    assert not {"model", "model.loss", "model.optimizer.lr"} & set(first.hparams)  # no column twice
    columns = {name.split(".")[0] for name in first.hparams} | set(first.hparams)
    assert {"model", "data", "seed_everything", "trainer.max_steps"} <= columns
    assert not {"callbacks", "trainer.logger", "trainer.val_check_interval"} & columns  # how it is watched says nothing
    assert {session.status for row in (first, second) for session in row.sessions} == {STATUS_SUCCESS}
    for row in (first, second):
        results = json.loads((tmp_path / "runs" / row.sessions[0].name / "results.json").read_text())
        values = {metric.name.tag: metric.value for metric in row.metric_values}
        finals = {tag: value for tag, value in values.items() if tag.startswith("final/")}
        expected = {f"final/{name}": results[name]["last_rounds_mean"] for name in ("test_accuracy", "val_accuracy")}
        assert finals == pytest.approx(expected)
        assert values["forgetting/round"] == pytest.approx(results["newest_forgetting"]["forgetting/round"])
        assert "hp_metric" not in values


def test_what_matters_comes_first_and_every_tag_is_described(main, tmp_path):
    """Groups as TensorBoard sorts them: accuracy and forgetting before the classes' curves, no curve of label counts. Overview
    has the accuracies again, and means of forgetting without round 1, positive is forgetting, also over a restart."""
    for rounds in ("2", "3"):
        more = ["--ckpt_path", "last"] if rounds == "3" else []
        code, _, error = main(*SMALL, "--trainer.max_steps", rounds, "--callbacks.client_forgetting.every", "1", *more)
        assert code == 0, error
    events = EventAccumulator(str(tmp_path / "runs" / "digits_tce" / "version_0")).Reload()
    tags = events.Tags()
    assert {"Overview/forgetting_clients", "Overview/forgetting_drops", "class_accuracy/heatmap"} <= set(tags["images"])
    groups = sorted({tag.split("/")[0] for tag in tags["scalars"]})
    assert groups[0] == "Overview"
    assert "label_counts" not in groups
    same = {"Overview/accuracy_test": "test/accuracy", "Overview/accuracy_val": "val/accuracy"}
    means = {
        "Overview/forgetting_F_t_mean": ("forgetting/round", 1),
        "Overview/forgetting_F_ki_mean": ("forgetting/client_mean", -1),
    }
    assert {tag for tag in tags["scalars"] if tag.startswith("Overview/")} == same.keys() | means.keys()
    for shown, tag in same.items():
        assert [event.value for event in events.Scalars(shown)] == [event.value for event in events.Scalars(tag)]
    for shown, (tag, sign) in means.items():
        single = [sign * event.value for event in events.Scalars(tag) if event.step > 1]
        expected = {round: sum(single[: round - 1]) / (round - 1) for round in (2, 3)}
        assert {event.step: event.value for event in events.Scalars(shown)} == pytest.approx(expected, abs=1e-6)
    without = [tag for tag in tags["scalars"] + tags["images"] if not events.SummaryMetadata(tag).summary_description]
    assert without == []


def test_a_resumed_run_writes_layout_and_config_once(main, tmp_path):
    """Two files of events, and over both one layout and one beginning."""
    assert main(*SMALL, *NO_PICTURES, "--trainer.max_steps", "2")[0] == 0
    assert main(*SMALL, *NO_PICTURES, "--trainer.max_steps", "3", "--ckpt_path", "last")[0] == 0
    folder = tmp_path / "runs" / "digits_tce" / "version_0"
    assert len(list(folder.glob("events.out.tfevents.*"))) == 2
    first, second = (
        Counter(value.tag for event in EventFileLoader(str(file)).Load() for value in event.summary.value)
        for file in sorted(folder.glob("events.out.tfevents.*"), key=lambda file: file.stat().st_mtime_ns)
    )
    assert first["_hparams_/session_start_info"] == 1
    assert first["custom_scalars__config__"] > 0
    assert second["custom_scalars__config__"] == second["_hparams_/session_start_info"] == 0


@pytest.fixture
def logged(fit, toy_data, tmp_path):
    """Four rounds with some callbacks and TensorBoard; gives the method."""

    def run(callbacks, name):
        torch.manual_seed(0)
        method = FedAvg(torch.nn.Linear(4, 3, dtype=torch.float64))
        logger = TensorBoardLogger(tmp_path, name, "version_0")
        fit(method, toy_data(monitor_test=1), 4, precision="64-true", callbacks=callbacks, logger=logger)
        return method

    return run


def test_a_run_without_it_ends_in_the_same_weights(logged):
    """It reads, and draws no random number."""
    with_it, without = logged([RunSummary(), Dashboard()], "with"), logged([RunSummary()], "without")
    assert torch.equal(with_it.net.weight, without.net.weight)


def test_without_a_config_there_is_a_layout_all_the_same(logged, tmp_path):
    """As in Python, where nothing says what the config is: no row in HParams, and no placeholder."""
    logged([RunSummary(), Dashboard()], "run")
    opened = Opened(tmp_path)
    assert "Accuracy" in opened.layout()
    _, rows = opened.hparams()
    assert rows == {}


def test_a_config_is_flat_with_the_keys_of_the_command_line():
    """Classes and their arguments share a key; where the run lies is no value of it."""
    config = {
        "seed_everything": 1,
        "trainer": {"logger": None, "max_steps": 3, "default_root_dir": "runs"},
        "model": {
            "class_path": "fl_lightning.FedAvg",
            "init_args": {"optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.5, "nesterov": False}}},
        },
        "data": {"mean": [0.5, 0.25], "tasks": {}, "partition": {"class_path": "fl_lightning.data.IID", "init_args": {}}},
        "ckpt_path": "last",
    }
    assert flat_config(config) == {
        "seed_everything": 1,
        "trainer.logger": "null",
        "trainer.max_steps": 3,
        "model": "fl_lightning.FedAvg",
        "model.optimizer": "torch.optim.SGD",
        "model.optimizer.lr": 0.5,
        "model.optimizer.nesterov": False,
        "data.mean": "[0.5, 0.25]",
        "data.tasks": "{}",
        "data.partition": "fl_lightning.data.IID",
    }


def test_csv_has_config_and_metrics(main, tmp_path):
    """Lightning's CSVLogger: every scalar of every round in one file, the config in another."""
    logger = ["--trainer.logger", "CSVLogger", "--trainer.logger.save_dir", "csv"]
    code, _, error = main(*SMALL, *NO_PICTURES, "--trainer.max_steps", "2", *logger)
    assert code == 0, error
    folder = tmp_path / "csv" / "lightning_logs" / "version_0"
    lines = list(csv.DictReader((folder / "metrics.csv").open()))
    assert [line["step"] for line in lines if line["val/accuracy"]] == ["0", "1", "2"]
    results = json.loads((tmp_path / "runs" / "digits_tce" / "version_0" / "results.json").read_text())
    final = [line["final/test_accuracy"] for line in lines if line["final/test_accuracy"]]
    assert [float(value) for value in final] == [results["test_accuracy"]["last_rounds_mean"]]
    assert yaml.safe_load((folder / "hparams.yaml").read_text())["model.net.hidden"] == 16


NO_FOLDER = """
from lightning.pytorch.loggers.logger import DummyLogger


class Remote(DummyLogger):
    seen = {}

    def log_hyperparams(self, params):
        self.seen.update(params)

    def log_metrics(self, metrics, step):
        self.seen.update(metrics)

    def finalize(self, status):
        open("seen.txt", "w").write(" ".join(self.seen))
"""


def test_a_logger_without_a_folder(main, tmp_path):
    """As MLflow's with a database: the run's folder has its files, the logger gets config and metrics."""
    (tmp_path / "my_logger.py").write_text(NO_FOLDER)
    code, _, error = main(*SMALL, *NO_PICTURES, "--trainer.max_steps", "2", "--trainer.logger", "my_logger.Remote")
    assert code == 0, error
    assert (tmp_path / "runs" / "digits_tce" / "version_0" / "config.yaml").exists()
    seen = (tmp_path / "seen.txt").read_text().split()
    assert {"model.optimizer.lr", "val/accuracy", "final/test_accuracy"} <= set(seen)


def test_the_last_readings_are_on_disk_before_results_are(main, tmp_path, monkeypatch, read_scalars):
    """A run that has results.json is complete: one that is killed right before goes on, and writes them then."""
    found = {}
    monkeypatch.setattr(RunSummary, "on_fit_end", lambda *_: found.update(read_scalars(tmp_path / "runs/digits_tce/version_0")))
    code, _, error = main(*SMALL, *NO_PICTURES, "--trainer.max_steps", "1")
    assert code == 0, error
    assert found["final/test_accuracy"].keys() == {1}


def test_drops_over_other_numbers_of_rounds_are_not_averaged(fit, toy_data, tmp_path, read_scalars):
    """Rounds 2, 4 and 5 are evaluated: the overview has the drop over two rounds, not that of the last one."""
    logger = TensorBoardLogger(tmp_path, "run", "version_0")
    callbacks = [RoundForgetting(every=0), Dashboard()]
    fit(FedAvg(torch.nn.Linear(4, 3)), toy_data(monitor_test=2), 5, callbacks=callbacks, logger=logger)
    scalars = read_scalars(tmp_path / "run" / "version_0")
    assert {name: [*scalars[f"forgetting/{name}"]] for name in ("every_2", "round")} == {"every_2": [4], "round": [5]}
    assert scalars["Overview/forgetting_F_t_mean"] == scalars["forgetting/every_2"]
