"""The common part of TARGET and LANDER: clients distil on images that the server synthesises when a task ends."""

from abc import abstractmethod
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from fl_lightning.checks import check_choice, check_range, check_whole
from fl_lightning.functional.generator_losses import Boundary
from fl_lightning.functional.random_streams import seeded_layers, stream_seed, torch_stream
from fl_lightning.functional.transfers import filled
from fl_lightning.protocol import Client, Needs
from fl_lightning.tasks.classes.distilling import DistillingLearner
from fl_lightning.tasks.classes.learner import ClassArguments
from fl_lightning.tasks.classes.synthesis import Synthesis, SynthesisPlan, SynthesisTask, cycled_order

_LOOKED_AT = 1_000  # training images, for their range


class SynthesisingLearner(DistillingLearner):
    """Sends images and the teacher down in every round from the second task on, as clients keep nothing.

    With ``distillation`` 0 nothing is synthesised.

    Args:
        plan: arguments of the synthesis.
        generated: images in a local step, at least 1.
    """

    needs = DistillingLearner.needs | Needs(other_samples=True)

    synthesised: Tensor
    """uint8 (``kept_rounds * synthesis_batch``, channels, height, width), images as stored."""

    def __init__(
        self, plan: SynthesisPlan, distillation: float, temperature: float, generated: int, **common: Unpack[ClassArguments]
    ) -> None:
        super().__init__(distillation=distillation, **common)
        self.plan, self.temperature, self.generated = plan, temperature, generated
        check_range("model.tasks.temperature", temperature, above=0, hint="the paper uses 2")
        check_whole("model.tasks.generated", generated, at_least=1)
        check_whole("model.tasks.synthesis_batch", plan.synthesis_batch, at_least=2, hint="BatchNorm needs two")
        check_choice("model.tasks.boundary", plan.boundary, Boundary)
        for name in ("generator_rate", "student_rate", "student_temperature"):
            check_range(f"model.tasks.{name}", getattr(plan, name), above=0)
        for name in ("kept_rounds", "generator_steps", "student_steps"):
            check_whole(f"model.tasks.{name}", getattr(plan, name), at_least=1)
        for name in ("warm_up", "class_weight", "statistics_weight", "boundary_weight"):
            check_range(f"model.tasks.{name}", getattr(plan, name), at_least=0)

    @abstractmethod
    def new_synthesis(self, of: SynthesisTask) -> Synthesis:
        """The synthesis at a task's end."""

    def begin_run(self) -> None:
        super().begin_run()
        if self.method.federation is None:
            return
        self._shape = tuple(self.data.samples.input_record.shape)
        if len(self._shape) != 3:
            raise ValueError(
                f"data.source gives inputs of shape {self._shape}, but {type(self).__name__} makes images: choose another "
                "learner"
            )
        _refuse_normalised(self)
        images = torch.zeros(self.plan.kept_rounds * self.plan.synthesis_batch, *self._shape, dtype=torch.uint8)
        self.register_buffer("synthesised", images.to(next(self.method.net.parameters()).device))

    def broadcast(self, client: int) -> dict[str, Any]:
        sent = super().broadcast(client)
        return {**sent, "synthesised": {"images": self.synthesised}} if sent else {}

    def begin_visit(self, net: nn.Module, client: Client) -> dict[str, Any]:
        carry = super().begin_visit(net, client)
        if "synthesised" not in client.broadcast:
            return carry
        address, steps = (self.method.seed, client.round, client.index), client.num_steps
        images, stream = client.broadcast["synthesised"]["images"], torch_stream(*address, "order of synthesised images")
        order = cycled_order(len(images), steps * self.generated, stream).view(steps, self.generated)
        key = stream_seed(*address, "augmentation of synthesised images")
        return {**carry, "synthesised": {"order": order.to(images.device), "key": torch.tensor([key], device=images.device)}}

    def synthesised_inputs(self, client: Client) -> Tensor:
        """The images of a local step as the net takes them, (``generated``, ...), augmented as real ones."""
        drawn, preparation = client.carry["synthesised"], self.data.preparation
        step = filled(client.step, drawn["order"].device)
        rows = drawn["order"].index_select(0, step[None])[0]
        counters = step * self.generated + torch.arange(self.generated, device=rows.device)
        images = client.broadcast["synthesised"]["images"][rows].to(preparation.dtype) / 255
        return preparation.of_unit_images(images, drawn["key"], counters[None])

    def end_task(self) -> None:
        super().end_task()
        if self.distillation == 0:
            return
        of = SynthesisTask(
            type(self).__name__,
            self.method.net,
            self.arrived.num_seen,
            self._shape,
            self.data.preparation,
            self.method.seed,
            self.task,
        )
        synthesis = self.new_synthesis(of)
        with seeded_layers(of.seed, of.task, -1, "student", self.synthesised.device):  # dropout of its net
            self.synthesised.copy_(synthesis.run())


def _refuse_normalised(learner: SynthesisingLearner) -> None:
    """Refuse float images outside of [0, 1], the range of synthesised ones."""
    stored = learner.data.samples.dataset.train.inputs
    if not isinstance(stored, Tensor) or not stored.is_floating_point():
        return
    values = stored[:_LOOKED_AT][stored[:_LOOKED_AT].isfinite()]
    if len(values) > 0 and (values.min() < 0 or values.max() > 1):
        span = f"{float(values.min()):.3g} to {float(values.max()):.3g}"
        raise ValueError(
            f"data.source gives images of floats from {span}, as if normalised, but {type(learner).__name__} makes images from "
            "0 to 1: give images of type uint8, or use MFCL or LwF"
        )
