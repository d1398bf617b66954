"""FederatedCLI: LightningCLI with the settings that rounds need, a folder for every run, and the subcommand ``partition``."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from jsonargparse import Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.accelerators import CUDAAccelerator
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import SIGTERMException

from fl_lightning.callbacks import Dashboard, DescribedTensorBoardLogger, PredictionWriter, RecordLogger, RoundProgressBar
from fl_lightning.command_line.fit_callbacks import CALLBACKS, checkpoints
from fl_lightning.command_line.known_classes import make_named
from fl_lightning.command_line.named_checkpoint import find_checkpoint
from fl_lightning.command_line.one_line_errors import parse
from fl_lightning.command_line.partition import check_out, report_partition
from fl_lightning.command_line.plain_help import PlainHelpParser
from fl_lightning.command_line.saved_config import SaveConfig
from fl_lightning.command_line.stop_signals import ends_on_signals
from fl_lightning.command_line.unknown_option import class_options, parser_options
from fl_lightning.command_line.version_folder import VersionFolder
from fl_lightning.data import FederatedDataModule
from fl_lightning.module import FederatedModule
from fl_lightning.state.checkpoint import refuse_code
from fl_lightning.state.strict_yaml import load_yaml
from fl_lightning.state.versions import is_complete
from fl_lightning.training.gpu_arithmetic import Float32Products, choose_arithmetic
from fl_lightning.training.peer_watch import PeerLost
from fl_lightning.training.run_settings import config_settings
from fl_lightning.training.strategy import FederatedStrategy
from fl_lightning.training.torchrun_store import decided_by_first, num_started
from fl_lightning.training.trainer_settings import check_trainer_settings, naming_settings, refuse_other_strategies

_METHOD = "fl_lightning.FedAvg"  # unless --model or a config says otherwise
_GRACE = 5.0  # seconds from a signal to the end of a process that does not end by itself
_PARSER = {"exit_on_error": False, "allow_abbrev": False}  # errors come to main, and a misspelt key is one
_TRAINER_DEFAULTS = {
    "max_epochs": -1,
    "val_check_interval": 10,
    "check_val_every_n_epoch": None,
    "log_every_n_steps": 1,
    "num_sanity_val_steps": 0,
    "use_distributed_sampler": False,
    "enable_model_summary": False,
    "default_root_dir": "runs",
}


class _Trainer(Trainer):
    """Lightning's, with settings of a GPU, and the options of a subcommand that :class:`FederatedCLI` runs without a trainer.

    Args:
        float32_products: how precisely a GPU multiplies float32 matrices: ``highest``, 24 bits of each number; ``high``, 11
            bits, as TF32 has them, which is faster; ``medium``, 8 bits. On a processor it plays no part.
        given: of Lightning's trainer.
    """

    def __init__(self, float32_products: Float32Products = "high", **given: Any) -> None:
        super().__init__(**given)
        if isinstance(self.accelerator, CUDAAccelerator):
            choose_arithmetic(float32_products, given.get("benchmark"), bool(given.get("deterministic")))

    def partition(self, out: str = "partition.json", ckpt_path: str | None = None, weights_only: bool | None = None) -> None:
        """Partition the data without training: a file, a picture and statistics.

        Args:
            out: the file, which --data.partition Fixed --data.partition.clients reads; the picture lies next to it.
            ckpt_path: plays no part; the configs that runs leave behind have it.
            weights_only: likewise.
        """


class FederatedCLI(LightningCLI):
    """LightningCLI for federated runs.

    A run's folder is ``<trainer.default_root_dir>/<name of the config>/version_N``, with event files, ``config.yaml``,
    ``results.json`` and ``checkpoints/``: ``best.ckpt`` by validation accuracy and ``last.ckpt``. ``--ckpt_path last`` is that
    of the newest version, in whose folder ``fit`` goes on; with ``last_if_any`` it begins a new run where there is none.
    """

    subcommand: str

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        return {**LightningCLI.subcommands(), "partition": set()}

    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        if subcommand != sys.argv[1]:
            return self.init_parser(**kwargs)  # nobody asks for its options, which take time to gather
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        weights_only = next(action for action in parser._actions if action.dest == "weights_only")
        weights_only.help = "leave it out: a checkpoint is data alone, and false, which would run its code, is refused"
        if subcommand == "partition":  # builds no net, so it asks for none
            parser.set_defaults({"model": {"class_path": _METHOD, "init_args": {"net": "fl_lightning.models.MLP"}}})
        return parser

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        for key, callback in CALLBACKS.items():
            parser.add_lightning_class_args(callback, key)
        for target in ("data.seed", "model.init_args.seed"):
            parser.link_arguments("seed_everything", target, compute_fn=int)

    def parse_arguments(self, parser: LightningArgumentParser, args: None) -> None:
        self.config = self.parse(sys.argv[1:])

    def parse(self, arguments: Sequence[str]) -> Namespace:
        """What a command line that begins with a subcommand says; raises a ValueError of one line if it cannot be parsed."""
        subcommand, *options = arguments
        make_named(options)
        parser = self._parser(subcommand)

        def known() -> list[str]:
            return [*parser_options(parser), *class_options(_METHOD, "model")]

        if any(option.partition("=")[0] == "--print_config" for option in options):
            parse(self.parser, arguments, known)  # prints it and exits
        # The parser of all subcommands would have this one parse, and then go through every value again.
        return Namespace({"config": None, "subcommand": subcommand, subcommand: parse(parser, options, known)})

    def _dump_config(self) -> None:
        """As LightningCLI does, but without a further check of values that were just parsed."""
        if not hasattr(self, "config_dump"):
            parser, config = self._parser(self.subcommand), self.config[self.subcommand]
            text = parser.dump(config, format="yaml", skip_unset=False, skip_validation=True, skip_link_targets=False)
            self.config_dump = load_yaml(text)

    def _parse_ckpt_path(self) -> None:
        """Leave the config as it is: the command line wins over what a checkpoint remembers."""

    def _set_seed(self) -> None:
        seed = self._get(self.config, "seed_everything")
        if isinstance(seed, bool) or not 0 <= seed < 2**32:
            raise ValueError(
                f"seed_everything is {seed}, must be a whole number from 0 to {2**32 - 1}: a run must be repeatable"
            )
        super()._set_seed()

    def before_instantiate_classes(self) -> None:
        config = self.config[self.subcommand]
        refuse_code(config.weights_only)
        if self.subcommand == "partition":  # needs the data alone
            check_out(Path(config.out))
            self._dump_config()  # which LightningCLI would do later, when it is no longer whole
            del config.model, config.trainer
            return
        check_trainer_settings(config.trainer, self.subcommand)
        if self.subcommand != "fit" and config.ckpt_path is None:
            raise ValueError("ckpt_path is null, an untrained model has nothing to show: give last, best or a file")
        if config.ckpt_path is not None:
            config.ckpt_path = decided_by_first("ckpt_path", self._find_checkpoint)

    @property
    def run_folder(self) -> Path:
        """Where the versions of this run lie."""
        config = self.config[self.subcommand]
        files = [Path(str(file)) for file in config.get("config") or []]
        if files and files[0].parent.name.startswith("version_"):  # the config that a run left in its folder
            return files[0].parent.parent
        name = files[0].stem if files else config.model.class_path.rsplit(".", 1)[-1]
        return Path(config.trainer.default_root_dir) / name

    def _find_checkpoint(self) -> str | None:
        ckpt_path = self.config[self.subcommand].ckpt_path
        return find_checkpoint(ckpt_path, self.run_folder, may_begin=self.subcommand == "fit")

    def instantiate_trainer(self, **kwargs: Any) -> Trainer | type[Trainer]:
        if self.subcommand == "partition":
            return _Trainer  # LightningCLI wants to see its method; there is nothing to train
        config = self.config_init[self.subcommand].trainer
        given = config.callbacks if isinstance(config.callbacks, list) else [config.callbacks] if config.callbacks else []
        config.callbacks = given
        _share_among_processes(config)
        if self.subcommand != "fit":
            self.save_config_callback = None
            config.logger = config.logger or False
            config.enable_progress_bar = bool(config.enable_progress_bar)
            return self._instantiate_trainer({**config}, self._prediction_writers())
        root, ckpt_path = config.default_root_dir, self.config[self.subcommand].ckpt_path
        self.version = VersionFolder(self.run_folder, ckpt_path, root)
        with self._removing_version_on_failure():
            config.logger = self._loggers(config.logger)
            # The run's folder, whatever the logger's is; nobody else writes to it.
            self.save_config_kwargs = {"config_filename": str(self.version.path / "config.yaml")}
            # A callback that the user lists under trainer.callbacks stands for ours of that kind, where ours would be called.
            ours = self._fit_callbacks(config)
            extra = list(dict.fromkeys(next((one for one in given if isinstance(one, type(our))), our) for our in ours))
            config.callbacks = [one for one in given if one not in extra]
            return self._instantiate_trainer({**config, **kwargs}, extra)

    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Callback]) -> Trainer:
        with naming_settings(config):
            return super()._instantiate_trainer(config, callbacks)

    @contextmanager
    def _removing_version_on_failure(self) -> Iterator[None]:
        """A run that fails before its first round leaves no folder behind."""
        try:
            yield
        except BaseException:  # Ctrl-C and SIGTERM too
            if not hasattr(self, "trainer") or self.trainer.global_step == 0:
                self.version.remove()
            raise

    def _loggers(self, given: Logger | list[Logger] | bool | None) -> list[Logger]:
        """TensorBoard's, unless the user names others: then what reports read is recorded with those."""
        if given is None or given is True:
            return [DescribedTensorBoardLogger(self.run_folder.parent, self.run_folder.name, self.version.path.name)]
        loggers = given if isinstance(given, list) else [given] if given else []
        folders = [Path(logger.log_dir) for logger in loggers if isinstance(logger, TensorBoardLogger)]
        is_recorded = any(folder.resolve() == self.version.path.resolve() for folder in folders)
        return [*loggers, *([RecordLogger(self.version.path)] if loggers and not is_recorded else [])]

    def _fit_callbacks(self, config: Namespace) -> list[Callback]:
        """What watches a fit unless the user says otherwise."""
        callbacks = [self._get(self.config_init, key) for key in CALLBACKS]
        # Before the summary, whose results.json says that the record is complete.
        callbacks.insert(-1, Dashboard(self.config_dump))
        if config.enable_progress_bar is not False:
            callbacks.append(RoundProgressBar())
        if config.enable_checkpointing is not False:
            callbacks += checkpoints(config, self.datamodule, self.version.path / "checkpoints")
        return callbacks

    def fit(self, model: FederatedModule, **kwargs: Any) -> None:
        """Fit; a run that fails before its first round leaves no folder behind."""
        model.write_to(self.version.path)
        ckpt_path, rounds = kwargs.get("ckpt_path"), self.trainer.max_steps
        if ckpt_path is not None and decided_by_first("complete", lambda: is_complete(self.version.path, ckpt_path, rounds)):
            model.check_goes_on(self.trainer, self.datamodule, ckpt_path)
            rank_zero_only(print)(f"{self.version.path} has all {rounds} rounds already: raise trainer.max_steps to add some")
            return
        with self._removing_version_on_failure():
            refuse_other_strategies(self.trainer)
            self.trainer.fit(model, **kwargs)
        if self.trainer.fast_dev_run:  # pyright: ignore[reportAttributeAccessIssue]
            self.version.remove()  # nothing of it is to be gone on from

    def _run_subcommand(self, subcommand: str) -> None:
        """Run it; one that is stopped by a signal says so, ends in time and does not look finished."""
        strategy = getattr(self.trainer, "strategy", None)  # partition has no trainer
        if subcommand != "partition":
            built_by = self.config[subcommand].clone().as_dict()
            self.model.built_by({**config_settings("model", built_by["model"]), **config_settings("data", built_by["data"])})
        stop_others = strategy.stop_others if isinstance(strategy, FederatedStrategy) else lambda number: None
        try:
            with ends_on_signals(_GRACE, stop_others, self._say_stopped):
                super()._run_subcommand(subcommand)
        except PeerLost:  # has been said
            raise
        except SystemExit as stop:  # Lightning ends so after SIGTERM, with exit code 0, and after Ctrl-C
            self._say_stopped()
            sys.exit(128 + (signal.SIGTERM if isinstance(stop, SIGTERMException) else signal.SIGINT))

    @rank_zero_only
    def _say_stopped(self) -> None:
        line = "stopped"
        if self.subcommand == "fit" and self.trainer.global_step == 0:
            line = "stopped before the end of the first round"
        elif self.subcommand == "fit":
            line = f"stopped after round {self.trainer.global_step}: go on from the last checkpoint with --ckpt_path last"
        print(f"fl-lightning: {line}", file=sys.stderr, flush=True)

    def _prediction_writers(self) -> list[Callback]:
        return [PredictionWriter(self._prediction_path())] if self.subcommand == "predict" else []

    def _prediction_path(self) -> Path:
        """Next to the checkpoints' folder of a run, else next to the checkpoint."""
        folder = Path(self.config[self.subcommand].ckpt_path).parent
        return (folder.parent if folder.name == "checkpoints" else folder) / "predictions.csv"

    def predict(self, model: FederatedModule, **kwargs: Any) -> None:
        """Write the predictions and say where."""
        self.trainer.predict(model, **{**kwargs, "return_predictions": False})
        rank_zero_only(print)(f"Predictions: {self._prediction_path()}")

    def partition(self, datamodule: FederatedDataModule, out: str, **_: Any) -> None:
        """Partition the data, write who holds what and say how uneven it is."""
        report_partition(datamodule, Path(out))


