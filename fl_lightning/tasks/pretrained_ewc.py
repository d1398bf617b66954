"""PretrainedEWC: weights that mattered to what the initial net knew are held back.

J. Kirkpatrick et al.: Overcoming catastrophic forgetting in neural networks. PNAS 2017. arXiv 1612.00796. Equation 3 with the
pretraining as the only earlier task, and the empirical Fisher information of single samples with their true labels.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fl_lightning.data import FederatedDataModule
from fl_lightning.data.reference_samples import ReferenceSamples
from fl_lightning.data.sources.by_name import open_source
from fl_lightning.data.sources.source import Source
from fl_lightning.functional import empirical_fisher
from fl_lightning.methods.localonly import LocalOnly
from fl_lightning.models.federated_net import shared_zeros
from fl_lightning.protocol import Client
from fl_lightning.tasks.l2sp import L2SP

_FISHER = "start_fisher"


class PretrainedEWC(L2SP):
    """The loss plus ``penalty/2 * sum_i F_i (w_i - w_0i)^2``, w_0 the weights that the run began with, for any method.

    F is the empirical Fisher information of w_0, which the server measures before round 1 on samples that it has. It goes down
    with the weights.

    Args:
        source: of these samples, such as those of the pretraining; its classes are among those of ``data.source``.
        penalty: lambda, at least 0; 0 is the method without it.
        root: folder of the source; None: ``data.root``.

    Raises:
        ValueError: if ``penalty`` is negative; before round 1, if the source has no training sample, another shape or a class
            that the federation lacks.
    """

    def __init__(self, source: str | Source, penalty: float = 100.0, root: str | None = None) -> None:
        super().__init__(penalty)
        self.source, self.root = open_source(source, "model.tasks.source"), root
        self._samples: ReferenceSamples

    def obstacle_to(self, method: Any) -> str | None:
        if isinstance(method, LocalOnly) and self.penalty > 0:
            return "sends its clients nothing, and so no Fisher information: use L2SP, or another method"
        return super().obstacle_to(method)

    def begin_run(self) -> None:
        self.method.server_states.add(_FISHER, shared_zeros(self.method))

    def check_data(self) -> None:
        if not isinstance(self.data, FederatedDataModule):
            kind = type(self.data).__name__
            raise ValueError(f"PretrainedEWC needs a FederatedDataModule, which prepares its samples, not {kind}: use L2SP")
        what = f"model.tasks.source is {type(self.source).__name__}"
        folder = self.data.root if self.root is None else Path(self.root)
        self._samples = ReferenceSamples(what, self.source, folder, self.data, self.method.net, "train")

    def begin_round(self, round: int) -> None:
        if round > 1:
            return
        counts = self.data.objective.count_units(self._samples.targets, len(self.data.classes))
        measured = empirical_fisher(
            self.method.net,
            lambda logits, targets: self.method.loss(logits, targets, counts),
            self._samples.batches(self.data.eval_batch_size),
        )
        for name, fisher in self.method.server_states.tensors(_FISHER).items():
            fisher.copy_(measured[name])

    def broadcast(self, client: int) -> dict[str, Any]:
        return {_FISHER: self.method.server_states.tensors(_FISHER)} if self.penalty > 0 else {}

    def client_penalty(self, net: nn.Module, client: Client) -> Tensor | float:
        if _FISHER not in client.broadcast:
            return 0.0
        fisher = client.broadcast[_FISHER]
        terms = [(fisher[name] * (weight - start).square()).sum() for name, (weight, start) in self._pulled(net).items()]
        return self.penalty / 2 * torch.stack(terms).sum() if terms else 0.0
