"""FederatedAlgorithm: the steps of a federated method in a round, independent of who runs it.

The hooks are in the order in which a round calls them, those of a client in :class:`LocalTraining`, those of the server in
:class:`FederatedAlgorithm`; with their defaults they are FedAvg. Nothing here depends on a trainer: an engine runs clients
through the hooks on any machine, and :class:`fl_lightning.FederatedModule` is this class with Lightning.
"""

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatch
from functools import partial, reduce
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fl_lightning.checks import ArgumentError, check_choice, check_patterns, check_range, check_whole, counted, kind_of
from fl_lightning.functional.aggregation import State, cast_mean, less_mean
from fl_lightning.functional.clipping import clipped
from fl_lightning.functional.random_streams import seeded_layers
from fl_lightning.functional.schedules import RateFactors, ScheduleBuilder
from fl_lightning.losses import CrossEntropy, Loss, TorchLosses, as_loss
from fl_lightning.models import Adapter
from fl_lightning.models.federated_net import (
    BatchNormBuffers,
    FederatedNet,
    Net,
    UnbuiltNet,
    freeze_net,
    global_tensors,
    keep_initial_model,
    kept_buffers,
    shared_zeros,
)
from fl_lightning.objectives import Objective, SingleLabel
from fl_lightning.optimizers import OptimizerBuilder, fused, optimizer_builder
from fl_lightning.protocol import (
    Batch,
    Client,
    ClientState,
    Federation,
    Learner,
    Needs,
    Reduction,
    Site,
    Update,
    Upload,
    Visit,
    Weighted,
)
from fl_lightning.protocol.hooks import follow_keywords, overridden, replaces
from fl_lightning.robustness import Aggregation, Hostile

ServerWeighting = Literal["n_weighted", "uniform"]
_MOST_STEPS = 1_000_000  # of one visit: more would take years, and memory for the draws of each step


