"""``fit``, ``validate``, ``test``, ``predict`` and ``partition``: a trainer, a method and data from one parsed config."""

import os
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch import seed_everything
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import SIGTERMException

from fl_lightning import callbacks
from fl_lightning.checks import check_range, counted
from fl_lightning.command_line.checkpoints import BestCheckpoint, LastCheckpoint
from fl_lightning.command_line.known_classes import known_classes
from fl_lightning.command_line.parsers import CommandParser, ConfigOption
from fl_lightning.command_line.parsing import given_values, parse
from fl_lightning.command_line.run_folder import NAMED, SaveConfig, find_checkpoint, run_folder
from fl_lightning.data import FederatedDataModule
from fl_lightning.module import FederatedModule
from fl_lightning.processes.peer_watch import PeerLost
from fl_lightning.processes.strategy import FederatedStrategy
from fl_lightning.processes.torchrun_store import decided_by_first, num_started
from fl_lightning.report.partition import report_partition
from fl_lightning.run.settings import config_settings
from fl_lightning.run.stop_signals import ends_on_signals
from fl_lightning.run.trainer_settings import check_trainer_settings, naming_settings, refuse_other_strategies
from fl_lightning.state.checkpoint import refuse_code
from fl_lightning.state.strict_yaml import load_yaml
from fl_lightning.state.versions import VersionFolder, is_complete
from fl_lightning.trainer import Trainer, strategy_for

TRAINER_COMMANDS = ("fit", "validate", "test", "predict", "partition")
_METHOD = "fl_lightning.FedAvg"  # unless --model or a config sets another
_GRACE = 5.0  # seconds from a signal to the end of a process that does not end by itself
_CALLBACKS: dict[str, type[callbacks.FederatedCallback]] = {
    callback.key: callback
    for callback in (
        callbacks.PerClassAccuracy,
        callbacks.ClientForgetting,
        callbacks.RoundForgetting,
        callbacks.LabelCounts,
        callbacks.PersonalAccuracy,
        callbacks.TaskAccuracy,
        callbacks.ArrivingClasses,
        callbacks.TaskAttention,
        callbacks.Communication,
        callbacks.PrivacyBudget,
        callbacks.RunSummary,  # after the others: it reports their logged values
    )
}


@cache
def trainer_parser(command: str) -> CommandParser:
    """The parser of one of ``TRAINER_COMMANDS``; building it takes time."""
    parser = CommandParser(command=command, description="Configs combine, the last one wins. Options come after them.")
    parser.add_argument("--config", action=ConfigOption, help="a YAML file or the name of a bundled config; may be repeated")
    parser.add_argument("--seed_everything", type=int, default=0, help="the seed of every random choice")
    parser.add_class_arguments(Trainer, "trainer", fail_untyped=False, instantiate=False, sub_configs=True)
    parser.set_defaults({"trainer.default_root_dir": "runs"})
    parser.add_subclass_arguments(FederatedModule, "model", fail_untyped=False, required=True)
    for key, kind in {"data": FederatedDataModule, **_CALLBACKS}.items():
        parser.add_class_arguments(kind, key, fail_untyped=False, sub_configs=True)
    for target in ("data.seed", "model.init_args.seed"):
        parser.link_arguments("seed_everything", target)
    named = ", ".join(NAMED)
    parser.add_argument("--ckpt_path", type=str | None, help=f"a checkpoint: {named} of the newest version, or a file")
    parser.add_argument(
        "--weights_only",
        type=bool | None,
        help="leave it out: a checkpoint holds only data, and false, which would run its code, is refused",
    )
    if command in ("validate", "test"):
        parser.add_argument("--verbose", type=bool, default=True, help="print what was measured")
    if command == "partition":  # builds no net, so it asks for none
        parser.add_argument("--out", type=str, default="partition.json", help="the file; its picture is next to it")
        parser.set_defaults({"model": {"class_path": _METHOD, "init_args": {"net": "fl_lightning.models.MLP"}}})
    return parser


