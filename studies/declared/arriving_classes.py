"""Arriving classes on Split-CIFAR-100: four learners against fine-tuning, and which classes compete in the loss."""

from studies.declaration import SWEEP, Study, Sweep

_OPTIONS = (
    "--model.tasks.rounds_per_task 10 --trainer.max_steps 100 --seeds 2 --callbacks.client_forgetting.every 20 "
    "--callbacks.per_class_accuracy.every 0 --callbacks.label_counts.every 0 --callbacks.round_forgetting.every 0"
)
_LEARNERS = {
    "fine-tuning, new": ("fedavg", "--model.tasks.softmax_over new"),
    "fine-tuning, seen": ("fedavg", "--model.tasks.softmax_over seen"),
    "LwF, new": ("lwf", "--model.tasks.softmax_over new"),
    "LwF, seen": ("lwf", "--model.tasks.softmax_over seen"),
    "replay": ("replay", ""),
    "iCaRL": ("icarl", ""),
    "MFCL": ("mfcl", ""),
}

STUDIES = [
    Study(
        name="arriving_classes",
        title="Arriving classes: Split-CIFAR-100 in ten tasks",
        claim="A small memory at the clients forgets least, then LwF, then fine-tuning; a loss in which the classes of the "
        "present task alone compete forgets less than one over all classes seen.",
        paper="FedCBDR (arXiv 2507.07712, Tables 2 and 3) reports for ten tasks at Dirichlet 0.5, with ResNet-18 and 100 "
        "rounds a task at 5 clients, fine-tuning .094, TARGET .211, LwF .253 and replay by Re-Fed .395. Here LeNet has 10 "
        "rounds a task at 10 clients. Remembered samples are of old classes, so replay has all seen classes in its loss; MFCL "
        "has a loss over either.",
        sweeps=tuple(
            Sweep(name, f"--config cifar100_classes_{config}.yaml {options} {_OPTIONS}".replace("  ", " "))
            for name, (config, options) in _LEARNERS.items()
        ),
        measures={
            "tasks/accuracy": "A_10",
            "tasks/average_incremental_accuracy": "mean of A_1 to A_10",
            "tasks/forgetting": "forgetting",
            "tasks/backward_transfer": "backward transfer",
            "tasks/old_accuracy": "old classes",
            "tasks/new_accuracy": "new classes",
            "tasks/nearest_mean_accuracy": "A_10 by nearest mean",
            "forgetting/client_mean/mean": "client forgetting F_ki, mean over rounds",
            "MB_up": "MB up",
            "MB_down": "MB down",
            "processor_seconds": "processor seconds",
        },
        baseline={SWEEP: "fine-tuning, seen"},
    ),
]
