"""LANDER: embeddings of class names anchor the features, and the server synthesises images from them.

M.-T. Tran, T. Le, X.-M. Le, M. Harandi, D. Phung: Text-Enhanced Data-free Approach for Federated Class-Incremental Learning.
CVPR 2024. arXiv 2403.14101. We could read only the abstract of the paper; everything else follows the authors' code for
CIFAR-100. The code does not say which text model produced its embeddings. Departures:

- The bound is on the mean over a batch, as in the code; the abstract speaks of embeddings, within a radius each.
- The server compares rounds by the mean loss of a local step. The code compares sums over steps and clients, which are lowest
  where the fewest samples are. With the same clients and steps in every round both have the same order.
- The code stores images from the last round of the warm-up on, 10,496, and uses the first 10,000 by the names of their files.
  Here the 10,240 images of the rounds after it are used. The boundary term begins with them; in the code the student has
  learned for three rounds before.
- Synthesised images are augmented as the data are. The code jitters the brightness of real images, but not of synthesised ones.
- Images are rounded to 8 bits, where the code cuts the fraction off.
- The net and the clients' optimizer are those of the method, with a constant rate by default. The code has ResNet-18 and a rate
  that falls by cosine from .04 to .001 within each task.
- The metrics of a task's last round are those of the chosen model, as it replaces the newest before the evaluation. State of
  the server, as in FedDyn, SCAFFOLD and FedACG, stays that of the newest model.
- Images and teacher are sent in every round, as clients keep nothing. Clients have the file of embeddings.
"""

import math
from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from fl_lightning.checks import check_range
from fl_lightning.functional import anchor_loss, soft_cross_entropy
from fl_lightning.functional.generator_losses import Boundary
from fl_lightning.functional.stateless import tensors_of
from fl_lightning.functional.transfers import filled, on_device
from fl_lightning.models.network import classifier_of
from fl_lightning.protocol import Batch, Client, Reduction, State, Upload, Weighted
from fl_lightning.protocol.client import Gradients
from fl_lightning.run.refused_data import check_gives_outputs
from fl_lightning.tasks.classes.anchored_synthesis import AnchoredSynthesis
from fl_lightning.tasks.classes.embeddings import ClassEmbeddings
from fl_lightning.tasks.classes.learner import ClassArguments, frozen_copy
from fl_lightning.tasks.classes.projection import add_projection, projected, projection_tensors
from fl_lightning.tasks.classes.synthesis import SynthesisPlan, SynthesisTask
from fl_lightning.tasks.classes.synthesising import SynthesisingLearner

_LOSS = "first_epoch_loss"  # of an upload, and of a client's state and carry during its visit