class LocalTraining(FederatedNet):
    """The part of a federated method that runs at a client.

    Args:
        net: the network, or a function that builds it from ``(input_shape, num_classes)`` of the data.
        loss: the loss that clients minimise, from :mod:`fl_lightning.losses`, or torch's ``CrossEntropyLoss``, ``NLLLoss``,
            ``BCEWithLogitsLoss``, ``MSELoss``, ``L1Loss``, ``SmoothL1Loss`` or ``HuberLoss``.
        optimizer: builds the clients' optimizer, or its name, such as ``Adam``; fresh state at every visit.
        local_steps: local steps of a visit.
        local_epochs: passes over the client's shard instead of ``local_steps``; by default one epoch.
        learning_rate_decay: factor on the clients' rate from one round to the next.
        client_lr_scheduler: builds a schedule of torch for the clients' rate, such as ``CosineAnnealingLR``, or ``OneCycleLR``
            with ``max_lr`` 1 for warm-up, stepped once a round from a factor of 1; its factor is that of all clients.
        visit_lr_scheduler: builds a schedule of torch for the clients' rate within a visit, stepped once a local step from a
            factor of 1. It starts over in every visit, and multiplies the rate of the round. Only the rate of both schedules is
            used: ``OneCycleLR`` does not change the optimizer's momentum.
        micro_batch_size: samples of one backward pass; a local step accumulates the gradients of its batch from such parts, in
            less memory. By default the whole batch. BatchNorm's statistics are those of the parts.
        server_weighting: ``n_weighted`` weights clients by their training samples, ``uniform`` equally.
        clip_local_gradients: largest norm of a local step's gradient; by default unlimited.
        batch_norm_buffers: how BatchNorm running statistics are handled: ``averaged`` with the weights; ``local``, they stay
            with their clients, and the global model keeps the initial ones; ``reset``, every visit starts with those of a
            new layer, and they are averaged. A layer with only frozen weights keeps the initial ones, in evaluation mode.
        seed: seed of initial weights and of layers that draw; ``seed_everything`` on the command line.
        aggregation: rule that combines clients' weights instead of their mean, such as :class:`fl_lightning.robustness.Krum`;
            the server then holds the weights of a whole cohort.
        hostile: makes some clients hostile, such as :class:`fl_lightning.robustness.SignFlip`; by default none is.
        tasks: learner of the tasks of ``data.tasks``, such as ``EWC()`` of :mod:`fl_lightning.tasks`; by default none.
        adapter: small trained layers next to the frozen ones, such as :class:`fl_lightning.models.LoRA`.
        trained: name patterns (``fnmatch``) of the weights that are trained, such as ``[classifier.*]``; all others are frozen.
            By default, without an adapter, those that the net leaves trainable; with one, its layers and ``classifier``, unless
            that shares a weight with an embedding.
        personal: name patterns of weights and buffers that stay with the client; by default those of the method.
        class_layer: name of the layer that gives the net's outputs, such as ``head.fc``, for methods and callbacks that need
            its inputs, the features; by default it is found by names such as ``head`` and ``fc``. In name patterns
            ``classifier.*`` are its weights, whatever its name is.

    Raises:
        ValueError: if a value is out of range, or ``tasks`` does not combine with the method.
    """

    fine_tuned: Sequence[str] = ()
    """Name patterns (``fnmatch``) of weights that clients train too before they use the global model, without keeping it; by
    default they use it as it is."""

    needs: Needs = Needs()
    """What the method needs of the engine and the data; of a class, or of an object where its arguments decide."""

    unprotected: Sequence[str] = ()
    """What leaves clients without DP-SGD's noise, in addition to the label counts of the loss; of a class, or of an object."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if isinstance(own := vars(cls).get("needs"), Mapping | Collection) and not isinstance(own, Needs):
            raise TypeError(
                f"{cls.__name__}.needs is {own!r}, must be Needs, as in needs = fl_lightning.Needs(client_weights=True)"
            )
        if "needs" not in vars(cls):
            cls.needs = reduce(Needs.__or__, (base.needs for base in cls.__bases__ if issubclass(base, LocalTraining)))
        if "__init__" in vars(cls):
            follow_keywords(cls.__init__)

    def __init__(
        self,
        net: Net,
        loss: Loss | TorchLosses = CrossEntropy(),
        optimizer: OptimizerBuilder = lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        local_steps: int | None = None,
        local_epochs: int | None = None,
        learning_rate_decay: float = 1.0,
        client_lr_scheduler: ScheduleBuilder | None = None,
        visit_lr_scheduler: ScheduleBuilder | None = None,
        micro_batch_size: int | None = None,
        server_weighting: ServerWeighting = "n_weighted",
        clip_local_gradients: float | None = None,
        batch_norm_buffers: BatchNormBuffers = "averaged",
        seed: int = 0,
        aggregation: Aggregation | None = None,
        hostile: Hostile | None = None,
        tasks: Learner | None = None,
        adapter: Adapter | None = None,
        trained: Sequence[str] | None = None,
        personal: Sequence[str] | None = None,
        class_layer: str | None = None,
    ) -> None:
        super().__init__(net, batch_norm_buffers, seed, adapter, trained, personal, class_layer)
        self.loss, self.optimizer = as_loss(loss), fused(optimizer_builder("model.optimizer", optimizer))
        self.local_steps, self.local_epochs, self.server_weighting = local_steps, local_epochs, server_weighting
        self.learning_rate_decay, self.clip_local_gradients = learning_rate_decay, clip_local_gradients
        self.client_lr_scheduler, self.rate_factors = client_lr_scheduler, None
        if client_lr_scheduler is not None:
            self.rate_factors = RateFactors("model.client_lr_scheduler", client_lr_scheduler)
        self.micro_batch_size = micro_batch_size
        self.visit_lr_scheduler, self.step_factors = visit_lr_scheduler, None
        if visit_lr_scheduler is not None:
            self.step_factors = RateFactors("model.visit_lr_scheduler", visit_lr_scheduler, "local step")
        self.round = 0  # the present one
        self.present_cohort: list[Visit] = []  # until the next round; an engine takes those out that are late
        self.federation: Site | None = None  # none where trained weights are used elsewhere
        self.aggregation, self.hostile = aggregation, hostile
        _check_settings(self)
        if tasks is not None and not isinstance(tasks, Learner):
            raise TypeError(f"model.tasks is {tasks!r}, must be a learner of tasks, such as fl_lightning.tasks.EWC()")
        self.tasks = Learner() if tasks is None else tasks
        self.tasks.belong_to(self)
        if overridden(self.tasks, Learner.client_gradients) and replaces(type(self), LocalTraining.client_gradients):
            raise ValueError(
                f"model.tasks is {type(self.tasks).__name__}, but {type(self).__name__}.client_gradients does not call "
                "super().client_gradients, in which it follows the gradients: call it first, or use a method such as FedAvg"
            )
        if aggregation is not None and overridden(self.tasks, Learner.upload):
            raise ValueError(
                f"model.aggregation is {type(aggregation).__name__}, but {type(self.tasks).__name__} in model.tasks also sends "
                "what it does not protect: use a learner that sends nothing of its own, such as LwF or EWC"
            )
        separate = aggregation is not None or (hostile is not None and hostile.corrupts_uploads)
        if separate and self.needs.each_upload:
            name = "aggregation" if aggregation is not None else "hostile"
            raise ValueError(
                f"model.{name} is {type(getattr(self, name)).__name__}, but {type(self).__name__} reads the weights that each "
                "client sends, which it does not change: use a method that needs only their mean, such as FedAvg"
            )
        self.needs = self.needs | self.tasks.needs | Needs(each_upload=separate)
        if micro_batch_size is not None:
            _check_micro_batches(self)

    # Hooks of a visit, in their order -------------------------------------------------------------------------------

    def client_start(self, net: nn.Module, client: Client) -> dict[str, Any]:
        """Prepare a client's fit; ``net`` holds the received weights. The result is ``client.carry``, constant in the fit."""
        return {}

    def client_learning_rate(self, round: int, client: int) -> float:
        """Factor on the local optimizer's rate; by default ``learning_rate_decay`` to the power of the rounds before, times
        that of ``client_lr_scheduler``."""
        decayed = self.learning_rate_decay ** (round - 1)
        return decayed if self.rate_factors is None else decayed * self.rate_factors(round)

    def resting(self, client: int, step: int) -> Collection[str]:
        """Names of the weights that a local step, counted from 0, does not change, nor the optimizer's state for them.

        For visits in phases. The result can depend on the client's index and the number of the step.
        """
        return ()

    def client_loss(self, net: nn.Module, batch: Batch, client: Client) -> Tensor:
        """One value per sample, (B,); the engine takes the mean over the batch."""
        return self.tasks.client_loss(net, batch, client)

    def client_penalty(self, net: nn.Module, client: Client) -> Tensor | float:
        """A scalar that depends on no data, added to the mean loss once a step."""
        return 0.0

    def client_gradients(self, net: nn.Module, batch: Batch, client: Client) -> tuple[Sequence[Tensor], Tensor]:
        """Gradients of the mean loss plus the penalty by the trainable weights, in order, and the mean loss."""
        return self.tasks.client_gradients(net, batch, client)

    def client_step(self, net: nn.Module, batch: Batch, client: Client) -> Tensor:
        """One local step; returns the loss before it."""
        gradients, loss = _accumulated(self, net, batch, client)
        if self.clip_local_gradients is not None:
            named = dict(zip(self.trained_weights(net), gradients, strict=True))
            gradients = list(clipped(named, self.clip_local_gradients, client.resting).values())
        client.apply(gradients)
        return loss

    def client_result(self, net: nn.Module, client: Client) -> Upload:
        """A client's upload: the trained weights and the buffers, weighted by its training samples.

        The tensors are those of the net: the engine reduces them before the net is used again.
        """
        weight = self.update_weight(client)
        return {
            "weights": Weighted({k: v for k, v in self.trained_weights(net).items() if not self.is_personal(k)}, weight),
            "buffers": Weighted({k: v for k, v in kept_buffers(self, net).items() if not self.is_personal(k)}, weight),
        }

    def probe(self, net: nn.Module, client: Client) -> dict[str, Tensor]:
        """Values computed from a client's model before the net is reused; gathered for the server, never counted as bytes."""
        return {}

    def kept_state(self, client: Client, state: ClientState) -> ClientState:
        """The part of a client's state that it keeps after a visit: method state, weights, optimizer's moments and tasks."""
        return state

    # Of a client's model and samples --------------------------------------------------------------------------------

    def personal_model(self, shared: State, state: ClientState) -> State:
        """A client's personal model: weights and buffers by name; those that are missing are the shared ones.

        Args:
            shared: the newest global ones or, as a visit ends, those in the client's net.
            state: the client's state, empty before its first visit.
        """
        return {**shared, **state.weights}

    def newcomer_model(self, shared: State) -> State:
        """The model that a client fine-tunes if it joins after the last round; by default its personal model before any
        visit."""
        return self.personal_model(shared, ClientState())

    def pseudo_data(self, client: Client) -> State:
        """Samples that a client made to rehearse, ``inputs`` (M, ...) and soft ``labels`` (M, C), for methods that make
        some."""
        return {}

    @property
    def released_without_noise(self) -> tuple[str, ...]:
        """What else depends on clients' samples in a round; only the gradients of ``client_loss`` get DP-SGD's noise."""
        of_loss = ("the label counts in the loss",) if self.loss.uses_label_counts else ()
        return tuple(dict.fromkeys((*of_loss, *self.tasks.unprotected, *self.unprotected)))

    def observed_change(self, upload: Upload, client: Client) -> State:
        """The change of a client's trained weights from those it received, as the server can compute it from the upload."""
        sent, trained = upload["weights"].tensors, self.trained_weights(self.net)
        return {name: client.received_state[name] - sent[name].detach() for name in trained if name in sent}

    # How much a client does -----------------------------------------------------------------------------------------

    def update_weight(self, client: Client) -> float:
        """A client's weight in the mean over clients, at least 0; a round in which all weigh 0 is lost."""
        return float(client.num_train) if self.server_weighting == "n_weighted" else 1.0

    def num_local_steps(self, client: int) -> int:
        """Local steps of a visit."""
        if self.local_steps is not None:
            return self.local_steps
        return (self.local_epochs or 1) * self.data.steps_per_epoch(client)

    def expected_work(self, client: int) -> float:
        """Samples that a visit processes; clients are split among processes by this number."""
        return self.num_local_steps(client) * self.data.num_train(client) / self.data.steps_per_epoch(client)

    # What hooks ask for ---------------------------------------------------------------------------------------------

    @property
    def data(self) -> Federation:
        """The federation.

        Raises:
            ValueError: if it is not known yet.
        """
        return joined(self)

    def gradients_of_model(self, model: State, net: nn.Module, batch: Batch, client: Client) -> tuple[State, Tensor]:
        """Gradients of the mean of ``client_loss`` at another model, by the names of its weights, and that mean.

        The penalty of the learner of tasks at that model is part of them, ``client_penalty`` is not. Under DP-SGD the gradients
        of the loss are clipped per sample, with noise.

        Args:
            model: trained weights and buffers by name, as in ``client.state``; running statistics in it are updated instead of
                the net's. Missing names are taken from the net.
        """
        weights, present = self.trained_weights(net), dict(net.named_buffers())
        buffers = {name: tensor for name, tensor in model.items() if name in present}
        at = [model.get(name, weight) for name, weight in weights.items()]
        losses, penalty = partial(self.client_loss, net, batch, client), partial(self.tasks.client_penalty, net, client)
        gradients, loss = client.estimate(net, batch, client, losses, penalty, at=at, buffers=buffers or None)
        model |= buffers
        return dict(zip(weights, gradients, strict=True)), loss

    def total_penalty(self, net: nn.Module, client: Client) -> Tensor | float:
        """``client_penalty``, and that of the learner of tasks."""
        penalty, of_tasks = (_checked_penalty(of, of.client_penalty(net, client)) for of in (self, self.tasks))
        return penalty + of_tasks if isinstance(of_tasks, Tensor) else penalty

    def is_personal(self, name: str) -> bool:
        return super().is_personal(name) or self.tasks.is_personal(name)


