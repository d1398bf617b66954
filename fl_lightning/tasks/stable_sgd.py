"""StableSGD: a training regime that forgets less, without a term in the loss.

S. I. Mirzadeh, M. Farajtabar, R. Pascanu, H. Ghasemzadeh: Understanding the Role of Training Regimes in Continual Learning.
NeurIPS 2020. arXiv 2006.06958. The authors' scripts add dropout of .5, here an argument of the net.
"""

from typing import Unpack

from fl_lightning.checks import check_range
from fl_lightning.tasks.learner import TaskArguments, TaskLearner


class StableSGD(TaskLearner):
    """A rate that falls from task to task, ``max(rate * task_decay ** t, lowest_rate)``, t from 1.

    The rate of t = 0 is that of the method's ``optimizer``, in the paper SGD with rate .1 and momentum .8. Within a task it is
    constant: ``patience``, ``rate_divisor`` and ``smallest_rate`` have no effect, and a task lasts ``rounds_per_task`` rounds.

    Args:
        task_decay: factor from one task to the next, above 0 and at most 1.
        lowest_rate: lower bound of the rate.
        pace: arguments of :class:`TaskLearner`.

    Raises:
        ValueError: if ``task_decay`` or ``lowest_rate`` is out of range.
    """

    def __init__(self, task_decay: float = 0.8, lowest_rate: float = 5e-5, **pace: Unpack[TaskArguments]) -> None:
        super().__init__(**pace)
        check_range("model.tasks.task_decay", task_decay, above=0, at_most=1, hint="the paper uses 0.8")
        check_range("model.tasks.lowest_rate", lowest_rate, at_least=0, hint="the paper uses 5e-5")
        self.task_decay, self.lowest_rate = task_decay, lowest_rate
        self.smallest_rate = 0.0  # within a task the rate does not fall, and so cannot end it

    def rate_factor(self, client: int) -> float:
        """The decay from task to task instead of within a task."""
        return max(self.task_decay ** (self.clocks.positions[client] + 1), self.lowest_rate / self.first_rate)
