"""Methods on task streams of two digits each."""

from studies.declaration import SWEEP, Study, Sweep

_METHODS = ("stl", "ewc", "stable_sgd", "apd", "fedavg", "fedprox", "scaffold", "fedcurv", "fedprox_ewc")
_METHODS += ("fedprox_stable_sgd", "fedprox_apd", "fedweit")

STUDIES = [
    Study(
        name="mnist_tasks",
        title="MNIST in tasks of two digits",
        claim="FedWeIT, APD and Stable-SGD with FedProx come close to a net for each task; methods that keep nothing of a "
        "task forget more.",
        paper="Yoon et al., Table 2, on harder tasks: FedWeIT is ahead of APD, and SCAFFOLD is last. It has no MNIST.",
        sweeps=tuple(Sweep(method, f"--config mnist_tasks_{method}.yaml --seeds 3") for method in _METHODS),
        measures={
            "tasks/accuracy": "accuracy on all tasks",
            "tasks/forgetting": "forgetting",
            "tasks/model_megabytes": "models, MB",
            "MB_up": "MB up",
            "MB_down": "MB down",
        },
        baseline={SWEEP: "fedweit"},
    ),
]
