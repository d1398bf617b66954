"""Flashback: rounds to the paper's targets, and forgetting between and within rounds."""

from studies.declaration import SWEEP, Study, Sweep

_FORGETTING = (
    "--callbacks.round_forgetting.clients_every 2 --callbacks.per_class_accuracy.every 0 --callbacks.label_counts.every 0"
)
_MEASURES = {
    "rounds_to/0.375": "rounds to .375",
    "rounds_to/0.45": "to .45",
    "rounds_to/0.5": "to .5",
    "forgetting/round/mean": "round forgetting F_t, mean over rounds",
    "forgetting/local_mean/mean": "local forgetting F_kt, mean over rounds",
    "test_accuracy_best": "best test accuracy",
    "processor_seconds": "processor seconds",
}
# FedDF's server distils up to 10,000 steps a round by default.
_METHODS = dict.fromkeys(("fedavg", "fedprox", "fedntd", "moon", "flashback"), "") | {
    "feddf": "--model.distillation_steps 200 ",
}

STUDIES = [
    Study(
        name="flashback_methods",
        title="Flashback: six methods for 20 rounds",
        claim="Flashback reaches .375, .45 and .5 first and forgets least from round to round; FedDF does not get beyond .375.",
        paper="Table 1, CIFAR-10, beta .1: Flashback reaches .375, .45 and .5 in rounds 11, 28 and 49, the others in 71 or "
        "later; FedDF reaches .375 in round 105 and .45 in none. All have 20 rounds here.",
        sweeps=tuple(
            Sweep(
                method,
                f"--config flashback_cifar10_beta_0.1_{method}.yaml --trainer.max_steps 20 --seeds 1 {options}{_FORGETTING}",
            )
            for method, options in _METHODS.items()
        ),
        measures=_MEASURES,
        baseline={SWEEP: "flashback"},
        claimed=("rounds_to/0.375", "rounds_to/0.45", "rounds_to/0.5", "forgetting/round/mean"),
    ),
    Study(
        name="flashback_speed",
        title="Flashback: rounds to the paper's targets",
        claim="Flashback reaches .375, .45 and .5 first, has the best accuracy, and forgets least from round to round and no "
        "less within one.",
        paper="Table 1, CIFAR-10, beta .1: Flashback reaches .375, .45 and .5 in rounds 11, 28 and 49, FedNTD in 71, 141 and "
        "302, FedAvg in 112, 190 and 445. All have 60 rounds here.",
        sweeps=tuple(
            Sweep(
                method,
                f"--config flashback_cifar10_beta_0.1_{method}.yaml --trainer.max_steps 60 --seeds 3 {_FORGETTING}",
            )
            for method in ("fedavg", "fedntd", "flashback")
        ),
        measures=_MEASURES,
        baseline={SWEEP: "flashback"},
        claimed=tuple(name for name in _MEASURES if name != "processor_seconds"),
    ),
]
