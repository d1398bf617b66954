"""FedAvg: average the clients' models.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas: Communication-Efficient Learning of Deep Networks from
Decentralized Data. AISTATS 2017. arXiv 1602.05629. Departures: none; the mean runs over the clients of the round.
"""

from fl_lightning.module import FederatedModule


class FedAvg(FederatedModule):
    """:class:`FederatedModule` with its defaults.

    Round:
        clients: F_k(w)
        server: mean of w^k
    """
