"""Which forgetting? The definitions in use, by name, each as a score of one matrix of accuracies.

A run stores the matrices in its record, so ``fl-lightning report --forgetting chaudhry,flashback`` computes any of them
afterwards. :mod:`fl_lightning.functional` has the functions, with formulas and examples.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Literal

import torch
from torch import Tensor

from fl_lightning.functional import (
    average_accuracy,
    average_forgetting,
    average_incremental_accuracy,
    backward_transfer,
    client_forgetting,
    fed_mammoth_forgetting,
    forgetting_from_best,
    forward_transfer,
    intransigence,
    local_forgetting,
    loss_increase,
    mammoth_forgetting,
    mean_round_forgetting,
)

Matrix = Literal["classes", "clients", "local", "losses", "tasks"]
"""What a definition is computed from: ``classes`` (T, C), the accuracy of the global model on each class after each evaluated
round, from round 1; ``clients`` (K, K), the change in accuracy by the fit of the client of the row on the data of the client of
the column in one round, -F_ki; ``local`` (K, C), the change in accuracy on each class by the fit of each client in one round;
``losses`` (K, P), the change in loss by the fit of each client in one round on the data of each client of the round before;
``tasks`` (T, T), the accuracy after each task (row) on each (column)."""


@dataclass(frozen=True)
class Definition:
    """A measure of forgetting that papers or libraries report, or of what they report next to it.

    Attributes:
        title: what tables call it.
        source: paper and equation, or library.
        matrix: what it is computed from.
        formula: TeX of what is shown, with the letters of the paper and the sign by which positive is forgetting.
        score: from the matrix to a scalar, with the sign of its source.
        sign: that of its source: 1 where positive is forgetting, -1 where negative is, 0 for what is not forgetting.
        low, high: its range, in accuracy, or in nats for losses.
        reference: what ``score`` takes as a second argument, which no run stores; none where it is empty.
    """

    title: str
    source: str
    matrix: Matrix
    formula: str
    score: Callable[..., Tensor]
    sign: Literal[-1, 0, 1] = 1
    low: float = -1
    high: float = 1
    reference: Literal["", "untrained", "joint"] = ""

    def shown(self, matrix: Tensor, *reference: Tensor) -> float:
        """The score with the sign by which positive is forgetting; as in its source where it is not forgetting.

        Args:
            matrix: as ``matrix`` says.
            reference: (T,) the accuracy on each task of the net that ``reference`` names, where it names one.
        """
        return (self.sign or 1) * float(self.score(matrix, *reference))


_FROM_BEST = r"\frac{1}{C} \sum_c \max_{1 \le t < T} (A_t^c - A_T^c)"
_FLASHBACK, _CHAUDHRY = "Aljahdali et al., Flashback", "Chaudhry et al., ECCV 2018"
_GEM = "Lopez-Paz, Ranzato, NeurIPS 2017"

DEFINITIONS: Mapping[str, Definition] = {
    "client": Definition(
        "client forgetting F_ki, mean",
        "Legate, Caccia, Belilovsky, section 2",
        "clients",
        r"\frac{1}{K (K - 1)} \sum_{i \ne k} F_{ki}",
        lambda change: client_forgetting(torch.zeros_like(change), change).per_data.nanmean(),
        sign=-1,
    ),
    "client_worst": Definition(
        "client forgetting F_k, worst",
        "Legate, Caccia, Belilovsky, section 2",
        "clients",
        r"\max_k \frac{1}{K - 1} \sum_{i \ne k} F_{ki}",
        lambda change: client_forgetting(torch.zeros_like(change), change).per_data.nanquantile(0),
        sign=-1,
    ),
    "flashback_round": Definition(
        "round forgetting F_t, mean",
        f"{_FLASHBACK}, section 3",
        "classes",
        r"\frac{1}{T - 1} \sum_{t > 1} \frac{1}{C} \sum_c \max(0, A_{t-1}^c - A_t^c)",
        mean_round_forgetting,
        low=0,
    ),
    "flashback_local": Definition(
        "local forgetting F_kt, mean",
        f"{_FLASHBACK}, section 3",
        "local",
        r"\frac{1}{K} \sum_k \frac{1}{C} \sum_c \max(0, A_{t-1}^c - A_{kt}^c)",
        lambda change: local_forgetting(change.new_zeros(change.shape[1:]), change).mean(),
        low=0,
    ),
    "flashback": Definition(
        "forgetting from the best F, last", f"{_FLASHBACK}, equation 2", "classes", _FROM_BEST, forgetting_from_best
    ),
    "fedntd": Definition("forgetting of FedNTD", "Lee et al., NeurIPS 2022", "classes", _FROM_BEST, forgetting_from_best),
    "chaudhry": Definition(
        "forgetting",
        _CHAUDHRY,
        "tasks",
        r"\frac{1}{T - 1} \sum_{i < T} \max_{i \le t < T} (a_{t,i} - a_{T,i})",
        average_forgetting,
    ),
    "gem": Definition(
        "loss by backward transfer",
        _GEM,
        "tasks",
        r"\frac{1}{T - 1} \sum_{i < T} (a_{i,i} - a_{T,i})",
        backward_transfer,
        sign=-1,
    ),
    "mammoth": Definition(
        "forgetting of mammoth",
        "aimagelab/mammoth, utils/metrics.py",
        "tasks",
        r"\frac{1}{T - 1} \sum_{i < T} \left( \max_{t \le T} a_{t,i} - a_{T,i} \right)",
        mammoth_forgetting,
        low=0,
    ),
    "fed_mammoth": Definition(
        "forgetting of fed-mammoth",
        "aimagelab/fed-mammoth, utils/training.py",
        "tasks",
        r"\frac{1}{T} \sum_i (a_{i,i} - a_{T,i})",
        fed_mammoth_forgetting,
    ),
    "fedreg": Definition(
        "loss increase",
        "Xu et al., FedReg, ICLR 2022, Appendix B.1",
        "losses",
        r"\frac{1}{P} \sum_i \frac{1}{K} \sum_k (\mathcal{L}_i(w_t^k) - \mathcal{L}_i(w_{t-1}))",
        lambda change: loss_increase(change.new_zeros(change.shape[1:]), change),
        low=-inf,
        high=inf,
    ),
    "average_accuracy": Definition(
        "average accuracy", _GEM, "tasks", r"\frac{1}{T} \sum_i a_{T,i}", average_accuracy, sign=0, low=0
    ),
    "average_incremental_accuracy": Definition(
        "average incremental accuracy",
        "Rebuffi et al., iCaRL, CVPR 2017",
        "tasks",
        r"\frac{1}{T} \sum_t \frac{1}{t} \sum_{i \le t} a_{t,i}",
        average_incremental_accuracy,
        sign=0,
        low=0,
    ),
    "forward_transfer": Definition(
        "forward transfer",
        _GEM,
        "tasks",
        r"\frac{1}{T - 1} \sum_{i > 1} (a_{i-1,i} - b_i)",
        forward_transfer,
        sign=0,
        reference="untrained",
    ),
    "intransigence": Definition(
        "intransigence",
        _CHAUDHRY,
        "tasks",
        r"\frac{1}{T} \sum_i (a_i^* - a_{i,i})",
        intransigence,
        sign=0,
        reference="joint",
    ),
}
