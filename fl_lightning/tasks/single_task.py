"""SingleTask: a new network for every task, trained by each client by itself. An upper reference that cannot forget.

STL in J. Yoon, W. Jeong, G. Lee, E. Yang, S. J. Hwang: Federated Continual Learning with Weighted Inter-client Transfer. ICML
2021.
"""

from fl_lightning.tasks.learner import TaskLearner


class SingleTask(TaskLearner):
    """Each task has a separate net: nothing is shared between tasks, and nothing is sent. The method is ``LocalOnly``."""

    per_task = ("*",)
