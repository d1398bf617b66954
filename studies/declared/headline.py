"""Legate, Caccia, Belilovsky in full: the runs that are meant for a GPU."""

from fl_lightning.sweep.run_scalars import WALL_SECONDS
from studies.declaration import SWEEP, Study, Sweep

PRECISION = "bf16-mixed"
"""Of the full runs, and of the rounds of them that ``python -m benchmarks --gpu`` times."""

_RUNS = {
    "cross entropy, group norm": "--config cifar10_fedavg.yaml",
    "TCE, group norm": "--config cifar10_tce.yaml",
    "WSM, group norm": "--config cifar10_fedavg.yaml --model.loss ReweightedSoftmax",
    "cross entropy, batch norm": "--config cifar10_tce_bn.yaml --model.loss CrossEntropy --model.optimizer.lr 0.3",
    "TCE, batch norm": "--config cifar10_tce_bn.yaml",
    "WSM, batch norm": "--config cifar10_tce_bn.yaml --model.loss ReweightedSoftmax --model.optimizer.lr 0.05",
}

STUDIES = [
    Study(
        name="headline",
        title="TCE, WSM and cross entropy: ResNet-18 for 4,000 rounds",
        claim="TCE and WSM are ahead of cross entropy, with group norm and with batch norm, and a run takes minutes on a GPU.",
        paper="Legate, Caccia, Belilovsky, Table 1, CIFAR-10, 4,000 rounds: FedAvg .79, FedAvg+TCE .859, with rates 0.1 and "
        "0.03. Rates with batch norm are those of Legate's thesis, which runs 8,000 rounds: 0.3 and, for WSM, 0.05.",
        sweeps=tuple(Sweep(name, f"{typed} --trainer.precision {PRECISION} --seeds 1") for name, typed in _RUNS.items()),
        measures={
            "test_accuracy_last": "last test accuracy",
            "test_accuracy": "final test accuracy",
            "test_accuracy_best": "best test accuracy",
            "forgetting/client_mean/mean": "client forgetting F_ki, mean over rounds",
            "forgetting/round/mean": "round forgetting F_t, mean over rounds",
            WALL_SECONDS: "seconds",
        },
        further=tuple(
            ({SWEEP: f"{loss}, {norm} norm"}, {SWEEP: f"cross entropy, {norm} norm"})
            for norm in ("group", "batch")
            for loss in ("TCE", "WSM")
        ),
        claimed=("test_accuracy_last", "test_accuracy"),
    ),
]
