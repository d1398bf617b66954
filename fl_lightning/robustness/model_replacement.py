"""Model replacement: hostile clients enlarge their change until the mean is their model.

E. Bagdasaryan, A. Veit, Y. Hua, D. Estrin, V. Shmatikov: How To Backdoor Federated Learning. AISTATS 2020. arXiv 1807.00459.
Equation 3. Departure: the clients' goal is a model with flipped labels, where the paper has a backdoor.
"""

import math

from torch import Tensor

from fl_lightning.checks import check_range
from fl_lightning.robustness.hostile import Hostile


class ModelReplacement(Hostile):
    """Hostile clients train on flipped labels, as under ``LabelFlip``, and send ``scale`` times their change.

    Args:
        fraction: share of hostile clients, above 0 and below 1.
        scale: gamma, above 0; by default K / H in a round with H hostile of K clients, which replaces a mean of equal weights
            by theirs where the honest changes cancel.

    Raises:
        ValueError: if a value is out of range.
    """

    flips_labels = True
    corrupts_uploads = True

    def __init__(self, fraction: float = 0.2, scale: float | None = None) -> None:
        super().__init__(fraction)
        if scale is not None:
            check_range("model.hostile.scale", scale, above=0, below=math.inf, hint="null is K / H")
        self.scale = scale

    def changes(self, own: Tensor, honest: Tensor) -> Tensor:
        clients = len(own) + (0 if honest is own else len(honest))
        return (clients / len(own) if self.scale is None else self.scale) * own
