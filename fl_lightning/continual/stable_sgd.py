"""StableSGD: a training regime that forgets less, without a term in the loss.

S. I. Mirzadeh, M. Farajtabar, R. Pascanu, H. Ghasemzadeh: Understanding the Role of Training Regimes in Continual Learning.
NeurIPS 2020. arXiv 2006.06958. The authors' scripts add dropout of .5, which is an argument of the net.
"""

from dataclasses import replace
from typing import Any

import torch

from fl_lightning.checks import check_range
from fl_lightning.continual.learner import TaskLearner
from fl_lightning.module import Net
from fl_lightning.optimizers import OptimizerBuilder


class StableSGD(TaskLearner):
    """SGD with momentum whose rate falls from task to task, ``max(rate * task_decay ** t, lowest_rate)``, t from 1.

    Within a task it stays: ``patience``, ``rate_divisor`` and ``smallest_rate`` play no part, and a task is over after
    ``rounds_per_task`` rounds.

    Args:
        optimizer: builds the clients' optimizer, whose rate is that of t = 0.
        task_decay: factor from one task to the next, above 0 and at most 1.
        lowest_rate: the rate never falls below it.

    Raises:
        ValueError: if ``task_decay`` or ``lowest_rate`` is out of range.
    """

    learns_alone = True

    def __init__(
        self,
        net: Net,
        optimizer: OptimizerBuilder = lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.8),
        task_decay: float = 0.8,
        lowest_rate: float = 5e-5,
        **common: Any,
    ) -> None:
        super().__init__(net, optimizer=optimizer, **common)
        check_range("model.task_decay", task_decay, above=0, at_most=1, hint="the paper uses 0.8")
        check_range("model.lowest_rate", lowest_rate, at_least=0, hint="the paper uses 5e-5")
        self.task_decay, self.lowest_rate = task_decay, lowest_rate
        self.smallest_rate = 0.0  # within a task the rate does not fall, and so cannot end it
        self.pace = replace(self.pace, smallest_rate=self.smallest_rate)

    def client_learning_rate(self, round: int, client: int) -> float:
        """The decay from task to task, instead of that within a task."""
        factor = max(self.task_decay ** (self.positions[client] + 1), self.lowest_rate / self.first_rate)
        return factor * self.learning_rate_decay ** (round - 1)
