"""The next character: a small transformer on chapters of Python's reference, each chapter a client."""

from studies.declaration import SWEEP, Study, Sweep

_SETTING = "--config text_other_half.yaml --trainer.val_check_interval 10 --callbacks.client_forgetting.every 10 --seeds 3"
_LEARNER_OF_OLD = """--model.tasks PretrainedEWC --model.tasks.source Characters --model.tasks.source.texts '["[a-m]*"]'"""
_METHODS = {
    "full": "",
    "class layer": "--model.trained [classifier.*]",
    "LoRA": "--model.adapter LoRA --model.adapter.r 4 --model.adapter.target_modules [query_key_value,out]",
    "L2SP": "--model.tasks L2SP --model.tasks.penalty 0.01",
    "EWC": f"{_LEARNER_OF_OLD} --model.tasks.penalty 100",
}

STUDIES = [
    Study(
        name="text_chapters",
        title="Text: what a federation of chapters forgets of other chapters",
        claim="A net that was pretrained on the chapters from a to m loses accuracy on them while it learns those from n to z, "
        "and a client's fit on one chapter makes it worse at those of others. Training fewer weights, or a pull towards "
        "the pretrained ones, loses less of the old.",
        paper="Legate, Caccia, Belilovsky define client forgetting F_ki for classes; no paper of these pages has text. It is "
        "that of the Python that runs the study. Weights of penalties were chosen after trials of two rounds with one seed.",
        pretraining=Sweep("pretrained", "--config text_first_half.yaml --seeds [0]"),
        sweeps=tuple(Sweep(name, f"{_SETTING} {arguments}".rstrip()) for name, arguments in _METHODS.items()),
        measures={
            "test_accuracy": "final test accuracy on the new chapters, by character",
            "reference/old/lost": "accuracy lost on the old chapters",
            "forgetting/client_mean/mean": "client forgetting F_ki, mean over rounds",
            "MB_up": "MB up",
        },
        claimed=("test_accuracy", "reference/old/lost", "forgetting/client_mean/mean"),
        baseline={SWEEP: "full"},
    )
]
