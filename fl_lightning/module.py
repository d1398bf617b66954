"""FederatedModule: a communication round is a training step.

The round reads top to bottom in :meth:`FederatedModule.training_step`; the hooks that a method may override stand in
:class:`fl_lightning.algorithm.FederatedAlgorithm`, which this class runs under Lightning.
"""

import inspect
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Self

import torch
from lightning.pytorch.cli import LRSchedulerCallable
from lightning.pytorch.plugins.io import TorchCheckpointIO
from lightning.pytorch.utilities.parsing import collect_init_args

from fl_lightning.algorithm import FederatedAlgorithm, Net
from fl_lightning.checks import check_choice
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.participation import Participation
from fl_lightning.engines.engine import Engine
from fl_lightning.engines.engine_choice import Choice, EngineName, by_measurement, by_rule, first_visits, start_engine
from fl_lightning.engines.freed_memory import keep_freed_memory
from fl_lightning.engines.run_context import RunContext
from fl_lightning.exchange import CohortFit, EvaluationName, Federation, RoundReport, Update, Visit
from fl_lightning.exchange.protection import Protection
from fl_lightning.metrics import PersonalScores
from fl_lightning.optimizers import OptimizerBuilder, check_schedule, optimizer_builder
from fl_lightning.privacy import Privacy
from fl_lightning.random_streams import seeded_layers
from fl_lightning.state.checkpoint import AtomicCheckpointIO, read_checkpoint
from fl_lightning.training.checkpointing import CheckpointedModule
from fl_lightning.training.device_errors import FEWER_AT_A_TIME, FEWER_ON_DEVICE, saying_what_to_change
from fl_lightning.training.lost_rounds import what_blew_up
from fl_lightning.training.personal_evaluation import Adapt, PersonalModels
from fl_lightning.training.process_group import ProcessGroup
from fl_lightning.training.refused_data import check_batches_of_one, check_cohorts, check_tasks
from fl_lightning.training.round_callback import round_callbacks
from fl_lightning.training.run_record import RunRecord
from fl_lightning.training.run_settings import run_settings
from fl_lightning.training.saved_run import build_run, run_config
from fl_lightning.training.trainer_settings import check_trainer
from fl_lightning.training.undoable_step import UndoableStep
from fl_lightning.training.warm_start import take_initial_weights

__all__ = ["FederatedModule", "Net", "Update"]

StorageOfStates = Literal["memory", "disk"]


