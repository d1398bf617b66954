"""FedSGD: every client sends the result of one step on all its samples.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas: Communication-Efficient Learning of Deep Networks from
Decentralized Data. AISTATS 2017. arXiv 1602.05629. The mean of the models after one step is a step along the mean gradient.
"""

from typing import Unpack

from fl_lightning.module import CommonArguments, FederatedModule, Net


class FedSGD(FederatedModule):
    """One local step on a client's whole shard; needs ``data.batch_size: null``.

    Round:
        clients: one step on the whole shard
        server: mean of w^k

    Raises:
        ValueError: if local steps or epochs are set to another number than 1, or a batch size is set.
    """

    def __init__(self, net: Net, **common: Unpack[CommonArguments]) -> None:
        super().__init__(net, **common)
        for name in ("local_steps", "local_epochs"):
            if getattr(self, name) not in (None, 1):
                raise ValueError(
                    f"model.{name} is {getattr(self, name)}, but FedSGD takes one step: leave it out, or use FedAvg"
                )

    def check_data(self) -> None:
        if self.data.batch_size is not None:
            raise ValueError(
                f"data.batch_size is {self.data.batch_size}, but a step of FedSGD sees all samples: set it to null"
            )
        super().check_data()
