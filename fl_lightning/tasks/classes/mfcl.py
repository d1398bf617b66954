"""MFCL: without data, the server trains an image generator for old classes from the model, and clients rehearse its images.

S. Babakniya, Z. Fabian, C. He, M. Soltanolkotabi, S. Avestimehr: A Data-Free Approach to Mitigate Catastrophic Forgetting in
Federated Class Incremental Learning for Vision Tasks. NeurIPS 2023. arXiv 2311.07784; weights and net of the authors' code.
Departures: real and generated samples go through the body once per step; the code does so twice and updates BatchNorm's
statistics twice. Head and body have one optimizer. Generator and teacher are sent in every round, as clients keep nothing.
"""

import copy
from collections.abc import Sequence
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl_lightning.checks import check_range, check_whole
from fl_lightning.functional import class_imbalance, gaussian_divergence, roughness
from fl_lightning.functional.finite import all_finite
from fl_lightning.functional.random_streams import seeded_layers, torch_stream
from fl_lightning.functional.stateless import tensors_of
from fl_lightning.functional.transfers import filled
from fl_lightning.models.network import class_layer, classifier_of, features_of
from fl_lightning.protocol import Batch, Client, Needs
from fl_lightning.run.refused_data import check_gives_outputs
from fl_lightning.tasks.classes.distilling import DistillingLearner
from fl_lightning.tasks.classes.generator import Generator, draw_noise
from fl_lightning.tasks.classes.learner import ClassArguments
from fl_lightning.tasks.classes.moments import Moments, forward_with_moments

_CONTENT_TEMPERATURE = 1000.0  # of the authors' code; it makes the term nearly constant
_VARIANCE_FLOOR = 1e-8
_GENERATOR_RATE = 1e-3


