"""Legate, Caccia, Belilovsky: does truncated cross entropy beat cross entropy, and when?"""

from studies.declaration import SWEEP, Study, Sweep

_RATES = "--set model.optimizer.lr=0.03,0.1"
_LOSSES = "--set model.loss=CrossEntropy,TruncatedCrossEntropy,ReweightedSoftmax"


def _evaluated(every: int) -> str:
    """Evaluations and measures of forgetting every so many rounds, and no pictures."""
    return (
        f"--trainer.val_check_interval {every} --data.monitor_test {every} --callbacks.client_forgetting.every {every} "
        f"--callbacks.per_class_accuracy.every 0 --callbacks.label_counts.every 0 --callbacks.round_forgetting.every {every}"
    )


_MEASURES = {
    "test_accuracy": "final test accuracy",
    "val_accuracy": "final validation accuracy",
    "test_accuracy_last": "last test accuracy",
    "test_accuracy_best": "best test accuracy",
    "forgetting/client_mean/mean": "client forgetting F_ki, mean over rounds",
    "seconds": "seconds",
}

_SMALL = f"--config cifar10_fedavg.yaml --model.net CNN2 --trainer.max_steps 200 --seeds 2 {_LOSSES} {_RATES} {_evaluated(25)}"
# ResNet-18 with the rate of the paper for each loss, and that of the thesis for WSM.
_WITH_NORMS = {"CrossEntropy": 0.1, "TruncatedCrossEntropy": 0.03, "ReweightedSoftmax": 0.1}

STUDIES = [
    Study(
        name="tce_full_length",
        title="TCE and WSM against cross entropy in the thesis' full length",
        claim="After 1,500 rounds, each loss at the rate that validation chooses, TCE and WSM are ahead of cross entropy.",
        paper="Legate's thesis, Table 3.2, CIFAR-10, 20 clients: FedAvg .684, FedAvg+WSM .833, with ResNet-18. Legate, Caccia, "
        "Belilovsky, Table 1, 100 clients: FedAvg .79, FedAvg+TCE .859, with rates 0.1 and 0.03.",
        sweeps=(
            Sweep(
                "",
                f"--config cifar10_20_clients_fedavg.yaml --model.net CNN2 {_LOSSES} {_RATES} --seeds 3 "
                f"--trainer.max_steps 1500 {_evaluated(25)}",
            ),
        ),
        measures=_MEASURES,
        baseline={"model.loss": "CrossEntropy"},
        chosen="model.optimizer.lr",
    ),
    Study(
        name="drift",
        title="Drift of clients as the cause: TCE and WSM over alpha",
        claim="The lead of TCE and WSM over cross entropy is largest at alpha 0.01, shrinks as alpha grows, and vanishes at "
        "100, where clients have all classes.",
        paper="Legate, Caccia, Belilovsky, Figure 3: the gain of TCE is largest where clients are few in a round and their "
        "labels skewed, for any budget. There each loss has its own rate; here both have 0.1.",
        sweeps=(
            Sweep(
                "",
                "--config cifar10_fedavg.yaml --model.net CNN2 --data.clients_per_round 2 --model.local_steps null "
                "--model.local_epochs 3 --set data.partition.alpha=0.01,0.1,0.5,100 "
                f"{_LOSSES} --seeds 2 --trainer.max_steps 200 {_evaluated(25)}",
            ),
        ),
        measures=_MEASURES,
        baseline={"model.loss": "CrossEntropy"},
    ),
    Study(
        name="tce_with_norms",
        title="TCE and WSM with a net that has norms",
        claim="With ResNet-18 and GroupNorm TCE and WSM are ahead of cross entropy after 600 rounds.",
        paper="Legate, Caccia, Belilovsky, Table 1, CIFAR-10, group norm, 4,000 rounds: FedAvg .79 at rate 0.1, FedAvg+TCE "
        ".859 at rate 0.03.",
        sweeps=tuple(
            Sweep(
                loss,
                f"--config cifar10_20_clients_fedavg.yaml --model.net.norm group --model.loss {loss} --model.optimizer.lr "
                f"{rate} --seeds 3 --trainer.max_steps 600 {_evaluated(100)}",
            )
            for loss, rate in _WITH_NORMS.items()
        ),
        measures=_MEASURES,
        baseline={SWEEP: "CrossEntropy"},
    ),
    Study(
        name="tce_figure_3",
        title="TCE and WSM over alpha, participation and local steps",
        claim="The lead of TCE over cross entropy, each at the rate that validation chooses, is largest at the smallest alpha "
        "and with the fewest clients in a round, and is nothing at alpha 100.",
        paper="Legate, Caccia, Belilovsky, Figure 3: TCE improves most at alpha 0.01, the two are equivalent on data that is "
        'IID, and "TCE is most useful with low number of participating clients". Legate\'s thesis, Figure 3.3, adds local '
        "steps.",
        sweeps=(
            Sweep("alpha", f"{_SMALL} --set data.partition.alpha=0.01,0.1,0.5,100"),
            Sweep("participation", f"{_SMALL} --set data.clients_per_round=2,5,20,50"),
            Sweep("local steps", f"{_SMALL} --set model.local_steps=1,10,30"),
        ),
        measures=_MEASURES,
        baseline={"model.loss": "CrossEntropy"},
        chosen="model.optimizer.lr",
    ),
]