def parse_trainer_command(command: str, options: Sequence[str]) -> Namespace:
    """The config of a command line.

    Raises:
        ValueError: in one line, if it cannot be parsed.
    """
    given, evaluates = dict(given_values(options)), command in ("validate", "test", "predict")
    if evaluates and (not options or "ckpt_path" in given) and not any(key.startswith("model") for key in given):
        raise ValueError("model.net is missing: give --config RUN/config.yaml, the config of the run of the checkpoint")
    method = str(given.get("model"))
    if (learner := method.removeprefix("fl_lightning.tasks.")) in known_classes("model.tasks"):
        raise ValueError(f"model is {method}, which is a learner of tasks, not a method: give --model.tasks {learner}")
    # The first option, not a default of the parser: its arguments would then count as given, and stay if another method
    # replaces it.
    config = parse(trainer_parser(command), ["--model", _METHOD, *options], known_classes)
    seed = config.seed_everything
    check_range("seed_everything", seed, at_least=0, below=2**32, hint="for example 0")
    refuse_code(config.weights_only)
    if command == "partition":
        if config.ckpt_path is not None:
            raise ValueError(f"ckpt_path is {config.ckpt_path}, but a partition needs no checkpoint: leave it out")
        return config
    check_trainer_settings(config.trainer, command)
    if command != "fit" and config.ckpt_path is None:
        raise ValueError("ckpt_path is null, an untrained model has nothing to show: give last, best or a file")
    return config


def run(command: str, options: Sequence[str]) -> None:
    """Run a command line."""
    config = parse_trainer_command(command, options)
    seed_everything(config.seed_everything, workers=True)
    if command == "partition":
        del config["model"], config["trainer"]
        report_partition(trainer_parser(command).instantiate(config).data, Path(config.out))
    else:
        TrainerCommand(command, config).run()


class TrainerCommand:
    """A command with a trainer.

    A run's folder is ``<trainer.default_root_dir>/<name of the config>/version_N``, with ``record.jsonl``, event files,
    ``config.yaml``, ``results.json`` and ``checkpoints/``: ``best.ckpt`` by validation accuracy and ``last.ckpt``.
    ``--ckpt_path last`` is that of the newest version, in whose folder ``fit`` continues; with ``last_if_any`` it begins a new
    run if there is none.

    Args:
        command: ``fit``, ``validate``, ``test`` or ``predict``.
        config: config of :func:`parse_trainer_command`.
    """

    def __init__(self, command: str, config: Namespace) -> None:
        self.command, self.config, parser = command, config, trainer_parser(command)
        self.run_folder = run_folder(config)
        self.ckpt_path: str | None = config.ckpt_path
        if self.ckpt_path is not None:
            given, may_begin = self.ckpt_path, command == "fit"
            self.ckpt_path = decided_by_first("ckpt_path", lambda: find_checkpoint(given, self.run_folder, may_begin))
            config.ckpt_path = None  # config.yaml repeats the run; with the checkpoint it would continue it
        self._saved = parser.dump(config, format="yaml", skip_unset=False, skip_validation=True)
        whole = parser.dump(config, format="yaml", skip_unset=False, skip_validation=True, skip_link_targets=False)
        self.made_with: dict[str, Any] = load_yaml(whole)
        built = parser.instantiate(config)
        self.model, self.data = built.model, built.data
        self.trainer = self._build_trainer(built)
        model, data = (config_settings(part, self.made_with[part]) for part in ("model", "data"))
        self.model.settings.of_config = model | data

    def run(self) -> None:
        """Run it; a command that a signal stops prints a line, ends in time and does not look finished."""
        strategy = self.trainer.strategy
        stop_others = strategy.stop_others if isinstance(strategy, FederatedStrategy) else lambda number: None
        try:
            with ends_on_signals(_GRACE, stop_others, self._say_stopped):
                self._run()
        except PeerLost:  # its line is printed
            raise
        except SystemExit as stop:  # from Lightning after SIGTERM, with exit code 0, and after Ctrl-C
            self._say_stopped()
            sys.exit(128 + (signal.SIGTERM if isinstance(stop, SIGTERMException) else signal.SIGINT))

    def _run(self) -> None:
        given = {"datamodule": self.data, "ckpt_path": self.ckpt_path, "weights_only": self.config.weights_only}
        if self.command == "fit":
            self._fit(given)
        elif self.command == "predict":
            self.trainer.predict(self.model, **given, return_predictions=False)
            rank_zero_only(print)(f"Predictions: {self._prediction_path()}")
        else:
            getattr(self.trainer, self.command)(self.model, **given, verbose=self.config.verbose)

    def _fit(self, given: dict[str, Any]) -> None:
        """Fit; a run that fails before its first round leaves no folder behind."""
        folder, ckpt_path, rounds = self.version.path, self.ckpt_path, self.trainer.max_steps
        self.model.write_to(folder)
        if ckpt_path is not None and decided_by_first("complete", lambda: is_complete(folder, ckpt_path, rounds)):
            self.model.check_goes_on(self.trainer, self.data, ckpt_path)
            rank_zero_only(print)(f"{folder} already has {counted(rounds, 'round')}: raise trainer.max_steps to add some")
            return
        with self.version.removed_unless(lambda: self.trainer.global_step > 0):
            refuse_other_strategies(self.trainer)
            self.trainer.fit(self.model, **given)
        if self.trainer.fast_dev_run:  # pyright: ignore[reportAttributeAccessIssue]
            self.version.remove()  # no run can continue from it
        self.model.lost_rounds.check_end()

    def _build_trainer(self, built: Namespace) -> Trainer:
        config = built.trainer
        given = config.callbacks if isinstance(config.callbacks, list) else [config.callbacks] if config.callbacks else []
        _share_among_processes(config)
        if self.command != "fit":
            config.logger = config.logger or False
            config.enable_progress_bar = bool(config.enable_progress_bar)
            writers = [callbacks.PredictionWriter(self._prediction_path())] if self.command == "predict" else []
            return _trainer(config, [*given, *writers])
        self.version = VersionFolder(self.run_folder, self.ckpt_path, config.default_root_dir)
        with self.version.removed_unless(lambda: False):
            config.logger = self._loggers(config.logger)
            # A callback that the user lists under trainer.callbacks replaces the default of that kind, in its place; a
            # ModelCheckpoint comes next to ours, which resuming needs.
            ours = self._fit_callbacks(built)
            extra = list(dict.fromkeys(next((one for one in given if isinstance(one, type(our))), our) for our in ours))
            return _trainer(config, [*(one for one in given if one not in extra), *extra])

    def _loggers(self, given: Logger | list[Logger] | bool | None) -> list[Logger]:
        """TensorBoard's logger, unless the user gives others."""
        if given is None or given is True:
            return [callbacks.DescribedTensorBoardLogger(self.run_folder.parent, self.run_folder.name, self.version.path.name)]
        return given if isinstance(given, list) else [given] if given else []

    def _fit_callbacks(self, built: Namespace) -> list[Callback]:
        """The default callbacks of a fit."""
        config = built.trainer
        ours: list[Callback] = [built[key] for key in _CALLBACKS]
        # Before the summary, whose results.json shows that the record is complete.
        ours.insert(-1, callbacks.Dashboard(self.made_with))
        if config.enable_checkpointing is not False and not config.fast_dev_run:
            validates = self.data.has_validation and self.model.engine_name != "flower"
            ours += _checkpoints(config, self.data, self.version.path / "checkpoints", validates)
        return ours if config.fast_dev_run else [*ours, SaveConfig(self._saved, self.version.path / "config.yaml")]

    @rank_zero_only
    def _say_stopped(self) -> None:
        line = "stopped"
        if self.command == "fit" and self.trainer.global_step == 0:
            line = "stopped before the end of the first round"
        elif self.command == "fit":
            kept = [one.resuming() for one in self.trainer.checkpoint_callbacks if isinstance(one, LastCheckpoint)]
            line = ": ".join([f"stopped after round {self.trainer.global_step}", *kept])
        print(f"fl-lightning: {line}", file=sys.stderr, flush=True)

    def _prediction_path(self) -> Path:
        """The path next to the checkpoints' folder of a run, or next to the checkpoint."""
        folder = Path(str(self.ckpt_path)).parent
        return (folder.parent if folder.name == "checkpoints" else folder) / "predictions.csv"


