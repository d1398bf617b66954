"""What loggers of several kinds get of one run."""

import base64
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.loggers.logger import Logger
from options import NO_PICTURES
from PIL import Image
from recorded import lines

from fl_lightning import FedAvg
from fl_lightning.callbacks import ClientForgetting, LabelCounts, PerClassAccuracy, RecordLogger, RoundForgetting
from fl_lightning.report.log import read_log

DIGITS = "fit --config digits_tce.yaml --model.net MLP --data.clients_per_round 3 --trainer.val_check_interval 1".split()
PICTURES = (
    "--callbacks.label_counts.every 0 --callbacks.per_class_accuracy.every 0 --callbacks.per_class_accuracy.clients_every 2 "
    "--callbacks.round_forgetting.every 0 --callbacks.round_forgetting.clients_every 1 --callbacks.client_forgetting.every 2"
).split()


class Scalars(Logger):
    """A logger that takes no figures."""

    name, version = "scalars", 0

    def __init__(self):
        super().__init__()
        self.params, self.rounds = {}, []

    def log_metrics(self, metrics, step=None):
        self.rounds.append(step)

    def log_hyperparams(self, params, *arguments, **more):
        self.params.update(params)


class Figures(Scalars):
    """A logger of a user that takes them."""

    def __init__(self):
        super().__init__()
        self.figures = []

    def log_figure(self, tag, figure, round):
        self.figures.append((tag, round))


def fit_two_rounds(fit, toy_data, loggers, *more):
    data = toy_data(val_fraction=0.4, monitor_test=1)
    callbacks = [ClientForgetting(every=1), LabelCounts(every=2), *more]
    method = FedAvg(torch.nn.Linear(4, 3, dtype=torch.float64))
    fit(method, data, 2, precision="64-true", logger=loggers, callbacks=callbacks)


def test_several_loggers_get_every_figure_at_once(fit, toy_data, tmp_path):
    """CSV has PNG files next to ``metrics.csv``, a user's logger is asked by its method."""
    csv, own = CSVLogger(tmp_path, "csv", 0), Figures()
    fit_two_rounds(fit, toy_data, [TensorBoardLogger(tmp_path, "board", 0), csv, own])
    expected = [("label_counts/partition", 0), ("forgetting/clients", 1), ("forgetting/clients", 2), ("label_counts/cohort", 2)]
    assert own.figures == expected
    files = {f"{tag.replace('/', '_')}_round_{round}.png" for tag, round in expected}
    folder = Path(csv.log_dir)
    assert {path.name for path in (folder / "figures").iterdir()} == files
    assert (folder / "metrics.csv").exists()
    for file in files:
        assert Image.open(folder / "figures" / file).size > (500, 200)


def test_a_logger_without_figures_says_so_once(fit, toy_data):
    """Of four figures of a run; one of the command's dry runs says nothing."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit_two_rounds(fit, toy_data, Scalars())
    said = [str(one.message) for one in caught if "figures" in str(one.message)]
    assert said == ["trainer.logger has Scalars, which takes no figures: it gets only scalars and hyper-parameters"]


def numbers(packed):
    return np.frombuffer(base64.b64decode(packed["float32"]), "<f4").reshape(packed["shape"])


@pytest.mark.parametrize("kind", [TensorBoardLogger, CSVLogger])
def test_every_fit_with_a_folder_has_a_record(fit, toy_data, tmp_path, read_scalars, kind):
    """Next to what its logger writes: every scalar, to the float32 of event files, and what is behind each figure."""
    logger = kind(tmp_path, "run", 0)
    more = [RoundForgetting(every=0, clients_every=1), PerClassAccuracy(every=0, clients_every=1)]
    fit_two_rounds(fit, toy_data, logger, *more)
    logged = lines(Path(logger.log_dir))
    assert {line["round"] for line in logged} == {0, 1, 2}
    scalars = [(name, line["round"], value) for line in logged for name, value in line.get("scalars", {}).items()]
    assert len({point[:2] for point in scalars}) == len(scalars) > 20  # each once
    if kind is TensorBoardLogger:
        mirrored = read_scalars(Path(logger.log_dir))
        assert mirrored.keys() - {"hp_metric"} == {name for name, *_ in scalars}
        for name, round, value in scalars:
            assert value == pytest.approx(mirrored[name][round], rel=1e-6)
    tensors = {(name, line["round"]): numbers(value) for line in logged for name, value in line.get("tensors", {}).items()}
    assert {name for name, round in tensors if round == 2} >= {"clients/accuracy_after", "forgetting/local"}
    assert tensors["clients/class_accuracy", 2].shape == (len(tensors["clients/class_cohort", 2]) + 2, 3)
    assert tensors["forgetting/local", 2][:, 1].sum() == len(tensors["clients/class_cohort", 2])
    log = read_log(Path(logger.log_dir))
    for (name, round), tensor in tensors.items():
        np.testing.assert_array_equal(log.tensors[name][round], tensor)
    assert (log.last_round, len(log.sessions), log.remarks) == (2, 1, [])


def test_a_fit_without_a_folder_has_no_record(fit, toy_data, tmp_path, monkeypatch):
    """Neither a trainer without loggers nor one whose logger makes no folder for each run."""
    monkeypatch.chdir(tmp_path)
    for logger in (False, Figures()):
        fit_two_rounds(fit, toy_data, logger)
    assert not list(tmp_path.rglob("record.jsonl"))


def test_a_record_alone(fit, toy_data, tmp_path):
    """As a trainer's only logger; a test after the fit is not in it, and a second fit is another process."""
    method, logger = FedAvg(torch.nn.Linear(4, 3, dtype=torch.float64)), RecordLogger(tmp_path / "run")
    for _ in range(2):
        fit(method, toy_data(), 2, precision="64-true", logger=logger)
    log = read_log(tmp_path / "run")
    assert (log.scalars["train/loss"].rounds.tolist(), len(log.sessions)) == ([1, 2], 2)
    assert [path.name for path in tmp_path.rglob("*.jsonl")] == ["record.jsonl"]


