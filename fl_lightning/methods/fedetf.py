"""FedETF: the class layer is a fixed simplex that all clients share, so that none of them can bias it.

Z. Li, X. Shang, R. He, T. Lin, C. Wu: No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning with
Synthetic and Fixed Classifier. ICCV 2023. arXiv 2303.10058. Facts from the authors' code. There a linear projection gives
features v of C dimensions, as in their LeNet and ResNets, and logits are ``s M^T v / |v|`` with the simplex ``M = sqrt(C / (C
- 1)) P (1 - 11^T / C)``, P orthogonal. Here the projection is the net's own class layer and P the identity: the projection
can learn any rotation. Departures: the scale s is fixed, where the code learns it from 1, or 10 in its small CNN; the loss is
``model.loss``, which ``fedetf.yaml`` sets to the paper's balanced softmax, where the code counts one sample of each class
that a client does not hold. The net's outputs stay v: the class predicted is
that of the simplex, whose logits have the order of v, but a reported loss is of v. The personal models that the paper
fine-tunes are not implemented.
"""

import math
from typing import Unpack

import torch.nn.functional as F
from torch import Tensor, nn

from fl_lightning.checks import check_range
from fl_lightning.functional.loss_reductions import at_least_float32
from fl_lightning.module import CommonArguments, FederatedModule, Net
from fl_lightning.protocol import Batch, Client, DataNeeds, Needs


class FedETF(FederatedModule):
    """The loss of ``s M^T v / |v|``: the net's outputs v, normalised, against the C corners of a simplex.

    Round:
        clients: F_k(w) of s M^T v/|v|, v the net's outputs, M a simplex
        server: mean

    Args:
        scale: s, above 0.

    Raises:
        ValueError: if ``scale`` is not above 0.
    """

    needs = Needs(data=DataNeeds(classes=True))

    def __init__(self, net: Net, scale: float = 10.0, **common: Unpack[CommonArguments]) -> None:
        super().__init__(net, **common)
        check_range("model.scale", scale, above=0, hint="the code learns it, from 10 in its small CNN")
        self.scale = scale

    def client_loss(self, net: nn.Module, batch: Batch, client: Client) -> Tensor:
        logits = self.scale * simplex_logits(net(batch.inputs))
        return self.loss(logits, batch.targets, client.label_counts)


def simplex_logits(outputs: Tensor) -> Tensor:
    """``M^T v / |v|`` with ``M = sqrt(C / (C - 1)) (1 - 11^T / C)``, the simplex with C corners of length 1.

    Args:
        outputs: v, (..., C), C at least 2.

    Returns:
        the same shape; the products of each unit vector with the corners, in [-1, 1].
    """
    num_classes = outputs.shape[-1]
    unit = F.normalize(at_least_float32(outputs), dim=-1)
    return math.sqrt(num_classes / (num_classes - 1)) * (unit - unit.mean(dim=-1, keepdim=True))
