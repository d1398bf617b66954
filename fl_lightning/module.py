"""FederatedModule: a communication round is a training step.

The round reads top to bottom in :meth:`FederatedModule.training_step`; the hooks that a method can override are in
:class:`fl_lightning.algorithm.FederatedAlgorithm`, which this class runs under Lightning.
"""

import copy
import inspect
import os
import warnings
from collections.abc import Collection, Mapping
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Self, Unpack

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor, nn

from fl_lightning.algorithm import FederatedAlgorithm, LocalTraining, Net, ServerWeighting, joined
from fl_lightning.checks import check_choice, check_list, counted, did_you_mean
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.scaling import check_same_inputs, recorded_inputs
from fl_lightning.engines.engine import Engine
from fl_lightning.engines.engine_choice import EngineName, StartedEngine, choose_engine, first_visits, start_engine
from fl_lightning.engines.flower import present_sites
from fl_lightning.engines.freed_memory import keep_freed_memory
from fl_lightning.engines.round_hooks import RoundHooks
from fl_lightning.engines.run_context import RunContext
from fl_lightning.evaluation.evaluation import Evaluation, check_batch
from fl_lightning.functional.schedules import ScheduleBuilder, build_schedule, check_builder, check_schedule
from fl_lightning.models.federated_net import UnbuiltNet, keep_initial_model
from fl_lightning.optimizers import OptimizerBuilder, optimizer_builder
from fl_lightning.privacy import DPSGD, Privacy
from fl_lightning.processes.device_errors import FEWER_AT_A_TIME, FEWER_ON_DEVICE, saying_what_to_change
from fl_lightning.processes.process_group import ProcessGroup
from fl_lightning.protocol import Batch, Learner, Protection, Site, Update
from fl_lightning.protocol.hooks import refuse_left_out, warn_of_misspelt
from fl_lightning.run.arguments import AlgorithmArguments, ArgumentsButWeighting, CommonArguments, StorageOfStates
from fl_lightning.run.common_settings import common_settings
from fl_lightning.run.lost_rounds import LostRounds
from fl_lightning.run.monitors import Monitors, check_monitors, monitored
from fl_lightning.run.record import RunRecord, run_folder
from fl_lightning.run.refused_data import (
    check_aggregation,
    check_batches_of_one,
    check_cohorts,
    check_loss,
    check_objective,
    check_outputs,
    check_tasks,
    check_validates,
)
from fl_lightning.run.refused_sites import evaluation_messages, refuse_what_stays
from fl_lightning.run.round_callback import round_callbacks
from fl_lightning.run.saved_run import build_run, run_config
from fl_lightning.run.server_step import ServerStep
from fl_lightning.run.settings import RunSettings
from fl_lightning.run.stored_states import StoredStates
from fl_lightning.run.trainer_settings import averages_of, check_trainer
from fl_lightning.run.training_scalars import is_logged, training_scalars
from fl_lightning.run.warm_start import check_same_net, take_initial_weights
from fl_lightning.state.checkpoint import LAYOUT, PROGRESS, AtomicCheckpointIO, read_checkpoint

__all__ = ["ArgumentsButWeighting", "CommonArguments", "FederatedModule", "Net", "ServerWeighting", "Update"]

_OF_RUN = ("_trainer", "_fabric", "federation", "engine", "_server", "_step_optimizer")  # what a copy does not need its own of
# Hooks of Lightning that a run needs; in other modules they do nothing, and overrides rarely call them.
_EXTENDED = (
    "configure_callbacks",
    "configure_model",
    "on_fit_start",
    "on_train_start",
    "on_save_checkpoint",
    "on_load_checkpoint",
    "training_step",
    "validation_step",
    "test_step",
)
_LOCAL_FITS = "the clients' local fits"


