"""Legate's thesis: re-weighted softmax over all rates of its tables, and its search for FedProx's mu."""

from studies.declaration import SWEEP, Study, Sweep

_TABLE_3_1 = {
    "cifar10": ("CIFAR-10", "FedAvg .811 at 0.07, with WSM .846 at 0.1", 3),
    "cifar100": ("CIFAR-100", "FedAvg .589 at 0.03, with WSM .596 at 0.07", 3),
    "femnist": ("FEMNIST", "FedAvg .833 at 0.01, with WSM .861 at 0.03", 1),
}
_RATES_3_1 = "--set model.optimizer.lr=0.7,0.5,0.3,0.1,0.07,0.05,0.03,0.01,0.007"
_RATES_3_3 = "--set model.optimizer.lr=0.3,0.1,0.07,0.05,0.03,0.01,0.007,0.005"
_MEASURES = {
    "test_accuracy": "final test accuracy",
    "val_accuracy": "final validation accuracy",
    "test_accuracy_best": "best test accuracy",
    "forgetting/client_mean/mean": "client forgetting F_ki, mean over rounds",
    "processor_seconds": "processor seconds",
}

STUDIES = [
    *(
        Study(
            name=f"wsm_table_3_1_{data}",
            title=f"Thesis, Table 3.1, {name}: WSM at nine rates",
            claim="The best rate of WSM is ahead of the best of cross entropy.",
            paper=f"Legate's thesis, Table 3.1, {name}, the best of nine rates, mean of the last 100 rounds: {paper}.",
            sweeps=tuple(
                Sweep(row, f"--config {data}_{config}.yaml {_RATES_3_1} --seeds {seeds}")
                for row, config in {"FedAvg": "fedavg_mix", "WSM": "wsm"}.items()
            ),
            measures=_MEASURES,
            baseline={SWEEP: "FedAvg"},
            chosen="model.optimizer.lr",
        )
        for data, (name, paper, seeds) in _TABLE_3_1.items()
    ),
    *(
        Study(
            name=f"wsm_table_3_3_{norm}_norm",
            title=f"Thesis, Table 3.3: WSM at eight rates, {norm} norm",
            claim=claim,
            paper=f"Legate's thesis, Table 3.3, CIFAR-10, 8,000 rounds, {norm} norm, the best of eight rates: {paper}.",
            sweeps=tuple(
                Sweep(row, f"--config cifar10_8000_rounds_{config}_{norm}_norm.yaml {_RATES_3_3} --seeds 1")
                for row, config in {"FedAvg": "fedavg", "WSM": "wsm"}.items()
            ),
            measures=_MEASURES,
            baseline={SWEEP: "FedAvg"},
            chosen="model.optimizer.lr",
        )
        for norm, claim, paper in (
            ("group", "The best rate of cross entropy is ahead of the best of WSM.", "FedAvg .865 at 0.05, WSM .853 at 0.007"),
            ("batch", "The best rate of WSM is ahead of the best of cross entropy.", "FedAvg .828 at 0.3, WSM .882 at 0.05"),
        )
    ),
    Study(
        name="wsm_fedprox_mu",
        title="Thesis, Table 3.2: the search for FedProx's mu",
        claim="With the mu that validation chooses, WSM raises the accuracy of FedProx.",
        paper="Legate's thesis searches mu, its lambda, between 0.8 and 1.3 and takes 1.1. Table 3.2, CIFAR-10, 20 clients: "
        "FedProx .752, with WSM .822. The steps of 0.1 are ours.",
        sweeps=tuple(
            Sweep(row, f"--config cifar10_20_clients_{config}.yaml --set model.mu=0.8,0.9,1.0,1.1,1.2,1.3 --seeds 1")
            for row, config in {"FedProx": "fedprox", "WSM": "fedprox_wsm"}.items()
        ),
        measures=_MEASURES,
        baseline={SWEEP: "FedProx"},
        chosen="model.mu",
    ),
]
