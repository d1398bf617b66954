"""FedExP: the more the clients disagree, the further the server steps along their mean.

D. Jhunjhunwala, S. Wang, G. Joshi: FedExP: Speeding Up Federated Averaging via Extrapolation. ICLR 2023. arXiv 2301.09604.
Algorithm 1, with the weights p_k of the authors' code in both means. Departures: the paper reports the mean of the last two
global models, as long steps make single ones oscillate; here the newest is evaluated and saved. The authors' code multiplies
``eps`` by the number of sampled clients and makes it fall with the square of the clients' rate; here it is constant.
"""

from typing import Unpack

from torch import nn

from fl_lightning.checks import check_range
from fl_lightning.functional.many_tensors import norm_of
from fl_lightning.module import CommonArguments, FederatedModule, Net, Update
from fl_lightning.protocol import Client, Reduction, Upload, Weighted

_KEY = "squared_norm"


class FedExP(FederatedModule):
    """The mean change D of the clients' changes D_k, times ``max(1, sum_k p_k ||D_k||^2 / (2 (||D||^2 + eps)))``.

    The server's optimizer takes the product, so its rate is best left at 1.

    Round:
        clients: F_k(w)
        server: ``w_t + max(1, sum p_k |D_k|^2 / (2 (|D|^2 + eps))) D``, D the mean of D_k = w^k - w_t

    Args:
        eps: keeps the step short when clients hardly move, above 0; the larger, the closer to FedAvg.

    Raises:
        ValueError: if ``eps`` is not above 0.
    """

    def __init__(self, net: Net, eps: float = 1e-3, **common: Unpack[CommonArguments]) -> None:
        super().__init__(net, **common)
        check_range("model.eps", eps, above=0, hint="the authors' code has 0.001")
        self.eps = eps

    def client_result(self, net: nn.Module, client: Client) -> Upload:
        upload = super().client_result(net, client)
        sent = upload["weights"].tensors.items()
        change = (weight.detach() - client.received_state[name] for name, weight in sent)
        # The server has the norm from the model itself.
        return {**upload, _KEY: Weighted({_KEY: norm_of(change).square()}, self.update_weight(client), derived=True)}

    def aggregate(self, reduced: Reduction) -> Update:
        update = super().aggregate(reduced)
        gradients = update.pseudo_gradient.values()
        factor = reduced.mean(_KEY)[_KEY] / (2 * (norm_of(gradients).square() + self.eps))
        for gradient in gradients:
            gradient.mul_(factor.clamp_min(1.0))
        return update
