"""Flashback: rounds to the paper's targets, and forgetting between and within rounds."""

from studies.declaration import SWEEP, Study, Sweep

_ROUNDS = {"fedavg": 200, "fedntd": 150, "flashback": 60, "fedreg": 60}

STUDIES = [
    Study(
        name="flashback_speed",
        title="Flashback: rounds to the paper's targets",
        claim="Flashback reaches .375, .45 and .5 first and forgets least from round to round, and no less within one.",
        paper="Table 1, CIFAR-10, beta .1: Flashback reaches .375, .45 and .5 in rounds 11, 28 and 49, FedNTD in 71, 141 and "
        "302, FedAvg in 112, 190 and 445, FedReg in 126, 264 and never.",
        sweeps=tuple(
            Sweep(
                method,
                f"--config flashback_cifar10_beta_0.1_{method}.yaml --trainer.max_steps {rounds} --seeds 2 "
                "--callbacks.round_forgetting.clients_every 2 --callbacks.per_class_accuracy.every 0 "
                "--callbacks.label_counts.every 0",
            )
            for method, rounds in _ROUNDS.items()
        ),
        measures={
            "rounds_to/0.375": "rounds to .375",
            "rounds_to/0.45": "to .45",
            "rounds_to/0.5": "to .5",
            "forgetting/round/mean": "round forgetting F_t, mean",
            "forgetting/local_mean/mean": "local forgetting F_kt, mean",
            "test_accuracy_best": "best test accuracy",
            "seconds": "seconds",
        },
        baseline={SWEEP: "fedavg"},
    ),
]
