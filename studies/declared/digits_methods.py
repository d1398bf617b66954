"""Methods with one global model that need no public data, and server optimizers, on the digits federation of forgetbench."""

from studies.declaration import SWEEP, Study, Sweep

# By name; the options of all are their defaults.
_METHODS = {
    "FedAvg": "",
    **{
        name: f"--model {name}"
        for name in (
            *("FedProx", "SCAFFOLD", "FedNova", "FedDyn", "FedExP", "FedGMA", "FedRS", "FedSAM", "MoFedSAM", "FedCM", "FedACG"),
            *("FedVARP", "FedDisco", "FedDecorr", "FedLMD", "FedSOL", "FedETF", "FedCurv", "FedReg", "FedNTD", "MOON"),
            "LocalDistillation",
        )
    },
    "TCE": "--model.loss TruncatedCrossEntropy",
    "WSM": "--model.loss ReweightedSoftmax",
    "FedLC": "--model.loss CalibratedCrossEntropy",
}

_RATES = "0.03,0.1,0.3,1.0"
# Methods that were best at the lowest or the highest of the four have one rate more in that direction.
_WIDER = {"MoFedSAM": f"{_RATES},3.0", "FedCM": f"{_RATES},3.0", "FedETF": f"0.01,{_RATES}", "MOON": f"0.01,{_RATES}"}
# By digits_methods_rates; 0.3 for all others.
_CHOSEN = {"SCAFFOLD": "0.1", "FedACG": "0.1", "FedCM": "1.0", "MoFedSAM": "3.0", "FedETF": "0.03", "MOON": "0.03"}

_SERVERS = {
    "FedAvgM": "--model.server_optimizer.momentum 0.9",
    "FedAdagrad": "--model.server_optimizer Adagrad --model.server_optimizer.initial_accumulator_value 1e-6 "
    "--model.server_optimizer.eps 0.001",
    "FedAdam": "--model.server_optimizer FedAdam",
    "FedYogi": "--model.server_optimizer FedYogi",
}
# By digits_server_rates: the server's, the clients'.
_PAIRS = {"FedAvgM": ("0.3", "0.3"), "FedAdagrad": ("0.1", "0.1"), "FedAdam": ("0.03", "0.3"), "FedYogi": ("0.03", "0.3")}

STUDIES = [
    Study(
        name="digits_methods_rates",
        title="Digits: the learning rate of each method",
        claim="Each method has its best mean validation accuracy at a rate between the lowest and the highest tried. "
        "digits_methods, which is declared next, takes these rates, with other seeds.",
        paper="No paper compares these methods in one setting. It is the digits federation of forgetbench: 50 clients, "
        "5 a round, Dirichlet 0.1, 50 local steps of 10, 20 rounds. All other options have their defaults. Four methods were "
        "best at the lowest or the highest of four rates; a fifth was then added for them.",
        sweeps=tuple(
            Sweep(
                name,
                f"--config forgetbench_digits.yaml {method} --set model.optimizer.lr={_WIDER.get(name, _RATES)} --seeds 11,12 "
                "--callbacks.client_forgetting.every 0",
            )
            for name, method in _METHODS.items()
        ),
        measures={
            "val_accuracy": "final validation accuracy",
            "test_accuracy": "final test accuracy",
            "forgetting/round/mean": "round forgetting F_t, mean over rounds",
            "processor_seconds": "processor seconds",
        },
        baseline={SWEEP: "FedAvg"},
        chosen="model.optimizer.lr",
    ),
    Study(
        name="digits_methods",
        title="Digits: the methods, each at its own learning rate",
        claim="At the rate that validation chose for it in digits_methods_rates, each method is more accurate than FedAvg at "
        "FedAvg's, and its clients forget less.",
        paper="No paper compares these methods in one setting. It is the digits federation of forgetbench, with other seeds "
        "than those of the search. Options other than the rate have their defaults. FedNova is not in it: all clients take "
        "as many steps here, so it is FedAvg.",
        sweeps=tuple(
            Sweep(
                name,
                f"--config forgetbench_digits.yaml {method} --model.optimizer.lr {_CHOSEN.get(name, '0.3')} "
                "--seeds 21,22,23,24,25",
            )
            for name, method in _METHODS.items()
            if name != "FedNova"
        ),
        measures={
            "test_accuracy": "final test accuracy",
            "forgetting/client_mean/mean": "client forgetting F_ki, mean over rounds",
            "forgetting/round/mean": "round forgetting F_t, mean over rounds",
            "processor_seconds": "processor seconds",
        },
        claimed=("test_accuracy", "forgetting/client_mean/mean"),
        baseline={SWEEP: "FedAvg"},
    ),
    Study(
        name="digits_server_rates",
        title="Digits: the learning rates of server optimizers",
        claim="Each server optimizer reaches a higher mean validation accuracy than FedAvg does at its best rate, 0.3, in "
        "digits_methods_rates. digits_servers, which is declared next, takes the pair of rates with the highest, with other "
        "seeds.",
        paper="Reddi et al. (arXiv 2003.00295) search both rates over wide grids; their server optimizers learn faster than "
        "FedAvg. It is the digits federation of forgetbench and the seeds of digits_methods_rates. FedAvgM's "
        "momentum is 0.9, Adagrad begins at 1e-6 and has tau 0.001; other options have their defaults.",
        sweeps=tuple(
            Sweep(
                name,
                f"--config forgetbench_digits.yaml {options} "
                f"--set model.server_optimizer.lr={'0.3,1.0' if name == 'FedAvgM' else '0.01,0.03,0.1'} "
                "--set model.optimizer.lr=0.03,0.1,0.3 --seeds 11,12 --callbacks.client_forgetting.every 0",
            )
            for name, options in _SERVERS.items()
        ),
        measures={
            "val_accuracy": "final validation accuracy",
            "test_accuracy": "final test accuracy",
            "forgetting/round/mean": "round forgetting F_t, mean over rounds",
            "processor_seconds": "processor seconds",
        },
    ),
    Study(
        name="digits_servers",
        title="Digits: server optimizers, each at its own learning rates",
        claim="At the pair of rates that validation chose for it in digits_server_rates, each server optimizer is more "
        "accurate than FedAvg at its best rate, 0.3, and its clients forget less.",
        paper="Reddi et al. (arXiv 2003.00295) find their server optimizers ahead of FedAvg at the best rates of each. It is "
        "the digits federation of forgetbench and the seeds of digits_methods. FedAvgM's rate at the server, 0.3, is the lower "
        "of two, Adagrad's, 0.1, the highest of three.",
        sweeps=(
            Sweep("FedAvg", "--config forgetbench_digits.yaml --model.optimizer.lr 0.3 --seeds 21,22,23,24,25"),
            *(
                Sweep(
                    name,
                    f"--config forgetbench_digits.yaml {_SERVERS[name]} --model.server_optimizer.lr {server} "
                    f"--model.optimizer.lr {clients} --seeds 21,22,23,24,25",
                )
                for name, (server, clients) in _PAIRS.items()
            ),
        ),
        measures={
            "test_accuracy": "final test accuracy",
            "forgetting/client_mean/mean": "client forgetting F_ki, mean over rounds",
            "forgetting/round/mean": "round forgetting F_t, mean over rounds",
            "processor_seconds": "processor seconds",
        },
        claimed=("test_accuracy", "forgetting/client_mean/mean"),
        baseline={SWEEP: "FedAvg"},
    ),
]
