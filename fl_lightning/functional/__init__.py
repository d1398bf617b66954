"""The mathematics: pure functions on tensors, one module a topic."""

from fl_lightning.functional.aggregation import weighted_average
from fl_lightning.functional.forgetting import ClientForgettingScores, client_forgetting, round_forgetting
from fl_lightning.functional.losses import (
    masked_cross_entropy,
    reweighted_softmax_cross_entropy,
    truncated_cross_entropy,
)
from fl_lightning.functional.partition import (
    dirichlet_by_class_partition,
    dirichlet_partition,
    iid_partition,
    shard_partition,
)

__all__ = [
    "ClientForgettingScores",
    "client_forgetting",
    "dirichlet_by_class_partition",
    "dirichlet_partition",
    "iid_partition",
    "masked_cross_entropy",
    "reweighted_softmax_cross_entropy",
    "round_forgetting",
    "shard_partition",
    "truncated_cross_entropy",
    "weighted_average",
]
