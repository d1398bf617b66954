"""MoFedSAM: sharpness-aware local steps, mixed with the mean direction of the previous round.

Z. Qu, X. Li, R. Duan, Y. Liu, B. Tang, Z. Lu: Generalized Federated Learning via Sharpness Aware Minimization. ICML 2022.
arXiv 2206.02618. FedSAM's gradient with FedCM's momentum; the departures are those of both. The paper's beta is ``alpha``
here, as in FedCM.
"""

from typing import Unpack

from fl_lightning.checks import check_range
from fl_lightning.methods.fedcm import FedCM
from fl_lightning.methods.fedsam import FedSAM
from fl_lightning.module import CommonArguments, Net


class MoFedSAM(FedCM, FedSAM):
    """Local steps along ``alpha g + (1 - alpha) D`` as in FedCM, with the gradient g at FedSAM's shifted weights.

    Round:
        clients: alpha g(w + rho g(w)/|g(w)|) + (1 - alpha) D
        server: mean; D the mean of (w_t - w^k)/(a_k eta)
        more down: P

    Args:
        alpha: share of the client's own gradient, above 0 and at most 1; 1 is FedSAM.
        rho: length of the ascent, at least 0; 0 is FedCM exactly.

    Raises:
        ValueError: if one of them is out of range, or ``privacy`` is ``DPSGD``.
    """

    def __init__(self, net: Net, alpha: float = 0.1, rho: float = 0.05, **common: Unpack[CommonArguments]) -> None:
        super().__init__(net, alpha, **common)
        check_range("model.rho", rho, at_least=0, hint="0 is FedCM")
        self.rho = rho