def _share_among_processes(config: Namespace) -> None:
    """Take every process that torchrun started, and our strategy for several, unless the user says otherwise."""
    if num_started() > 1 and config.devices == "auto" and config.num_nodes == 1:
        config.devices, config.num_nodes = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["GROUP_WORLD_SIZE"])
    if config.strategy == "auto":
        asked = {key: config[key] for key in ("accelerator", "devices", "num_nodes")}
        with naming_settings(asked):
            trainer = Trainer(**asked, logger=False, enable_checkpointing=False, enable_progress_bar=False)
        if trainer.num_devices * trainer.num_nodes > 1:
            config.strategy = FederatedStrategy.strategy_name


Kind = TypeVar("Kind", bound=FederatedCLI)


def run_cli(arguments: Sequence[str], kind: type[Kind]) -> Kind:
    """Parse a command line in which configs are paths of whole ones, and do what it says."""
    # The first word and no default of the parser: as such its defaults would count as given and stay when another method
    # takes its place. Processes that Lightning starts get the same arguments.
    sys.argv[1:] = [*arguments[:1], "--model", _METHOD, *arguments[1:]]
    return kind(
        FederatedModule,
        FederatedDataModule,
        subclass_mode_model=True,
        save_config_callback=SaveConfig,
        trainer_class=_Trainer,
        parser_class=PlainHelpParser,
        seed_everything_default=0,
        auto_configure_optimizers=False,  # the methods make theirs
        trainer_defaults=_TRAINER_DEFAULTS,
        parser_kwargs={
            **_PARSER,
            **dict.fromkeys(FederatedCLI.subcommands(), _PARSER),
        },
    )
