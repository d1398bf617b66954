"""LANDER's synthesis: images from the embeddings of class names, by linear layers that are drawn anew in every round.

M.-T. Tran et al.: LANDER. CVPR 2024. arXiv 2403.14101; the loop is that of its code. Departures: those of
:mod:`fl_lightning.tasks.classes.lander`.
"""

import torch
from torch import Tensor, nn

from fl_lightning.functional import anchor_loss
from fl_lightning.tasks.classes.generator import AnchoredGenerator
from fl_lightning.tasks.classes.projection import projected
from fl_lightning.tasks.classes.synthesis import BETAS, Synthesis, SynthesisPlan, SynthesisTask

_SCALE_RATE = 0.01
_FIRST_MEAN, _FIRST_STD = 0.5, 0.2
_STUDENT_MOMENTUM, _STUDENT_DECAY, _STUDENT_BATCH = 0.9, 2e-4, 128


class AnchoredSynthesis(Synthesis):
    """The generator and the scale of its images, a mean and a deviation of each channel, are trained on from round to round;
    their optimizer and the student's are new in each.

    Args:
        plan, of: as for :class:`Synthesis`.
        anchors: (``num_seen``, width), embeddings of the classes seen.
        anchor_weight, radius: as for :class:`fl_lightning.tasks.LANDER`.
    """

    generator: AnchoredGenerator

    def __init__(self, plan: SynthesisPlan, of: SynthesisTask, anchors: Tensor, anchor_weight: float, radius: float) -> None:
        super().__init__(plan, of, lambda shape: AnchoredGenerator(shape, anchors.shape[1], plan.synthesis_batch))
        self.anchors, self.anchor_weight, self.radius = anchors, anchor_weight, radius
        ones = torch.ones(of.preparation.input_shape[0], 1, 1, dtype=anchors.dtype, device=anchors.device)
        self.mean, self.std = (_FIRST_MEAN * ones).requires_grad_(), (_FIRST_STD * ones).requires_grad_()

    def new_images(self, with_student: bool) -> tuple[Tensor, Tensor]:
        self.generator.redraw(self.draws)
        targets = even_classes(self.plan.synthesis_batch, self.num_seen, self.draws).to(self.anchors.device)
        groups = [{"params": self.generator.parameters()}, {"params": [self.mean, self.std], "lr": _SCALE_RATE}]
        optimizer = torch.optim.Adam(groups, lr=self.plan.generator_rate, betas=BETAS)
        return self.lowest_loss(lambda: self.generator(self.anchors[targets]), optimizer, targets, with_student)

    def teach(self, images: Tensor) -> None:
        optimizer = torch.optim.SGD(
            self.student.parameters(), self.plan.student_rate, _STUDENT_MOMENTUM, weight_decay=_STUDENT_DECAY
        )
        self.train_student(images, optimizer, _STUDENT_BATCH)

    def generated_inputs(self, images: Tensor) -> Tensor:
        return (self.augmented(images) - self.mean) / self.std

    def outputs(self, net: nn.Module, inputs: Tensor) -> Tensor:
        return torch.cat(projected(net, inputs, slice(self.num_seen)), dim=1)

    def further_loss(self, further: Tensor, targets: Tensor) -> Tensor:
        return self.anchor_weight * anchor_loss(further, self.anchors[targets], self.radius)

    def further_student_loss(self, further: Tensor, of_teacher: Tensor) -> Tensor:
        return self.anchor_weight * (further - of_teacher).square().mean()


def even_classes(count: int, num_classes: int, stream: torch.Generator) -> Tensor:
    """(count,) classes: all in order, as often as they fit, then random ones."""
    whole, rest = divmod(count, num_classes)
    return torch.cat([torch.arange(num_classes).repeat(whole), torch.randint(num_classes, (rest,), generator=stream)])
