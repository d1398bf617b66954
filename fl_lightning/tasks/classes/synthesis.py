"""TARGET's synthesis of images of all classes seen, at the server, from nothing but the global model.

J. Zhang, C. Chen, W. Zhuang, L. Lyu: TARGET. ICCV 2023. arXiv 2303.06937; the loop is that of its code, which takes it from G.
Fang et al.: Up to 100x Faster Data-free Knowledge Distillation. AAAI 2022. arXiv 2112.06253. Departures: those of
:mod:`fl_lightning.tasks.classes.target`.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl_lightning.data.prepared_samples import Preparation
from fl_lightning.functional import boundary_loss, ensemble_distillation, moment_distance
from fl_lightning.functional.generator_losses import Boundary
from fl_lightning.functional.random_streams import seeded_layers, stream_seed, torch_stream
from fl_lightning.tasks.classes.generator import UnitGenerator, draw_noise
from fl_lightning.tasks.classes.moments import Moments, forward_with_moments

Meta = Literal["maml", "reptile"]

_NOISE_RATE = 0.01
_BETAS = (0.5, 0.999)  # of Adam
_FORMER = 0.9  # share of former rounds in the moments
_REPTILE = 67.0
_STUDENT_MOMENTUM, _STUDENT_DECAY = 0.9, 1e-4
_STUDENT_ROUNDS, _STUDENT_SMALLEST = 200, 2e-4  # of the cosine


@dataclass(frozen=True)
class SynthesisPlan:
    """The arguments of :class:`fl_lightning.tasks.TARGET` that concern the server, with the same names."""

    warm_up: int
    kept_rounds: int
    generator_steps: int
    synthesis_batch: int
    generator_rate: float
    meta: Meta
    class_weight: float
    statistics_weight: float
    boundary_weight: float
    boundary: Boundary
    student_steps: int
    student_rate: float
    student_temperature: float


class Synthesis:
    """The synthesis at the end of one task, with a fresh generator and student, which :meth:`run` trains.

    Args:
        plan: rounds, weights and rates.
        teacher: the global model; it is copied.
        num_seen: classes seen so far, the first ones.
        shape: of a stored image, (channels, height, width).
        preparation: of stored images for the net.
        seed, task: the address of all draws.
    """

    def __init__(
        self,
        plan: SynthesisPlan,
        teacher: nn.Module,
        num_seen: int,
        shape: Sequence[int],
        preparation: Preparation,
        seed: int,
        task: int,
    ) -> None:
        self.plan, self.preparation, self.num_seen, self.task = plan, preparation, num_seen, task
        self.teacher = copy.deepcopy(teacher).eval().requires_grad_(False)
        weight = next(teacher.parameters())
        with seeded_layers(seed, task, -1, "generator and student", torch.device("cpu")):
            self.generator = UnitGenerator(shape).to(weight.device, weight.dtype)
            self.student = _redrawn(copy.deepcopy(teacher).cpu()).to(weight.device)
        self.student.eval().requires_grad_(False)
        self._draws = torch_stream(seed, task, -1, "synthesis")
        self._key = torch.tensor([stream_seed(seed, task, -1, "augmentation of the synthesis")], device=weight.device)
        self._augmented = 0  # images so far, the address of augmentation's draws
        self._former: list[tuple[Tensor, Tensor]] = []  # moments of former rounds, averaged, by layer
        rate = plan.generator_rate * plan.generator_steps
        self._meta_optimizer = torch.optim.Adam(self.generator.parameters(), lr=rate, betas=_BETAS)
        self._student_optimizer = torch.optim.SGD(
            self.student.parameters(), plan.student_rate, _STUDENT_MOMENTUM, weight_decay=_STUDENT_DECAY
        )
        self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            self._student_optimizer, _STUDENT_ROUNDS, eta_min=_STUDENT_SMALLEST
        )

    def run(self) -> Tensor:
        """The images, uint8 (``kept_rounds * synthesis_batch``, channels, height, width).

        Raises:
            FloatingPointError: if a round has no finite loss.
        """
        kept: list[Tensor] = []
        lowest: list[Tensor] = []
        for round in range(self.plan.warm_up + self.plan.kept_rounds):
            images, loss = self._round(with_student=round >= self.plan.warm_up)
            lowest.append(loss)
            if round >= self.plan.warm_up:
                kept.append((images * 255).round().to(torch.uint8))
                self._train_student(torch.cat(kept))
        if not torch.stack(lowest).isfinite().all():
            raise FloatingPointError(
                f"the synthesis of TARGET is not finite after task {self.task + 1}: lower model.tasks.student_rate or "
                "model.tasks.generator_rate, or use a learner without a generator, such as LwF"
            )
        return torch.cat(kept)

    def _round(self, with_student: bool) -> tuple[Tensor, Tensor]:
        """A batch of images in [0, 1], those with the lowest loss among the steps, and that loss; the generator's meta step."""
        plan, generator = self.plan, copy.deepcopy(self.generator)
        noise = draw_noise(plan.synthesis_batch, generator, self._draws).requires_grad_()
        targets = torch.randint(self.num_seen, (plan.synthesis_batch,), generator=self._draws).to(noise.device)
        groups = [{"params": generator.parameters()}, {"params": [noise], "lr": _NOISE_RATE}]
        optimizer = torch.optim.Adam(groups, lr=plan.generator_rate, betas=_BETAS)
        summed = [torch.zeros_like(weight) for weight in generator.parameters()]
        best, lowest = noise.new_empty(0), noise.new_tensor(float("inf"))
        moments: list[Moments] = []
        with torch.enable_grad():
            for _ in range(plan.generator_steps):
                images = generator(noise)
                loss, moments = self.loss(self._prepared(images), targets, with_student)
                better = loss.detach() < lowest
                best = images.detach() if len(best) == 0 else torch.where(better, images.detach(), best)
                lowest = torch.where(better, loss.detach(), lowest)
                optimizer.zero_grad()
                loss.backward()
                for total, weight in zip(summed, generator.parameters(), strict=True):
                    if weight.grad is not None:
                        total += weight.grad
                optimizer.step()
        self._remember(moments)
        for weight, moved, total in zip(self.generator.parameters(), generator.parameters(), summed, strict=True):
            weight.grad = total if plan.meta == "maml" else _REPTILE * (weight - moved).detach()
        self._meta_optimizer.step()
        return best, lowest

    def loss(self, inputs: Tensor, targets: Tensor, with_student: bool) -> tuple[Tensor, list[Moments]]:
        """``w_bn L_bn + w_ce CE(teacher(x), y) + w_adv L_adv``, a scalar, and the moments of the batch.

        Args:
            inputs: (B, ...), images as the net takes them.
            targets: (B,), the classes that they are to show.
            with_student: whether ``L_adv`` counts.
        """
        plan = self.plan
        outputs, moments = forward_with_moments(self.teacher, inputs)
        logits = outputs[:, : self.num_seen]
        loss = plan.class_weight * F.cross_entropy(logits, targets)
        for layer, of in enumerate(moments):
            mean, variance = self._with_former(layer, of) if self._former else (of.mean, of.variance)
            loss = loss + plan.statistics_weight * moment_distance(mean, variance, of.running_mean, of.running_variance)
        if with_student and plan.boundary_weight > 0:
            said = self.student(inputs)[:, : self.num_seen]
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

    def _train_student(self, images: Tensor) -> None:
        """``T^2 KL(teacher || student)`` on stored images, by SGD."""
        steps, size, temperature = self.plan.student_steps, self.plan.synthesis_batch, self.plan.student_temperature
        self.student.train().requires_grad_(True)
        for rows in cycled_order(len(images), steps * size, self._draws).view(steps, size).to(images.device):
            inputs = self._prepared(images[rows].to(self.preparation.dtype) / 255)
            with torch.no_grad():
                said = self.teacher(inputs)[:, : self.num_seen]
            with torch.enable_grad():
                logits = self.student(inputs)[:, : self.num_seen]
                loss = temperature**2 * ensemble_distillation(logits, said[None], temperature)
                self._student_optimizer.zero_grad()
                loss.backward()
            self._student_optimizer.step()
        self._schedule.step()
        self.student.eval().requires_grad_(False)

    def _prepared(self, images: Tensor) -> Tensor:
        """Images (B, ...) in [0, 1] as the net takes them, augmented anew in every call."""
        counters = torch.arange(self._augmented, self._augmented + len(images), device=images.device)
        self._augmented += len(images)
        return self.preparation.of_unit_images(images, self._key, counters[None])


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
