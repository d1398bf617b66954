"""A net that knows half of the classes, and a federation of the other half: new knowledge against old."""

from studies.declaration import SWEEP, Study, Sweep

_ON_DIGITS = {
    "full": "",
    "class layer": "--model.trained [classifier.*]",
    "FedProx": "--model FedProx --model.mu 1",
    "FedNTD": "--model FedNTD",
    "WSM": "--model.loss ReweightedSoftmax",
    "LoRA": "--model.adapter LoRA --model.adapter.r 8 --model.adapter.target_modules [features.1]",
    "L2SP": "--model.tasks L2SP --model.tasks.penalty 0.1",
    "EWC": "--model.tasks PretrainedEWC --model.tasks.penalty 100 --model.tasks.source SomeClasses "
    "--model.tasks.source.source digits --model.tasks.source.first 5",
}
_SHARES = {1: "final weights", 0.75: ".75 of the change", 0.5: "half of it"}

# A quarter of FedReg's width: the whole net takes eight times as long on a processor. Without norms it collapses.
_NET = "--model.net ResNet9 --model.net.width 16 --model.net.norm_groups 2"
# Logits of the other fifty count as 0. Under a plain softmax they fall to -15, and the federation begins with losses of 15.
_FIRST = f"--config forgetbench_cifar100_first_fifty.yaml {_NET} --model.loss MaskedCrossEntropy"
_STEPS = "--model.optimizer.lr 0.15 --model.local_steps 20"
# A ResNet-9 predicts in a third of the time that it trains in, on a processor: test sets are predicted only at the ends.
_ENDS = (
    "--trainer.max_steps 30 --trainer.val_check_interval 30 --data.monitor_test 30 "
    "--callbacks.client_forgetting.every 30 --trainer.callbacks.init_args.every 30"
)
_CLIENTS = "--data.num_clients 50 --data.clients_per_round 5"
_SETTING = f"--config forgetbench_cifar100_other_fifty.yaml {_NET} {_STEPS} {_CLIENTS} {_ENDS} --seeds 3"
_SOURCE_OF_OLD = "--model.tasks.source SomeClasses --model.tasks.source.source image_folder --model.tasks.source.first 50"
_METHODS = {
    "full": "",
    "class layer": "--model.trained [classifier.*]",
    "LoRA": "--model.adapter LoRA --model.adapter.r 8 --model.adapter.target_modules [conv]",
    "L2SP": "--model.tasks L2SP --model.tasks.penalty 0.1",
    "EWC": f"--model.tasks PretrainedEWC {_SOURCE_OF_OLD} --model.tasks.penalty 1",
    "WSM": "--model.loss ReweightedSoftmax",
}

STUDIES = [
    Study(
        name="pretrained_fifty",
        title="What a federation of 50 classes of CIFAR-100 forgets of the other 50",
        claim="A net that was pretrained on 50 classes loses nearly all of its accuracy on them while a federation learns the "
        "other 50. Training fewer weights, a pull towards the pretrained ones, or WSM loses less of the old, and learns less "
        "of the new.",
        paper="Li, Grandvalet, Davoine (2018) and Kirkpatrick et al. (2017) tune one net on one task after another; no paper "
        "of these pages has this federation. The rate, the same for all rows, is the better of two in trials of full with "
        "another seed: .05 and .15, ten local steps. EWC's weight of 1 ended in finite weights in a trial of ten rounds. An "
        "earlier design had the ResNet-9 without norms, as FedReg trains it, and collapsed to one class in runs and trials at "
        "rates from .005 to .05, with gradients clipped to 1 too.",
        images="cifar100",
        pretraining=Sweep("pretrained", f"{_FIRST} --seeds [0]"),
        sweeps=tuple(Sweep(name, f"{_SETTING} {arguments}".rstrip()) for name, arguments in _METHODS.items()),
        measures={
            "test_accuracy": "final test accuracy on the new classes",
            "reference/old/lost": "accuracy lost on the old classes",
            "forgetting/client_mean/last": "client forgetting F_ki in round 30",
            "MB_up": "MB up",
            "MB_down": "MB down",
        },
        claimed=("test_accuracy", "reference/old/lost"),
        baseline={SWEEP: "full"},
    ),
    Study(
        name="pretrained_digits",
        title="What a federation of the digits 5 to 9 forgets of the digits 0 to 4",
        claim="A net that was pretrained on the digits 0 to 4 loses nearly all of its accuracy on them while a federation "
        "learns the others. LoRA, L2SP, EWC and WSM lose less of the old than training all weights. Weights at .75 of the way "
        "from the pretrained to the final ones (WiSE-FT) have more of the old than the final ones.",
        paper="Li, Grandvalet, Davoine (2018), Kirkpatrick et al. (2017) and Wortsman et al. (2022) tune one net, without a "
        "federation. The options are those of one run each with seed 0, which no file holds; these are other seeds.",
        pretraining=Sweep("pretrained", "--config digits_first_five.yaml --seeds [0]"),
        sweeps=tuple(
            Sweep(name, f"--config digits_other_five.yaml --seeds 3 {arguments}".rstrip())
            for name, arguments in _ON_DIGITS.items()
        ),
        measures={
            f"wise_ft/{share}/{set}": f"{said}, {digits}"
            for share, said in _SHARES.items()
            for set, digits in {"old": "old digits", "test": "new digits"}.items()
        },
        claimed=("wise_ft/1/old", "wise_ft/1/test"),
        baseline={SWEEP: "full"},
        within={"wise_ft/0.75/old": "wise_ft/1/old"},
    ),
]
