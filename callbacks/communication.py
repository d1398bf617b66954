"""Communication: what crossed the network, counted where it crosses, and with whom."""

from typing import Any

import torch
from lightning.pytorch import Trainer

from fl_lightning.callbacks.federated_callback import FederatedCallback, log_tensors
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import RoundReport


class Communication(FederatedCallback):
    """Bytes down (server to clients) and up, a round and in total.

    Trained weights and buffers count with the bytes of their dtype, and so does whatever else a method sends; class
    counts and sample counts, a few numbers a client, do not. ``communication/down``, ``communication/up``,
    ``communication/total_down``, ``communication/total_up``. Totals are kept in every round, logged in the chosen ones
    and in round ``max_steps``.

    On task streams ``task_bytes/down_01``, ``/down_02``, ... and ``/up_01``, ... are the totals of the task at that position of
    each stream. A round's bytes count for the tasks that its clients are at, an equal part for each client; those that
    are late or lose their upload have a part of the bytes down.

    With speeds of clients (``data.devices.file``) ``communication/seconds`` and ``communication/total_seconds`` are the
    simulated time of the round and of all so far.

    Who took part is the tensor ``clients/round_cohort`` (K,), logged in every round whose cohort is not that of the round
    before.
    """

    key = "callbacks.communication"
    kept = ("total_down", "total_up", "of_tasks", "_cohort")

    def __init__(self, every: int = 1, rounds: list[int] | None = None) -> None:
        super().__init__(every, rounds)
        self.total_down = 0
        self.total_up = 0
        self.total_seconds = 0.0
        self.of_tasks: dict[str, float] = {}  # down_01 and so on -> bytes
        self._cohort: list[int] | None = None  # of the newest round
        self._positions: list[int] = []  # of the clients in their streams as the round begins; none without tasks

    def on_round_start(self, trainer: Trainer, module: FederatedModule, round: int) -> None:
        progress = module.tasks.task_progress()
        self._positions = [] if progress is None else list(progress.positions)

    def on_round_end(self, trainer: Trainer, module: FederatedModule, round: int, report: RoundReport) -> None:
        self.total_down += report.bytes_down
        self.total_up += report.bytes_up
        self.total_seconds += report.seconds or 0.0
        newest = self._count_tasks(report)
        if report.clients != self._cohort:
            self._cohort = report.clients
            log_tensors(trainer, {"clients/round_cohort": torch.tensor(report.clients)}, round)
        if self.due_or_last(trainer, round):
            scalars = {
                "down": report.bytes_down,
                "up": report.bytes_up,
                "total_down": self.total_down,
                "total_up": self.total_up,
            }
            if report.seconds is not None:
                scalars |= {"seconds": report.seconds, "total_seconds": self.total_seconds}
            module.log_round({f"communication/{name}": value for name, value in scalars.items()} | newest, round)

    def state_dict(self) -> dict[str, Any]:
        # Runs without simulated time, as all were before there was any, have no such total.
        return super().state_dict() | ({"total_seconds": self.total_seconds} if self.total_seconds > 0 else {})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.total_seconds = state_dict.get("total_seconds", 0.0)

    def _count_tasks(self, report: RoundReport) -> dict[str, float]:
        """Add a round's bytes to those of its clients' tasks; gives the scalars that changed."""
        names = set()
        received = [*report.clients, *(report.missing or ())]
        parts = (("down", report.bytes_down, received), ("up", report.bytes_up, report.clients))
        for direction, sent, clients in parts if self._positions else ():
            for client in clients:
                names.add(name := f"{direction}_{self._positions[client] + 1:02d}")
                self.of_tasks[name] = self.of_tasks.get(name, 0.0) + sent / len(clients)
        return {f"task_bytes/{name}": self.of_tasks[name] for name in sorted(names)}