class FederatedAlgorithm(LocalTraining):
    """A federated method. With its defaults it is FedAvg (McMahan et al., AISTATS 2017, arXiv 1602.05629).

    The arguments are those of :class:`LocalTraining`.
    """

    server_zeros: Sequence[str] = ()
    """Kinds of the server's state, ``self.server_states``, that begin as a zero for each weight that is trained and shared."""

    begins_run = True
    """Whether the server's states begin anew, as for a fit, or stay, as where a trained net is evaluated."""

    # Before the first round -----------------------------------------------------------------------------------------

    def join(self, federation: Site) -> None:
        """Join a federation or a site without a trainer: build the net for its data, and check that they fit.

        Raises:
            ValueError: if they do not fit, or the federation lacks public samples or tasks that the method needs.
        """
        of_data = {
            "public": self.needs.data.public_samples,
            "tasks": self.needs.data.task_streams or self.needs.data.arriving_classes,
        }
        for part, is_needed in of_data.items():
            if is_needed and not hasattr(federation, part):
                raise ValueError(
                    f"{type(self).__name__} needs {part}, which {type(federation).__name__} does not have: join a "
                    "FederatedDataModule, or use another method"
                )
        self.federation = federation
        self.configure_model()
        self.check_data()

    def configure_model(self) -> None:
        """Build the net from the data's shape and classes, with initial weights from the seed."""
        if isinstance(self.net, UnbuiltNet):
            if self.federation is None:
                raise ValueError("net is built from the data, and there is none here: give the built net instead")
            self.make_net(self.data.input_shape, objective_of(self.data).num_outputs(len(self.data.classes)))
        if not self.trained_names:
            with seeded_layers(self.seed, -1, -1, "adapted weights", torch.get_default_device()):
                freeze_net(self)
                self.adapt_net()
                self.tasks.adapt_net(self.net)
        self.settle_net(self.tasks.is_drawn_anew)
        if self.personal and not self.needs.data.task_streams:
            _check_personal(self)
        if self.needs.initial_model:
            keep_initial_model(self, anew=self.begins_run)
        self.tasks.configure()
        for kind in self.server_zeros:
            if self.begins_run or kind not in self.server_states:
                self.server_states.add(kind, shared_zeros(self))
        if self.federation is not None:
            self.loss = objective_of(self.federation).loss_for(self.loss)

    def adapt_net(self) -> None:
        """Change the net once it is built, before it is used."""

    def begin_with(self, stored: State) -> State:
        """Initial weights of the net, by name, if a run takes over the global net of a checkpoint; by default that net.

        A method with an :meth:`adapt_net` that adds to the net sets the initial weights of the addition here.
        """
        return stored

    def check_data(self) -> None:
        """Refuse by name, before the first round, data that the method cannot use.

        Raises:
            ValueError: with the cure.
        """
        self.tasks.check_data()
        if self.needs.data.public_samples and not self.has_global_model:
            raise ValueError(
                f"model is {type(self).__name__}, which trains the whole net at the server, but parts of it stay with clients: "
                "leave out model.personal, and set model.batch_norm_buffers to averaged"
            )

    # Hooks of the server, in the order of a round -------------------------------------------------------------------

    def begin_round(self, round: int) -> list[Visit]:
        """Begin a round (counted from 1); returns its cohort."""
        self.round = round
        self.tasks.begin_round(round)
        self.start_round(round)
        self.present_cohort = drawn_visits(self, round)
        return self.present_cohort

    def start_round(self, round: int) -> None:
        """Work at the server before a round (counted from 1), after that of the learner of tasks.

        Unlike :meth:`after_server_step` it runs after the evaluation of the previous round. It can move the net for the round:
        the learner of tasks has already kept the global model of a task that is over, and drawn new rows of the head.
        """

    def cohort(self, round: int) -> list[Visit]:
        """The cohort of a round (counted from 1); by default the data module's sample, all receive and send."""
        return [Visit(client) for client in self.sampled_clients(round)]

    def broadcast(self, client: int) -> dict[str, Any]:
        """Tensors sent down to a client in addition to the weights, by name or by group and name.

        Counted as bytes, read as ``client.broadcast``.
        """
        return {}

    def aggregate(self, reduced: Reduction) -> Update:
        """The server's update from the clients' weighted means."""
        weights = {name: weight.detach() for name, weight in self.net.named_parameters()}
        gradient = less_mean(weights, reduced.mean("weights"))
        return Update(gradient, reduced.mean("buffers"))

    def server_step(self, update: Update | None) -> None:
        """Step the server's optimizer with the pseudo-gradient and take over the buffers.

        None is a round without a finite update: the step counts, without gradients, and nothing moves. An undone round calls
        this hook a second time, with None.
        """
        gradients = update.pseudo_gradient if update is not None else {}
        for name, parameter in self.net.named_parameters():
            gradient = gradients.get(name)
            parameter.grad = None if gradient is None else gradient.to(parameter.dtype)
        self.step_server_optimizer()
        buffers = dict(self.net.named_buffers())
        for name, mean in (update.buffers if update is not None else {}).items():
            buffers[name].copy_(cast_mean(mean, buffers[name].dtype))

    @torch.no_grad()
    def step_server_optimizer(self) -> None:
        """Move the global weights along ``.grad``; by default by all of it, which is FedAvg."""
        for weight in self.net.parameters():
            if weight.grad is not None:
                weight.sub_(weight.grad)

    def after_server_step(self, probes: list[dict[str, Tensor]]) -> None:
        """Work at the server after the global weights are updated; ``probes`` in the order of the cohort."""

    def after_undo(self) -> None:
        """Restore state of the server outside of weights, buffers and its optimizer, which are already restored."""

    # What hooks and evaluation ask for ------------------------------------------------------------------------------

    def sampled_clients(self, round: int) -> list[int]:
        """The clients that are drawn for a round (counted from 1), ascending."""
        there = self.tasks.num_there(round)
        return self.data.cohort(round) if there is None else joined(self).participation.among(there).cohort(round)

    @property
    def keeps_models(self) -> bool:
        """Whether clients keep personal models, or parts of one, that they use; models of task streams do not count."""
        keeps_some = self.needs.client_weights or bool(overridden(self, FederatedAlgorithm.personal_model))
        return not self.needs.data.task_streams and (keeps_some or not self.has_global_model)