class FederatedModule(FederatedAlgorithm, LightningModule):
    """A federated method under Lightning's trainer. With its defaults it is FedAvg (McMahan et al., AISTATS 2017).

    Args:
        net: the network, or a function that builds it from ``(input_shape, num_classes)`` of the data.
        server_optimizer: builds the server's optimizer, or its name. Its gradient is the pseudo-gradient, the global weights
            less the mean of the clients' weights. SGD with rate 1 is FedAvg, with momentum FedAvgM.
        lr_scheduler: builds a schedule of torch for the rate of the server's optimizer, stepped once a round.
        engine: how clients are run, with the same results to rounding: ``sequential``, one after another; ``vectorized``, many
            per step; ``captured``, a visit as one compiled program; ``flower``, at their own sites, in Flower's ServerApp.
            ``auto`` follows a fixed rule, ``tune`` measures.
        client_state: where client states are stored between visits: ``memory``, or ``disk`` for large populations.
        privacy: differential privacy, :class:`fl_lightning.privacy.DPSGD` or ``UserLevelDP``; by default none.
        initial_weights: path of a checkpoint; a new run starts with the weights and buffers of its global net, and with nothing
            else of that run. Or a file with the net's state dict, by torch or as safetensors. By default the net is drawn, or
            as given.
        common: arguments of :class:`fl_lightning.algorithm.LocalTraining`.

    Raises:
        TypeError: if the method has no argument of a given name.
        ValueError: if a value is out of range.
    """

    engine: Engine
    _server: ServerStep

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        refuse_left_out(cls, _EXTENDED, "a run")
        for name in ("personal", "fine_tuned", "server_zeros", "unprotected"):
            check_list(f"{cls.__name__}.{name}", vars(cls).get(name))
        warn_of_misspelt(cls, [*vars(FederatedAlgorithm), *vars(LocalTraining), "personal"])

    def __init__(
        self,
        net: Net,
        server_optimizer: OptimizerBuilder = lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        lr_scheduler: ScheduleBuilder | None = None,
        engine: EngineName = "auto",
        client_state: StorageOfStates = "memory",
        privacy: Privacy | None = None,
        initial_weights: str | None = None,
        **common: Unpack[AlgorithmArguments],
    ) -> None:
        _check_names(type(self), common)
        super().__init__(net, **common)
        self.automatic_optimization = False
        self.server_optimizer = optimizer_builder("model.server_optimizer", server_optimizer)
        self.lr_scheduler, self.client_state = lr_scheduler, client_state
        self.engine_name: EngineName = engine
        self.privacy, self.initial_weights = privacy, initial_weights
        self.run_folder: Path | None = None
        self.newest: dict[str, float] = {}  # every scalar that log_round saw, by name, its newest value
        self.newest_rounds: dict[str, int] = {}  # and the round of that value
        self.tuned_engine: str | None = None  # the engine that the run began with under "auto" or "tune"
        self.began_from: dict[str, Any] | None = None  # of initial_weights: the file, and the round of its run
        self.stored = StoredStates()
        self.lost_rounds = LostRounds(self.engine_name == "flower", 1 if self.aggregation is None else self.aggregation.least)
        self.evaluation = Evaluation(self, self.stored, self.log_round)
        self.settings = RunSettings(self, self.given)
        _check_settings(self)

    def write_to(self, folder: Path) -> None:
        """Name the folder of this run, as the command line does; by default that of its logger. No other run writes to it."""
        self.run_folder = folder

    @property
    def data(self) -> FederatedDataModule:
        """The data module of the run."""
        return joined(self)  # torch's compiler does not follow super() of a property

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A method with its own weights and state, and the same trainer, data and engine until it is fitted itself.

        Callbacks such as Lightning's ``WeightAveraging`` copy a module in the middle of its run.
        """
        copied = object.__new__(type(self))
        memo[id(self)] = copied
        for name, value in vars(self).items():
            copied.__dict__[name] = value if name in _OF_RUN else copy.deepcopy(value, memo)
        return copied

    # The round ------------------------------------------------------------------------------------------------------

    def training_step(self, round: int, batch_idx: int) -> None:
        """One communication round."""
        visits = self.begin_round(round)  # possibly empty, where each client is drawn independently
        watchers = round_callbacks(self.trainer)
        for watcher in watchers:
            watcher.on_round_start(self.trainer, self, round)
        wanting = [watcher for watcher in watchers if watcher.wants_models(round)]
        with saying_what_to_change(f"round {round}, {_LOCAL_FITS}", FEWER_ON_DEVICE):
            fit = self.engine.run(round, visits, keep_models=bool(visits and wanting))
        if fit.models is not None:
            with saying_what_to_change(f"round {round}, what callbacks ask of clients' models", FEWER_AT_A_TIME):
                for watcher in wanting:
                    watcher.on_cohort_fit_end(self.trainer, self, round, fit.models)
        with saying_what_to_change(f"round {round}, the server's step", FEWER_ON_DEVICE):
            report = self._server.take(fit, self.data.participation.among(self.tasks.num_there(round)), self.stored.states)
        if round == self.trainer.max_steps or self.tasks.is_over:
            # Has Lightning evaluate after the last round too, where val_check_interval does not divide max_steps.
            self.trainer.should_stop = True
        self.lost_rounds.add(report, {visit.client for visit in visits if visit.sends})
        if (schedule := self.lr_schedulers()) is not None:
            schedule.step()  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
        for watcher in watchers:
            watcher.on_aggregate_end(self.trainer, self, round)
        scalars = training_scalars(report)
        # What callbacks such as EarlyStopping monitor, on the host. LightningModule.log does more and would slow rounds of
        # tiny clients.
        self.trainer.callback_metrics.update({name: torch.tensor(value) for name, value in scalars.items()})
        if is_logged(self.trainer, round, self.evaluation.follows(self.trainer, round)):
            self.log_round(scalars, round)
        for watcher in watchers:
            watcher.on_round_end(self.trainer, self, round, report)

    def sampled_clients(self, round: int) -> list[int]:
        if self.privacy is None:
            return super().sampled_clients(round)
        return self.privacy.cohort(self.data.participation.among(self.tasks.num_there(round)), round)

    def join(self, federation: Site) -> None:
        for name in ("privacy", "lr_scheduler"):
            if (given := getattr(self, name)) is not None:
                raise ValueError(f"model.{name} is {given}, but acts only in the fit of a trainer: leave it out")
        super().join(federation)
        # Built with its first step: the net can be moved to a device before that.
        built = cache(lambda: self.server_optimizer([*self.trained_weights(self.net).values()]))
        self._step_optimizer = lambda: built().step()

    def step_server_optimizer(self) -> None:
        self._step_optimizer()

    # What callbacks ask for -----------------------------------------------------------------------------------------

    def log_round(self, metrics: Mapping[str, Tensor | float], round: int) -> None:
        """Log scalars to every logger with the round as their step, in one transfer from the device; kept in ``newest``."""
        if not metrics:
            return
        tensors = {name: value.double() for name, value in metrics.items() if isinstance(value, Tensor)}
        read = dict(zip(tensors, torch.stack(list(tensors.values())).tolist(), strict=True)) if tensors else {}
        numbers = {name: read[name] if name in read else float(value) for name, value in metrics.items()}
        self.newest.update(numbers)
        self.newest_rounds.update(dict.fromkeys(numbers, round))
        for logger in self.trainer.loggers:
            logger.log_metrics(numbers, step=round)
        for name in monitored(self.trainer) & numbers.keys():
            self.trainer.callback_metrics[name] = torch.tensor(numbers[name])

    # Lightning's hooks ----------------------------------------------------------------------------------------------

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.evaluation.count(self.data.evaluation.names[dataloader_idx], batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self.evaluation.count("test", batch)

    @saying_what_to_change("evaluation", FEWER_AT_A_TIME)
    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Class probabilities (B, C)."""
        check_batch(batch)
        return self.net(batch.inputs).softmax(dim=-1)

    def configure_callbacks(self) -> list:
        """The first hook that Lightning calls: checks the trainer and prepares its checkpoints and its record.

        Raises:
            TypeError: if the trainer was given no data module, or one of another kind.
        """
        check_trainer(self.trainer)
        data = self.trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        if not isinstance(data, FederatedDataModule):
            raise TypeError(
                f"datamodule is {type(data).__name__}, must be a FederatedDataModule: trainer.fit(method, datamodule=...)"
            )
        self.federation = data
        if self.trainer.state.fn == "validate":
            check_validates(data)
        data.validate_here(self.engine_name != "flower")
        if type(self.trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            self.trainer.strategy.checkpoint_io = AtomicCheckpointIO()
        if self.trainer.state.fn != "fit":
            return [self.evaluation]
        check_monitors(self.trainer)
        # Without what an earlier run of this method has measured and counted; a checkpoint replaces it.
        self.newest, self.newest_rounds, self.tuned_engine, self.evaluation.round = {}, {}, None, -1
        self.lost_rounds.begin()
        record = RunRecord()
        record.open(self.trainer, run_folder(self.trainer, self.run_folder))  # Lightning's next step makes event files
        return [self.evaluation, Monitors(), record]

    def configure_model(self) -> None:
        """Build the net from the data's shape and classes, with initial weights from the seed."""
        data = self.federation
        if isinstance(data, FederatedDataModule) and data.tasks is not None:
            check_tasks(self, data.tasks)
        self.begins_run = self._trainer is None or self.trainer.state.fn == "fit"
        super().configure_model()
        if isinstance(data, FederatedDataModule):
            callbacks: list[Callback] = [] if self._trainer is None else self.trainer.callbacks  # pyright: ignore[reportAttributeAccessIssue]
            check_objective(self, data, callbacks)
            check_outputs(self.net, data, self.class_layer)
            check_loss(self, data)

    def configure_optimizers(self) -> Any:
        """The server's optimizer, the only one registered with Lightning, and its schedule."""
        trainable = [parameter for parameter in self.net.parameters() if parameter.requires_grad]
        if not trainable:
            raise ValueError("model.net has no weight that requires a gradient: unfreeze some")
        optimizer, rounds = self.server_optimizer(trainable), self.trainer.max_steps
        if self.client_lr_scheduler is not None:
            check_schedule("model.client_lr_scheduler", self.client_lr_scheduler, rounds)
        if self.lr_scheduler is None:
            return optimizer
        scheduler = build_schedule("model.lr_scheduler", self.lr_scheduler, optimizer)
        if len(optimizer.param_groups) == 1:  # as of the optimizer on which it is tried
            check_schedule("model.lr_scheduler", self.lr_scheduler, rounds)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def on_fit_start(self) -> None:
        if self.trainer.global_step > 0 and self.trainer.ckpt_path is None:
            raise ValueError(
                f"trainer has done {counted(self.trainer.global_step, 'round')}, and another fit would lose the states of the "
                "server's optimizer and the clients: make a new Trainer, or give fit a ckpt_path to continue"
            )
        if type(self.tasks) is not Learner and hasattr(self, "engine") and self.trainer.ckpt_path is None:
            raise ValueError(
                f"model.tasks is {type(self.tasks).__name__}, which has learned in an earlier fit of this method: make a new "
                "method, or give fit a ckpt_path to continue"
            )
        self.settings.of_fit = self.settings.present(self.trainer)
        averages = averages_of(self.trainer)
        if averages and self.needs.data.task_streams:
            raise ValueError(
                f"trainer.callbacks has {type(averages[0]).__name__}, but clients that learn tasks are evaluated with their "
                "own models, not with the server's average: leave it out"
            )
        if self.initial_weights is not None and self.began_from is None and self.trainer.ckpt_path is None:
            self.began_from = take_initial_weights(self, self.initial_weights, self.data.samples.input_record)
            if self.needs.initial_model:
                keep_initial_model(self, anew=True)
            for average in averages:
                average.setup(self.trainer, self, "fit")  # it has copied the drawn net
        self.evaluation.place_data(self.trainer)
        self.check_data()
        if self.privacy is not None:
            self.privacy.check(self, self.data.participation, str(self.trainer.precision))
        if (drawn := os.environ.get("PL_GLOBAL_SEED", "0")) != "0" and self.seed == self.data.seed == 0:
            warnings.warn(
                f"seed_everything({drawn}) does not seed a federation: give seed={drawn} to {type(self).__name__} and to "
                "FederatedDataModule",
                stacklevel=1,
            )
        check_cohorts(self.data.participation, self.trainer.max_steps)
        check_aggregation(self, self.data, self.trainer.max_steps)
        check_batches_of_one(self, self.data, self.trainer.max_steps)
        if self.step_factors is not None:
            self.step_factors(max(map(self.num_local_steps, range(self.data.num_clients))))  # fails, or does not

    def on_train_start(self) -> None:
        if self.device.type == "cpu":
            keep_freed_memory()
        channels_last(self.net)
        self.stored.open(self.trainer, self.client_state, self.run_folder)
        self._server = ServerStep(RoundHooks(self), self.optimizers(), self.privacy, self.device)  # pyright: ignore[reportArgumentType]
        self._step_optimizer = self._server.step_optimizer
        self.round = min(self.trainer.global_step + 1, self.trainer.max_steps)  # for hooks that rehearse
        started = _started_engine(self)
        self.engine = started.engine
        if self.engine_name in ("auto", "tune"):
            self.tuned_engine = started.choice.name
        # A fit is one epoch, and with min_steps Lightning would not let it stop before its end.
        self.trainer.fit_loop.min_epochs = None
        if self.tasks.is_over:
            self.trainer.should_stop = True
        if self.evaluation.is_missing(self.trainer):
            self.evaluation.run_now(self.trainer)

    # Checkpoints ----------------------------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add clients' states, the counts of rounds and evaluations, and the settings that a resumed fit must match."""
        checkpoint["federated"] = {
            "layout": LAYOUT,
            "has_one_net": _has_one_net(self),
            "client_states": self.stored.saved(self.trainer),
            "settings": self.settings.of_fit,
            "inputs": self.data.samples.input_record._asdict(),
            **{key: attrgetter(path)(self) for key, (path, _) in PROGRESS.items()},
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        fitting = self.federation is not None and self.trainer.state.fn == "fit"
        if fitting:
            self.settings.check_goes_on(checkpoint, self.trainer)
        check_same_net(checkpoint["state_dict"], self.state_dict(), "ckpt_path", "use the model options of that run")
        saved = checkpoint["federated"]
        if not fitting:
            self.settings.check_adapter(saved["settings"])
            if _has_one_net(self) and not saved.get("has_one_net", True):  # absent before 2026-11-30
                raise ValueError(
                    f"ckpt_path is of a run with {saved['settings']['model']}, in which clients keep parts of the net, but "
                    f"{type(self).__name__} here would use the server's parts, which were not trained: use the model of that "
                    "run, with its options"
                )
            if self.federation is None and self.keeps_models:
                self.stored.leave_out()
        if self.federation is not None and not fitting:
            self.settings.check_evaluates(saved["settings"], self.trainer)
            check_same_inputs(recorded_inputs(checkpoint), self.data.samples.input_record)
        if fitting or (self.federation is not None and self.keeps_models):
            self.stored.take(saved["client_states"], self.data.num_clients)
        for key, (path, _) in PROGRESS.items():
            owner, _, name = path.rpartition(".")
            setattr(attrgetter(owner)(self) if owner else self, name, saved[key])

    def check_goes_on(self, trainer: Trainer, data: FederatedDataModule, ckpt_path: str) -> None:
        """Whether a fit from a checkpoint would continue the run that wrote it, without starting one.

        Raises:
            ValueError: naming each setting that differs.
        """
        self.trainer, self.federation = trainer, data
        trainer.datamodule = data  # pyright: ignore[reportAttributeAccessIssue]
        data.setup("fit")
        self.configure_model()
        self.settings.check_goes_on(read_checkpoint(ckpt_path), trainer)

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: str | Path, map_location: Any = "cpu", **arguments: Any) -> Self:
        """The method with the global weights of a checkpoint, in evaluation mode, for use without a trainer.

        ``method.net`` takes inputs as prepared for it; :func:`fl_lightning.export.load_classifier` takes them as stored.

        Args:
            checkpoint_path: a checkpoint of a run.
            map_location: the device of the method, as ``Module.to`` takes it.
            arguments: those of the class, including ``net``; if none are given, the run's config builds the method.

        Raises:
            FileNotFoundError: if there is no checkpoint, or without arguments no ``config.yaml`` of its run.
            ValueError: if the checkpoint is of another method or another net, or clients keep separate models.
        """
        checkpoint = read_checkpoint(checkpoint_path)
        method = cls(**arguments) if arguments else build_run(run_config(Path(checkpoint_path))[1], FederatedModule).model
        if not isinstance(method, cls):
            raise ValueError(f"{checkpoint_path} is a checkpoint of {type(method).__name__}, not of {cls.__name__}")
        restore_weights(method, checkpoint)
        return method.to(map_location)


def channels_last(net: nn.Module) -> None:
    """Store the weights of convolutions with their channels last, in which they are fastest; their values stay."""
    for weight in net.parameters():
        if weight.ndim == 4:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)


