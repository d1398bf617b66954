"""PrivacyBudget: what differential privacy has spent so far."""

from typing import Any

from lightning.pytorch import Trainer

from fl_lightning.callbacks.base import FederatedCallback
from fl_lightning.clients import RoundReport
from fl_lightning.module import FederatedModule
from fl_lightning.privacy.accounting import epsilon


class PrivacyBudget(FederatedCallback):
    """``privacy/epsilon`` of every round: the largest over clients at ``model.privacy.delta``; nothing without accounting.

    Under :class:`fl_lightning.privacy.DPSGD` it is what a client's updates say of one of its samples, by the client's own
    sampling rate and local steps, every visit counted whether its update arrived or not. Under ``UserLevelDP`` it is what
    the global models say of one client's whole data.
    """

    def __init__(self) -> None:
        super().__init__(every=1)
        self._releases: dict[int, int] = {}  # noisy sums by client
        self._largest = 0.0

    def on_round_end(self, trainer: Trainer, module: FederatedModule, round: int, report: RoundReport) -> None:
        if module.privacy is None:
            return
        charges = module.privacy.charges(module, report.clients)
        for client, (rate, releases) in charges.items():
            self._releases[client] = self._releases.get(client, 0) + releases
            spent = epsilon(rate, module.privacy.noise_multiplier, self._releases[client], module.privacy.delta)
            self._largest = max(self._largest, spent)
        if self._releases:
            module.log_round({"privacy/epsilon": self._largest}, round)

    def state_dict(self) -> dict[str, Any]:
        return {"releases": dict(self._releases), "largest": self._largest}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._releases, self._largest = dict(state_dict["releases"]), state_dict["largest"]
