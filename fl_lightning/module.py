"""FederatedModule: a communication round is a training step.

The round reads top to bottom in :meth:`FederatedModule.training_step`; the hooks that a method may override follow in the
order in which a round calls them.
"""

import copy
import inspect
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import torch
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor, nn

from fl_lightning.checkpoint import AtomicCheckpointIO, check_whole, read_checkpoint
from fl_lightning.clients import (
    ENGINES,
    Client,
    CohortFit,
    Reduction,
    RoundReport,
    Upload,
    Visit,
    Weighted,
    keep_freed_memory,
    start_engine,
)
from fl_lightning.clients.states import ClientStates, MemoryStates
from fl_lightning.clients.states_of_run import check_saved_states, open_client_states, saved_client_states
from fl_lightning.data import Batch
from fl_lightning.data.scaling import recorded_inputs
from fl_lightning.evaluation import EvaluatedModule
from fl_lightning.functional.aggregation import State, cast_mean
from fl_lightning.losses import CrossEntropy, Loss, TorchLosses, as_loss
from fl_lightning.models import Network, TorchvisionModel
from fl_lightning.optimizers import optimizer_builder
from fl_lightning.privacy import DPSGD, Privacy
from fl_lightning.run_record import RunRecord
from fl_lightning.run_settings import Settings, check_settings, run_settings
from fl_lightning.saved_run import build_run, run_config
from fl_lightning.streams import seeded_layers
from fl_lightning.trainer_checks import check_trainer
from fl_lightning.undo import UndoableStep
from fl_lightning.warm_start import check_same_net, take_initial_weights

# (input_shape, num_classes) -> net, or a net. Ours come first: a bare name means ours where other libraries have one too.
Net = Callable[[tuple[int, ...], int], Network] | Callable[[tuple[int, ...], int], nn.Module] | nn.Module
_MAX_ROUNDS_WITHOUT_UPDATE = 10
_MOST_STEPS = 1_000_000  # of one visit: more would take years, and memory for the draws of each
_FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)


class Update(NamedTuple):
    """What the server does with a round's mean."""

    pseudo_gradient: State  # by parameter name: global weights less the mean of the clients' weights
    buffers: State  # the mean of the clients' buffers, float64


