"""TARGET: the server uses only the model to synthesise images of all classes seen, and clients distil on these.

J. Zhang, C. Chen, W. Zhuang, L. Lyu: TARGET: Federated Class-Continual Learning via Exemplar-Free Distillation. ICCV 2023.
arXiv 2303.06937; weights and nets of the authors' code for CIFAR-100. Departures:

- The code has 10 rounds of synthesis on CIFAR-100, fewer than its warm-up of 20, so its student is never trained and its
  boundary term is 0. Here 32 rounds follow the warm-up, and only their 8,192 images are stored; the code stores 2,560. The
  boundary term begins after the warm-up, in the code one round earlier.
- The boundary term is on samples whose class teacher and student agree on, as in the code; in the paper, and with ``boundary:
  disagree``, on the others.
- Clients go through all images, over and over; in the code an epoch ends with the shorter of two loaders.
- Images are augmented as the data are, and rounded to 8 bits, where the code cuts the fraction off.
- Images and teacher are sent in every round, as clients keep nothing.
"""

from typing import Unpack

from torch import Tensor, nn

from fl_lightning.checks import check_choice
from fl_lightning.functional import soft_cross_entropy
from fl_lightning.functional.generator_losses import Boundary
from fl_lightning.protocol import Batch, Client
from fl_lightning.tasks.classes.learner import ClassArguments
from fl_lightning.tasks.classes.meta_synthesis import Meta, MetaSynthesis
from fl_lightning.tasks.classes.synthesis import SynthesisPlan, SynthesisTask
from fl_lightning.tasks.classes.synthesising import SynthesisingLearner


class TARGET(SynthesisingLearner):
    """The loss on real samples plus ``alpha * -sum_{c<o} p_c log q_c`` on synthesised ones, at temperature T_d, from the second
    task on. p are the predictions of the global model at the end of the previous task for the o old classes.

    No sample is kept. At a task's end the server trains a new generator against the global model: in each round of synthesis a
    copy of the generator takes a few steps on one batch of noise, also trained, with losses on the predicted classes,
    BatchNorm's statistics and the boundary between the global model and a student, which learns from the images stored so far.

    Args:
        distillation: alpha, at least 0; 0 is fine-tuning exactly, without synthesis.
        temperature: T_d, above 0.
        generated: synthesised samples in a local step, at least 1.
        warm_up: rounds of synthesis before the student learns, at least 0.
        kept_rounds: rounds after them, whose images are stored, at least 1.
        synthesis_batch: images in a round, at least 2.
        generator_steps: g, steps of a round, at least 1.
        generator_rate: learning rate of these steps, above 0; the meta step has g times it.
        meta: the generator's step after a round: along the sum of the copy's gradients (``maml``, first order), or 67 times the
            way that the copy has gone (``reptile``).
        class_weight, statistics_weight, boundary_weight: w_ce, w_bn and w_adv, at least 0.
        boundary: samples in the boundary term: those on whose class teacher and student ``agree``, or those on which they
            ``disagree``.
        student_steps: steps of the student in a round, at least 1.
        student_rate: its learning rate, above 0. The code's .2 is for nets with BatchNorm; others need a lower one.
        student_temperature: of its distillation, above 0.

    Raises:
        ValueError: if a value is out of range, or the data are not images.
        FloatingPointError: at the end of a task, if the synthesis is not finite.
    """

    def __init__(
        self,
        distillation: float = 25.0,
        temperature: float = 2.0,
        generated: int = 500,
        warm_up: int = 20,
        kept_rounds: int = 32,
        synthesis_batch: int = 256,
        generator_steps: int = 10,
        generator_rate: float = 2e-3,
        meta: Meta = "maml",
        class_weight: float = 0.5,
        statistics_weight: float = 10.0,
        boundary_weight: float = 1.0,
        boundary: Boundary = "agree",
        student_steps: int = 400,
        student_rate: float = 0.2,
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
        check_choice("model.tasks.meta", meta, Meta)
        self.meta: Meta = meta

    def new_synthesis(self, of: SynthesisTask) -> MetaSynthesis:
        return MetaSynthesis(self.plan, of, self.meta)

    def client_loss(self, net: nn.Module, batch: Batch, client: Client) -> Tensor:
        losses = super().client_loss(net, batch, client)
        if "synthesised" not in client.carry:
            return losses
        inputs, old = self.synthesised_inputs(client), slice(self.arrived.num_old)
        said = client.evaluate(client.broadcast["teacher"], lambda teacher: teacher(inputs))
        return losses + self.distillation * soft_cross_entropy(net(inputs)[:, old], said[:, old], self.temperature)
