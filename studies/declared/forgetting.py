"""Forgetting across all methods that learn one global model, and FedAvg with TCE and WSM: one federation, one rate.

A second study tests the two losses on other seeds, and a third chooses the rate of each of the best methods.
"""

from studies.declaration import SWEEP, Study, Sweep

# Every method with the settings of the bundled configs or its defaults; Flashback and FedDF have a public set of 1,250 samples.
_METHODS = {
    "FedAvg": "",
    "FedProx": "--model FedProx --model.mu 0.01",
    "SCAFFOLD": "--model SCAFFOLD",
    "FedNTD": "--model FedNTD",
    "MOON": "--model MOON",
    "FedCurv": "--model FedCurv",
    "FedDyn": "--model FedDyn",
    "FedNova": "--model FedNova",
    "FedGMA": "--model FedGMA",
    "FedRS": "--model FedRS",
    "FedReg": "--model FedReg --model.optimizer.weight_decay 0",
    "FedDF": "--model FedDF --model.distillation_steps 200 --data.public_size 1250",
    "Flashback": "--model Flashback --data.public_size 1250",
    "FedAvgM": "--model.server_optimizer.momentum 0.9",
}
_RUNS = {method: (options, "CrossEntropy") for method, options in _METHODS.items()}
_RUNS |= {"TCE": ("", "TruncatedCrossEntropy"), "WSM": ("", "ReweightedSoftmax")}

_MEASURES = {
    "test_accuracy": "final test accuracy",
    "forgetting/client_mean/mean": "client forgetting F_ki, mean over rounds",
    "forgetting/every_10/mean": "round forgetting F_t over 10 rounds, mean over rounds",
    "class_accuracy/sd": "sd of accuracy over classes",
    "MB_up": "MB up",
    "MB_down": "MB down",
    "processor_seconds": "processor seconds",
}


def _sweep(name: str, options: str, loss: str, seeds: str) -> Sweep:
    return Sweep(
        name,
        f"--config cifar10_fedavg.yaml {options} --model.net CNN2 --model.net.norm_groups 2 --model.loss {loss} "
        f"--trainer.max_steps 150 --seeds {seeds} --trainer.val_check_interval 10 --data.monitor_test 10 "
        "--callbacks.client_forgetting.every 25 --callbacks.per_class_accuracy.every 0 "
        "--callbacks.label_counts.every 0 --callbacks.round_forgetting.every 10",
    )


STUDIES = [
    Study(
        name="forgetting_across_methods",
        title="Forgetting across methods",
        claim="Methods that are made against forgetting forget less than FedAvg and are no less accurate.",
        paper="No paper has this table. The Flashback paper claims that FedNTD and Flashback forget less from round to round "
        "than FedAvg. Here all methods have the rate 0.1 and cross entropy; TCE and WSM are FedAvg with these losses. Papers "
        "choose a rate for each method, so a lead here is a lead at rate 0.1. Once this study has run, a second one, "
        "forgetting_at_own_rates, is declared: the five methods with the highest mean final validation accuracy, each at the "
        "rate that validation chooses, with cross entropy, TCE and WSM.",
        sweeps=tuple(_sweep(name, *run, seeds="3") for name, run in _RUNS.items()),
        measures=_MEASURES,
        baseline={SWEEP: "FedAvg"},
        remark="The mean of F_t over rounds includes that of round 10, the drop from the untrained model. Later versions leave "
        "it out.",
    ),
    Study(
        name="forgetting_of_losses",
        title="Forgetting of TCE and WSM on other seeds",
        claim="FedAvg with TCE and FedAvg with WSM are each more accurate than with cross entropy, and forget less, both "
        "between clients and over ten rounds.",
        paper="Legate, Caccia, Belilovsky, and Legate's thesis, CIFAR-10, 4,000 rounds of ResNet-18, each loss at a rate of "
        "its own: FedAvg .79 with cross entropy, .859 with TCE; .684 and .833 with WSM in the thesis' federation. Here are the "
        "federation, the net and the rate 0.1 of forgetting_across_methods, where both losses led with seeds 1 to 3, and "
        "Holm's correction for all methods left none of the differences significant. Six are tested here, with five seeds.",
        sweeps=tuple(_sweep(name, *_RUNS[name], seeds="4,5,6,7,8") for name in ("FedAvg", "TCE", "WSM")),
        measures=_MEASURES,
        baseline={SWEEP: "FedAvg"},
    ),
    Study(
        name="forgetting_rates",
        title="Forgetting across methods: the learning rate of the best",
        claim="Each method has its highest final validation accuracy at a rate between the lowest and the highest tried. "
        "forgetting_at_own_rates, which is declared next, takes these rates, with other seeds.",
        paper="No paper compares these methods in one setting. It is the federation of forgetting_across_methods, with another "
        "seed. Four of the five methods with the highest validation accuracy there are compared with FedAvg, TCE and WSM; "
        "FedReg, the fifth, takes more than two hours a run and stays at 0.1.",
        sweeps=tuple(
            _sweep(name, f"{options} --set model.optimizer.lr=0.03,0.1,0.3", loss, seeds="[11]")
            for name, (options, loss) in _RUNS.items()
            if name in ("FedAvg", "TCE", "WSM", "FedProx", "FedDyn", "FedCurv", "Flashback")
        ),
        measures={"val_accuracy": "final validation accuracy", **_MEASURES},
        baseline={SWEEP: "FedAvg"},
        chosen="model.optimizer.lr",
    ),
]
