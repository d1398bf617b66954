"""Dashboard: what TensorBoard shows when it is opened, and the run's config and final metrics next to those of other runs."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.tensorboard.summary import hparams

from fl_lightning.callbacks.federated_callback import FederatedCallback
from fl_lightning.callbacks.forgetting_names import forgetting_sign
from fl_lightning.callbacks.summary import RunSummary
from fl_lightning.callbacks.tags import CHARTS, overview_tag
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import RoundReport
from fl_lightning.run.trainer_settings import callbacks_of

_PATHS = ("config", "ckpt_path", "weights_only", "trainer.default_root_dir")  # say where a run is, not what it is
_NOT_LEARNING = ("trainer.", "callbacks.")  # would be the first columns of HParams
_LEARNING = ("trainer.max_steps", "trainer.precision")  # of those
# HParams sorts columns by name, after those that differ: digits come first.
_FIRST = {
    "model": "1 method",
    "model.loss": "2 loss",
    "model.net": "3 net",
    "model.optimizer.lr": "4 rate",
    "data.partition.alpha": "5 alpha",
}


class Dashboard(FederatedCallback):
    """Lays out TensorBoard's Custom Scalars, and gives every logger the config as hyper-parameters.

    *Time Series* begins with the group ``Overview``: accuracy, and the mean forgetting of the rounds so far but round 1, of
    which positive is forgetting. Single rounds are noisy, and round 1 would set the scale. Custom Scalars puts accuracy,
    forgetting, the classes' accuracy and bytes of all runs side by side; a chart is there once the run has logged something for
    it. HParams has a row for each run: the settings of what is learned and how, those that differ first, each time with method,
    loss, net, rate and alpha at the front; and the last value of every scalar, among them ``final/test_accuracy`` and
    ``final/val_accuracy``, by which runs are compared. Other loggers get the whole config as hyper-parameters. A run that goes
    on from a checkpoint in its folder writes no second beginning.

    Args:
        config: the run's config, as the command line gives it; by default none.
    """

    kept = ("_means", "_shown")

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__(every=1)
        self.config = config or {}
        self._charts: dict[str, dict[str, list]] = {}  # the newest layout
        # By tag of the overview: the tag of forgetting that it is of, rounds of it so far, and their mean.
        self._means: dict[str, tuple[str, int, float]] = {}
        self._shown: dict[str, int] = {}  # newest round by tag of the overview

    def on_fit_start(self, trainer: Trainer, module: FederatedModule) -> None:
        if not trainer.is_global_zero:
            return
        values = flat_config(self.config)
        self._charts = _charts(module.newest)  # those that the run which goes on had
        for logger in trainer.loggers:
            if not isinstance(logger, TensorBoardLogger):
                if values:
                    logger.log_hyperparams(values)
            elif _is_new(logger):
                logger.log_hyperparams(values, metrics={})  # into hparams.yaml, and no event: see below
                if values:
                    _write_session(logger, _of_learning(values), start=True)

    def on_round_end(self, trainer: Trainer, module: FederatedModule, round: int, report: RoundReport) -> None:
        self._lay_out(trainer, module)
        self._show_newest(trainer, module)

    def on_validation_end(self, trainer: Trainer, module: FederatedModule) -> None:
        if trainer.state.fn == "fit":
            self._lay_out(trainer, module)
            self._show_newest(trainer, module)

    def _show_newest(self, trainer: Trainer, module: FederatedModule) -> None:
        """Log what is newer than the last points of the overview."""
        loggers = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        for tag, round in module.newest_rounds.items():
            shown, value = overview_tag(tag), module.newest[tag]
            if shown is None or round <= self._shown.get(shown, -1):
                continue
            self._shown[shown] = round
            if tag.startswith("forgetting/"):
                if round <= 1:
                    continue
                first, count, mean = self._means.get(shown, (tag, 0, 0.0))
                if tag != first:  # a drop over another number of rounds
                    continue
                value = mean + (forgetting_sign(tag) * value - mean) / (count + 1)
                self._means[shown] = tag, count + 1, value
            for logger in loggers:
                logger.log_metrics({shown: value}, step=round)

    def _lay_out(self, trainer: Trainer, module: FederatedModule) -> None:
        """Write the layout again when there is something for one more chart; TensorBoard takes the newest."""
        charts = _charts(module.newest)
        if charts == self._charts or not trainer.is_global_zero:
            return
        self._charts = charts
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_custom_scalars(charts)

    def on_fit_end(self, trainer: Trainer, module: FederatedModule) -> None:
        summary = next((callback for callback in callbacks_of(trainer) if isinstance(callback, RunSummary)), None)
        if not trainer.is_global_zero or summary is None:
            return
        results = summary.results(trainer, module)
        readings = {name: results[name] for name in ("test_accuracy", "val_accuracy") if results[name]}
        metrics = {f"final/{name}": of["last_rounds_mean"] for name, of in readings.items()}
        for logger in trainer.loggers:
            if metrics:
                logger.log_metrics(metrics, step=trainer.global_step)
            if isinstance(logger, TensorBoardLogger) and self.config:
                _write_session(logger, _of_learning(flat_config(self.config)), start=False)
            logger.save()  # on disk before results.json, after which a killed run is not taken up again


def flat_config(config: Mapping[str, Any]) -> dict[str, float | bool | str]:
    """The values of a config by key, as they are given on the command line: ``model.optimizer`` and ``model.optimizer.lr``.

    What is neither a number, a truth value nor a text becomes a text, nothing becomes ``null``. Keys that locate
    the run are left out.
    """
    flat: dict[str, float | bool | str] = {}
    _flatten(config, "", flat)
    return {key: value for key, value in flat.items() if key not in _PATHS}


def _flatten(value: Any, key: str, into: dict[str, float | bool | str]) -> None:
    if isinstance(value, Mapping) and (value or not key or key in into):  # a class without options keeps its name
        for name, inner in value.items():
            inner_key = key if name in ("class_path", "init_args") else f"{key}.{name}".lstrip(".")
            _flatten(inner, inner_key, into)
    elif value is None:
        into[key] = "null"
    else:
        into[key] = value if isinstance(value, int | float | str) else str(value)


def _of_learning(values: dict[str, float | bool | str]) -> dict[str, float | bool | str]:
    """Without how the run is carried out and watched; the first columns by short names of classes."""
    found = {name: values[key] for key, name in _FIRST.items() if key in values}
    first: dict[str, float | bool | str] = {
        name: value.rpartition(".")[2] if isinstance(value, str) else value for name, value in found.items()
    }
    rest = {key: value for key, value in values.items() if key in _LEARNING or not key.startswith(_NOT_LEARNING)}
    return first | {key: value for key, value in rest.items() if key not in _FIRST}


def _charts(names: Collection[str]) -> dict[str, dict[str, list]]:
    """As ``add_custom_scalars`` takes them: those that show one of the scalars of these names."""
    layout = {}
    for category, charts in CHARTS.items():
        filled = {title: ["Multiline", [tags]] for title, tags in charts.items() if any(re.match(tags, name) for name in names)}
        if filled:
            layout[category] = filled
    return layout


def _is_new(logger: TensorBoardLogger) -> bool:
    """Whether no process before this one has written events into the logger's folder."""
    logger.experiment.flush()  # makes this process's file
    return len(list(Path(logger.log_dir).glob("events.out.tfevents.*"))) == 1


def _write_session(logger: TensorBoardLogger, values: dict[str, float | bool | str], start: bool) -> None:
    """A run's beginning, with its values, or its good end, for HParams.

    Lightning's ``log_hyperparams`` would also write a description of the whole table, of which TensorBoard takes that of an
    arbitrary run: values that only other runs have would be missing. Without one it makes one from all runs.
    """
    _, beginning, end = hparams(values, {})
    logger.experiment._get_file_writer().add_summary(beginning if start else end)
