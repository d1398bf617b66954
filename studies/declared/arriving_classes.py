"""Arriving classes on Split-CIFAR-100: the learners, and whether TCE and WSM help them."""

from studies.declaration import SWEEP, Study, Sweep

_LOSSES = "CrossEntropy,TruncatedCrossEntropy,ReweightedSoftmax"
_MEASURED = (
    "--seeds 3 --callbacks.client_forgetting.every 20 --callbacks.per_class_accuracy.every 0 "
    "--callbacks.label_counts.every 0 --callbacks.round_forgetting.every 0"
)


def _sweep(name: str, method: str, options: str = "", losses: str = "CrossEntropy") -> Sweep:
    arguments = [f"--config cifar100_classes_{method}.yaml", options, f"--set model.loss={losses}", _MEASURED]
    return Sweep(name, " ".join(filter(None, arguments)))


STUDIES = [
    Study(
        name="arriving_classes",
        title="Arriving classes: Split-CIFAR-100 in ten tasks",
        claim="A small memory at the clients forgets least, then LwF, then fine-tuning; joint training bounds them. Where all "
        "classes seen compete TCE and WSM forget less than cross entropy: they leave the rows of classes that a client lacks.",
        paper="FedCBDR (arXiv 2507.07712, Tables 2 and 3) reports for ten tasks at Dirichlet 0.5, with ResNet-18 and 100 "
        "rounds a task at 5 clients, fine-tuning .094, TARGET .211, LwF .253 and replay by Re-Fed .395. Here LeNet has 20 "
        "rounds a task at 10 clients.",
        sweeps=(
            _sweep("fedavg_new", "fedavg"),
            _sweep("fedavg_seen", "fedavg", "--model.softmax_over seen", _LOSSES),
            _sweep("fedprox", "fedprox"),
            _sweep("joint", "joint"),
            _sweep("lwf", "lwf", losses=_LOSSES),
            _sweep("ewc", "ewc", "--set model.penalty=10,100,1000"),
            _sweep("replay", "replay", losses=_LOSSES),
            _sweep("icarl", "icarl"),
            _sweep("mfcl", "mfcl"),
            _sweep("glfc", "glfc"),
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
            "seconds": "seconds",
        },
        baseline={SWEEP: "fedavg_new", "model.loss": "CrossEntropy"},
        chosen="model.penalty",
    ),
]
