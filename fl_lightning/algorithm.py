"""FederatedAlgorithm: what a federated method does in a round, whoever runs it.

The hooks stand in the order in which a round calls them; with their defaults they are FedAvg. Nothing here knows a trainer: an
engine runs clients through the hooks on any machine, and :class:`fl_lightning.FederatedModule` is this class with Lightning.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fl_lightning.checks import check_choice, check_range
from fl_lightning.exchange import (
    Batch,
    Client,
    ClientState,
    Federation,
    Needs,
    Reduction,
    Shown,
    Update,
    Upload,
    Visit,
    Weighted,
)
from fl_lightning.federated_net import INITIAL_MODEL, BatchNormBuffers, FederatedNet, Net
from fl_lightning.functional.aggregation import State, cast_mean, less_mean
from fl_lightning.hooks import overridden, refuse_former_hooks
from fl_lightning.losses import CrossEntropy, Loss, TorchLosses, as_loss
from fl_lightning.optimizers import OptimizerBuilder, fused, optimizer_builder
from fl_lightning.random_streams import seeded_layers

ServerWeighting = Literal["n_weighted", "uniform"]
_MOST_STEPS = 1_000_000  # of one visit: more would take years, and memory for the draws of each


class FederatedAlgorithm(FederatedNet, Shown):
    """A federated method. With its defaults it is FedAvg (McMahan et al., AISTATS 2017, arXiv 1602.05629).

    Args:
        net: the network, or what builds it from ``(input_shape, num_classes)`` of the data.
        loss: what clients minimise, from :mod:`fl_lightning.losses`, or torch's ``CrossEntropyLoss`` or ``NLLLoss``.
        optimizer: builds the clients' optimizer, or its name, such as ``Adam``; fresh state at every visit.
        local_steps: local steps of a visit.
        local_epochs: or passes over the client's shard; one of the two, by default one epoch.
        learning_rate_decay: factor on the clients' rate from one round to the next.
        server_weighting: ``n_weighted`` weights clients by their training samples, ``uniform`` equally.
        clip_local_gradients: largest norm of a local step's gradient; by default unlimited.
        batch_norm_buffers: what becomes of running statistics of BatchNorm: ``averaged`` with the weights; ``local``, they stay
            with their clients, and the global model keeps the initial ones; ``reset``, every visit starts from those, and they
            are averaged.
        seed: of initial weights and of layers that draw; ``seed_everything`` on the command line.

    Raises:
        ValueError: if a value is out of range.
    """

    fine_tuned: bool = False
    """Whether clients use the global model after some epochs on their samples, and keep nothing of them."""

    leaves_mean: bool = False
    """Of a class that overrides ``aggregate``: whether the mean of weights passes through it unchanged and unread. Clients of a
    combination may then send a part of their weights. Derived classes that override ``aggregate`` declare it again."""

    adds_to_gradients: bool = False
    """Of a class that overrides ``client_gradients``: whether it adds to what the default gives, and never calls the net. A
    combination may then complete the net in ``client_loss`` alone. Declared again like ``leaves_mean``."""

    needs: Needs = Needs()
    """What the method needs of the engine; of a class, or of an object whose arguments decide."""

    also_called: Mapping[str, str] = {}
    """Second names of arguments, for classes that are combined with one that has an argument of the first name."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        refuse_former_hooks(cls)
        if "aggregate" in vars(cls):
            cls.leaves_mean = vars(cls).get("leaves_mean", False)
        if "client_gradients" in vars(cls):
            cls.adds_to_gradients = vars(cls).get("adds_to_gradients", False)
        if "needs" not in vars(cls):
            cls.needs = reduce(Needs.__or__, (base.needs for base in cls.__bases__ if issubclass(base, FederatedAlgorithm)))

    def __init__(
        self,
        net: Net,
        loss: Loss | TorchLosses = CrossEntropy(),
        optimizer: OptimizerBuilder = lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        local_steps: int | None = None,
        local_epochs: int | None = None,
        learning_rate_decay: float = 1.0,
        server_weighting: ServerWeighting = "n_weighted",
        clip_local_gradients: float | None = None,
        batch_norm_buffers: BatchNormBuffers = "averaged",
        seed: int = 0,
    ) -> None:
        super().__init__(net, batch_norm_buffers, seed)
        self.loss, self.optimizer = as_loss(loss), optimizer_builder("model.optimizer", optimizer)
        self.local_steps, self.local_epochs, self.server_weighting = local_steps, local_epochs, server_weighting
        self.learning_rate_decay, self.clip_local_gradients = learning_rate_decay, clip_local_gradients
        self.round = 0
        self.present_cohort: list[Visit] = []
        self._federation: Federation | None = None
        self._check_settings()

    def _check_settings(self) -> None:
        if self.local_steps is not None and self.local_epochs is not None:
            raise ValueError(
                f"model.local_steps is {self.local_steps} and model.local_epochs is {self.local_epochs}: "
                "give one and set the other to null"
            )
        for name in ("local_steps", "local_epochs"):
            value = getattr(self, name)
            if value is not None:
                check_range(f"model.{name}", value, at_least=1)
                check_range(f"model.{name}", value, at_most=_MOST_STEPS)
        check_range("model.learning_rate_decay", self.learning_rate_decay, above=0, at_most=1, hint="1 is no decay")
        if self.clip_local_gradients is not None:
            check_range("model.clip_local_gradients", self.clip_local_gradients, above=0, hint="null is no limit")
        check_choice("model.server_weighting", self.server_weighting, ServerWeighting)

    # Before the first round -----------------------------------------------------------------------------------------

    def join(self, federation: Federation) -> None:
        """Take part in a federation without a trainer: build the net for its data, and check that they fit."""
        self._federation = federation
        self.configure_model()
        self.check_data()

    @property
    def data(self) -> Federation:
        """The federation.

        Raises:
            ValueError: if there is none yet.
        """
        if self._federation is None:
            raise ValueError(f"{type(self).__name__} has no data yet: call join(federation), or fit it with a trainer")
        return self._federation

    @property
    def has_data(self) -> bool:
        """Whether there is a federation, which there is not where trained weights are used elsewhere."""
        return self._federation is not None

    def configure_model(self) -> None:
        """Build the net from the data's shape and classes, with initial weights from the seed."""
        if not hasattr(self, "net"):
            if not self.has_data:
                raise ValueError("net is built from the data, and there is none here: give the built net instead")
            self.make_net(self.data.input_shape, len(self.data.classes))
        if not hasattr(self, "_trained_names"):
            with seeded_layers(self.seed, -1, -1, "adapted weights", torch.get_default_device()):
                self.adapt_net()
        self._note_trained_weights()
        if self.personal and not self.needs.task_streams:
            self._check_personal()
        if self.needs.initial_model and INITIAL_MODEL not in self.server_states:
            self.keep_initial_model()

    def check_data(self) -> None:
        """Refuse by name data that the method cannot do with, before the first round.

        Raises:
            ValueError: with the cure.
        """

    def begin_round(self, round: int) -> list[Visit]:
        """Begin a round (counted from 1); returns its cohort.

        It is kept in ``present_cohort`` until the next round, as :meth:`cohort` may say otherwise after the server's step.
        """
        self.round = round
        self.start_round(round)
        self.present_cohort = self.cohort(round)
        return self.present_cohort

    # Hooks, in the order of a round ---------------------------------------------------------------------------------

    def adapt_net(self) -> None:
        """Change the net once it is built, before anything is made of it."""

    def begin_with(self, stored: State) -> State:
        """What the net begins with where a run takes over the global net of a checkpoint, by name; by default that net.

        A method whose :meth:`adapt_net` adds to the net says here what the addition begins with.
        """
        return stored

    def start_round(self, round: int) -> None:
        """Work at the server before a round (counted from 1), such as where one task has ended and the next one begins.

        Unlike :meth:`after_server_step` it comes after the evaluation of the round before.
        """

    def cohort(self, round: int) -> list[Visit]:
        """Who takes part in a round (counted from 1); by default the data module's sample, all receive and send."""
        return [Visit(client) for client in self.sampled_clients(round)]

    def broadcast(self, client: int) -> dict[str, Any]:
        """What goes down to a client in addition to the weights, tensors by name or by group and name.

        Counted as bytes, read as ``client.broadcast``.
        """
        return {}

    def client_start(self, net: nn.Module, client: Client) -> dict[str, Any]:
        """Prepare a client's fit; ``net`` holds the received weights. The result is ``client.carry``, constant in the fit."""
        return {}

    def client_learning_rate(self, round: int, client: int) -> float:
        """Factor on the local optimizer's rate; by default ``learning_rate_decay`` to the power of the rounds before."""
        return self.learning_rate_decay ** (round - 1)

    def resting(self, client: int, step: int) -> Collection[str]:
        """Names of the weights that a local step, counted from 0, leaves as they are, and what the optimizer knows of them.

        For visits in phases. The step may go by what is known before it: the client's index and the number of the step.
        """
        return ()

    def client_loss(self, net: nn.Module, batch: Batch, client: Client) -> Tensor:
        """One value a sample, (B,); the mean over the batch is not a method's business."""
        return self.logits_loss(net(batch.inputs), batch.targets, client.label_counts)

    def client_penalty(self, net: nn.Module, client: Client) -> Tensor | float:
        """A scalar that depends on no data, added to the mean loss once a step."""
        return 0.0

    def client_gradients(self, net: nn.Module, batch: Batch, client: Client) -> tuple[Sequence[Tensor], Tensor]:
        """Gradients of the mean loss plus the penalty by the trainable weights, in order, and the mean loss."""
        return client.estimate(
            net, batch, client, lambda: self.client_loss(net, batch, client), lambda: self.client_penalty(net, client)
        )

    def client_step(self, net: nn.Module, batch: Batch, client: Client) -> Tensor:
        """One local step; returns the loss before it."""
        gradients, loss = self.client_gradients(net, batch, client)
        if self.clip_local_gradients is not None:
            named = zip(self.trained_weights(net), gradients, strict=True)
            norm = torch.stack([gradient.norm() for name, gradient in named if name not in client.resting]).norm()
            factor = (self.clip_local_gradients / (norm + 1e-6)).clamp_max(1.0)
            gradients = [gradient * factor for gradient in gradients]
        client.apply(gradients)
        return loss

    def client_result(self, net: nn.Module, client: Client) -> Upload:
        """What a client sends: the weights that are trained and buffers, weighted by its training samples.

        The tensors are those of the net: the engine reduces them before the net is used again.
        """
        weight = self.update_weight(client)
        return {
            "weights": Weighted({k: v for k, v in self.trained_weights(net).items() if not self.is_personal(k)}, weight),
            "buffers": Weighted({k: v for k, v in net.named_buffers() if not self.is_personal(k)}, weight),
        }

    def probe(self, net: nn.Module, client: Client) -> dict[str, Tensor]:
        """What is read off a client's model before the net is reused; gathered for the server, never counted as bytes."""
        return {}

    def kept_state(self, client: Client, state: ClientState) -> ClientState:
        """What stays with a client after a visit, of ``client.state``, its weights, its optimizer's moments and its tasks."""
        return state

    def aggregate(self, reduced: Reduction) -> Update:
        """From the clients' weighted means to what the server does."""
        weights = {name: weight.detach() for name, weight in self.net.named_parameters()}
        gradient = less_mean(weights, reduced.mean("weights"))
        return Update(gradient, reduced.mean("buffers"))

    def server_step(self, update: Update | None) -> None:
        """Step the server's optimizer with the pseudo-gradient and take over the buffers.

        None, a round without a finite update, steps without gradients: it counts, and nothing moves. A round that is undone
        comes here a second time, with None.
        """
        gradients = update.pseudo_gradient if update is not None else {}
        for name, parameter in self.net.named_parameters():
            parameter.grad = gradients.get(name)
        self.step_server_optimizer()
        buffers = dict(self.net.named_buffers())
        for name, mean in (update.buffers if update is not None else {}).items():
            buffers[name].copy_(cast_mean(mean, buffers[name].dtype))

    @torch.no_grad()
    def step_server_optimizer(self) -> None:
        """Move the global weights along ``.grad``: here by all of it, which is FedAvg."""
        for weight in self.net.parameters():
            if weight.grad is not None:
                weight.sub_(weight.grad)

    def after_server_step(self, probes: list[dict[str, Tensor]]) -> None:
        """Work at the server once the new global weights stand; ``probes`` in the order of the cohort."""

    def after_undo(self) -> None:
        """Put back what the server holds outside of weights, buffers and its optimizer, which are as before the round again."""

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to learn, which ends a fit before its last round."""
        return False

    # What hooks ask for ---------------------------------------------------------------------------------------------

    def sampled_clients(self, round: int) -> list[int]:
        """The clients that are drawn for a round (counted from 1), ascending."""
        return self.data.cohort(round)

    def logits_loss(self, logits: Tensor, targets: Tensor, label_counts: Tensor) -> Tensor:
        """The loss of what a net says of samples, one value each, (B,).

        Args:
            logits: (B, C).
            targets: (B,).
            label_counts: (C,), of all that the client has.
        """
        return self.loss(logits, targets, label_counts)

    def loss_gradients(
        self, net: nn.Module, batch: Batch, client: Client, at: Sequence[Tensor] | None = None, buffers: State | None = None
    ) -> tuple[Sequence[Tensor], Tensor]:
        """Gradients of the mean of ``client_loss`` alone, and that mean; under DP-SGD clipped sample by sample, with noise.

        Args:
            at: trainable weights to take them at, in order; None: the net's.
            buffers: that the net holds meanwhile, by name; the dict has what became of them afterwards. None: the net's.
        """
        return client.estimate(net, batch, client, lambda: self.client_loss(net, batch, client), at=at, buffers=buffers)

    def gradients_of_model(self, model: State, net: nn.Module, batch: Batch, client: Client) -> tuple[State, Tensor]:
        """Likewise of a second model: gradients by the names of its weights, and the mean loss.

        Args:
            model: trained weights and buffers by name, as in ``client.state``; running statistics in it move on, in the place
                of the net's. Names that are missing are the net's.
        """
        weights, present = self.trained_weights(net), dict(net.named_buffers())
        buffers = {name: tensor for name, tensor in model.items() if name in present}
        at = [model.get(name, weight) for name, weight in weights.items()]
        gradients, loss = self.loss_gradients(net, batch, client, at, buffers or None)
        model |= buffers
        return dict(zip(weights, gradients, strict=True)), loss

    # What engines ask for -------------------------------------------------------------------------------------------

    def update_weight(self, client: Client) -> float:
        """A client's weight in the mean over clients, at least 0; a round in which all weigh 0 is lost."""
        return float(client.num_train) if self.server_weighting == "n_weighted" else 1.0

    def local_optimizer(self, parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
        """A client's optimizer over its trainable weights; fused where torch has that and nothing else was asked for."""
        return fused(self.optimizer(parameters))

    def num_local_steps(self, client: int) -> int:
        """Local steps of a visit."""
        if self.local_steps is not None:
            return self.local_steps
        return (self.local_epochs or 1) * self.data.steps_per_epoch(client)

    def expected_work(self, client: int) -> float:
        """Samples that a visit goes through, by which clients are split among processes."""
        return self.num_local_steps(client) * self.data.num_train(client) / self.data.steps_per_epoch(client)

    # What evaluation asks for ---------------------------------------------------------------------------------------

    @property
    def keeps_models(self) -> bool:
        """Whether clients use personal models, or parts of one, that they keep; those of task streams are not meant."""
        keeps_some = self.needs.client_weights or bool(overridden(self, FederatedAlgorithm.personal_model))
        return not self.needs.task_streams and (keeps_some or not self.has_global_model)

    def personal_model(self, shared: State, state: ClientState) -> State:
        """A client's personal model: weights and buffers by name; those that are missing are the shared ones.

        Args:
            shared: the newest global ones or, as a visit ends, those in the client's net.
            state: what the client keeps: nothing before its first visit, when its model is the global one.
        """
        return {**shared, **state.weights}

    # What defences and attacks ask for ------------------------------------------------------------------------------

    @property
    def released_without_noise(self) -> tuple[str, ...]:
        """What of clients' samples enters a round in addition to the gradients of ``client_loss``, which get DP-SGD's noise."""
        return ("the label counts in the loss",) if self.loss.uses_label_counts else ()

    def observed_change(self, upload: Upload, client: Client) -> State:
        """How far a client's trained weights moved from those it received, as the server can tell from its upload."""
        sent, trained = upload["weights"].tensors, self.trained_weights(self.net)
        return {name: client.received_state[name] - sent[name].detach() for name in trained if name in sent}
