"""PrivacyBudget: what differential privacy has spent so far."""

from typing import Any

from lightning.pytorch import Trainer

from fl_lightning.callbacks.federated_callback import FederatedCallback
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import RoundReport


class PrivacyBudget(FederatedCallback):
    """``privacy/epsilon`` of every round: the largest over clients at ``model.privacy.delta``; nothing without accounting.

    Under :class:`fl_lightning.privacy.DPSGD` it is what a client's updates say of one of its samples, by the client's
    sampling rate and local steps, every visit counted whether its update arrived or not. Under ``UserLevelDP`` it is what
    the global models say of one client's whole data.
    """

    key = "callbacks.privacy_budget"
    kept = ("_releases", "_rounds")

    def __init__(self) -> None:
        super().__init__(every=1)
        # By client: how many noisy sums were released, by sampling rate and sigma.
        self._releases: dict[int, dict[tuple[float, float], int]] = {}
        self._spent: dict[int, float] = {}  # epsilon of each, as far as it is known
        self._rounds = 0  # that are in it

    def on_train_start(self, trainer: Trainer, module: FederatedModule) -> None:
        if module.privacy is not None and module.privacy.accounts and self._rounds != trainer.global_step:
            raise ValueError(
                f"model.privacy accounts for epsilon, but only {self._rounds} of the {trainer.global_step} rounds of ckpt_path "
                "were accounted for: resume without accounting, or start a new run"
            )

    def on_round_end(self, trainer: Trainer, module: FederatedModule, round: int, report: RoundReport) -> None:
        if module.privacy is None:
            return
        drawn = module.data.participation.among(module.tasks.num_there(round))
        visited = [*report.clients, *(report.missing or ())]
        charges = module.privacy.charges(module, drawn, module.data.batch_sizes, visited)
        for client, (rate, count) in charges.items():
            releases = self._releases.setdefault(client, {})
            how = (rate, module.privacy.noise_multiplier)
            releases[how] = releases.get(how, 0) + count
            self._spent.pop(client, None)
        if module.privacy.accounts:
            self._rounds += 1
            for client in self._releases.keys() - self._spent.keys():
                self._spent[client] = module.privacy.epsilon(self._releases[client])
            module.log_round({"privacy/epsilon": max(self._spent.values(), default=0.0)}, round)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._spent = {}
