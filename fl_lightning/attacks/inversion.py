"""Gradient inversion: the search for images that give the observed gradient.

L. Zhu, Z. Liu, S. Han: Deep Leakage from Gradients (DLG). NeurIPS 2019. arXiv 1906.08935: ``distance: l2`` and ``tv: 0``.
J. Geiping, H. Bauermeister, H. Dröge, M. Moeller: Inverting Gradients. NeurIPS 2020. arXiv 2003.14053: ``distance: cosine``.
Departures: Adam replaces DLG's L-BFGS, as in the FedReg paper (arXiv 2203.02645, appendix B.4), and labels that the last
layer reveals replace its optimised ones. Adam's epsilon is 1e-15 instead of 1e-8: squared distances start far above
1e-8 and end far below it.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import grad, grad_and_value, replace_all_batch_norm_modules_, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm

from fl_lightning.attacks.observed_update import Observation, PixelRange
from fl_lightning.checks import check_choice, check_range
from fl_lightning.functional.aggregation import State
from fl_lightning.functional.gradient_inversion import (
    cosine_distance,
    label_counts_from_bias,
    squared_distance,
    total_variation,
)
from fl_lightning.functional.random_streams import torch_stream
from fl_lightning.functional.stateless import call_with, tensor_slots
from fl_lightning.losses import Loss

_DISTANCES = {"l2": squared_distance, "cosine": cosine_distance}
_DECAY = 0.1  # of the learning rate, after 3/8, 5/8 and 7/8 of the iterations

Distance = Literal["l2", "cosine"]
Labels = Literal["recovered", "known"]


@dataclass(frozen=True)
class Inversion:
    """Settings of an attack.

    Args:
        distance: between gradients: ``l2``, the squared distance, or ``cosine``.
        tv: weight of the images' total variation, at least 0; 0 for Deep Leakage from Gradients.
        lr: of Adam, in units of the net's inputs; times 0.1 after 3/8, 5/8 and 7/8 of the iterations.
        signed: whether Adam sees only the signs of the gradients by the pixels, as in Geiping's scripts.
        iterations: steps of Adam.
        restarts: number of starting points, used at once; the one with the lowest final objective is kept.
        labels: ``recovered`` from the gradient of the last layer's bias, or ``known`` to the attacker.
        compile: whether the step is compiled, which takes time at first; docs/privacy.md shows when that pays off.
        seed: seed of the starting points.

    Raises:
        ValueError: if a value is out of range.
    """

    distance: Distance = "cosine"
    tv: float = 1e-6
    lr: float = 1.0
    signed: bool = False
    iterations: int = 32_000
    restarts: int = 1
    labels: Labels = "recovered"
    compile: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("iterations", "restarts"):
            check_range(name, getattr(self, name), at_least=1)
        check_range("tv", self.tv, at_least=0, below=math.inf, hint="0 leaves the total variation out")
        check_range("lr", self.lr, above=0, below=math.inf, hint="the FedReg paper uses 1")
        check_choice("distance", self.distance, Distance)
        check_choice("labels", self.labels, Labels)


@dataclass(frozen=True)
class Recovered:
    """Outcome of an attack on one client's update."""

    inputs: Tensor  # (n, channels, height, width), as the net takes them
    labels: Tensor  # (n,), as the attacker assumed them
    objectives: list[float]  # at the end of every restart; inputs are those of the lowest one