def drawn_visits(method: FederatedAlgorithm, round: int) -> list[Visit]:
    """The visits of a round's cohort, as a method and its learner of tasks want them."""
    return method.tasks.visits(checked_cohort(method, round))


def checked_cohort(method: FederatedAlgorithm, round: int) -> list[Visit]:
    """What a method's ``cohort`` returned for a round.

    Raises:
        ArgumentError: if the method's hook gives anything else, a client twice, or a visit without a step.
    """
    visits = method.cohort(round)
    if not all(isinstance(visit, Visit) for visit in visits):
        raise ArgumentError(f"{type(method).__name__}.cohort", f"gives {visits!r}, must give visits: [Visit(client), ...]")
    if any(visit.num_steps is not None and visit.num_steps < 1 for visit in visits):
        raise ArgumentError(f"{type(method).__name__}.cohort", "gives a visit of fewer than 1 local step: leave its client out")
    if len({visit.client for visit in visits}) < len(visits):
        raise ArgumentError(f"{type(method).__name__}.cohort", f"has a client twice in round {round}: give each one visit")
    return visits


def who_draws(method: FederatedAlgorithm) -> str:
    """What decides who takes part in a round, for messages: an option of the data module, or a method's ``cohort``."""
    own = overridden(method, FederatedAlgorithm.cohort)
    return f"{type(method).__name__}.cohort" if own else joined(method).participation.said_by