class FederatedModule(EvaluatedModule):
    """A federated method. With its defaults it is FedAvg (McMahan et al., AISTATS 2017, arXiv 1602.05629).

    Args:
        net: the network, or what builds it from ``(input_shape, num_classes)`` of the data.
        loss: what clients minimise, from :mod:`fl_lightning.losses`, or torch's ``CrossEntropyLoss`` or ``NLLLoss``.
        optimizer: builds the clients' optimizer, or its name, such as ``Adam``; fresh state at every visit.
        server_optimizer: likewise the server's optimizer, which sees the pseudo-gradient, the global weights less the mean of
            the clients' weights. SGD with rate 1 is FedAvg, with momentum FedAvgM.
        lr_scheduler: builds a schedule for the server's optimizer, stepped once a round.
        local_steps: local steps of a visit.
        local_epochs: or passes over the client's shard; one of the two, by default one epoch.
        learning_rate_decay: factor on the clients' rate from one round to the next.
        server_weighting: ``n_weighted`` weights clients by their training samples, ``uniform`` equally.
        clip_local_gradients: largest norm of a local step's gradient; by default unlimited.
        engine: how clients are run, with the same results to rounding: ``sequential``, one after another; ``vectorized``, many
            a step; ``captured``, one after another in compiled steps. ``auto`` goes by a fixed rule, ``tune`` measures.
        batch_norm_buffers: what becomes of running statistics of BatchNorm: ``averaged`` with the weights; ``local``, they stay
            with their clients, and the global model keeps the initial ones; ``reset``, every visit starts from those, and they
            are averaged.
        client_state: where what clients keep between visits lies: ``memory``, or ``disk`` for large populations.
        privacy: differential privacy, :class:`fl_lightning.privacy.DPSGD` or ``UserLevelDP``; by default none.
        seed: of initial weights and of layers that draw; ``seed_everything`` on the command line.
        initial_weights: path of a checkpoint whose global net a new run begins with, weights and buffers; nothing else of that
            run goes on. By default the net is drawn, or as given.

    Raises:
        ValueError: if a value is out of range.
    """

    personal: Sequence[str] = ()
    """Name patterns (``fnmatch``) of weights and buffers that stay with the client and are neither sent nor averaged."""

    keeps_weights: bool = False
    """Whether clients keep all their weights between visits, which those that do not receive go on from."""

    keeps_moments: bool = False
    """Whether clients keep their optimizer's state, such as Adam's moments, between visits."""

    learns_tasks: bool = False
    """Whether clients learn the tasks of ``data.tasks``, one after another."""

    wants_places: bool = False
    """Whether a local step asks which samples its batch has: ``batch.places``."""

    sends_nonzeros: bool = False
    """Whether only what is not 0 is sent, up and down, and counted as bytes: values, without their places."""

    def __init__(
        self,
        net: Net,
        loss: Loss | TorchLosses = CrossEntropy(),
        optimizer: OptimizerCallable = lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        server_optimizer: OptimizerCallable = lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        lr_scheduler: LRSchedulerCallable | None = None,
        local_steps: int | None = None,
        local_epochs: int | None = None,
        learning_rate_decay: float = 1.0,
        server_weighting: Literal["n_weighted", "uniform"] = "n_weighted",
        clip_local_gradients: float | None = None,
        engine: Literal["auto", "tune", "sequential", "vectorized", "captured"] = "auto",
        batch_norm_buffers: Literal["averaged", "local", "reset"] = "averaged",
        client_state: Literal["memory", "disk"] = "memory",
        privacy: Privacy | None = None,
        seed: int = 0,
        initial_weights: str | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        if isinstance(net, nn.Module):
            self.net = net
        elif callable(net):
            self._build_net = net
        else:
            raise TypeError(
                f"model.net is {net!r}, must be a net or build one, as fl_lightning.models.CNN2 does: in Python give the "
                f"object, in {type(self).__name__} annotate the argument as fl_lightning.Net"
            )
        self.loss, self.lr_scheduler = as_loss(loss), lr_scheduler
        self.optimizer = optimizer_builder("model.optimizer", optimizer)
        self.server_optimizer = optimizer_builder("model.server_optimizer", server_optimizer)
        self.local_steps, self.local_epochs, self.server_weighting = local_steps, local_epochs, server_weighting
        self.clip_local_gradients, self.engine_name, self.seed = clip_local_gradients, engine, seed
        self.learning_rate_decay, self.client_state, self.privacy = learning_rate_decay, client_state, privacy
        self.batch_norm_buffers = batch_norm_buffers
        self.client_states: ClientStates = MemoryStates()  # what clients keep between visits, for clients that took part
        self.run_folder: Path | None = None  # where this run alone writes, if somebody says so, as the command line does
        self._restored_states: dict[str, Any] | None = None  # what a checkpoint holds, until the fit starts
        self.tuned_engine: str | None = None  # what engine="tune" measured as the fastest
        self.rounds_without_update = 0
        self.initial_weights = initial_weights
        self.began_from: dict[str, Any] | None = None  # of initial_weights: the file, and the round of its run
        self._settings: Settings = {}  # of the fit, for its checkpoints
        self._check_settings()

    def _check_settings(self) -> None:
        if self.local_steps is not None and self.local_epochs is not None:
            raise ValueError(
                f"model.local_steps is {self.local_steps} and model.local_epochs is {self.local_epochs}: "
                "give one and set the other to null"
            )
        for name in ("local_steps", "local_epochs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"model.{name} is {value}, must be at least 1")
            if value is not None and value > _MOST_STEPS:
                raise ValueError(f"model.{name} is {value}, must be at most {_MOST_STEPS:,}")
        if self.lr_scheduler is not None and not callable(self.lr_scheduler):
            raise ValueError(
                f"model.lr_scheduler is {self.lr_scheduler!r}, must build a schedule from an optimizer: "
                "such as lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 100)"
            )
        if not 0 < self.learning_rate_decay <= 1:
            raise ValueError(
                f"model.learning_rate_decay is {self.learning_rate_decay}, must be above 0 and at most 1: 1 is no decay"
            )
        if self.clip_local_gradients is not None and not self.clip_local_gradients > 0:
            raise ValueError(f"model.clip_local_gradients is {self.clip_local_gradients}, must be above 0: null is no limit")
        for name, value, known in (
            ("server_weighting", self.server_weighting, ("n_weighted", "uniform")),
            ("engine", self.engine_name, ("auto", "tune", *ENGINES)),
            ("batch_norm_buffers", self.batch_norm_buffers, ("averaged", "local", "reset")),
            ("client_state", self.client_state, ("memory", "disk")),
        ):
            if value not in known:
                raise ValueError(f"model.{name} is {value!r}, must be one of {', '.join(known)}")
        if isinstance(self.privacy, DPSGD) and self.engine_name not in ("auto", "sequential"):
            raise ValueError(
                f"model.engine is {self.engine_name}, but DP-SGD clips sample by sample with hooks in the layers: "
                "set model.engine to sequential"
            )

    # The round ------------------------------------------------------------------------------------------------------

    def training_step(self, round: int, batch_idx: int) -> None:
        """One communication round."""
        self._notify("on_round_start", round)
        visits = self.cohort(round)  # possibly nobody, where cohorts are drawn by coin
        keep_models = bool(visits) and any(
            getattr(callback, "wants_models", _never)(round) for callback in self.trainer.callbacks
        )
        fit = self.engine.run(round, visits, keep_models)
        if fit.models is not None:
            self._notify("on_cohort_fit_end", round, fit.models)
        report = self._serve(round, fit)
        if self.is_last(round):
            # Has Lightning evaluate after the last round too, where val_check_interval does not divide max_steps.
            self.trainer.should_stop = True
        self._count_rounds_without_update(report, any(visit.sends for visit in visits))
        for scheduler in self._schedulers():
            scheduler.step()
        self._notify("on_aggregate_end", round)
        self._log_training(report)
        self._notify("on_round_end", round, report)

    def _serve(self, round: int, fit: CohortFit) -> RoundReport:
        """The server's part of a round; where it makes the model or the server's state non-finite, that of a lost round."""
        self._undoable.remember()
        with seeded_layers(self.seed, round, -1, "server", self.device):
            update = self.aggregate(fit.reduced) if fit.report.num_updates > 0 else None
            if self.privacy is not None:
                update = self.privacy.release(update, self, round, fit.report.num_updates)
            self.server_step(update)
            self.after_server_step(fit.probes)
            if fit.report.num_updates == 0 or self._undoable.is_sound():
                self.client_states.commit(round, fit.kept, fit.cleared)
                return fit.report
            self._undoable.undo()
            self.after_undo()
            self.server_step(None)
            self.after_server_step([])
        self.client_states.commit(round, [])  # nobody keeps anything of it
        report = replace(fit.report, undone=True)
        warnings.warn(f"round {round}: {_what_blew_up(report)}, and was undone", stacklevel=2)
        return report

    # Hooks, in the order of a round ---------------------------------------------------------------------------------

    def adapt_net(self) -> None:
        """Change the net once it is built, before anything is made of it."""

    def cohort(self, round: int) -> list[Visit]:
        """Who takes part in a round (counted from 1); by default the data module's sample, all receive and send."""
        return [Visit(client) for client in self.data.cohort(round)]

    def broadcast(self, client: int) -> dict[str, Tensor]:
        """What goes down to a client beside the weights; counted as bytes, read as ``client.broadcast``."""
        return {}

    def client_start(self, net: nn.Module, client: Client) -> dict[str, Tensor]:
        """Prepare a client's fit; ``net`` holds the received weights. The result is ``client.carry``, constant in the fit."""
        return {}

    def client_learning_rate(self, round: int, client: int) -> float:
        """Factor on the local optimizer's rate; by default ``learning_rate_decay`` to the power of the rounds before."""
        return self.learning_rate_decay ** (round - 1)

    def client_loss(self, net: nn.Module, batch: Batch, client: Client) -> Tensor:
        """One value a sample, (B,); the mean over the batch is not a method's business."""
        return self.loss(net(batch.inputs), batch.targets, client.label_counts)

    def client_penalty(self, net: nn.Module, client: Client) -> Tensor | float:
        """A scalar that depends on no data, added to the mean loss once a step."""
        return 0.0

    def client_gradients(self, net: nn.Module, batch: Batch, client: Client) -> tuple[Sequence[Tensor], Tensor]:
        """Gradients of the mean loss plus the penalty by the trainable weights, in order, and the mean loss."""
        if isinstance(self.privacy, DPSGD):
            gradients, loss = self.loss_gradients(net, batch, client)
            return self._with_penalty(gradients, net, client), loss

        def objective() -> tuple[Tensor, Tensor]:
            loss = batch.mean(self.client_loss(net, batch, client))
            return loss + self.client_penalty(net, client), loss

        return client.differentiate(objective)

    def client_step(self, net: nn.Module, batch: Batch, client: Client) -> Tensor:
        """One local step; returns the loss before it."""
        gradients, loss = self.client_gradients(net, batch, client)
        if self.clip_local_gradients is not None:
            norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
            factor = (self.clip_local_gradients / (norm + 1e-6)).clamp_max(1.0)
            gradients = [gradient * factor for gradient in gradients]
        client.apply(gradients)
        return loss

    def client_result(self, net: nn.Module, client: Client) -> Upload:
        """What a client sends: the weights that are trained and buffers, weighted by its training samples.

        The tensors are the net's own: the engine reduces them before the net is used again.
        """
        weight = self.update_weight(client)
        return {
            "weights": Weighted({k: v for k, v in self.trained_weights(net).items() if not self.is_personal(k)}, weight),
            "buffers": Weighted({k: v for k, v in net.named_buffers() if not self.is_personal(k)}, weight),
        }

    def kept_state(self, client: Client, state: State) -> State:
        """What stays with a client after a visit, of its ``state`` and, as ``net.<name>``, its weights and buffers."""
        return state

    def probe(self, net: nn.Module, client: Client) -> dict[str, Tensor]:
        """What is read off a client's model before the net is reused; gathered for the server, never counted as bytes."""
        return {}

    def aggregate(self, reduced: Reduction) -> Update:
        """From the clients' weighted means to what the server does."""
        weights = {name: weight.detach() for name, weight in self.net.named_parameters()}
        mean = reduced.mean("weights")
        gradient = {name: torch.empty_like(weights[name]).copy_(weights[name].double() - value) for name, value in mean.items()}
        return Update(gradient, reduced.mean("buffers"))

    def server_step(self, update: Update | None) -> None:
        """Step the server's optimizer with the pseudo-gradient and take over the buffers.

        None, a round without a finite update, steps without gradients: it counts, and nothing moves. A round that is undone
        comes here a second time, with None.
        """
        gradients = update.pseudo_gradient if update is not None else {}
        for name, parameter in self.net.named_parameters():
            parameter.grad = gradients.get(name)
        if not self._undoable.is_undone:  # its step has been counted
            self.optimizers().step()
        buffers = dict(self.net.named_buffers())
        for name, mean in (update.buffers if update is not None else {}).items():
            buffers[name].copy_(cast_mean(mean, buffers[name].dtype))

    def after_server_step(self, probes: list[dict[str, Tensor]]) -> None:
        """Work at the server once the new global weights stand; ``probes`` in the order of the cohort."""

    def after_undo(self) -> None:
        """Put back what the server holds outside of weights, buffers and its optimizer, which are as before the round again."""

    def is_last(self, round: int) -> bool:
        """Whether a run ends after a round that is done; by default after ``trainer.max_steps``."""
        return round == self.trainer.max_steps

    # What hooks and engines ask for ---------------------------------------------------------------------------------

    def loss_gradients(
        self, net: nn.Module, batch: Batch, client: Client, at: Sequence[Tensor] | None = None
    ) -> tuple[Sequence[Tensor], Tensor]:
        """Gradients of the mean of ``client_loss`` alone, and that mean; under DP-SGD clipped sample by sample, with noise.

        Args:
            at: trainable weights to take them at, in order; None: the net's own.
        """

        def losses() -> Tensor:
            return self.client_loss(net, batch, client)

        if isinstance(self.privacy, DPSGD):
            return self.privacy.loss_gradients(self, net, losses, len(batch.targets), client, at)
        return client.differentiate(lambda: (loss := batch.mean(losses()), loss), at=at)

    def _with_penalty(self, gradients: Sequence[Tensor], net: nn.Module, client: Client) -> Sequence[Tensor]:
        """Gradients plus that of ``client_penalty``."""
        if not self.overrides("client_penalty"):
            return gradients

        def penalty() -> tuple[Tensor, Tensor]:
            value = torch.as_tensor(self.client_penalty(net, client), device=self.device)
            return value if value.requires_grad else value.clone().requires_grad_(), value

        pulled, _ = client.differentiate(penalty)
        return [gradient + pull for gradient, pull in zip(gradients, pulled, strict=True)]

    def is_personal(self, name: str) -> bool:
        """Whether a weight or buffer stays with its client."""
        if self.batch_norm_buffers == "local" and name in self.initial_statistics:
            return True
        return any(fnmatch(name, pattern) for pattern in self.personal)

    def is_constant(self, name: str) -> bool:
        """Whether a weight is never trained, hence the same at the server and all clients: it neither travels nor is kept."""
        return name in self._frozen_names

    @cached_property
    def initial_statistics(self) -> State:
        """Running statistics of BatchNorm as a fresh layer has them, by name."""
        fresh: State = {}
        for name, layer in self.net.named_modules():
            if isinstance(layer, nn.modules.batchnorm._NormBase) and layer.track_running_stats:
                layer = copy.deepcopy(layer)
                layer.reset_running_stats()
                fresh |= {f"{name}.{own}".removeprefix("."): buffer for own, buffer in layer.named_buffers()}
        return fresh

    def trained_weights(self, net: nn.Module) -> State:
        """The net's weights that require a gradient, by name, in the order of what ``client.differentiate`` gives."""
        return {name: weight for name, weight in net.named_parameters() if name in self._trained_names}

    def add_server_state(self, kind: str) -> None:
        """Keep at the server a tensor of zeros for each weight that is trained and not personal: buffers, in checkpoints too.

        Args:
            kind: what they are, such as ``variate``.
        """
        for name, weight in self.trained_weights(self.net).items():
            if not self.is_personal(name):
                self.register_buffer(f"{kind}:{name.replace('.', '/')}", torch.zeros_like(weight, requires_grad=False))

    def server_state(self, kind: str) -> State:
        """What :meth:`add_server_state` made, by the weights' names; to be changed in place."""
        own = self.named_buffers(recurse=False)
        return {name.split(":", 1)[1].replace("/", "."): buffer for name, buffer in own if name.startswith(f"{kind}:")}

    def overrides(self, hook: str) -> bool:
        """Whether this method has a hook of its own."""
        return getattr(type(self), hook) is not getattr(FederatedModule, hook)

    @property
    def beside_gradients(self) -> tuple[str, ...]:
        """What clients take from their samples beside the gradients of ``client_loss``, which DP-SGD does not cover."""
        return ("the label counts in the loss",) if self.loss.uses_label_counts else ()

    def bounded_result(self, net: nn.Module, client: Client) -> Upload:
        """``client_result``, bounded where privacy asks for it."""
        result = self.client_result(net, client)
        return result if self.privacy is None else self.privacy.bound(result, client.received_state)

    def update_weight(self, client: Client) -> float:
        """A client's weight in the mean over clients, at least 0; a round in which all weigh 0 is lost."""
        return float(client.num_train) if self.server_weighting == "n_weighted" else 1.0

    def local_optimizer(self, parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
        """A client's optimizer over its trainable weights; fused where torch has that and nothing else was asked for."""
        optimizer = self.optimizer(parameters)
        if type(optimizer) in _FUSED:
            for group in optimizer.param_groups:
                if group["fused"] is None and group["foreach"] is None:
                    group["fused"] = True
        return optimizer

    def num_local_steps(self, client: int) -> int:
        """Local steps of a visit."""
        if self.local_steps is not None:
            return self.local_steps
        return (self.local_epochs or 1) * self.data.steps_per_epoch(client)

    @property
    def first_round(self) -> int:
        """The round that a fit begins with, or goes on with."""
        return min(self.trainer.global_step + 1, self.trainer.max_steps)

    def expected_work(self, client: int) -> float:
        """Samples that a visit goes through, by which clients are shared out among processes."""
        return self.num_local_steps(client) * self.data.num_train(client) / self.data.steps_per_epoch(client)

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
        if self._trainer is not None and self.data.tasks is not None and not self.learns_tasks:
            raise ValueError(
                f"data.tasks is {self.data.tasks}, but {type(self).__name__} learns no tasks: use a method of "
                "fl_lightning.continual, such as FedAvgOnTasks, or set data.tasks to null"
            )
        if not hasattr(self, "net"):
            if self._trainer is None:
                raise ValueError("net is built from the data, and there is none here: give the built net instead")
            self._make_net(self.data.input_shape, len(self.data.classes))
        if not hasattr(self, "_trained_names"):
            with seeded_layers(self.seed, -1, -1, "adapted weights", torch.get_default_device()):
                self.adapt_net()
        # In a local step under some engines the net holds plain tensors, which do not say whether they are trained.
        self._trained_names = frozenset(name for name, weight in self.net.named_parameters() if weight.requires_grad)
        self._frozen_names = frozenset(name for name, _ in self.net.named_parameters()) - self._trained_names
        if self._trainer is not None:
            self.check_outputs()

    def _make_net(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        build = self._build_net
        if inspect.isfunction(build) and build.__module__.startswith("torchvision.models."):
            build = partial(TorchvisionModel, name=build.__name__)  # torchvision's functions take no shape
        with seeded_layers(self.seed, -1, -1, "initial weights", torch.get_default_device()):
            try:
                self.net = build(input_shape, num_classes)
            except (RuntimeError, TypeError, OverflowError) as error:
                reason = (str(error) or type(error).__name__).splitlines()[0]
                raise ValueError(f"model.net cannot be built for inputs of shape {tuple(input_shape)}: {reason}") from error

    def configure_optimizers(self) -> Any:
        """The server's optimizer, the only one that Lightning knows, and its schedule."""
        trainable = [parameter for parameter in self.net.parameters() if parameter.requires_grad]
        if not trainable:
            raise ValueError("model.net has no weight that requires a gradient: unfreeze some")
        optimizer = self.server_optimizer(trainable)
        if self.lr_scheduler is None:
            return optimizer
        scheduler = self.lr_scheduler(optimizer)
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise ValueError(
                "model.lr_scheduler is ReduceLROnPlateau, but a schedule steps in rounds without a metric: use another"
            )
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def on_fit_start(self) -> None:
        self._settings = run_settings(self)
        if self.initial_weights is not None and self.began_from is None and self.trainer.ckpt_path is None:
            self.began_from = take_initial_weights(self.net, self.initial_weights)
        self.place_data()
        self.data.with_places = self.wants_places
        if self.privacy is not None:
            self.privacy.check(self)
        for kind in ("poisson_cohorts", "poisson_batches"):
            setattr(self.data, kind, getattr(self.privacy, kind, False))
        self._check_batches_of_one()
        cohorts = self.data.cohorts
        if cohorts is not None and self.trainer.max_steps > len(cohorts):
            raise ValueError(
                f"trainer.max_steps is {self.trainer.max_steps}, but data.cohorts names {len(cohorts)} rounds: lower it"
            )

    def _check_batches_of_one(self) -> None:
        """Refuse clients' batches of one sample where the net, as BatchNorm may, cannot take one."""
        if not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in self.net.modules()):
            return
        clients: Iterable[int] = range(self.data.num_clients)
        if self.data.cohorts is not None:
            clients = {client for cohort in self.data.cohorts[: self.trainer.max_steps] for client in cohort}
        alone = (client for client in clients if self.data.smallest_batch(client, self.num_local_steps(client)) == 1)
        if (lonely := next(alone, None)) is None:
            return
        try:
            copy.deepcopy(self.net).train()(self.data.first_inputs(1))
        except ValueError as error:
            raise ValueError(
                f"data.batch_size is {self.data.batch_size}, which gives client {lonely} a batch of one sample, but BatchNorm "
                "in model.net needs more: choose another batch size, or a net without"
            ) from error

    def on_train_start(self) -> None:
        if self.device.type == "cpu":
            keep_freed_memory()
        for weight in self.net.parameters():
            if weight.ndim == 4:
                weight.data = weight.data.contiguous(memory_format=torch.channels_last)
        self.client_states = open_client_states(self, self._restored_states)
        self._restored_states = None
        self._undoable = UndoableStep(self, self.optimizers(use_pl_optimizer=False), self._never_changes)
        self.engine = start_engine(self)
        if self.evaluation_is_missing():
            self.evaluate_now()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["federated"] = {
            "client_states": saved_client_states(self),
            "settings": self._settings,
            "began_from": self.began_from,
            "inputs": self.data.input_record._asdict(),
            "tuned_engine": self.tuned_engine,
            "newest": self.newest,
            "evaluated_round": self.evaluated_round,
            "rounds_without_update": self.rounds_without_update,
        }

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
            ValueError: if the checkpoint is of another method or another net, or clients keep models of their own.
        """
        checkpoint = read_checkpoint(checkpoint_path)
        method = cls(**arguments) if arguments else build_run(run_config(Path(checkpoint_path))[1], FederatedModule).model
        if not isinstance(method, cls):
            raise ValueError(f"{checkpoint_path} is a checkpoint of {type(method).__name__}, not of {cls.__name__}")
        method.restore_weights(checkpoint)
        return method.to(map_location)

    def restore_weights(self, checkpoint: dict[str, Any]) -> None:
        """Take over the global weights of a checkpoint without a trainer, in evaluation mode.

        Raises:
            ValueError: if the checkpoint is of another net, or clients keep models of their own.
        """
        if self.learns_tasks:
            raise ValueError(f"the clients of {type(self).__name__} keep models of their own: a checkpoint has no single net")
        if not hasattr(self, "net"):
            inputs = recorded_inputs(checkpoint)
            self._make_net(tuple(inputs.net_shape), len(inputs.classes))
        self.configure_model()
        self.on_load_checkpoint(checkpoint)
        for name, weight in self.state_dict(keep_vars=True).items():
            weight.data = weight.data.to(checkpoint["state_dict"][name].dtype)  # that of the run's precision
        self.load_state_dict(checkpoint["state_dict"])
        self.eval()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        fitting = self._trainer is not None and self.trainer.state.fn == "fit"
        if fitting:
            self._check_goes_on(checkpoint)
        cure = "use the model options of that run"
        check_same_net(checkpoint["state_dict"], self.state_dict(), "ckpt_path", cure)
        if fitting:
            check_saved_states(checkpoint["federated"]["client_states"], self.data.num_clients)
            self._restored_states = checkpoint["federated"]["client_states"]
        self.tuned_engine = checkpoint["federated"]["tuned_engine"]
        self.newest = checkpoint["federated"]["newest"]
        self.evaluated_round = checkpoint["federated"]["evaluated_round"]
        self.rounds_without_update = checkpoint["federated"]["rounds_without_update"]
        self.began_from = checkpoint["federated"].get("began_from")

    def _check_goes_on(self, checkpoint: dict[str, Any]) -> None:
        """Whether a fit from a checkpoint would be more of the run that wrote it."""
        check_whole(checkpoint)
        rounds = checkpoint["global_step"]
        if not any(getattr(callback, "only_looks", False) for callback in self.trainer.callbacks):
            check_settings(checkpoint["federated"].get("settings"), run_settings(self), rounds)
        if rounds > self.trainer.max_steps:
            raise ValueError(
                f"trainer.max_steps is {self.trainer.max_steps}, but the run of ckpt_path has {rounds} rounds already: raise it"
            )

    # ----------------------------------------------------------------------------------------------------------------

    def _never_changes(self, name: str) -> bool:
        """Whether one of this module's own weights, ``net.<name>``, is not trained."""
        return name.removeprefix("net.") in self._frozen_names

    def _notify(self, hook: str, *arguments: Any) -> None:
        """Call a round hook on every callback that has it."""
        for callback in self.trainer.callbacks:
            getattr(callback, hook, _never)(self.trainer, self, *arguments)

    def _schedulers(self) -> list:
        schedulers = self.lr_schedulers() or []
        return schedulers if isinstance(schedulers, list) else [schedulers]

    def _count_rounds_without_update(self, report: RoundReport, anybody_sends: bool) -> None:
        """Count rounds in which every update was lost or, where nobody was to send, every client, and those undone."""
        if not report.clients:
            return
        arrived = report.num_updates > 0 if anybody_sends else len(report.nonfinite) < len(report.clients)
        self.rounds_without_update = 0 if arrived and not report.undone else self.rounds_without_update + 1
        if self.rounds_without_update == _MAX_ROUNDS_WITHOUT_UPDATE:
            if report.undone:
                raise FloatingPointError(
                    f"{_MAX_ROUNDS_WITHOUT_UPDATE} rounds in a row were lost or undone (last: {_what_blew_up(report)}): lower "
                    "the learning rate of model.server_optimizer or model.optimizer, or set model.clip_local_gradients"
                )
            if not report.nonfinite:
                raise FloatingPointError(
                    f"all clients weighed 0 in {_MAX_ROUNDS_WITHOUT_UPDATE} rounds in a row (last: "
                    f"{', '.join(map(str, report.clients))}): give some a weight above 0 in update_weight"
                )
            raise FloatingPointError(
                f"no client sent a finite update in {_MAX_ROUNDS_WITHOUT_UPDATE} rounds in a row (last: clients "
                f"{', '.join(map(str, report.nonfinite))}): lower model.optimizer.lr or set model.clip_local_gradients"
            )

    def _log_training(self, report: RoundReport) -> None:
        counted = [loss for client, loss in zip(report.clients, report.losses, strict=True) if client not in report.nonfinite]
        metrics = {"train/nonfinite_clients": float(len(report.nonfinite))}
        if report.undone:
            metrics["train/undone"] = 1.0
        if counted:
            metrics["train/loss"] = sum(counted) / len(counted)
        self.log_dict(metrics, logger=False)
        every = self.trainer.log_every_n_steps
        # Where the run is evaluated too: Lightning's default of every 50 steps would leave a short run without a loss.
        is_evaluated = self.validates_after(report.round) or report.round == self.trainer.max_steps
        if every > 0 and (report.round % every == 0 or is_evaluated):
            self.log_round(metrics, report.round)


def _never(*arguments: Any) -> bool:
    """Stands in for a hook that a callback does not have."""
    return False


def _what_blew_up(report: RoundReport) -> str:
    """Whose update was the largest in a round whose step was undone."""
    norms = zip(report.norms, report.clients, strict=True)
    norm, client = max((norm, client) for norm, client in norms if client not in report.nonfinite)
    return (
        f"the server's step made the global model or the server's state non-finite (largest norm of an update: {norm:.3g}, of "
        f"client {client})"
    )
