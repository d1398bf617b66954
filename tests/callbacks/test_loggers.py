"""What loggers of several kinds get of one run."""

import json
import warnings
from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.loggers.logger import Logger
from options import NO_PICTURES
from PIL import Image

from fl_lightning import FedAvg
from fl_lightning.callbacks import ClientForgetting, LabelCounts, PerClassAccuracy, RecordLogger, RoundForgetting
from fl_lightning.report.events import read_log

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
    assert said == ["trainer.logger has Scalars, which takes no figures: it gets scalars and hyper-parameters alone"]


def test_the_record_says_what_event_files_say(fit, toy_data, tmp_path):
    """Every scalar, tensor and distribution of a run, to the float32 of event files; lines are JSON."""
    board, record = TensorBoardLogger(tmp_path, "board", 0), RecordLogger(tmp_path / "record")
    more = [RoundForgetting(every=0, clients_every=1), PerClassAccuracy(every=0, clients_every=1)]
    fit_two_rounds(fit, toy_data, [board, record], *more)
    ours, theirs = read_log(tmp_path / "record"), read_log(Path(board.log_dir))
    scalars = {name: dict(zip(curve.rounds, curve.values)) for name, curve in ours.scalars.items()}
    expected = {name: dict(zip(curve.rounds, curve.values)) for name, curve in theirs.scalars.items()}
    assert scalars.keys() == expected.keys() - {"hp_metric"}
    for name, curve in scalars.items():
        assert curve == pytest.approx(expected[name], rel=1e-6)
    assert ours.tensors.keys() == theirs.tensors.keys() >= {"clients/accuracy_after", "clients/class_accuracy"}
    for name, rounds in theirs.tensors.items():
        assert {round: tensor.tolist() for round, tensor in ours.tensors[name].items()} == {
            round: tensor.tolist() for round, tensor in rounds.items()
        }
    for round, buckets in theirs.histograms["forgetting/local"].items():
        filled = buckets[buckets[:, 1] > 0]
        assert ours.histograms["forgetting/local"][round] == pytest.approx(filled)
    assert (ours.last_round, len(ours.sessions), ours.remarks) == (2, 1, [])


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


def test_a_resumed_record_has_each_round_once(main, tmp_path):
    """Lines that a killed process wrote after its checkpoint are cut off; no other logger's run is recorded twice."""
    run = [*DIGITS, *NO_PICTURES, "--trainer.logger", "CSVLogger", "--trainer.logger.save_dir", "csv", "--trainer.max_steps"]
    assert main(*run, "2")[0] == 0
    record = tmp_path / "runs" / "digits_tce" / "version_0" / "record.jsonl"
    with record.open("a") as file:
        file.write('{"round": 3, "time": 9, "scalars": {"train/loss": 9}}\n{"round": 4, "ti')
    assert main(*run, "4", "--ckpt_path", "last")[0] == 0
    log = read_log(record.parent)
    assert log.scalars["train/loss"].rounds.tolist() == [1, 2, 3, 4]
    assert log.scalars["train/loss"].values.max() < 9
    assert (len(log.sessions), log.remarks) == (2, [])