def restore_weights(method: FederatedModule, checkpoint: dict[str, Any]) -> None:
    """Load the global weights of a checkpoint into a method without a trainer, in evaluation mode.

    Raises:
        ValueError: if the checkpoint is of another net, or clients keep separate models.
    """
    if method.needs.data.task_streams:
        raise ValueError(f"the clients of {type(method).__name__} keep separate models: a checkpoint has no single net")
    if isinstance(method.net, UnbuiltNet):
        inputs = recorded_inputs(checkpoint)
        method.make_net(inputs.input_shape, inputs.outputs or len(inputs.classes))
    method.configure_model()
    if not method.has_global_model:
        raise ValueError(
            f"the clients of {type(method).__name__} keep parts of the net: a checkpoint has no single one; test evaluates"
            " theirs"
        )
    # A learner of tasks continues only in a run, and so do the buffers of a method that it has for its data.
    present = method.state_dict()
    of_tasks = {name: tensor for name, tensor in present.items() if name.startswith("tasks.")}
    others = {name: tensor for name, tensor in checkpoint["state_dict"].items() if name.startswith("net.") or name in present}
    checkpoint["state_dict"] = {**others, **of_tasks}
    method.on_load_checkpoint(checkpoint)
    for name, weight in method.state_dict(keep_vars=True).items():
        weight.data = weight.data.to(checkpoint["state_dict"][name].dtype)  # that of the run's precision
    method.load_state_dict(checkpoint["state_dict"])
    method.eval()