class MFCL(DistillingLearner):
    """``CE_new`` on real samples, and on real and generated ones ``head_weight * CE_seen`` with the features held fixed, plus
    ``distillation`` times the mean squared difference of the teacher head's outputs for both models' features.

    No sample is kept. At a task's end the server trains its one generator against the global model, with losses on the
    predicted classes, their balance, BatchNorm's statistics and smoothness.

    Args:
        distillation: w_kd, at least 0.
        head_weight: w_ft, at least 0.
        generated: number of generated samples in a local step, at least 1.
        generator_steps: pi, the server's steps at a task's end, at least 1.
        generator_batch: samples of each.
        noise: dimensions of the generator's noise, at least 1.
        content_weight, balance_weight, statistics_weight, smoothness_weight: weights in the generator's loss, at least 0.

    Raises:
        ValueError: if a value is out of range, the net has no features or changes the outputs of its class layer, or the data
            are not images.
        FloatingPointError: at the end of a task, if the generator is not finite.
    """

    needs = DistillingLearner.needs | Needs(other_samples=True)

    def __init__(
        self,
        distillation: float = 0.1,
        head_weight: float = 1.0,
        generated: int = 32,
        generator_steps: int = 100,
        generator_batch: int = 128,
        noise: int = 1000,
        content_weight: float = 1.0,
        balance_weight: float = 1.0,
        statistics_weight: float = 50.0,
        smoothness_weight: float = 1e-3,
        **common: Unpack[ClassArguments],
    ) -> None:
        super().__init__(distillation=distillation, **common)
        self.head_weight, self.generated, self.generator_steps = head_weight, generated, generator_steps
        self.generator_batch, self.noise = generator_batch, noise
        self.content_weight, self.balance_weight = content_weight, balance_weight
        self.statistics_weight, self.smoothness_weight = statistics_weight, smoothness_weight
        for name in ("generated", "generator_steps", "noise"):
            check_whole(f"model.tasks.{name}", getattr(self, name), at_least=1)
        check_whole("model.tasks.generator_batch", generator_batch, at_least=2, hint="BatchNorm needs two")
        for name in ("head_weight", "content_weight", "balance_weight", "statistics_weight", "smoothness_weight"):
            check_range(f"model.tasks.{name}", getattr(self, name), at_least=0)
        if self.softmax_over != "new":
            raise ValueError("model.tasks.softmax_over is seen, but MFCL has a loss among each, new and seen: leave it out")

    def check_data(self) -> None:
        if self.data.class_streams.repeating or self.data.class_streams.blurry:
            raise ValueError(
                f"data.tasks is {self.data.tasks}, whose tasks have samples of earlier ones' classes, but MFCL's loss on real "
                "samples is among the new ones: use another learner, such as LwF with model.tasks.softmax_over seen"
            )
        super().check_data()
        net, user = self.method.net, "model.tasks is MFCL, which calls the class layer of model.net"
        check_gives_outputs(classifier_of(net), net, self.data.first_inputs(2), user, "use LwF")

    def begin_run(self) -> None:
        super().begin_run()
        if self.method.federation is None:
            return
        shape, weight = self.data.input_shape, next(self.method.net.parameters())
        if len(shape) != 3:
            raise ValueError(
                f"data.source gives inputs of shape {tuple(shape)}, but MFCL generates images: choose another learner"
            )
        with seeded_layers(self.method.seed, -1, -1, "generator", torch.get_default_device()):
            self.generator = Generator(shape, self.noise).to(weight.device, weight.dtype).requires_grad_(False)

    @property
    def rehearses(self) -> bool:
        """Whether there is something to rehearse: from the second task on."""
        return self.task > 0 and (self.distillation > 0 or self.head_weight > 0)

    def broadcast(self, client: int) -> dict[str, Any]:
        if not self.rehearses:
            return {}
        return {"teacher": self.method.server_states.tensors("teacher"), "generator": tensors_of(self.generator)}

    def begin_visit(self, net: nn.Module, client: Client) -> dict[str, Any]:
        carry = super().begin_visit(net, client)
        if not self.rehearses:
            return carry
        stream = torch_stream(self.method.seed, client.round, client.index, "generated samples")
        self.generator.eval()
        with torch.no_grad():
            drawn = [draw_noise(self.generated, self.generator, stream) for _ in range(client.num_steps)]
            inputs = torch.stack([self.generator(noise) for noise in drawn])
        said = client.evaluate(client.broadcast["teacher"], lambda teacher: torch.stack([teacher(part) for part in inputs]))
        return {**carry, "generated": {"inputs": inputs, "targets": said.argmax(dim=-1)}}

    def client_loss(self, net: Any, batch: Batch, client: Client) -> Tensor:
        if "generated" not in client.carry:
            return super().client_loss(net, batch, client)
        generated, teacher, count = client.carry["generated"], client.broadcast["teacher"], len(batch.targets)
        step = filled(client.step, batch.targets.device)
        chosen = {name: part.index_select(0, step[None])[0] for name, part in generated.items()}
        inputs = torch.cat([batch.inputs, chosen["inputs"]])
        features, held = features_of(net, inputs), client.evaluate(teacher, lambda model: features_of(model, inputs))
        seen, old = slice(0, self.arrived.num_seen), slice(0, self.arrived.num_old)
        targets = torch.cat([batch.targets, chosen["targets"]])
        head = F.cross_entropy(classifier_of(net)(features.detach())[:, seen], targets, reduction="none")
        weight = teacher[f"{class_layer(net, 'whose outputs MFCL distils')}.weight"][old]
        kept = ((features - held) @ weight.T).square().mean(dim=1)  # the teacher's biases cancel
        rehearsed = self.head_weight * head + self.distillation * kept
        real = count if batch.real is None else batch.real.sum()
        # The mean of these over the batch is that over real and generated samples.
        shared = (real * rehearsed[:count] + rehearsed[count:].sum()) / (real + self.generated)
        return self.logits_loss(classifier_of(net)(features[:count]), batch.targets, client.label_counts, client) + shared

    # At the server --------------------------------------------------------------------------------------------------

    def end_task(self) -> None:
        super().end_task()
        if self.distillation == self.head_weight == 0:
            return
        teacher = copy.deepcopy(self.method.net).eval().requires_grad_(False)
        stream = torch_stream(self.method.seed, self.task, -1, "noise of the generator")
        self.generator.train().requires_grad_(True)
        optimizer = torch.optim.Adam(self.generator.parameters(), lr=_GENERATOR_RATE)
        with torch.enable_grad():
            for _ in range(self.generator_steps):
                images = self.generator(draw_noise(self.generator_batch, self.generator, stream))
                optimizer.zero_grad()
                self.generator_loss(teacher, images).backward()
                optimizer.step()
        self.generator.requires_grad_(False)
        # Images of a non-finite generator would lose every client's update in all later rounds.
        tensors = (*self.generator.parameters(), *self.generator.buffers())
        if not all_finite(tensors).all():
            raise FloatingPointError(
                f"the generator of MFCL is not finite after task {self.task + 1}: lower model.tasks.statistics_weight, or "
                "use a learner without a generator, such as LwF"
            )

    def generator_loss(self, teacher: nn.Module, images: Tensor) -> Tensor:
        """The generator's loss, a scalar: content, balance, BatchNorm's statistics, smoothness.

        Args:
            teacher: the global model, frozen and in evaluation mode.
            images: (B, channels, height, width).
        """
        outputs, moments = forward_with_moments(teacher, lambda: teacher(images))
        logits = outputs[:, : self.arrived.num_seen]
        content = F.cross_entropy(logits / _CONTENT_TEMPERATURE, logits.argmax(dim=1))
        balance = class_imbalance(logits) if logits.shape[1] > 1 else 0.0
        terms = self.content_weight * content + self.balance_weight * balance + self.smoothness_weight * roughness(images)
        return terms + self.statistics_weight * _divergence(moments) if moments else terms


def _divergence(moments: Sequence[Moments]) -> Tensor:
    """Mean over BatchNorm layers of the distance of the batch's moments from the running ones."""
    return torch.stack(
        [
            gaussian_divergence(of.mean, of.variance + _VARIANCE_FLOOR, of.running_mean, of.running_variance + _VARIANCE_FLOOR)
            for of in moments
        ]
    ).mean()
