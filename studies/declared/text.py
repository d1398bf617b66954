"""The next character: a small transformer on chapters of Python's reference, each chapter a client."""

from studies.declaration import SWEEP, Study, Sweep

_SETTING = "--config text_other_half.yaml --trainer.val_check_interval 10 --callbacks.client_forgetting.every 10 --seeds 3"
_METHODS = {
    "fedavg": "--model FedAvg",
    "fedprox": "--model FedProx --model.mu 0.1",
    "one_local_step": "--model FedAvg --model.local_steps 1",
}

STUDIES = [
    Study(
        name="text_chapters",
        title="Text: what a chapter's fit forgets of other chapters",
        claim="A client's fit on one chapter makes the net worse at the next character of other clients' chapters, and less so "
        "with the pull of FedProx or with fewer local steps.",
        paper="Legate, Caccia, Belilovsky define client forgetting F_ki for classes; no paper of these pages has text. It is "
        "that of the Python that runs the study.",
        sweeps=tuple(Sweep(name, f"{_SETTING} {arguments}") for name, arguments in _METHODS.items()),
        measures={
            "test_accuracy": "final test accuracy, by character",
            "forgetting/client_mean/mean": "client forgetting F_ki, mean over rounds",
            "MB_up": "MB up",
        },
        baseline={SWEEP: "fedavg"},
    )
]
