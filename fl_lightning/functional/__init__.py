"""The mathematics: pure functions on tensors, one module a topic."""

from fl_lightning.functional.aggregation import weighted_average
from fl_lightning.functional.curves import final_accuracy
from fl_lightning.functional.distillation import (
    dynamic_distillation,
    ensemble_distillation,
    label_count_weights,
    model_contrastive_loss,
    not_true_distillation,
    update_global_label_counts,
)
from fl_lightning.functional.fisher import empirical_fisher
from fl_lightning.functional.forgetting import ClientForgettingScores, client_forgetting, forgetting_from_best, round_forgetting
from fl_lightning.functional.heterogeneity import Heterogeneity, heterogeneity
from fl_lightning.functional.losses import (
    masked_cross_entropy,
    reweighted_softmax_cross_entropy,
    truncated_cross_entropy,
)
from fl_lightning.functional.matched_parts import matched_parts
from fl_lightning.functional.partition import (
    class_partition,
    dirichlet_by_class_partition,
    dirichlet_partition,
    iid_partition,
    owner_partition,
    power_law_partition,
    shard_partition,
)
from fl_lightning.functional.personal import worst_decile
from fl_lightning.functional.tasks import average_accuracy, average_forgetting, backward_transfer, rounds_to_target

__all__ = [
    "ClientForgettingScores",
    "Heterogeneity",
    "average_accuracy",
    "average_forgetting",
    "backward_transfer",
    "class_partition",
    "client_forgetting",
    "dirichlet_by_class_partition",
    "dirichlet_partition",
    "dynamic_distillation",
    "empirical_fisher",
    "ensemble_distillation",
    "final_accuracy",
    "forgetting_from_best",
    "heterogeneity",
    "iid_partition",
    "label_count_weights",
    "masked_cross_entropy",
    "matched_parts",
    "model_contrastive_loss",
    "not_true_distillation",
    "owner_partition",
    "power_law_partition",
    "reweighted_softmax_cross_entropy",
    "round_forgetting",
    "rounds_to_target",
    "shard_partition",
    "truncated_cross_entropy",
    "update_global_label_counts",
    "weighted_average",
    "worst_decile",
]
