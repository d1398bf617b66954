"""Dashboard: what TensorBoard shows when it is opened, and the run's config and final metrics beside those of other runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.tensorboard.summary import hparams

from fl_lightning.callbacks.base import FederatedCallback
from fl_lightning.callbacks.summary import RunSummary
from fl_lightning.module import FederatedModule

# Category -> chart -> tags as regular expressions. TensorBoard draws a chart's tags for every run that is selected. One
# layout for all runs: those of several are merged, and equal charts become one.
_LAYOUT = {
    "Accuracy": {"validation": ["val/accuracy$"], "test": ["test/accuracy$"]},
    "Forgetting": {
        "of the global model, from one evaluation to the next": [r"forgetting/(round|every_\d+)$"],
        "of clients, on other clients' data": ["forgetting/client_mean$"],
        "of clients within a round, by class": ["forgetting/local_mean$"],
    },
    "Class accuracy": {"test": ["class_accuracy/"]},
    "Communication": {"total bytes down": ["communication/total_down$"], "total bytes up": ["communication/total_up$"]},
    "Tasks": {
        "accuracy": ["tasks/accuracy$"],
        "forgetting": ["tasks/forgetting$"],
        "backward transfer": ["tasks/backward_transfer$"],
    },
}
_OF_THE_PLACE = ("config", "ckpt_path", "weights_only", "trainer.default_root_dir")  # say where a run is, not what it is


class Dashboard(FederatedCallback):
    """Lays out TensorBoard's Custom Scalars, and gives every logger the config as hyper-parameters.

    Custom Scalars puts accuracy, forgetting, the classes' accuracy and bytes of all runs side by side. HParams has a row for
    each run: every value of the config, and the last value of every scalar, the final readings of test and validation
    accuracy, ``final/test_accuracy_best`` and the like, among them. Other loggers get the same values as hyper-parameters and
    metrics. A run that goes on from a checkpoint in its own folder writes no second beginning.

    Attributes:
        config: the run's config; on the command line the whole one, else empty.
    """

    def __init__(self) -> None:
        super().__init__(every=1)
        self.config: Mapping[str, Any] = {}

    def on_fit_start(self, trainer: Trainer, module: FederatedModule) -> None:
        if not trainer.is_global_zero:
            return
        values = flat_config(self.config)
        for logger in trainer.loggers:
            if not isinstance(logger, TensorBoardLogger):
                if values:
                    logger.log_hyperparams(values)
            elif _is_new(logger):
                logger.log_hyperparams(values, metrics={})  # into hparams.yaml, and no event: see below
                logger.experiment.add_custom_scalars(_charts(module.learns_tasks))
                if values:
                    _write_session(logger, values, start=True)

    def on_fit_end(self, trainer: Trainer, module: FederatedModule) -> None:
        summary = next((callback for callback in trainer.callbacks if isinstance(callback, RunSummary)), None)
        if not trainer.is_global_zero or summary is None:
            return
        results = summary.results(trainer, module)
        metrics = {
            f"final/{name}_{reading}": value
            for name in ("test_accuracy", "val_accuracy")
            for reading, value in results[name].items()
            if not reading.endswith("_round")
        }
        for logger in trainer.loggers:
            if metrics:
                logger.log_metrics(metrics, step=trainer.global_step)
            if isinstance(logger, TensorBoardLogger) and self.config:
                _write_session(logger, flat_config(self.config), start=False)


def flat_config(config: Mapping[str, Any]) -> dict[str, float | bool | str]:
    """The values of a config by key, as they are given on the command line: ``model.optimizer`` and ``model.optimizer.lr``.

    What is neither a number, a truth value nor a text becomes a text, nothing becomes ``null``. Keys that say where the run
    lies are left out.
    """
    flat: dict[str, float | bool | str] = {}
    _flatten(config, "", flat)
    return {key: value for key, value in flat.items() if key not in _OF_THE_PLACE}


def _flatten(value: Any, key: str, into: dict[str, float | bool | str]) -> None:
    if isinstance(value, Mapping) and (value or not key):
        for name, inner in value.items():
            own = key if name in ("class_path", "init_args") else f"{key}.{name}".lstrip(".")
            _flatten(inner, own, into)
    elif value is None:
        into[key] = "null"
    else:
        into[key] = value if isinstance(value, int | float | str) else str(value)


def _charts(tasks: bool) -> dict[str, dict[str, list]]:
    """As ``add_custom_scalars`` takes them; tasks where a method learns them."""
    chosen = {category: charts for category, charts in _LAYOUT.items() if tasks or category != "Tasks"}
    return {category: {title: ["Multiline", tags] for title, tags in charts.items()} for category, charts in chosen.items()}


def _is_new(logger: TensorBoardLogger) -> bool:
    """Whether no process before this one has written events into the logger's folder."""
    logger.experiment.flush()  # makes this process's file
    return len(list(Path(logger.log_dir).glob("events.out.tfevents.*"))) == 1


def _write_session(logger: TensorBoardLogger, values: dict[str, float | bool | str], start: bool) -> None:
    """A run's beginning, with its values, or its good end, for HParams.

    Lightning's ``log_hyperparams`` would also write a description of the whole table, of which TensorBoard takes that of an
    arbitrary run: values that only other runs have would be missing. Without one it makes its own from all runs.
    """
    _, beginning, end = hparams(values, {})
    logger.experiment._get_file_writer().add_summary(beginning if start else end)
