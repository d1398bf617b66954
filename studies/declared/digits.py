"""A study of seconds, with which the machine of studies is tried."""

from studies.declaration import Study, Sweep

STUDIES = [
    Study(
        name="digits",
        title="Digits: truncated cross entropy at an early stage",
        claim="With one learning rate for both, truncated cross entropy learns more slowly and forgets less.",
        paper="Legate, Caccia, Belilovsky report a gain of truncated cross entropy after thousands of rounds on CIFAR; digits "
        "and so few rounds are not in the paper.",
        sweeps=(
            Sweep(
                "",
                "--config digits_tce.yaml --set model.loss=CrossEntropy,TruncatedCrossEntropy --seeds 3 --trainer.max_steps 10 "
                "--callbacks.client_forgetting.every 5 --callbacks.per_class_accuracy.every 0 --callbacks.label_counts.every 0",
            ),
        ),
        measures={
            "test_accuracy": "final test accuracy",
            "forgetting/client_mean/mean": "client forgetting F_ki, mean over rounds",
            "processor_seconds": "processor seconds",
        },
        baseline={"model.loss": "CrossEntropy"},
    ),
]