def _has_one_net(method: FederatedModule) -> bool:
    """Whether the server's net is all of a trained model: no client keeps parts of it, or models for tasks of its own."""
    return method.has_global_model and not method.needs.data.task_streams


def _started_engine(method: FederatedModule) -> StartedEngine:
    context = RunContext(
        device=method.device,
        states=method.stored.states,
        ranks=ProcessGroup.of(method.trainer),
        devices=method.data.devices,
        protection=_protection(method),
        precision=method.trainer.precision_plugin.train_step_context,
    )
    last = method.trainer.max_steps
    rounds = range(min(method.trainer.global_step + 1, last), last + 1)
    if method.engine_name == "flower":
        sites = present_sites()
        refuse_what_stays(method, method.trainer)
        if line := evaluation_messages(method, method.trainer, rounds.start):
            method.print(line)
        sites.meet(common_settings(method, method.data), method.data.num_clients)
    choice = choose_engine(method, context, method.engine_name, method.tuned_engine, rounds)
    visits = first_visits(method, rounds)  # after the choice, which can ask for the cohort of another round
    with saying_what_to_change(f"round {rounds.start}, {_LOCAL_FITS}", FEWER_ON_DEVICE):
        started = start_engine(method, context, method.engine_name, choice, rounds.start, visits)
    method.print(f"Engine: {started.choice.name} ({started.choice.why})")
    if started.state_bytes > 0:
        in_a_round = max(len(visits), method.data.participation.expected)
        touched = min(method.data.num_clients, last * in_a_round)
        need = method.stored.states.require_space(touched, started.state_bytes)
        method.print(f"{need}, more with each task" if method.needs.data.task_streams else need)
    return started


