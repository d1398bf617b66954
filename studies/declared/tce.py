"""Legate, Caccia, Belilovsky: does truncated cross entropy beat cross entropy, and when?"""

from studies.declaration import Study, Sweep

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

STUDIES = [
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
]
