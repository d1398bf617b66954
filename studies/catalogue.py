"""All studies by name."""

from studies.declaration import Study
from studies.declared import (
    arriving_classes,
    digits,
    failing_clients,
    fedreg,
    fedweit,
    flashback,
    forgetting,
    headline,
    mnist_tasks,
    personal,
    pretrained,
    privacy,
    tce,
    text,
)

_MODULES = (
    digits,
    tce,
    fedweit,
    mnist_tasks,
    fedreg,
    privacy,
    flashback,
    forgetting,
    arriving_classes,
    personal,
    headline,
    failing_clients,
    text,
    pretrained,
)
STUDIES: dict[str, Study] = {study.name: study for module in _MODULES for study in module.STUDIES}

# What `python -m studies next` runs, in this order.
ORDER = (
    "tce_full_length",
    "fedweit_ablations",
    "fedreg_one_class",
    "drift",
    "forgetting_across_methods",
    "drift_over_alpha",
    "tce_with_norms",
    "personal_dirichlet",
    "personal_shards",
    "arriving_classes",
    "fedreg_mechanism",
    "fedweit_sharing",
    "fedweit_table_2",
    "fedweit_size",
    "tce_figure_3",
    "flashback_speed",
    "mnist_tasks",
    "fedreg_two_class",
    "flashback_methods",
    "privacy_digits",
    "privacy_mnist",
    "digits_classes",
    "digits_classes_losses",
    "digits_density",
    "digits_schedule",
    "text_chapters",
    "pretrained_fifty",
)
