"""The synthesis of images of all classes seen, at the server, from nothing but the global model: what learners share in it.

J. Zhang, C. Chen, W. Zhuang, L. Lyu: TARGET. ICCV 2023. arXiv 2303.06937; the loop is that of its code, which takes it from G.
Fang et al.: Up to 100x Faster Data-free Knowledge Distillation. AAAI 2022. arXiv 2112.06253. LANDER's code has the same.
Departures: those of :mod:`fl_lightning.tasks.classes.target` and :mod:`fl_lightning.tasks.classes.lander`.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl_lightning.data.prepared_samples import Preparation
from fl_lightning.functional import boundary_loss, ensemble_distillation, moment_distance
from fl_lightning.functional.generator_losses import Boundary
from fl_lightning.functional.random_streams import seeded_layers, stream_seed, torch_stream
from fl_lightning.tasks.classes.generator import UnitGenerator
from fl_lightning.tasks.classes.moments import Moments, forward_with_moments

BETAS = (0.5, 0.999)  # of Adam, for generators
_FORMER = 0.9  # share of former rounds in the moments


@dataclass(frozen=True)
class SynthesisPlan:
    """The arguments of :class:`fl_lightning.tasks.TARGET` and ``LANDER`` that concern the server, with the same names."""

    warm_up: int
    kept_rounds: int
    synthesis_batch: int
    generator_steps: int
    generator_rate: float
    class_weight: float
    statistics_weight: float
    boundary_weight: float
    boundary: Boundary
    student_steps: int
    student_rate: float
    student_temperature: float


@dataclass(frozen=True)
class SynthesisTask:
    """What a synthesis starts from."""

    learner: str  # the name of its class, for errors
    teacher: nn.Module  # the global model
    num_seen: int  # classes seen so far, the first ones
    shape: Sequence[int]  # of a stored image, (channels, height, width)
    preparation: Preparation  # of stored images for the net
    seed: int  # with the task, the address of all draws
    task: int


class Synthesis(ABC):
    """The synthesis at the end of one task, with a fresh generator and student, which :meth:`run` trains.

    Args:
        plan: rounds, weights and rates.
        of: what it starts from; the teacher is copied.
        build: makes the generator from the shape of an image.
    """

    def __init__(self, plan: SynthesisPlan, of: SynthesisTask, build: Callable[[Sequence[int]], UnitGenerator]) -> None:
        self.plan, self.of, self.preparation, self.num_seen = plan, of, of.preparation, of.num_seen
        self.teacher = copy.deepcopy(of.teacher).eval().requires_grad_(False)
        weight = next(of.teacher.parameters())
        with seeded_layers(of.seed, of.task, -1, "generator and student", torch.device("cpu")):
            self.generator = build(of.shape).to(weight.device, weight.dtype)
            self.student = _redrawn(copy.deepcopy(of.teacher).cpu()).to(weight.device)
        self.student.eval().requires_grad_(False)
        self.draws = torch_stream(of.seed, of.task, -1, "synthesis")
        self._key = torch.tensor([stream_seed(of.seed, of.task, -1, "augmentation of the synthesis")], device=weight.device)
        self._augmented = 0  # images so far, the address of augmentation's draws
        self._former: list[tuple[Tensor, Tensor]] = []  # moments of former rounds, averaged, by layer

    # What learners differ in ----------------------------------------------------------------------------------------

    @abstractmethod
    def new_images(self, with_student: bool) -> tuple[Tensor, Tensor]:
        """One round of the generator: a batch of images in [0, 1], and its loss, by :meth:`lowest_loss`."""

    @abstractmethod
    def teach(self, images: Tensor) -> None:
        """One round of the student on all images stored so far, uint8 (n, ...), by :meth:`train_student`."""

    def generated_inputs(self, images: Tensor) -> Tensor:
        """Images of the generator in [0, 1], (B, ...), as the net takes them."""
        return self.prepared(images)

    def outputs(self, net: nn.Module, inputs: Tensor) -> Tensor:
        """(B, ``num_seen`` + ...): the logits of the classes seen, and what else a learner compares."""
        return net(inputs)[:, : self.num_seen]

    def further_loss(self, further: Tensor, targets: Tensor) -> Tensor | float:
        """A further term of the generator's loss, from what is behind the teacher's logits, (B, ...)."""
        return 0.0

    def further_student_loss(self, further: Tensor, of_teacher: Tensor) -> Tensor | float:
        """A further term of the student's loss, from what is behind the logits of both."""
        return 0.0

    # The rounds -----------------------------------------------------------------------------------------------------

    def run(self) -> Tensor:
        """The images, uint8 (``kept_rounds * synthesis_batch``, channels, height, width).

        Raises:
            FloatingPointError: if a round has no finite loss.
        """
        kept: list[Tensor] = []
        lowest: list[Tensor] = []
        for round in range(self.plan.warm_up + self.plan.kept_rounds):
            images, loss = self.new_images(with_student=round >= self.plan.warm_up)
            lowest.append(loss)
            if round >= self.plan.warm_up:
                kept.append((images * 255).round().to(torch.uint8))
                self.teach(torch.cat(kept))
        if not torch.stack(lowest).isfinite().all():
            raise FloatingPointError(
                f"the synthesis of {self.of.learner} is not finite after task {self.of.task + 1}: lower "
                "model.tasks.student_rate or model.tasks.generator_rate, or use a learner without a generator, such as LwF"
            )
        return torch.cat(kept)

    def lowest_loss(
        self,
        generate: Callable[[], Tensor],
        optimizer: torch.optim.Optimizer,
        targets: Tensor,
        with_student: bool,
        after_backward: Callable[[], None] = lambda: None,
    ) -> tuple[Tensor, Tensor]:
        """Take the steps of a round; the images with the lowest loss among them, and that loss.

        Args:
            generate: gives a batch of images in [0, 1].
            optimizer: of all that decides on them.
            targets: (B,), the classes that they are to show.
            with_student: whether the boundary term counts.
            after_backward: called in every step, when gradients are there.
        """
        best, lowest = torch.empty(0), next(self.generator.parameters()).new_tensor(float("inf"))
        moments: list[Moments] = []
        with torch.enable_grad():
            for _ in range(self.plan.generator_steps):
                images = generate()
                loss, moments = self.loss(self.generated_inputs(images), targets, with_student)
                better = loss.detach() < lowest
                best = images.detach() if len(best) == 0 else torch.where(better, images.detach(), best)
                lowest = torch.where(better, loss.detach(), lowest)
                optimizer.zero_grad()
                loss.backward()
                after_backward()
                optimizer.step()
        self._remember(moments)
        return best, lowest

    def loss(self, inputs: Tensor, targets: Tensor, with_student: bool) -> tuple[Tensor, list[Moments]]:
        """``w_bn L_bn + w_ce CE(teacher(x), y) + w_adv L_adv`` and :meth:`further_loss`, a scalar, and the batch's moments.

        Args:
            inputs: (B, ...), images as the net takes them.
            targets: (B,), the classes that they are to show.
            with_student: whether ``L_adv`` counts.
        """
        plan = self.plan
        outputs, moments = forward_with_moments(self.teacher, lambda: self.outputs(self.teacher, inputs))
        logits = outputs[:, : self.num_seen]
        loss = plan.class_weight * F.cross_entropy(logits, targets) + self.further_loss(outputs[:, self.num_seen :], targets)
        for layer, of in enumerate(moments):
            mean, variance = self._with_former(layer, of) if self._former else (of.mean, of.variance)
            loss = loss + plan.statistics_weight * moment_distance(mean, variance, of.running_mean, of.running_variance)
        if with_student and plan.boundary_weight > 0:
            said = self.outputs(self.student, inputs)[:, : self.num_seen]
            loss = loss + plan.boundary_weight * boundary_loss(said, logits, plan.boundary)
        return loss, moments

    def _with_former(self, layer: int, of: Moments) -> tuple[Tensor, Tensor]:
        mean, variance = self._former[layer]
        return _FORMER * mean + (1 - _FORMER) * of.mean, _FORMER * variance + (1 - _FORMER) * of.variance

    def _remember(self, moments: Sequence[Moments]) -> None:
        """The moments of a round's last step go into the average."""
        if self._former:
            now = [self._with_former(layer, of) for layer, of in enumerate(moments)]
        else:
            now = [(of.mean, of.variance) for of in moments]
        self._former = [(mean.detach(), variance.detach()) for mean, variance in now]

    def train_student(self, images: Tensor, optimizer: torch.optim.Optimizer, size: int) -> None:
        """``T^2 KL(teacher || student)`` and :meth:`further_student_loss` on batches of stored images, in a random order."""
        steps, temperature = self.plan.student_steps, self.plan.student_temperature
        self.student.train().requires_grad_(True)
        for rows in cycled_order(len(images), steps * size, self.draws).view(steps, size).to(images.device):
            inputs = self.prepared(images[rows].to(self.preparation.dtype) / 255)
            with torch.no_grad():
                said, of_teacher = self._divided(self.teacher, inputs)
            with torch.enable_grad():
                logits, further = self._divided(self.student, inputs)
                loss = temperature**2 * ensemble_distillation(logits, said[None], temperature)
                loss = loss + self.further_student_loss(further, of_teacher)
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
        self.student.eval().requires_grad_(False)

    def _divided(self, net: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.outputs(net, inputs)
        return outputs[:, : self.num_seen], outputs[:, self.num_seen :]

    def prepared(self, images: Tensor) -> Tensor:
        """Images (B, ...) in [0, 1] as the net takes them, augmented anew in every call."""
        return self.preparation.of_unit_images(images, self._key, self._counters(images))

    def augmented(self, images: Tensor) -> Tensor:
        """The same without the scale of the data."""
        counters = self._counters(images)
        return self.preparation.augmented(images, self._key, counters) if self.preparation.augment else images

    def _counters(self, images: Tensor) -> Tensor:
        counters = torch.arange(self._augmented, self._augmented + len(images), device=images.device)
        self._augmented += len(images)
        return counters[None]


def cycled_order(count: int, length: int, stream: torch.Generator) -> Tensor:
    """(length,) positions among ``count``: all in a random order, then all in another, and so on."""
    orders = [torch.randperm(count, generator=stream) for _ in range(-(-length // count))]
    return torch.cat(orders)[:length]


def _redrawn(net: nn.Module) -> nn.Module:
    """A net with other weights: matrices and kernels Xavier-normal, their biases N(0, 1), factors N(1, .02^2), the rest 0."""
    for layer in net.modules():
        factor = getattr(layer, "weight", None)
        for name, weight in layer.named_parameters(recurse=False):
            if weight.ndim > 1:
                nn.init.xavier_normal_(weight)
            elif name == "weight":
                nn.init.normal_(weight, 1.0, 0.02)
            elif isinstance(factor, Tensor) and factor.ndim > 1:
                nn.init.normal_(weight)
            else:
                nn.init.zeros_(weight)
    return net
