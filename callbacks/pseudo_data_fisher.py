"""PseudoDataFisher: whether FedReg's pseudo data matter to the same weights as the data that other clients trained on."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import Trainer
from torch import Tensor, nn

from fl_lightning.callbacks.federated_callback import FederatedCallback
from fl_lightning.checks import check_range
from fl_lightning.evaluation.refits import refit
from fl_lightning.functional import empirical_fisher
from fl_lightning.functional.random_streams import torch_stream
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import Client, RoundReport, overridden


class PseudoDataFisher(FederatedCallback):
    """Correlation of the Fisher information of a client's pseudo data with that of the training data of earlier rounds.

    Xu et al., "Acceleration of Federated Learning with Alleviated Forgetting in Local Training", ICLR 2022, Figure 2 and
    Appendix B. At client i's model after one local step of round t, the empirical Fisher information (a value a weight: the
    mean over samples of the squared gradient of the cross entropy) is taken of the training data of all clients of the last
    ``history`` rounds, of client i's pseudo data with their soft labels, and of client i's training data.
    ``forgetting/fisher_correlation`` is Pearson's correlation over all weights between the first and the second, the mean over
    clients; ``forgetting/fisher_correlation_local``, between the first and the third, is what it would be without the steps
    that make pseudo data. The paper calls the values "significantly correlated" and names no measure. Ours is of
    the values as they are, not of their logarithms: the weights that matter most decide.

    It costs a gradient of every single sample of all that data, for each client; several processes all do the same.

    Args:
        every, rounds: rounds in which this is done; round 1 has no earlier ones.
        history: earlier rounds whose clients count, each client once; fewer where there are fewer.
        clients: of the round that are looked at, drawn at random by the seed; all where there are fewer.

    Raises:
        ValueError: if ``history`` or ``clients`` is below 1; in ``setup``, if the method makes no pseudo data, as FedReg does.
    """

    kept = ("_cohorts",)

    def __init__(self, every: int = 100, rounds: list[int] | None = None, history: int = 10, clients: int = 10) -> None:
        super().__init__(every, rounds)
        for name, value in (("history", history), ("clients", clients)):
            check_range(f"{self.key}.{name}", value, at_least=1, hint="the default is 10")
        self.history, self.clients = history, clients
        self._cohorts: list[list[int]] = []  # clients of the last rounds, newest last

    def setup(self, trainer: Trainer, module: FederatedModule, stage: str) -> None:
        if not overridden(module, FederatedModule.pseudo_data):
            raise ValueError(
                f"{self.key} has PseudoDataFisher, model is {type(module).__name__}, but only FedReg makes pseudo data: "
                "leave the callback out"
            )
        super().setup(trainer, module, stage)

    def reads_clients(self, module: FederatedModule) -> bool:
        return self.chooses

    def on_round_start(self, trainer: Trainer, module: FederatedModule, round: int) -> None:
        if not self.due(round) or not self._cohorts:
            return
        earlier = sorted(set().union(*self._cohorts[-self.history :]))
        visits = module.present_cohort
        drawn = torch.randperm(len(visits), generator=torch_stream(module.seed, round, -1, "clients of PseudoDataFisher"))
        some = [visits[position] for position in drawn[: self.clients].sort().values.tolist()]
        fitted = refit(module, module.engine.context, round, some)
        rows = [_correlations(module, net, client, earlier) for client, net in fitted]
        pseudo, local = torch.stack(rows).nanmean(dim=0)
        module.log_round({"forgetting/fisher_correlation": pseudo, "forgetting/fisher_correlation_local": local}, round)

    def on_round_end(self, trainer: Trainer, module: FederatedModule, round: int, report: RoundReport) -> None:
        self._cohorts = [*self._cohorts, report.clients][-self.history :]


def _correlations(module: FederatedModule, net: nn.Module, client: Client, earlier: Sequence[int]) -> Tensor:
    """(2,), at a client's model: of the earlier clients' data with its pseudo data, and with its training data."""
    size = module.data.eval_batch_size
    inputs, targets, _ = module.data.evaluation.training_samples(earlier)
    pseudo = module.pseudo_data(client)
    fishers = [
        _fisher(net, zip(inputs.split(size), targets.split(size), strict=True)),
        _fisher(net, zip(pseudo["inputs"].split(size), pseudo["labels"].split(size), strict=True)),
        _fisher(net, client.samples()),
    ]
    return torch.corrcoef(torch.stack(fishers))[0, 1:]


def _fisher(net: nn.Module, batches: Iterable[tuple[Tensor, Tensor, *tuple[Any, ...]]]) -> Tensor:
    """The empirical Fisher information of all weights in a row, float64."""
    fisher = empirical_fisher(net, lambda logits, targets: F.cross_entropy(logits, targets, reduction="none"), batches)
    return torch.cat([values.flatten().double() for values in fisher.values()])