class FederatedModule(FederatedAlgorithm, CheckpointedModule):
    """A federated method under Lightning's trainer. With its defaults it is FedAvg (McMahan et al., AISTATS 2017).

    Args:
        net: the network, or what builds it from ``(input_shape, num_classes)`` of the data.
        server_optimizer: builds the server's optimizer, which sees the pseudo-gradient, the global weights less the mean of the
            clients' weights; or its name. SGD with rate 1 is FedAvg, with momentum FedAvgM.
        lr_scheduler: builds a schedule for the server's optimizer, stepped once a round.
        engine: how clients are run, with the same results to rounding: ``sequential``, one after another; ``vectorized``, many
            a step; ``captured``, a visit as one compiled program. ``auto`` goes by a fixed rule, ``tune`` measures.
        client_state: where what clients keep between visits lies: ``memory``, or ``disk`` for large populations.
        privacy: differential privacy, :class:`fl_lightning.privacy.DPSGD` or ``UserLevelDP``; by default none.
        initial_weights: path of a checkpoint whose global net a new run begins with, weights and buffers; nothing else of that
            run goes on. By default the net is drawn, or as given.
        common: of :class:`fl_lightning.algorithm.FederatedAlgorithm`.

    Raises:
        ValueError: if a value is out of range.
    """

    engine: Engine

    def __init__(
        self,
        net: Net,
        server_optimizer: OptimizerBuilder = lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        lr_scheduler: LRSchedulerCallable | None = None,
        engine: EngineName = "auto",
        client_state: StorageOfStates = "memory",
        privacy: Privacy | None = None,
        initial_weights: str | None = None,
        **common: Any,
    ) -> None:
        super().__init__(net, **common)
        self.given_arguments = _given_arguments(inspect.currentframe())
        self.automatic_optimization = False
        self.server_optimizer = optimizer_builder("model.server_optimizer", server_optimizer)
        self.lr_scheduler, self.engine_name, self.client_state = lr_scheduler, engine, client_state
        self.privacy, self.initial_weights = privacy, initial_weights
        self.run_folder: Path | None = None
        self._check_run_settings()

    def _check_run_settings(self) -> None:
        if self.lr_scheduler is not None and not callable(self.lr_scheduler):
            raise ValueError(
                f"model.lr_scheduler is {self.lr_scheduler!r}, must build a schedule from an optimizer: "
                "such as lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 100)"
            )
        check_choice("model.engine", self.engine_name, EngineName)
        check_choice("model.client_state", self.client_state, StorageOfStates)
        reason = self._protection().one_by_one
        if reason is not None and self.engine_name not in ("auto", "sequential"):
            raise ValueError(f"model.engine is {self.engine_name}, but {reason}: set model.engine to sequential")

    def write_to(self, folder: Path) -> None:
        """Name the folder that this run alone writes to, as the command line does; by default that of its logger."""
        self.run_folder = folder

    @property
    def data(self) -> FederatedDataModule:
        """The data module of the run.

        Raises:
            TypeError: if the trainer was given none, or one of another kind.
        """
        if self._trainer is None:
            return super().data  # pyright: ignore[reportReturnType]
        data = self.trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        if not isinstance(data, FederatedDataModule):
            raise TypeError(
                f"datamodule is {type(data).__name__}, must be a FederatedDataModule: trainer.fit(method, datamodule=...)"
            )
        return data

    @property
    def has_data(self) -> bool:
        return self._trainer is not None or super().has_data

    # The round ------------------------------------------------------------------------------------------------------

    def training_step(self, round: int, batch_idx: int) -> None:
        """One communication round."""
        visits = self.begin_round(round)  # possibly nobody, where cohorts are drawn by coin
        watchers = round_callbacks(self.trainer)
        for watcher in watchers:
            watcher.on_round_start(self.trainer, self, round)
        with self._saying_what_fits_need(round):
            fit = self.engine.run(round, visits, keep_models=bool(visits) and any(one.wants_models(round) for one in watchers))
        if fit.models is not None:
            with saying_what_to_change(f"round {round}, what callbacks ask of clients' models", FEWER_AT_A_TIME):
                for watcher in watchers:
                    watcher.on_cohort_fit_end(self.trainer, self, round, fit.models)
        with saying_what_to_change(f"round {round}, the server's step", FEWER_ON_DEVICE):
            report = self._serve(round, fit)
        if round == self.trainer.max_steps or self.is_over:
            # Has Lightning evaluate after the last round too, where val_check_interval does not divide max_steps.
            self.trainer.should_stop = True
        self._lost_rounds.add(report, any(visit.sends for visit in visits))
        for scheduler in self._schedulers():
            scheduler.step()
        for watcher in watchers:
            watcher.on_aggregate_end(self.trainer, self, round)
        self._log_training(report)
        for watcher in watchers:
            watcher.on_round_end(self.trainer, self, round, report)

    def _serve(self, round: int, fit: CohortFit) -> RoundReport:
        """The server's part of a round; where it makes the model or the server's state non-finite, that of a lost round."""
        self._undoable.remember()
        with seeded_layers(self.seed, round, -1, "server", self.device):
            update = self.aggregate(fit.reduced) if fit.report.num_updates > 0 else None
            if self.privacy is not None:
                update = self.privacy.release(update, self, self.participation_in(round), fit.report.num_updates)
            self.server_step(update)
            self.after_server_step(fit.probes)
            if self._undoable.is_sound():
                self.client_states.commit(round, fit.kept, fit.cleared)
                return fit.report
            self._undo()
            self.server_step(None)
            self.after_server_step([])
            if not self._undoable.is_sound():  # what the hooks do without an update is no better
                self._undo()
        self.client_states.commit(round, [])  # nobody keeps anything of it
        report = replace(fit.report, undone=True)
        warnings.warn(f"round {round}: {what_blew_up(report)}, and was undone", stacklevel=1)
        return report

    def _undo(self) -> None:
        self._undoable.undo()
        self.after_undo()

    def participation_in(self, round: int) -> Participation:
        """Who takes part in a round (counted from 1), and of how many clients."""
        return self.data.participation

    def sampled_clients(self, round: int) -> list[int]:
        if self.privacy is None:
            return super().sampled_clients(round)
        return self.privacy.cohort(self.participation_in(round), round)

    def join(self, federation: Federation) -> None:
        for name in ("privacy", "lr_scheduler"):
            if (given := getattr(self, name)) is not None:
                raise ValueError(f"model.{name} is {given}, but acts in the fit of a trainer alone: leave it out")
        super().join(federation)

    @cached_property
    def _optimizer_without_trainer(self) -> torch.optim.Optimizer:
        return self.server_optimizer([*self.trained_weights(self.net).values()])

    def step_server_optimizer(self) -> None:
        if self._trainer is None:
            self._optimizer_without_trainer.step()
        elif not self._undoable.is_undone:  # its step has been counted
            self.optimizers().step()  # pyright: ignore[reportAttributeAccessIssue]

    @saying_what_to_change("evaluation of personal models", FEWER_AT_A_TIME)
    def personal_scores(
        self, names: Sequence[EvaluationName], clients: Sequence[int] | None = None, adapt: Adapt | None = None
    ) -> dict[EvaluationName, PersonalScores]:
        asked, ranks = range(self.data.num_clients) if clients is None else clients, self.ranks
        models = PersonalModels(self, self.data, self.client_states, ranks.rank, ranks.size)
        with self.trainer.precision_plugin.val_step_context():
            counts = models.count(names, asked, adapt)
        counts = ranks.sum(counts)
        return {name: PersonalScores.of_counts(counts[row]) for row, name in enumerate(names)}

    @property
    def rounds_without_update(self) -> int:
        """How many rounds in a row brought the server nothing so far."""
        return self._lost_rounds.count

    @property
    def first_round(self) -> int:
        """The round that a fit begins with, or goes on with."""
        return min(self.trainer.global_step + 1, self.trainer.max_steps)

    # Lightning's hooks ----------------------------------------------------------------------------------------------

    def configure_callbacks(self) -> list:
        """The first hook that Lightning calls: checks the trainer, and has its checkpoints and its record written well."""
        check_trainer(self.trainer)
        if type(self.trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            self.trainer.strategy.checkpoint_io = AtomicCheckpointIO()
        if self.trainer.state.fn != "fit":
            return []
        record = RunRecord()
        record.open(self.trainer, self.run_folder)  # Lightning's next step makes event files
        return [record]

    def configure_model(self) -> None:
        """Build the net from the data's shape and classes, with initial weights from the seed."""
        if self.has_data and isinstance(self.data, FederatedDataModule) and self.data.tasks is not None:
            check_tasks(self.needs, type(self).__name__, self.data.tasks)
        super().configure_model()
        if self._trainer is not None:
            self.check_outputs()

    def configure_optimizers(self) -> Any:
        """The server's optimizer, the only one that Lightning knows, and its schedule."""
        trainable = [parameter for parameter in self.net.parameters() if parameter.requires_grad]
        if not trainable:
            raise ValueError("model.net has no weight that requires a gradient: unfreeze some")
        optimizer = self.server_optimizer(trainable)
        if self.lr_scheduler is None:
            return optimizer
        scheduler = self.lr_scheduler(optimizer)
        check_schedule(scheduler)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def on_fit_start(self) -> None:
        self._settings = run_settings(self)
        if self.initial_weights is not None and self.began_from is None and self.trainer.ckpt_path is None:
            self.began_from = take_initial_weights(self, self.initial_weights)
            if self.needs.initial_model:
                self.keep_initial_model()
        self.place_data()
        self.check_data()
        if self.privacy is not None:
            self.privacy.check(self, self.data.participation, str(self.trainer.precision))
        check_cohorts(self.data.participation, self.trainer.max_steps)
        check_batches_of_one(self.net, self.data, self.num_local_steps, self.trainer.max_steps)

    def on_train_start(self) -> None:
        if self.device.type == "cpu":
            keep_freed_memory()
        for weight in self.net.parameters():
            if weight.ndim == 4:
                weight.data = weight.data.contiguous(memory_format=torch.channels_last)
        self.open_client_states(self.client_state, self.run_folder)
        self._undoable = UndoableStep(self, self.trainer.optimizers[0], self._frozen_weights)
        self.engine = self._start_engine()
        if self.is_over:
            self.trainer.should_stop = True
        if self.evaluation_is_missing():
            self.evaluate_now()

    def run_context(self) -> RunContext:
        """What an engine knows of this run."""
        return RunContext(
            device=self.device,
            states=self.client_states,
            ranks=self.ranks,
            protection=self._protection(),
            precision=self.trainer.precision_plugin.train_step_context,
            seed=self.seed,
        )

    @property
    def ranks(self) -> ProcessGroup:
        """The processes of the run."""
        return ProcessGroup(self.trainer.strategy, self.trainer.global_rank, self.trainer.world_size)

    def _protection(self) -> Protection:
        """What the defence changes at the clients, if there is one."""
        return Protection() if self.privacy is None else self.privacy.protection(self.seed)

    def _start_engine(self) -> Engine:
        context, visits = self.run_context(), first_visits(self, self._rounds_from(self.first_round))
        choice = self._choose_engine(context, visits)
        with self._saying_what_fits_need(self.first_round):
            started = start_engine(self, context, self.engine_name, choice, self.first_round, visits)
        self.print(f"Engine: {started.choice.name} ({started.choice.why})")
        if started.state_bytes > 0:
            in_a_round = max(len(visits), self.data.participation.expected)
            touched = min(self.data.num_clients, self.trainer.max_steps * in_a_round)
            need = self.client_states.require_space(touched, started.state_bytes)
            self.print(f"{need}, more with each task" if self.needs.task_streams else need)
        return started.engine

    def _saying_what_fits_need(self, round: int) -> AbstractContextManager[None]:
        return saying_what_to_change(f"round {round}, the clients' local fits", FEWER_ON_DEVICE)

    def _choose_engine(self, context: RunContext, visits: Sequence[Visit]) -> Choice:
        if self.engine_name == "auto":
            return by_rule(self, context, self._rounds_from(1))
        if self.engine_name != "tune":
            return Choice(self.engine_name, "model.engine")
        if self.tuned_engine is not None:
            return Choice(self.tuned_engine, "measured when the run began")
        choice = by_measurement(self, context, self.first_round, visits)
        self.tuned_engine = choice.name
        return choice

    def _rounds_from(self, first: int) -> range:
        return range(first, self.trainer.max_steps + 1)

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: str | Path, map_location: Any = "cpu", **arguments: Any) -> Self:
        """The method with the global weights of a checkpoint, in evaluation mode, for use without a trainer.

        ``method.net`` takes inputs as prepared for it; :func:`fl_lightning.export.load_classifier` takes them as stored.

        Args:
            checkpoint_path: a checkpoint of a run.
            map_location: the device of the method, as ``Module.to`` takes it.
            arguments: those of the class, ``net`` among them; none: the method is built by the config that the run left.

        Raises:
            FileNotFoundError: if there is no checkpoint, or without arguments no ``config.yaml`` of its run.
            ValueError: if the checkpoint is of another method or another net, or clients keep separate models.
        """
        checkpoint = read_checkpoint(checkpoint_path)
        method = cls(**arguments) if arguments else build_run(run_config(Path(checkpoint_path))[1], FederatedModule).model
        if not isinstance(method, cls):
            raise ValueError(f"{checkpoint_path} is a checkpoint of {type(method).__name__}, not of {cls.__name__}")
        method.restore_weights(checkpoint)
        return method.to(map_location)

    # ----------------------------------------------------------------------------------------------------------------

    @property
    def _frozen_weights(self) -> list[torch.nn.Parameter]:
        """Those of the net that are not trained."""
        return [weight for name, weight in self.net.named_parameters() if name in self._frozen_names]

    def _schedulers(self) -> list:
        schedulers = self.lr_schedulers() or []
        return schedulers if isinstance(schedulers, list) else [schedulers]

    def _log_training(self, report: RoundReport) -> None:
        counted = [loss for client, loss in zip(report.clients, report.losses, strict=True) if client not in report.nonfinite]
        metrics = {"train/nonfinite_clients": float(len(report.nonfinite)), "train/undone": float(report.undone)}
        if counted:
            metrics["train/loss"] = sum(counted) / len(counted)
        # What callbacks such as EarlyStopping monitor, on the host. LightningModule.log does more, which rounds of
        # tiny clients would wait for.
        self.trainer.callback_metrics.update({name: torch.tensor(value) for name, value in metrics.items()})
        every = self.trainer.log_every_n_steps  # pyright: ignore[reportAttributeAccessIssue]
        # Where the run is evaluated too: Lightning's default of every 50 steps would leave a short run without a loss.
        is_evaluated = self.validates_after(report.round) or report.round == self.trainer.max_steps
        if every > 0 and (report.round % every == 0 or is_evaluated):
            self.log_round(metrics, report.round)


def _given_arguments(frame: FrameType | None) -> dict[str, Any]:
    """What the constructors of a method and of its base classes were called with, by name."""
    given: dict[str, Any] = {}
    for arguments in collect_init_args(frame, [], classes=(FederatedModule,)) if frame is not None else ():
        given |= arguments
    return given
