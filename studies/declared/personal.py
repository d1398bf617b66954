"""Personal models on CIFAR-10: two methods whose clients keep personal models, and two baselines."""

from studies.declaration import SWEEP, Study, Sweep

_SETTING = (
    "--config cifar10_fedavg.yaml --model.net CNN2 --model.local_steps null --model.local_epochs 1 --data.batch_size 50 "
    "--data.test_fraction 0.25 --trainer.max_steps 100 --trainer.val_check_interval 50 --data.monitor_test 50 "
    "--callbacks.client_forgetting.every 0 --callbacks.per_class_accuracy.every 0 --callbacks.label_counts.every 0 "
    "--callbacks.round_forgetting.every 0 --seeds 3"
)
_MOMENTUM = "--model.optimizer.momentum 0.5"
_FINE_TUNED = "--callbacks.personal_accuracy.fine_tune true --callbacks.personal_accuracy.fine_tuning_epochs 5"
_METHODS = {
    "fedavg_fine_tuned": f"--model FedAvg {_FINE_TUNED}",
    "local_only": "--model LocalOnly",
    "fedrep": "--model FedRep --model.head_epochs 1",
    "ditto": "--model Ditto --model.penalty 1",
}


_LG_FEDAVG = "at rate .1 with momentum .5, those of LG-FedAvg's code (arXiv 2001.01523), for 100 rounds."


def _study(name: str, partition: str, options: str, rate: str = "0.1", setting: str = _LG_FEDAVG) -> Study:
    return Study(
        name=f"personal_{name}",
        title=f"Personal models: CIFAR-10, {partition}",
        claim="A personal model of FedRep or Ditto is better on a client's test samples than the one that a client trains "
        "alone, and than FedAvg's global model, which fine-tuning makes better there too.",
        paper="PFLlib (arXiv 2312.04992) has 20 clients that take part in every round of 2,000, one epoch in batches of 10 at "
        "rate .005, a 4-layer CNN, Dirichlet .1 or 2 classes a client, and a quarter of each client's samples for tests. Here "
        f"the quarter is the same, and 10 of 100 clients have one epoch in batches of 50 {setting}",
        sweeps=tuple(
            Sweep(method, f"{_SETTING} {options} {arguments} --model.optimizer.lr {rate} {_MOMENTUM}")
            for method, arguments in _METHODS.items()
        ),
        measures={
            "personal/held_out/mean": "personal test accuracy, mean over clients",
            "personal/held_out/fine_tuned_mean": "mean after fine-tuning",
            "personal/held_out/std": "standard deviation over clients",
            "personal/held_out/worst_decile": "worst tenth",
            "personal/held_out/sample_mean": "mean over samples",
            "forgetting/personal_since_visit/mean": "forgotten since a client's last visit, mean over rounds",
            "MB_up": "MB up",
            "MB_down": "MB down",
        },
        further=tuple(
            ({SWEEP: method}, {SWEEP: baseline})
            for method in ("fedrep", "ditto")
            for baseline in ("local_only", "fedavg_fine_tuned")
        ),
        claimed=("personal/held_out/mean",),
        within={"personal/held_out/fine_tuned_mean": "personal/held_out/mean"},
    )


_TWO_CLASSES = "--data.partition Shards --data.partition.classes_per_client 2"

STUDIES = [
    _study("dirichlet", "Dirichlet 0.1", "--data.partition Dirichlet --data.partition.alpha 0.1"),
    _study("shards", "2 classes a client", _TWO_CLASSES),
    _study(
        "shards_at_lower_rate",
        "2 classes a client, at a lower rate",
        _TWO_CLASSES,
        rate="0.03",
        setting="at rate .03 with momentum .5, for 100 rounds: at .1, the rate of personal_shards, FedAvg and Ditto diverge.",
    ),
]
