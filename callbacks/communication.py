"""Communication: what crossed the network, counted where it crosses."""

from typing import Any

from lightning.pytorch import Trainer

from fl_lightning.callbacks.base import FederatedCallback
from fl_lightning.clients import RoundReport
from fl_lightning.module import FederatedModule


class Communication(FederatedCallback):
    """Bytes down (server to clients) and up, a round and in total.

    Trained weights and buffers count with the bytes of their dtype, and so does whatever a method sends beside them; class
    counts and sample counts, a few numbers a client, do not. ``communication/down``, ``communication/up``,
    ``communication/total_down``, ``communication/total_up``. Totals are kept in every round, logged in the chosen ones.
    """

    def __init__(self, every: int = 1, rounds: list[int] | None = None) -> None:
        super().__init__(every, rounds)
        self.total_down = 0
        self.total_up = 0

    def on_round_end(self, trainer: Trainer, module: FederatedModule, round: int, report: RoundReport) -> None:
        self.total_down += report.bytes_down
        self.total_up += report.bytes_up
        if self.due(round):
            scalars = {
                "down": report.bytes_down,
                "up": report.bytes_up,
                "total_down": self.total_down,
                "total_up": self.total_up,
            }
            module.log_round({f"communication/{name}": value for name, value in scalars.items()}, round)

    def state_dict(self) -> dict[str, Any]:
        return {"total_down": self.total_down, "total_up": self.total_up}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.total_down, self.total_up = state_dict["total_down"], state_dict["total_up"]
