"""FedPer: the last layers stay with each client.

M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary: Federated Learning with Personalization Layers. 2019.
arXiv 1912.00818. Departures: all clients start with the same personal layers, those of the initial net; we did not verify how
the paper starts them.
"""

from collections.abc import Sequence
from typing import Unpack

from fl_lightning.module import CommonArguments, FederatedModule, Net


class FedPer(FederatedModule):
    """Clients train all layers together, send the shared ones and keep the personal ones.

    The personal ones are those that ``personal`` names, by default the class layer, ``classifier.*``.

    Round:
        clients: F_k(body, personal head)
        server: mean of the bodies
        more down: -P_head
        more up: -P_head
        a client keeps: P_head
        a client uses: the shared body, a personal head
        the server has: a body

    Raises:
        ValueError: if there is no pattern; as the net is built, if one fits no name, or nothing is left to share.
    """

    personal: Sequence[str] = ("classifier.*",)

    def __init__(self, net: Net, **common: Unpack[CommonArguments]) -> None:
        super().__init__(net, **common)
        if not self.personal:
            raise ValueError("model.personal is [], which leaves clients no personal weight: use FedAvg")
