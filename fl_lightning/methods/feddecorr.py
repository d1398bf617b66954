"""FedDecorr: clients keep the dimensions of their features uncorrelated, so that features do not collapse.

Y. Shi, J. Liang, W. Zhang, V. Y. F. Tan, S. Bai: Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous
Federated Learning. ICLR 2023. arXiv 2210.00226. Departures: the term is the paper's, ``||K||_F^2 / d^2`` of the correlation
matrix K; the authors' code multiplies K by the number of samples of the batch, divides the squares by that number once, and
leaves out the diagonal, which has no gradient: its term is about batch size times as large, so ``beta`` 0.1 there is about
``0.1 * batch_size`` here.
"""

from typing import Any, Unpack

import torch
from torch import Tensor

from fl_lightning.checks import check_range
from fl_lightning.functional.loss_reductions import at_least_float32
from fl_lightning.models.network import expose_features, outputs_and_features
from fl_lightning.module import CommonArguments, FederatedModule, Net
from fl_lightning.protocol import Batch, Client, Needs

_EPS = 1e-8  # of the authors' code, added to variances: a feature that is constant has correlation 0


class FedDecorr(FederatedModule):
    """The loss plus ``beta ||K||_F^2 / d^2``, K the correlations over the batch of the d features, the classifier's inputs.

    Round:
        clients: F_k(w) + beta |K|^2 / d^2, K the features' correlations
        server: mean

    Args:
        beta: weight of the term, at least 0; 0 is FedAvg exactly.

    Raises:
        ValueError: if ``beta`` is negative, or the class layer is not found.
    """

    needs = Needs(other_samples=True)

    def __init__(self, net: Net, beta: float = 0.1, **common: Unpack[CommonArguments]) -> None:
        super().__init__(net, **common)
        check_range("model.beta", beta, at_least=0, hint="0 is FedAvg")
        self.beta = beta

    def adapt_net(self) -> None:
        super().adapt_net()
        expose_features(self.net, "whose inputs FedDecorr decorrelates")

    def client_loss(self, net: Any, batch: Batch, client: Client) -> Tensor:
        outputs, z = outputs_and_features(net, batch.inputs)
        loss = self.loss(outputs, batch.targets, client.label_counts)
        if self.beta == 0:
            return loss
        # The same for each sample, so the mean over the batch has it once.
        return loss + self.beta * decorrelation(z.flatten(1), batch.real)


def decorrelation(features: Tensor, real: Tensor | None = None) -> Tensor:
    """``||K||_F^2 / d^2`` of the d x d matrix K of correlations over samples, a scalar in [0, 1].

    Args:
        features: (B, d).
        real: (B,), false for samples that do not count; None: all count.
    """
    z = at_least_float32(features)
    weights = (z.new_ones(len(z)) if real is None else real.to(z.dtype))[:, None]
    count = weights.sum()
    z = (z - (weights * z).sum(dim=0) / count) * weights
    z = z / (z.square().sum(dim=0) / count + _EPS).sqrt()
    with torch.autocast(z.device.type, enabled=False):  # which would take the product in half precision
        return (torch.mm(z.T, z) / count).square().mean()
