"""GLFC: a step weights hard samples more, and holds relations between classes to the model before the task.

J. Dong, L. Wang, Z. Fang, G. Sun, S. Xu, X. Wang, Q. Zhu: Federated Class-Incremental Learning. CVPR 2022. arXiv 2203.11473.
The losses of the authors' code; its protocol is ``ClassStream`` with ``moving`` and ``joining``. Departures: the stream tells
when a task begins; the code looks for a rise of the entropy. The old model is that at the end of the previous task, so no proxy
server chooses one by images that it inverts from clients' gradients, and no such gradient is sent. Remembered samples are added
to a batch; the code adds the memory to the data.
"""

from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl_lightning.checks import check_range
from fl_lightning.functional import gradient_compensation
from fl_lightning.losses import CrossEntropy
from fl_lightning.protocol import Batch, Client
from fl_lightning.tasks.classes.distilling import DistillingLearner
from fl_lightning.tasks.classes.learner import ClassArguments, places_among
from fl_lightning.tasks.classes.replay import Replay


class GLFC(DistillingLearner, Replay):
    """Replay by herding with ``(1 - d) L_GC + d L_RD``, both means over samples b and the C classes seen.

    ``L_GC = mean_bc w_b BCE(z_bc, [y_b = c])``, where w is :func:`fl_lightning.functional.gradient_compensation` with the
    remembered classes as the learned ones, and 1 if the client remembers no sample. ``L_RD = mean_bc BCE(z_bc, t_bc)``, where t
    is the sigmoid of the teacher's logits for old classes, and the target of ``L_GC`` for the others. The first task has only
    ``L_GC``.

    Args:
        memory: samples that each client remembers, at least 0.
        distillation: d, between 0 and 1.

    Raises:
        ValueError: if a value is out of range, ``loss`` is not cross entropy, the default that these losses replace, or the net
            has no features.
    """

    def __init__(self, memory: int = 100, distillation: float = 0.5, **common: Unpack[ClassArguments]) -> None:
        # Two arguments of Replay, which is later in the line of classes than the one that pyright looks at.
        super().__init__(distillation=distillation, memory=memory, selection="herding", **common)  # pyright: ignore[reportCallIssue]
        check_range("model.tasks.distillation", distillation, at_most=1, hint="the paper uses 0.5")

    def belong_to(self, method: nn.Module) -> None:
        super().belong_to(method)
        if type(self.method.loss) is not CrossEntropy:
            raise ValueError(
                f"model.loss is {self.method.loss!r}, but GLFC has binary cross entropies of its own: leave it out"
            )

    def sample_losses(self, net: nn.Module, samples: Batch, label_counts: Tensor, client: Client) -> Tensor:
        columns, old = self.competing_classes(client), slice(self.arrived.num_old)
        logits, targets = net(samples.inputs)[:, columns], places_among(columns, samples.targets)
        truth = (targets[:, None] == torch.arange(logits.shape[1], device=logits.device)).to(logits.dtype)
        compensated = _binary_losses(logits, truth)
        if "remembered" in client.carry:
            learned = (samples.targets[:, None] == client.carry["remembered"]["targets"]).any(dim=1)
            compensated = compensated * gradient_compensation(logits.detach(), targets, learned, samples.real)
        if "teacher" not in client.broadcast:
            return compensated
        said = client.evaluate(client.broadcast["teacher"], lambda teacher: teacher(samples.inputs))
        related = torch.cat([said[:, old].sigmoid(), truth[:, self.arrived.num_old :]], dim=1)
        return (1 - self.distillation) * compensated + self.distillation * _binary_losses(logits, related)


def _binary_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Binary cross entropy, mean over classes, (B,)."""
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(dim=1)
