"""Methods on task streams of two digits each."""

from studies.declaration import SWEEP, Study, Sweep

_METHODS = ("stl", "ewc", "stable_sgd", "apd", "fedavg", "fedprox", "scaffold", "fedcurv", "fedprox_ewc")
_METHODS += ("fedprox_stable_sgd", "fedprox_apd", "fedweit")
_MEASURES = {
    "tasks/accuracy": "accuracy on all tasks",
    "tasks/forgetting": "forgetting",
    "tasks/model_megabytes": "models, MB",
    "MB_up": "MB up",
    "MB_down": "MB down",
}

STUDIES = [
    Study(
        name="mnist_tasks",
        title="MNIST in tasks of two digits",
        claim="FedWeIT, APD and Stable-SGD with FedProx come close to a net for each task; methods that keep nothing of a "
        "task forget more.",
        paper="Yoon et al., Table 2, on harder tasks: FedWeIT is ahead of APD, and SCAFFOLD is last. It has no MNIST.",
        sweeps=tuple(Sweep(method, f"--config mnist_tasks_{method}.yaml --seeds 3") for method in _METHODS),
        measures=_MEASURES,
        baseline={SWEEP: "fedweit"},
    ),
    Study(
        name="mnist_tasks_clients",
        title="MNIST in tasks of two digits: 20 and 100 clients",
        claim="With more clients than the server hears of in a round, FedWeIT is as accurate as APD, in smaller models, and "
        "FedProx forgets.",
        paper="Yoon et al., Figure A.10, curves of 20 and 100 clients on harder tasks. Here five clients a round are "
        "connected to the server; the others train too.",
        sweeps=tuple(
            Sweep(
                method,
                f"--config mnist_tasks_{method}.yaml --set data.num_clients=20,100 --seeds 3 --data.clients_per_round 5 "
                "--model.tasks.train_unsampled true --model.local_steps 5",
            )
            for method in ("fedweit", "apd", "fedprox")
        ),
        measures=_MEASURES,
        claimed=("tasks/accuracy", "tasks/forgetting", "tasks/model_megabytes"),
        baseline={SWEEP: "fedweit"},
    ),
    Study(
        name="mnist_tasks_importance",
        title="MNIST in tasks of two digits: synaptic intelligence",
        claim="Synaptic intelligence forgets less than training on without a penalty, and ends above it, as EWC does.",
        paper="Zenke et al. (arXiv 1703.04200) have one learner and split MNIST, five tasks of two digits. Here five clients "
        "learn by themselves, each its own tasks of two digits, as EWC's clients do in mnist_tasks. The penalty and the "
        "damping are those of Zenke's code for split MNIST.",
        sweeps=(
            Sweep("no penalty", "--config mnist_tasks_fedavg.yaml --model LocalOnly --seeds 4,5,6,7,8"),
            Sweep("ewc", "--config mnist_tasks_ewc.yaml --seeds 4,5,6,7,8"),
            Sweep("si", "--config mnist_tasks_ewc.yaml --model.tasks SynapticIntelligence --seeds 4,5,6,7,8"),
        ),
        measures=_MEASURES,
        claimed=("tasks/accuracy", "tasks/forgetting"),
        baseline={SWEEP: "no penalty"},
    ),
]
