"""TARGET's synthesis: a copy of the generator goes a few steps from new noise, and the generator takes a meta step after it.

J. Zhang, C. Chen, W. Zhuang, L. Lyu: TARGET. ICCV 2023. arXiv 2303.06937. Departures: those of
:mod:`fl_lightning.tasks.classes.target`.
"""

import copy
from typing import Literal

import torch
from torch import Tensor

from fl_lightning.tasks.classes.generator import UnitGenerator, draw_noise
from fl_lightning.tasks.classes.synthesis import BETAS, Synthesis, SynthesisPlan, SynthesisTask

Meta = Literal["maml", "reptile"]

_NOISE_RATE = 0.01
_REPTILE = 67.0
_STUDENT_MOMENTUM, _STUDENT_DECAY = 0.9, 1e-4
_STUDENT_ROUNDS, _STUDENT_SMALLEST = 200, 2e-4  # of the cosine


class MetaSynthesis(Synthesis):
    """From noise, which is trained with the copy; the student's optimizer lasts for all rounds.

    Args:
        plan, of: as for :class:`Synthesis`.
        meta: the generator's step after a round, as for :class:`fl_lightning.tasks.TARGET`.
    """

    def __init__(self, plan: SynthesisPlan, of: SynthesisTask, meta: Meta) -> None:
        super().__init__(plan, of, UnitGenerator)
        self.meta = meta
        rate = plan.generator_rate * plan.generator_steps
        self._meta_optimizer = torch.optim.Adam(self.generator.parameters(), lr=rate, betas=BETAS)
        self._student_optimizer = torch.optim.SGD(
            self.student.parameters(), plan.student_rate, _STUDENT_MOMENTUM, weight_decay=_STUDENT_DECAY
        )
        self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            self._student_optimizer, _STUDENT_ROUNDS, eta_min=_STUDENT_SMALLEST
        )

    def new_images(self, with_student: bool) -> tuple[Tensor, Tensor]:
        plan, generator = self.plan, copy.deepcopy(self.generator)
        noise = draw_noise(plan.synthesis_batch, generator, self.draws).requires_grad_()
        targets = torch.randint(self.num_seen, (plan.synthesis_batch,), generator=self.draws).to(noise.device)
        groups = [{"params": generator.parameters()}, {"params": [noise], "lr": _NOISE_RATE}]
        optimizer = torch.optim.Adam(groups, lr=plan.generator_rate, betas=BETAS)
        summed = [torch.zeros_like(weight) for weight in generator.parameters()]

        def add_up() -> None:
            for total, weight in zip(summed, generator.parameters(), strict=True):
                if weight.grad is not None:
                    total += weight.grad

        found = self.lowest_loss(lambda: generator(noise), optimizer, targets, with_student, add_up)
        for weight, moved, total in zip(self.generator.parameters(), generator.parameters(), summed, strict=True):
            weight.grad = total if self.meta == "maml" else _REPTILE * (weight - moved).detach()
        self._meta_optimizer.step()
        return found

    def teach(self, images: Tensor) -> None:
        self.train_student(images, self._student_optimizer, self.plan.synthesis_batch)
        self._schedule.step()