def joined(method: LocalTraining) -> Any:
    """A method's federation.

    Raises:
        ValueError: if it is not known yet.
    """
    if method.federation is None:
        raise ValueError(f"{type(method).__name__} has no data yet: call join(federation), or fit it with a trainer")
    return method.federation


def _accumulated(method: LocalTraining, net: nn.Module, batch: Batch, client: Client) -> tuple[Sequence[Tensor], Tensor]:
    """Gradients and mean loss of a batch, from those of its parts, weighted by the samples that count."""
    size = method.micro_batch_size
    if size is None or len(batch.targets) <= size:
        return _checked_gradients(method, method.client_gradients(net, batch, client))
    sums: list[Tensor] = []
    for part in batch.split(size):
        gradients, loss = _checked_gradients(method, method.client_gradients(net, part, client))
        terms = [*gradients, loss]
        if isinstance(part.num_samples, Tensor):  # the mean over a part without samples that count is NaN
            terms = [torch.where(part.num_samples > 0, term, 0) for term in terms]
        terms = [term * (part.num_samples / batch.num_samples) for term in terms]
        sums = [total + term for total, term in zip(sums, terms, strict=True)] if sums else terms
    *gradients, loss = sums
    return gradients, loss


def _checked_gradients(method: LocalTraining, result: Any) -> tuple[Sequence[Tensor], Tensor]:
    """What ``client_gradients`` returned.

    Raises:
        ArgumentError: if it is not a gradient for each trained weight, and the loss.
    """
    hook, number = f"{type(method).__name__}.client_gradients", len(method.trained_names)
    if not isinstance(result, tuple) or len(result) != 2:
        raise ArgumentError(hook, "must return the gradients, in the order of the weights, and the loss")
    gradients, loss = result
    if not isinstance(gradients, Sequence):
        raise ArgumentError(hook, f"returns gradients in a {type(gradients).__name__}, must return a list of {number}")
    if len(gradients) != number:
        raise ArgumentError(
            hook, f"returns {counted(len(gradients), 'gradient')}, must return {number}: one for each trained weight"
        )
    return gradients, loss


