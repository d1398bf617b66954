"""A narrow ResNet-9 that knows 50 classes of CIFAR-100, and a federation of the other 50: new knowledge against old."""

from studies.declaration import SWEEP, Study, Sweep

# A quarter of FedReg's width: the whole net takes eight times as long on a processor.
_NET = "--model.net ResNet9 --model.net.width 16"
# Logits of the other fifty count as 0. Under a plain softmax they fall to -15, and the first steps on them kill the net.
_FIRST = f"--config forgetbench_cifar100_first_fifty.yaml {_NET} --model.loss MaskedCrossEntropy"
# A ResNet-9 predicts in a third of the time that it trains in, on a processor: test sets are predicted only at the ends.
_ENDS = (
    "--trainer.max_steps 40 --trainer.val_check_interval 40 --data.monitor_test 40 "
    "--callbacks.client_forgetting.every 40 --trainer.callbacks.init_args.every 40"
)
_CLIENTS = "--data.num_clients 50 --data.clients_per_round 5"
_SETTING = f"--config forgetbench_cifar100_other_fifty.yaml {_NET} {_CLIENTS} {_ENDS} --seeds 3"
_SOURCE_OF_OLD = "--model.tasks.source SomeClasses --model.tasks.source.source image_folder --model.tasks.source.first 50"
_METHODS = {
    "full": "",
    "class layer": "--model.trained [classifier.*]",
    "LoRA": "--model.adapter LoRA --model.adapter.r 8 --model.adapter.target_modules [conv,conv1]",
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
        "of these pages has this federation. EWC's weight was set after trials of four and two rounds with another seed: with "
        "100 no round ends in finite weights. A net that was pretrained with a softmax over all 100 classes collapsed in two "
        "runs of full and in trials at rates of .02 and .005. So did the present one in trials of ten rounds at .02 and .005, "
        "and at .05 and .01 with gradients clipped to 1; one run of full at .05 diverged. The study waits for another design.",
        images="cifar100",
        pretraining=Sweep("pretrained", f"{_FIRST} --seeds [0]"),
        sweeps=tuple(Sweep(name, f"{_SETTING} {arguments}".rstrip()) for name, arguments in _METHODS.items()),
        measures={
            "test_accuracy": "final test accuracy on the new classes",
            "reference/old/lost": "accuracy lost on the old classes",
            "forgetting/client_mean": "client forgetting F_ki in round 40",
            "MB_up": "MB up",
        },
        claimed=("test_accuracy", "reference/old/lost"),
        baseline={SWEEP: "full"},
    )
]