class LANDER(SynthesisingLearner):
    """In the first task ``C + l L_ltc``, then ``a (C + l L_ltc) + b (-sum_{c<o} p_c log q_c + MSE(h, h'))``.

    C is the loss on real samples, and ``L_ltc = max(0, MSE(h(x), e_y) - r)``, where h is a trained linear layer from the net's
    features to the embeddings e of class names. The terms in b are on synthesised images; p, at temperature T_d, and h' are of
    the global model at the end of the previous task. With o old classes of C_t seen, ``u = log2(C_t / 2 + 1)`` and
    ``v = sqrt(o / C_t)``, ``a = present (1 + 1/u) / v`` and ``b = distillation u v``.

    No sample is kept. A task ends with the model that the server sent in the round in which clients' losses were lowest: the
    mean over the steps of their first epochs, each step of each client counted once. Then the server trains a new generator of
    images from embeddings, and a new student, against this model, the teacher:

    - The generator's loss is ``w_bn L_bn + w_ce CE(z, y) + w_adv L_adv + l L_ltc``, with the logits z and h of the teacher. The
      first three terms are TARGET's. Its linear layers are drawn anew in each round of synthesis. The mean and the standard
      deviation that normalise its images are trained with it.
    - The student's loss is ``T^2 KL(p || q) + l MSE(h, h')`` on the images stored so far, with q and h of the student, p and h'
      of the teacher. It begins to learn at the end of the first round with ``L_adv``, so it is untrained in that round.

    Args:
        embeddings: path of a ``.npz`` file with ``classes``, names, and ``embeddings``, a row of numbers for each. They should
            be of a text model, with distances that suit ``radius``: between two classes of the authors' file for CIFAR-100,
            512 numbers each, the mean squared difference is .08.
        distillation: alpha_pre, at least 0; with 0 nothing is synthesised, and b is 0.
        present: alpha_cur, above 0.
        anchor_weight: l, lambda_ltc, of clients, generator and student, at least 0.
        radius: r, at least 0.
        temperature: T_d, above 0.
        generated: synthesised images in a local step, at least 1.
        warm_up: rounds of synthesis before the student learns, at least 0.
        kept_rounds: rounds after them, whose images are stored, at least 1.
        synthesis_batch: images in a round, at least 2.
        generator_steps: steps of a round, at least 1.
        generator_rate: learning rate of these steps, above 0.
        class_weight, statistics_weight, boundary_weight: w_ce, w_bn and w_adv, at least 0.
        boundary: as for :class:`TARGET`.
        student_steps: steps of the student in a round, at least 1.
        student_rate: its learning rate, above 0. The code's .1 is for nets with BatchNorm; others need a lower one.
        student_temperature: T, of its distillation, above 0.
        rounds_per_task: R, rounds after which a task is over, at least 2: the model that the last one makes is not chosen.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a value is out of range, the file lacks a class of the data, the data are not images, or the net changes
            the outputs of its class layer.
        FloatingPointError: at the end of a task, if the synthesis is not finite.
    """

    embeddings: Tensor
    """(C, width), of the classes in their order of arrival. A run is resumed only with the same numbers, from any file."""
    lowest_loss: Tensor
    """A scalar, the mean loss of a local step in the best round of this task."""
    measured_rounds: Tensor
    """A scalar, the rounds of this task with a loss so far."""

    def __init__(
        self,
        embeddings: str,
        distillation: float = 0.4,
        present: float = 0.2,
        anchor_weight: float = 5.0,
        radius: float = 0.015,
        temperature: float = 2.0,
        generated: int = 128,
        warm_up: int = 10,
        kept_rounds: int = 40,
        synthesis_batch: int = 256,
        generator_steps: int = 40,
        generator_rate: float = 2e-3,
        class_weight: float = 0.5,
        statistics_weight: float = 1.0,
        boundary_weight: float = 1.0,
        boundary: Boundary = "agree",
        student_steps: int = 50,
        student_rate: float = 0.1,
        student_temperature: float = 20.0,
        **common: Unpack[ClassArguments],
    ) -> None:
        plan = SynthesisPlan(
            warm_up=warm_up,
            kept_rounds=kept_rounds,
            synthesis_batch=synthesis_batch,
            generator_steps=generator_steps,
            generator_rate=generator_rate,
            class_weight=class_weight,
            statistics_weight=statistics_weight,
            boundary_weight=boundary_weight,
            boundary=boundary,
            student_steps=student_steps,
            student_rate=student_rate,
            student_temperature=student_temperature,
        )
        super().__init__(plan=plan, distillation=distillation, temperature=temperature, generated=generated, **common)
        hint = "a task ends with a model that was sent in one of its rounds, and the first sends the former task's"
        check_range("model.tasks.rounds_per_task", self.rounds_per_task, at_least=2, hint=hint)
        check_range("model.tasks.present", present, above=0, hint="the authors' code has 0.2")
        check_range("model.tasks.anchor_weight", anchor_weight, at_least=0, hint="0 leaves features free")
        check_range("model.tasks.radius", radius, at_least=0, hint="the authors' code has 0.015")
        self.present, self.anchor_weight, self.radius = present, anchor_weight, radius
        self._file = ClassEmbeddings(embeddings)

    def adapt_net(self, net: nn.Module) -> None:
        super().adapt_net(net)
        add_projection(net, self._file.width, type(self).__name__)

    def with_server_parts(self, model: State) -> State:
        """A net of another run need not have the projection."""
        return {**projection_tensors(self.method.net), **super().with_server_parts(model)}

    def begin_run(self) -> None:
        super().begin_run()
        self.method.server_states.add("best_model", frozen_copy(self.method))
        if self.method.federation is None:
            return
        weight = next(self.method.net.parameters())
        self.register_buffer("embeddings", self._file.of(self.data.classes).to(weight.device, weight.dtype))
        self.register_buffer("lowest_loss", torch.zeros((), dtype=torch.float64, device=weight.device))
        self.register_buffer("measured_rounds", torch.zeros((), dtype=torch.int64, device=weight.device))

    def check_data(self) -> None:
        super().check_data()
        net, user = self.method.net, "model.tasks is LANDER, which calls the class layer of model.net"
        check_gives_outputs(classifier_of(net), net, self.data.first_inputs(2), user, "use LwF")

    def weights_of_terms(self) -> tuple[float, float]:
        """a and b of the present task, from the second one on."""
        seen, old = self.arrived.num_seen, self.arrived.num_old
        u, v = math.log2(seen / 2 + 1), math.sqrt(old / seen)
        return self.present * (1 + 1 / u) / v, self.distillation * u * v

    # A visit --------------------------------------------------------------------------------------------------------

    def begin_visit(self, net: nn.Module, client: Client) -> dict[str, Any]:
        carry, device = super().begin_visit(net, client), client.label_counts.device
        precision = torch.promote_types(next(net.parameters()).dtype, torch.float32)
        self.state_of(client)[_LOSS] = torch.zeros((), dtype=precision, device=device)
        return {**carry, _LOSS: {"steps": on_device(self.data.steps_per_epoch(client.index), device)}}

    def client_loss(self, net: nn.Module, batch: Batch, client: Client) -> Tensor:
        logits, features = projected(net, batch.inputs, slice(None))
        losses = self.logits_loss(logits, batch.targets, client.label_counts, client)
        losses = losses + self.anchor_weight * anchor_loss(features, self.embeddings[batch.targets], self.radius, batch.real)
        if self.task == 0:
            return losses
        a, b = self.weights_of_terms()
        return a * losses + b * self.kept_loss(net, client) if "synthesised" in client.carry else a * losses

    def kept_loss(self, net: nn.Module, client: Client) -> Tensor:
        """The distance from the teacher on the images of a local step, a scalar: of predictions and of projected features."""
        inputs, old = self.synthesised_inputs(client), slice(self.arrived.num_old)
        both = client.evaluate(client.broadcast["teacher"], lambda teacher: torch.cat(projected(teacher, inputs, old), dim=1))
        logits, features = projected(net, inputs, old)
        distance = (features - both[:, self.arrived.num_old :]).square().mean()
        return soft_cross_entropy(logits, both[:, old], self.temperature) + distance

    def client_gradients(self, net: nn.Module, batch: Batch, client: Client) -> Gradients:
        gradients, loss = super().client_gradients(net, batch, client)
        counts = filled(client.step, loss.device) < client.carry[_LOSS]["steps"]
        state = self.state_of(client)
        state[_LOSS] = state[_LOSS] + torch.where(counts, loss, 0).to(state[_LOSS].dtype)
        return gradients, loss

    def upload(self, net: nn.Module, client: Client) -> Upload:
        steps = min(self.data.steps_per_epoch(client.index), client.num_steps)
        return {_LOSS: Weighted({"mean": self.state_of(client).pop(_LOSS) / steps}, float(steps))}

    # At the server --------------------------------------------------------------------------------------------------

    def receive(self, reduced: Reduction) -> None:
        """Keep the model that these clients received, which the net still holds, if it is the best so far."""
        if _LOSS not in reduced.names:
            return
        loss = reduced.mean(_LOSS)["mean"]
        is_best = (self.measured_rounds == 0) | (loss < self.lowest_loss)
        self.lowest_loss.copy_(torch.where(is_best, loss, self.lowest_loss))
        self._take(is_best, self.method.server_states.tensors("best_model"), tensors_of(self.method.net))
        self.measured_rounds.add_(1)

    def end_round(self, probes: Sequence[State]) -> None:
        super().end_round(probes)
        if self.clocks.has_had_all_rounds(0):
            best = self.method.server_states.tensors("best_model")
            net = tensors_of(self.method.net)
            self._take(self.measured_rounds > 0, {name: net[name] for name in best}, best)

    @staticmethod
    def _take(takes: Tensor, present: State, other: State) -> None:
        for name, tensor in present.items():
            tensor.copy_(torch.where(takes, other[name], tensor))

    def end_task(self) -> None:
        super().end_task()
        self.measured_rounds.zero_()

    def new_synthesis(self, of: SynthesisTask) -> AnchoredSynthesis:
        return AnchoredSynthesis(self.plan, of, self.embeddings[: of.num_seen], self.anchor_weight, self.radius)
