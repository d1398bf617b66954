"""FedBN: batch normalisation stays with each client.

X. Li, M. Jiang, X. Zhang, M. Kamp, Q. Dou: FedBN: Federated Learning on Non-IID Features via Local Batch Normalization. ICLR
2021. arXiv 2102.07623. Departures: the layers are found by their class; the authors' code looks for names with ``bn`` in them
and misses some. That code has no rule for clients that never took part: :class:`~fl_lightning.callbacks.PersonalAccuracy`
estimates their statistics on their training samples.
"""

import warnings
from functools import cached_property

from torch import nn

from fl_lightning.module import FederatedModule


class FedBN(FederatedModule):
    """FedAvg of everything except BatchNorm layers; their weights and running statistics stay with their client.

    On a net without BatchNorm it is FedAvg, and a warning says so.

    Round:
        clients: F_k(w, personal BatchNorm)
        server: mean of the rest
        more down: -P_bn
        more up: -P_bn
        a client keeps: P_bn and statistics
        a client uses: the shared net with personal BatchNorm layers
        the server has: all but these
    """

    def configure_model(self) -> None:
        super().configure_model()
        if not self.norm_names:
            warnings.warn("model.net has no BatchNorm layer: FedBN is FedAvg on it", stacklevel=1)

    def is_personal(self, name: str) -> bool:
        return super().is_personal(name) or name in self.norm_names

    @cached_property
    def norm_names(self) -> frozenset[str]:
        """Names of the weights and buffers of BatchNorm layers."""
        layers = {name: m for name, m in self.net.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)}
        return frozenset(key for name, layer in layers.items() for key in layer.state_dict(prefix=f"{name}."))
