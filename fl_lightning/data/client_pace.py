"""Which task each client trains on, where some stay with an earlier one and new clients join."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fl_lightning.checks import check_range
from fl_lightning.functional.random_streams import numpy_stream


@dataclass(frozen=True)
class ClientPace:
    """When a task begins some of the clients that are there move to it, the others stay with the samples that they have.

    Protocol of GLFC (Dong et al.: Federated Class-Incremental Learning, CVPR 2022, arXiv 2203.11473), whose code moves 90 % of
    30 clients and lets 10 join at each task. A client that stays moves to the newest task when it is drawn for one, past those
    between.

    Args:
        moving: share of the clients that are there, in (0, 1]; at least one moves.
        joining: new clients at each task after the first, at least 0.

    Raises:
        ValueError: if a value is out of range.
    """

    moving: float = 1.0
    joining: int = 0

    def __post_init__(self) -> None:
        check_range("data.tasks.moving", self.moving, above=0, at_most=1, hint="1 moves all clients together")
        check_range("data.tasks.joining", self.joining, at_least=0, hint="0 has all clients there from the start")

    def __str__(self) -> str:
        """What is not the default, as ``, moving=0.9, joining=10``."""
        moving = f", moving={self.moving}" if self.moving < 1 else ""
        return moving + (f", joining={self.joining}" if self.joining > 0 else "")

    def tasks_of_clients(self, num_clients: int, num_tasks: int, seed: int) -> Tensor:
        """(N, T), the task that each client trains on while each task is the newest; -1 before a client joins.

        Clients are numbered in the order in which they join. Who moves is drawn by the seed and the task.

        Raises:
            ValueError: if no client is there for the first task.
        """
        there = num_clients - self.joining * (num_tasks - 1)
        if there < 1:
            raise ValueError(
                f"data.tasks.joining is {self.joining} at each of {num_tasks - 1} tasks, which leaves none of data.num_clients "
                f"{num_clients} for the first task: lower it, or raise data.num_clients"
            )
        tasks = torch.full((num_clients, num_tasks), -1)
        tasks[:there, 0] = 0
        for task in range(1, num_tasks):
            count = max(int(self.moving * there + 1e-9), 1)
            movers = numpy_stream(seed, task, -1, "clients that move on").choice(there, count, replace=False)
            tasks[:, task] = tasks[:, task - 1]
            tasks[torch.from_numpy(movers), task] = task
            tasks[there : there + self.joining, task] = task
            there += self.joining
        return tasks