def _checked_penalty(of: LocalTraining | Learner, penalty: Any) -> Tensor | float:
    """What ``client_penalty`` of a method or a learner of tasks returned.

    Raises:
        ArgumentError: if it can have no gradient: anything but a tensor, or 0.
    """
    # torch.compile 2.8 cannot follow isinstance with int | float.
    if isinstance(penalty, Tensor) or (type(penalty) in (int, float) and penalty == 0):
        return penalty
    problem = f"returns {kind_of(penalty)}, must return a tensor of the weights, or 0"
    raise ArgumentError(f"{type(of).__name__}.client_penalty", problem)


def _check_micro_batches(method: LocalTraining) -> None:
    """Refuse what does more with a batch than take its mean gradient."""
    check_whole("model.micro_batch_size", method.micro_batch_size, at_least=1)
    own_steps = overridden(method, LocalTraining.client_step) or overridden(method.tasks, Learner.client_gradients)
    if own_steps or method.needs.other_samples or method.needs.two_gradients:
        whose = type(method.tasks if method.tasks.needs != Needs() else method).__name__
        raise ValueError(
            f"model.micro_batch_size is {method.micro_batch_size}, but {whose} needs whole batches: leave it out, and lower "
            "data.batch_size"
        )


def objective_of(federation: Site) -> Objective:
    """What the targets of a federation mean; of one that does not say, each sample's class."""
    return getattr(federation, "objective", SingleLabel())


