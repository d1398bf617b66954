"""FedRep: a client fits its head to the shared body first, then the body to its head.

L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai: Exploiting Shared Representations for Personalized Federated Learning.
ICML 2021. arXiv 2102.07078. Algorithm 1. Departures: a client starts with the initial head, whatever the round of its first
visit; the authors' code gives it the mean of others' heads. Fixed weights do not change by a bit, even under momentum and
weight decay. Running statistics belong to the body and move in both phases, as in the authors' code.
"""

from typing import Unpack

from fl_lightning.checks import check_range
from fl_lightning.methods.fedper import FedPer
from fl_lightning.module import CommonArguments, Net


class FedRep(FedPer):
    """Local steps on the head, ``personal``, with the body fixed; then ``local_steps`` or ``local_epochs`` on the body.

    Round:
        clients: F_k first over the head, then over the body
        server: mean of the bodies
        more down: -P_head
        more up: -P_head
        a client keeps: P_head
        a client uses: the shared body, a personal head, trained one after the other
        the server has: a body

    Args:
        head_epochs: passes over the client's shard on the head, at least 0.
        head_steps: local steps on the head instead of epochs; by default the epochs count.

    Raises:
        ValueError: if a number is negative, or there is no pattern; as the net is built, if one fits no name.
    """

    def __init__(
        self,
        net: Net,
        head_epochs: int = 1,
        head_steps: int | None = None,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(net, **common)
        check_range("model.head_epochs", head_epochs, at_least=0, hint="0 leaves the head as it began")
        if head_steps is not None:
            check_range("model.head_steps", head_steps, at_least=0, hint="null counts epochs")
        self.head_epochs, self.head_steps = head_epochs, head_steps

    def num_head_steps(self, client: int) -> int:
        """Local steps of a visit's first phase."""
        return self.head_epochs * self.data.steps_per_epoch(client) if self.head_steps is None else self.head_steps

    def num_local_steps(self, client: int) -> int:
        return self.num_head_steps(client) + super().num_local_steps(client)

    def resting(self, client: int, step: int) -> list[str]:
        is_head_phase = step < self.num_head_steps(client)
        return [name for name in self.trained_weights(self.net) if self.is_personal(name) != is_head_phase]
