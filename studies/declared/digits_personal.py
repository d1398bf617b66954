"""All methods with personal models on digits, and two baselines, each at its own learning rate."""

from studies.declaration import SWEEP, Study, Sweep

_FEDERATION = (
    "--config digits_tce.yaml --model.loss CrossEntropy --model.net MLP --model.local_steps 10 --data.batch_size 10 "
    "--data.num_clients 50 --data.partition.alpha 0.3 --data.test_fraction 0.25 --trainer.max_steps 60 "
    "--trainer.val_check_interval 10 --data.monitor_test 10 --callbacks.client_forgetting.every 0 "
    "--callbacks.per_class_accuracy.every 0 --callbacks.per_class_accuracy.clients_every 0 "
    "--callbacks.round_forgetting.every 0 --callbacks.label_counts.every 0"
)
_BASELINES = {
    "FedAvg": "--model FedAvg --callbacks.personal_accuracy.fine_tune true",
    "LocalOnly": "--model LocalOnly",
}
_METHODS = {
    "APFL": "--model APFL",
    "Ditto": "--model Ditto",
    "FedBABU": "--model FedBABU",
    "FedPer": "--model FedPer",
    "FedRep": "--model FedRep --model.head_steps 10",
    "FedRoD": "--model FedRoD",
    "LGFedAvg": "--model LGFedAvg",
    "PFedMe": "--model PFedMe",
}
_RATES = "0.01,0.03,0.1,0.3"
# Methods that were best at the highest of the four have one rate more.
_WIDER = ("FedAvg", "LocalOnly", "APFL", "Ditto", "FedBABU", "FedPer", "FedRoD", "LGFedAvg")
# By digits_personal_rates; FedBABU's by validation accuracy after fine-tuning, and once more by that of the global model.
_CHOSEN = {"FedRep": "0.1", "FedBABU": "0.03", "PFedMe": "0.1"}
_BY_GLOBAL_MODEL = "FedBABU at 1.0"
_FEDERATION_SAID = (
    "50 clients, ten a round, Dirichlet 0.3, ten local steps of ten samples, 60 rounds of an MLP; a quarter of each client's "
    "samples is for its test, about nine."
)

STUDIES = [
    Study(
        name="digits_personal_rates",
        title="Digits: the learning rate of each method with personal models",
        claim="Each method has its best mean validation accuracy at a rate between the lowest and the highest tried. "
        "digits_personal, which is declared next, takes these rates, with other seeds.",
        paper=f"No paper compares these methods in one setting. Here: {_FEDERATION_SAID} FedRep's clients take ten steps on "
        "the head, then ten on the body; all other options have their defaults. The validation accuracy of FedAvg and FedBABU "
        "is that of the global model, before fine-tuning. Eight methods were best at the highest of four rates; a fifth was "
        "then added for them.",
        sweeps=tuple(
            Sweep(name, f"{_FEDERATION} {options} --set model.optimizer.lr={_RATES}{',1.0' * (name in _WIDER)} --seeds 11,12")
            for name, options in (_BASELINES | _METHODS).items()
        ),
        measures={
            "val_accuracy": "final validation accuracy",
            "personal/held_out/mean": "personal test accuracy, mean over clients",
            "personal/held_out/fine_tuned_mean": "mean after fine-tuning",
            "processor_seconds": "processor seconds",
        },
        baseline={SWEEP: "LocalOnly"},
        chosen="model.optimizer.lr",
    ),
    Study(
        name="digits_personal",
        title="Digits: methods with personal models, each at its own learning rate",
        claim="At the rate that validation chose for it in digits_personal_rates, each method's personal model is more "
        "accurate on its client's test samples than one that the client trains by itself, and than FedAvg's global model. "
        "Fine-tuning makes the global models of FedAvg and FedBABU better there, and FedBABU's better than FedAvg's.",
        paper=f"No paper compares these methods in one setting. Here: {_FEDERATION_SAID} FedBABU's rate in the search was best "
        "at 1.0 by the global model, which fine-tuning at that rate ruins, and at .03 by the fine-tuned one: it has both.",
        sweeps=tuple(
            Sweep(name, f"{_FEDERATION} {options} --model.optimizer.lr {rate} --seeds 21,22,23,24,25")
            for name, options, rate in (
                *((name, options, _CHOSEN.get(name, "0.3")) for name, options in (_BASELINES | _METHODS).items()),
                (_BY_GLOBAL_MODEL, _METHODS["FedBABU"], "1.0"),
            )
        ),
        measures={
            "personal/held_out/mean": "personal test accuracy, mean over clients",
            "personal/held_out/fine_tuned_mean": "mean after fine-tuning",
            "personal/held_out/std": "standard deviation over clients",
            "personal/held_out/worst_decile": "worst tenth",
            "forgetting/personal_since_visit/mean": "forgotten since a client's last visit, mean over rounds",
            "MB_up": "MB up",
        },
        further=(
            *(({SWEEP: name}, {SWEEP: baseline}) for name in _METHODS if name != "FedBABU" for baseline in _BASELINES),
            *(({SWEEP: name}, {SWEEP: "FedAvg"}) for name in ("FedBABU", _BY_GLOBAL_MODEL)),
        ),
        claimed=("personal/held_out/mean", "personal/held_out/fine_tuned_mean"),
        within={"personal/held_out/fine_tuned_mean": "personal/held_out/mean"},
        remark="A plain loop of torch that fine-tunes FedBABU's global model makes it less accurate, too: against a head that "
        "was never trained its features grow large, and then one step of the head changes the outputs much.",
    ),
]