def test_what_is_tested_after_a_fit_is_not_in_the_record(fit, toy_data, tmp_path):
    logger = TensorBoardLogger(tmp_path, "run", 0)
    trainer = fit(FedAvg(torch.nn.Linear(4, 3, dtype=torch.float64)), toy_data(), 2, precision="64-true", logger=logger)
    before = lines(Path(logger.log_dir))
    trainer.test(trainer.model, datamodule=trainer.datamodule, verbose=False)
    assert (lines(Path(logger.log_dir)), trainer.loggers) == (before, [logger])


@pytest.mark.slow
def test_loggers_in_yaml_and_a_report_without_tensorboard(main, tmp_path):
    """Two loggers of a config file; the run's folder has no event file, and its report every section with figures."""
    loggers = [{"class_path": "CSVLogger", "init_args": {"save_dir": name}} for name in ("a", "b")]
    (tmp_path / "loggers.yaml").write_text(yaml.safe_dump({"trainer": {"logger": loggers}}))
    code, _, error = main(*DIGITS, *PICTURES, "--config", "loggers.yaml", "--trainer.max_steps", "3")
    assert (code, error) == (0, "")
    for name in ("a", "b"):
        (folder,) = (tmp_path / name).glob("*/version_0")
        assert "test/accuracy" in (folder / "metrics.csv").read_text()
        assert "model.optimizer.lr" in (folder / "hparams.yaml").read_text()
        assert list((folder / "figures").glob("forgetting_clients_round_2.png"))
    folder = tmp_path / "runs" / "digits_tce" / "version_0"
    assert not list(folder.glob("events*"))
    assert [json.loads(line)["round"] for line in (folder / "record.jsonl").read_text().splitlines()[1:]][-1] == 3
    code, _, error = main("figures", str(folder), "again", "--format", "png")
    assert (code, error) == (0, "")
    first = {path.name.rpartition("_")[0] for path in (tmp_path / "a").rglob("figures/*")}
    assert first <= {path.name.rpartition("_")[0] for path in (tmp_path / "again").iterdir()}
    code, out, error = main("report", "runs")
    assert (code, error) == (0, "")
    assert "Report of 1 run of 1 method" in out
    drawn = {path.stem for path in (tmp_path / "report" / "figures").iterdir()}
    assert {"accuracy", "forgetting_local", "who_forgets_whose_data_2", "one_round_by_class_2", "communication"} <= drawn


@pytest.mark.parametrize("logger", ["CSVLogger", "false"])
def test_a_resumed_record_has_each_round_once(main, tmp_path, logger):
    """Lines that a killed process wrote after its checkpoint are cut off; a run without loggers has a record too."""
    run = [*DIGITS, *NO_PICTURES, "--trainer.logger", logger, "--trainer.max_steps"]
    run[-1:-1] = ["--trainer.logger.save_dir", "csv"] if logger == "CSVLogger" else []
    assert main(*run, "2")[0] == 0
    record = tmp_path / "runs" / "digits_tce" / "version_0" / "record.jsonl"
    with record.open("a") as file:
        file.write('{"round": 3, "time": 9, "scalars": {"train/loss": 9}}\n{"round": 4, "ti')
    assert main(*run, "4", "--ckpt_path", "last")[0] == 0
    rounds = [line["round"] for line in lines(record.parent) if "train/loss" in line.get("scalars", {})]
    log = read_log(record.parent)
    assert log.scalars["train/loss"].rounds.tolist() == rounds == [1, 2, 3, 4]
    assert log.scalars["train/loss"].values.max() < 9
    assert (len(log.sessions), log.remarks) == (2, [])


def test_another_runs_record_is_not_cut(fit, toy_data, tmp_path):
    """A fit that goes on from a checkpoint of elsewhere, in a folder with a longer record, leaves all of that."""
    run = {"precision": "64-true", "val_check_interval": 2}
    method = FedAvg(torch.nn.Linear(4, 3, dtype=torch.float64))
    trainer = fit(method, toy_data(), 1, logger=RecordLogger(tmp_path / "first"), **run)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    fit(method, toy_data(), 3, logger=RecordLogger(tmp_path / "other"), **run)
    before = (tmp_path / "other" / "record.jsonl").read_bytes()
    logger = RecordLogger(tmp_path / "other")
    fit(method, toy_data(), 2, logger=logger, ckpt_path=tmp_path / "one.ckpt", **run)
    after = (tmp_path / "other" / "record.jsonl").read_bytes()
    assert after.startswith(before)
    assert len(after) > len(before)
