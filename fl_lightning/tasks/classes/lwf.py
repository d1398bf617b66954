"""LwF: clients preserve the global model's predictions for old classes from the end of the previous task.

Z. Li, D. Hoiem: Learning without Forgetting. ECCV 2016. arXiv 1606.09282; in federated learning the baseline of J. Zhang et
al.: TARGET, ICCV 2023, arXiv 2303.06937, with its loss and weights. Departures: the teacher is sent in every round, as clients
keep nothing.
"""

from typing import Unpack

from torch import Tensor, nn

from fl_lightning.checks import check_range
from fl_lightning.functional import soft_cross_entropy
from fl_lightning.protocol import Batch, Client
from fl_lightning.tasks.classes.distilling import DistillingLearner
from fl_lightning.tasks.classes.learner import ClassArguments


class LwF(DistillingLearner):
    """The loss plus ``lambda * -sum_{c<o} p_c log q_c`` over the o old classes, at temperature T, from the second task on.

    p are the predictions of the global model at the end of the previous task, in evaluation mode, q those of the client's.

    Args:
        distillation: lambda, at least 0; 0 is fine-tuning exactly.
        temperature: T, above 0.

    Raises:
        ValueError: if one of them is out of range.
    """

    def __init__(self, distillation: float = 3.0, temperature: float = 2.0, **common: Unpack[ClassArguments]) -> None:
        super().__init__(distillation=distillation, **common)
        check_range("model.tasks.temperature", temperature, above=0, hint="the paper uses 2")
        self.temperature = temperature

    def sample_losses(self, net: nn.Module, samples: Batch, label_counts: Tensor, client: Client) -> Tensor:
        logits, old = net(samples.inputs), slice(self.arrived.num_old)
        loss = self.logits_loss(logits, samples.targets, label_counts, client)
        if "teacher" not in client.broadcast:
            return loss
        said = client.evaluate(client.broadcast["teacher"], lambda teacher: teacher(samples.inputs))
        return loss + self.distillation * soft_cross_entropy(logits[:, old], said[:, old], self.temperature, reduction="none")