def _trainer(config: Namespace, watching: list[Callback]) -> Trainer:
    settings = {**config, "callbacks": watching}
    with naming_settings(settings):
        return Trainer(**settings)


def _share_among_processes(config: Namespace) -> None:
    """Use every process that torchrun started, and our strategy for several, unless the user sets others."""
    if num_started() > 1 and config.devices == "auto" and config.num_nodes == 1:
        config.devices, config.num_nodes = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["GROUP_WORLD_SIZE"])
    if config.strategy == "auto":  # asked here, as only the first process makes the run's folder
        asked = {key: config[key] for key in ("accelerator", "devices", "num_nodes")}
        with naming_settings(asked):
            config.strategy = strategy_for(asked)


def _checkpoints(config: Namespace, data: FederatedDataModule, folder: Path, validates: bool) -> list[Callback]:
    """Checkpoints of the newest state at every evaluation, and of the best validation accuracy if it is measured."""
    interval = config.val_check_interval
    if isinstance(interval, str):
        units = ("days", "hours", "minutes", "seconds")
        interval = timedelta(**dict(zip(units, map(int, interval.split(":")), strict=True)))
    # With arriving classes, the model of the first task would be the best; clients on task streams have none in common.
    has_best = validates and data.tasks is None and config.limit_val_batches != 0
    return [*([BestCheckpoint(folder)] if has_best else []), LastCheckpoint(folder, interval)]
