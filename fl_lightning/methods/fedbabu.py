"""FedBABU: only the body is trained and averaged; clients fine-tune the whole net at the end.

J. Oh, S. Kim, S.-Y. Yun: FedBABU: Toward Enhanced Representation for Federated Image Classification. ICLR 2022. arXiv
2106.06042. Departures: the model is that of the last round, where the authors' code chooses a checkpoint by test accuracy;
fine-tuning continues at the last learning rate; that code has 0.001.
"""

from collections.abc import Sequence
from fnmatch import fnmatch
from typing import Unpack

from fl_lightning.checks import check_patterns
from fl_lightning.models.network import of_class_layer
from fl_lightning.module import CommonArguments, FederatedModule, Net


class FedBABU(FederatedModule):
    """FedAvg with the initial head for all; :class:`~fl_lightning.callbacks.PersonalAccuracy` fine-tunes at the end of a run.

    Round:
        clients: F_k(body, initial head)
        server: mean of the bodies
        more down: -P_head
        more up: -P_head
        a client uses: the global model, fine-tuned; its head was never trained before
        the server has: a global model

    Args:
        head: name patterns (``fnmatch``) of the weights that do not change.

    Raises:
        ValueError: if there is no pattern; as the net is built, if one fits no name, or no weight is left to train.
    """

    fine_tuned = ("classifier.*",)

    def __init__(self, net: Net, head: Sequence[str] = ("classifier.*",), **common: Unpack[CommonArguments]) -> None:
        super().__init__(net, **common)
        self.head = self.fine_tuned = tuple(head)
        if not self.head:
            raise ValueError(
                "model.head is [], which leaves no weight as it began: use FedAvg and set "
                "callbacks.personal_accuracy.fine_tune to true"
            )

    def adapt_net(self) -> None:
        super().adapt_net()
        weights = dict(self.net.named_parameters())
        self.head = self.fine_tuned = of_class_layer(self.net, self.head)
        check_patterns("model.head", self.head, weights)
        for name, weight in weights.items():
            weight.requires_grad_(weight.requires_grad and not any(fnmatch(name, pattern) for pattern in self.head))
        if not any(weight.requires_grad for weight in weights.values()):
            raise ValueError(f"model.head is {list(self.head)}, which leaves no weight of model.net to train: name fewer")