def _check_settings(method: LocalTraining) -> None:
    if method.local_steps is not None and method.local_epochs is not None:
        raise ValueError(
            f"model.local_steps is {method.local_steps} and model.local_epochs is {method.local_epochs}: "
            "give one and set the other to null"
        )
    check_whole("model.seed", method.seed)
    for name in ("local_steps", "local_epochs"):
        value = getattr(method, name)
        if value is not None:
            check_whole(f"model.{name}", value, at_least=1)
            check_range(f"model.{name}", value, at_most=_MOST_STEPS)
    check_range("model.learning_rate_decay", method.learning_rate_decay, above=0, at_most=1, hint="1 means no decay")
    if method.clip_local_gradients is not None:
        check_range("model.clip_local_gradients", method.clip_local_gradients, above=0, hint="null means no limit")
    check_choice("model.server_weighting", method.server_weighting, ServerWeighting)
    for name, kind, such_as in (("aggregation", Aggregation, "Krum()"), ("hostile", Hostile, "SignFlip()")):
        if not isinstance(value := getattr(method, name), kind | None):
            raise ValueError(f"model.{name} is {value!r}, must be one of fl_lightning.robustness: such as {such_as}")
    if method.hostile is not None and not hasattr(method.hostile, "fraction"):
        raise ArgumentError(
            f"{type(method.hostile).__name__}.__init__", "does not call super().__init__(fraction): call it first"
        )


def _check_personal(method: LocalTraining) -> None:
    names = [name for name, _ in (*method.net.named_parameters(), *method.net.named_buffers())]
    check_patterns("model.personal", method.personal, names)
    changing = [name for name in names if name not in method.constant_names]
    for pattern in method.personal:
        if not any(fnmatch(name, pattern) for name in changing):
            raise ValueError(
                f"model.personal has {pattern!r}, which fits only frozen weights of model.net, the same at all clients: leave "
                "it out, or train them with model.trained"
            )
    if all(map(method.is_personal, global_tensors(method))):
        raise ValueError(
            f"model.personal is {list(method.personal)}, which leaves no weight of model.net to share: use "
            "fl_lightning.LocalOnly to train each client by itself"
        )