def _protection(method: FederatedModule) -> Protection:
    """What the defence changes at the clients, if there is one."""
    return Protection() if method.privacy is None else method.privacy.protection(method.seed)


def _check_names(method: type, names: Collection[str]) -> None:
    """Refuse arguments that the method does not take, by its name: Python's error names an internal class."""
    known = [*CommonArguments.__annotations__, *inspect.signature(method).parameters]
    for name in names:
        if name not in AlgorithmArguments.__annotations__:
            cure = did_you_mean(name, known, otherwise=f"the common ones are {', '.join(CommonArguments.__annotations__)}")
            raise TypeError(f"{name} is not an argument of {method.__name__}: {cure}")


def _check_settings(method: FederatedModule) -> None:
    if method.lr_scheduler is not None:
        check_builder("model.lr_scheduler", method.lr_scheduler)
    check_choice("model.engine", method.engine_name, EngineName)
    check_choice("model.client_state", method.client_state, StorageOfStates)
    if method.micro_batch_size is not None and isinstance(method.privacy, DPSGD):
        raise ValueError(
            f"model.micro_batch_size is {method.micro_batch_size}, but DPSGD clips whole batches sample by sample: leave it out"
        )
    reason = _protection(method).one_by_one
    if reason is not None and method.engine_name in ("tune", "vectorized", "captured"):
        raise ValueError(f"model.engine is {method.engine_name}, but {reason}: set model.engine to sequential")
