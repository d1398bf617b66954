"""L2SP: clients are pulled towards the weights that the run began with, such as pretrained ones.

X. Li, Y. Grandvalet, F. Davoine: Explicit inductive bias for transfer learning with convolutional networks. ICML 2018. arXiv
1802.01483. Equation 2. Departures: a new class layer is pulled towards its initial values, not with a strength of its own
towards 0; there is none where a federation goes on with the class layer of a checkpoint.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl_lightning.checks import check_range
from fl_lightning.protocol import Client, Learner, Needs, State


class L2SP(Learner):
    """The loss plus ``penalty/2 * ||w - w_0||^2``, w_0 the weights that the run began with, for any method.

    Clients know these weights, which count as no bytes. Weights that stay with their client are not pulled.

    Args:
        penalty: alpha, at least 0; 0 is the method without it. The paper searched .0001 to .1.

    Raises:
        ValueError: if ``penalty`` is negative.
    """

    needs = Needs(initial_model=True)

    def __init__(self, penalty: float = 0.1) -> None:
        super().__init__()
        check_range("model.tasks.penalty", penalty, at_least=0, hint="0 pulls nothing")
        self.penalty = penalty

    def client_penalty(self, net: nn.Module, client: Client) -> Tensor | float:
        pulled = self._pulled(net)
        if self.penalty == 0 or not pulled:
            return 0.0
        return self.penalty / 2 * torch.stack([F.mse_loss(*pair, reduction="sum") for pair in pulled.values()]).sum()

    def _pulled(self, net: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
        """Trained weights and their initial values, by name."""
        start: State = self.method.server_states.tensors("initial")
        return {name: (weight, start[name]) for name, weight in self.method.trained_weights(net).items() if name in start}
