"""Local training only, the baseline without federation: nothing is sent."""

from fl_lightning.module import FederatedModule
from fl_lightning.protocol import Needs, Visit


class LocalOnly(FederatedModule):
    """Each client trains a personal model from the initial one, in the rounds in which it is sampled.

    The curves of a federated method and of this one therefore have the same local steps in each round.

    Round:
        clients: F_k(v), from v of its last visit
        server: nothing
        more down: -P
        more up: -P
        a client keeps: P
        a client uses: a model that it trains by itself
        the server has: the initial net
    """

    needs = Needs(client_weights=True)

    @property
    def has_global_model(self) -> bool:
        return False

    def cohort(self, round: int) -> list[Visit]:
        return [Visit(client, receives=False, sends=False) for client in self.sampled_clients(round)]