class Inverter:
    """Recovers images from updates of clients that started from the same weights.

    Args:
        net: with those weights. In its forward pass batch normalisation takes the statistics of the batch, or, where it is
            frozen, the running ones, as the clients' does, and dropout leaves nothing out.
        loss: loss that the clients minimise.
        pixel_range: range of valid inputs.
        settings: settings of the attack.
    """

    def __init__(self, net: nn.Module, loss: Loss, pixel_range: PixelRange, settings: Inversion) -> None:
        self.net = copy.deepcopy(net).train().requires_grad_(False)
        for layer in self.net.modules():
            if isinstance(layer, _BatchNorm) and layer.training:
                replace_all_batch_norm_modules_(layer)
        self.net.eval()
        self.loss, self.pixel_range, self.settings = loss, pixel_range, settings
        self._weights = {name: weight.detach() for name, weight in self.net.named_parameters()}
        self._slots = tensor_slots(self.net)
        if settings.compile:
            self._gradients = torch.compile(vmap(self._functional_gradient, in_dims=(0, None, None, None)), fullgraph=True)
        else:
            self._gradients = self._one_after_another

    def mean_loss(self, trained: State, inputs: Tensor, labels: Tensor, label_counts: Tensor) -> Tensor:
        """A client's mean loss, as a function of its trained weights."""
        logits = call_with(self.net, self._slots, {**self._weights, **trained}, (inputs,))
        return self.loss(logits, labels, label_counts).mean()

    def objective(self, gradient: Sequence[Tensor], observed: State, inputs: Tensor) -> Tensor:
        """Distance of a gradient from the observed one plus the roughness of the ``inputs`` that gave it."""
        distance = _DISTANCES[self.settings.distance](gradient, list(observed.values()))
        return distance + self.settings.tv * total_variation(inputs)

    def _one_after_another(
        self, points: Tensor, labels: Tensor, observed: State, label_counts: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradients of the objective by the points, (R, n, channels, height, width), and the objectives, (R,).

        By plain autograd: without compilation, torch.func is slower.
        """
        trained = {name: self._weights[name].detach().requires_grad_() for name in observed}
        gradients, objectives = [], []
        for point in points:
            with torch.enable_grad():
                inputs = point.detach().requires_grad_()
                loss = self.mean_loss(trained, inputs, labels, label_counts)
                gradient = torch.autograd.grad(loss, list(trained.values()), create_graph=True)
                objectives.append(self.objective(gradient, observed, inputs))
                gradients += torch.autograd.grad(objectives[-1], [inputs])
        return torch.stack(gradients), torch.stack(objectives).detach()

    # The functions in here have no type hints: the compiler would have to evaluate them, and cannot.
    def _functional_gradient(self, point, labels, observed, label_counts):
        """The same of a single point, as a function that can be compiled, for all points at once."""
        trained = {name: self._weights[name] for name in observed}

        def objective(inputs):
            gradient = grad(self.mean_loss)(trained, inputs, labels, label_counts)
            return self.objective(list(gradient.values()), observed, inputs)

        return grad_and_value(objective)(point)

    def invert(self, observation: Observation, show: Callable[[int, Tensor], None] = lambda *_: None) -> Recovered:
        """Attack one update.

        Args:
            observation: only the number of its ``inputs`` is used, and its ``targets`` if labels are known.
            show: called in every iteration with its number, from 0, and the objectives of all restarts, (R,), on their device.
        """
        points = self.starting_points(observation)
        labels = self._labels(observation, points)
        optimizer = torch.optim.Adam([points], lr=self.settings.lr, eps=1e-15)
        milestones = [self.settings.iterations * eighths // 8 for eighths in (3, 5, 7)]
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones, gamma=_DECAY)
        # Fused kernels of attention have no second derivative.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            for iteration in range(self.settings.iterations):
                points.grad, objectives = self._step_gradients(points, labels, observation)
                if iteration == 0 and not points.grad.any():  # no restart can move
                    raise ValueError(
                        "model.net of the run gives gradients that do not change with the image where the attack starts: "
                        "try another seed or more restarts; ReLU and pooling are fine, steps and rounding are not"
                    )
                if self.settings.signed:
                    points.grad.sign_()
                optimizer.step()
                schedule.step()
                torch.clamp(points, self.pixel_range.low, self.pixel_range.high, out=points)
                show(iteration, objectives)
            _, objectives = self._step_gradients(points, labels, observation)
        best = objectives.nan_to_num(math.inf).argmin()
        return Recovered(points[best].clone(), labels, objectives.tolist())

    def starting_points(self, observation: Observation) -> Tensor:
        """Standard normal inputs (R, n, channels, height, width), another draw for every client."""
        generator = torch_stream(self.settings.seed, -1, observation.client, "starting points of the attack")
        shape = (self.settings.restarts, *observation.inputs.shape)
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64).to(observation.inputs)
        return drawn.clamp(self.pixel_range.low, self.pixel_range.high)

    def _step_gradients(self, points: Tensor, labels: Tensor, observation: Observation) -> tuple[Tensor, Tensor]:
        return self._gradients(points, labels, observation.gradient, observation.label_counts)

    def _labels(self, observation: Observation, points: Tensor) -> Tensor:
        """(n,) labels, known or recovered; the recovered ones ascend."""
        if self.settings.labels == "known":
            return observation.targets
        return recovered_labels(self.net, self.loss, observation, points.flatten(0, 1))


def recovered_labels(net: nn.Module, loss: Loss, observation: Observation, guesses: Tensor) -> Tensor:
    """The labels of a batch, (n,) and ascending, from the gradient of the last layer's bias.

    Args:
        guesses: (m, channels, height, width) inputs, on which the net's mean probabilities are taken.

    Raises:
        ValueError: if no weight that was sent can be that bias.
    """
    with torch.no_grad():
        logits = net(guesses)
    biases = [part for part in observation.gradient.values() if part.shape == logits.shape[1:]]
    if not biases:
        raise ValueError(
            "labels is recovered, but model.net of the run has no bias of the classes in its last layer, which would give them "
            "away: set labels to known"
        )
    # The gradient of the loss by the logits is the probabilities less 1 at the label, whatever classes the loss leaves out.
    label = biases[-1].argmin().expand(len(logits))
    by_logits = grad(lambda logits: loss(logits, label, observation.label_counts).sum())(logits)
    probabilities = by_logits.mean(dim=0) + nn.functional.one_hot(label[0], logits.shape[1])
    counts = label_counts_from_bias(biases[-1], probabilities, len(observation.inputs))
    return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
