"""LG-FedAvg: the lower layers stay with each client, the upper ones are shared.

P. P. Liang, T. Liu, L. Ziyin, N. B. Allen, R. P. Auerbach, D. Brent, R. Salakhutdinov, L.-P. Morency: Think Locally, Act
Globally: Federated Learning with Local and Global Representations. 2020. arXiv 2001.01523. Departures: a run starts with the
initial net. The authors' code starts with a checkpoint of FedAvg: give one as ``initial_weights``. New clients have no
ensemble.
"""

from collections.abc import Sequence
from fnmatch import fnmatch
from typing import Unpack

from fl_lightning.checks import check_patterns
from fl_lightning.models.network import of_class_layer
from fl_lightning.module import CommonArguments, FederatedModule, Net


class LGFedAvg(FederatedModule):
    """Clients train all layers together, send the shared ones and keep all others.

    Round:
        clients: F_k(personal body, head)
        server: mean of the heads
        more down: -P_body
        more up: -P_body
        a client keeps: P_body
        a client uses: a personal body, the shared head
        the server has: a head

    Args:
        shared: name patterns (``fnmatch``) of the weights and buffers that are shared.

    Raises:
        ValueError: if there is no pattern; as the net is built, if one fits no name, or nothing stays with the clients.
    """

    def __init__(self, net: Net, shared: Sequence[str] = ("classifier.*",), **common: Unpack[CommonArguments]) -> None:
        super().__init__(net, **common)
        self.shared = tuple(shared)
        if not self.shared:
            raise ValueError("model.shared is [], which leaves no weight of model.net to share: use LocalOnly")

    def adapt_net(self) -> None:
        super().adapt_net()
        self.shared = of_class_layer(self.net, self.shared)

    def configure_model(self) -> None:
        super().configure_model()
        check_patterns("model.shared", self.shared, dict((*self.net.named_parameters(), *self.net.named_buffers())))
        if self.has_global_model:
            raise ValueError(f"model.shared is {list(self.shared)}, which leaves clients no personal weight: use FedAvg")

    def is_personal(self, name: str) -> bool:
        return super().is_personal(name) or not any(fnmatch(name, pattern) for pattern in self.shared)
