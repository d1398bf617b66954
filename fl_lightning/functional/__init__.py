"""The mathematics: pure functions on tensors, one module per topic."""

from fl_lightning.functional.accuracy_curves import final_accuracy, rounds_to_target, worst_decile
from fl_lightning.functional.aggregation import weighted_average
from fl_lightning.functional.arriving_classes import (
    confusion_counts,
    forgetting_by_class,
    old_and_new_accuracy,
    task_confusion,
    tasks_found,
)
from fl_lightning.functional.distillation import (
    dynamic_distillation,
    ensemble_distillation,
    label_count_weights,
    model_contrastive_loss,
    not_true_distillation,
    soft_cross_entropy,
    update_global_label_counts,
)
from fl_lightning.functional.exemplars import herding, reservoir
from fl_lightning.functional.fisher import empirical_fisher
from fl_lightning.functional.forgetting import (
    ClientForgettingScores,
    client_forgetting,
    forgetting_from_best,
    local_forgetting,
    loss_increase,
    mean_round_forgetting,
    round_forgetting,
)
from fl_lightning.functional.generator_losses import (
    anchor_loss,
    boundary_loss,
    class_imbalance,
    gaussian_divergence,
    moment_distance,
    roughness,
)
from fl_lightning.functional.gradient_compensation import gradient_compensation
from fl_lightning.functional.heterogeneity import Heterogeneity, heterogeneity
from fl_lightning.functional.losses import (
    balanced_class_weights,
    calibrated_cross_entropy,
    masked_cross_entropy,
    reweighted_softmax_cross_entropy,
    truncated_cross_entropy,
    weighted_cross_entropy,
)
from fl_lightning.functional.partition.dealt_classes import class_partition, power_law_partition
from fl_lightning.functional.partition.dirichlet import dirichlet_by_class_partition, dirichlet_partition
from fl_lightning.functional.partition.even_sizes import iid_partition, shard_partition
from fl_lightning.functional.partition.owners import matched_parts, owner_partition
from fl_lightning.functional.similarity import linear_cka
from fl_lightning.functional.tasks import (
    average_accuracy,
    average_forgetting,
    average_incremental_accuracy,
    backward_transfer,
    fed_mammoth_forgetting,
    forward_transfer,
    intransigence,
    mammoth_forgetting,
)

__all__ = [
    "ClientForgettingScores",
    "Heterogeneity",
    "anchor_loss",
    "average_accuracy",
    "average_forgetting",
    "average_incremental_accuracy",
    "backward_transfer",
    "balanced_class_weights",
    "boundary_loss",
    "calibrated_cross_entropy",
    "class_imbalance",
    "class_partition",
    "client_forgetting",
    "confusion_counts",
    "dirichlet_by_class_partition",
    "dirichlet_partition",
    "dynamic_distillation",
    "empirical_fisher",
    "ensemble_distillation",
    "fed_mammoth_forgetting",
    "final_accuracy",
    "forgetting_by_class",
    "forgetting_from_best",
    "forward_transfer",
    "gaussian_divergence",
    "gradient_compensation",
    "herding",
    "heterogeneity",
    "iid_partition",
    "intransigence",
    "label_count_weights",
    "linear_cka",
    "local_forgetting",
    "loss_increase",
    "mammoth_forgetting",
    "masked_cross_entropy",
    "matched_parts",
    "mean_round_forgetting",
    "model_contrastive_loss",
    "moment_distance",
    "not_true_distillation",
    "old_and_new_accuracy",
    "owner_partition",
    "power_law_partition",
    "reservoir",
    "reweighted_softmax_cross_entropy",
    "roughness",
    "round_forgetting",
    "rounds_to_target",
    "shard_partition",
    "soft_cross_entropy",
    "task_confusion",
    "tasks_found",
    "truncated_cross_entropy",
    "update_global_label_counts",
    "weighted_average",
    "weighted_cross_entropy",
    "worst_decile",
]
