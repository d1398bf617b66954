"""Yoon et al., FedWeIT: what each of its parts is worth, and its tables on Overlapped-CIFAR-100."""

from studies.declaration import SWEEP, Study, Sweep

_SIZES = "--set model.tasks.l1=0.001,0.002,0.004,0.008"
_OPTIONS = "--seeds 3 --model.tasks.evaluate_every 5"
_MEASURES = {
    "tasks/accuracy": "accuracy on all tasks",
    "tasks/forgetting": "forgetting",
    "tasks/backward_transfer": "backward transfer",
    "tasks/model_megabytes": "models, MB",
    "MB_up": "MB up",
    "MB_down": "MB down",
    "processor_seconds": "processor seconds",
}
_WITHOUT = {
    "without A": "--model.tasks.adaptive false",
    "without the mask": "--model.tasks.mask false",
    "without the l2 term": "--model.tasks.l2 0",
}
_ALSO_WITHOUT = {
    "A stay with the client": "--model.tasks.num_foreign 0",
    "B stays with the client": "--model.share_base false",
    "without the l1 term": "--model.tasks.l1 0",
}
_TABLE_1 = ("stl", "fedcurv", "fedprox", "fedprox_apd", "fedprox_stable_sgd", "fedweit")
_TABLE_2 = ("stl", "ewc", "stable_sgd", "apd", "fedprox", "scaffold", "fedcurv", "fedprox_ewc", "fedprox_stable_sgd")
_TABLE_2 += ("fedprox_apd", "fedweit")
_SETTINGS = {"overlapped": "Overlapped-CIFAR-100", "noniid50": "NonIID-50"}
_ARRANGEMENTS = {
    "one body": "",
    "each by itself": "--model LocalOnly --model.tasks SingleTask",
    "FedWeIT": "--model FedWeIT --model.tasks WeightedTransfer",
}
_LAMBDAS = {"ewc": ("EWC", "model.tasks.penalty"), "fedcurv": ("FedCurv", "model.penalty")}


def _ablations(changes: dict[str, str]) -> tuple[Sweep, ...]:
    return tuple(
        Sweep(name, f"--config fedweit_overlapped_fedweit.yaml {_OPTIONS} {change}".rstrip())
        for name, change in {"FedWeIT": "", **changes}.items()
    )


STUDIES = [
    Study(
        name="fedweit_ablations",
        title="FedWeIT: what A, the mask and the l2 term are worth",
        claim="Without A and without the mask FedWeIT is less accurate; without the l2 term it forgets.",
        paper="Table B.7, on NonIID-50: FedWeIT has .8411, without A .6566, without the mask .7871. Table B.8, of other runs: "
        "FedWeIT has .8443 and a backward transfer of -.0014, without the l2 term .5676 and -.3203. These runs are on "
        "Overlapped-CIFAR-100.",
        sweeps=_ablations(_WITHOUT),
        measures=_MEASURES,
        claimed=("tasks/accuracy", "tasks/forgetting", "tasks/backward_transfer"),
        baseline={SWEEP: "FedWeIT"},
    ),
    Study(
        name="fedweit_sharing",
        title="FedWeIT: what sharing A and B and the l1 term are worth",
        claim="Where A or B stay with the client FedWeIT is less accurate; without the l1 term it is as accurate and larger.",
        paper="Table B.7, on NonIID-50: FedWeIT has .8411, with A that stay .7921, with B that stays .7788. Table B.8, of "
        "other runs: FedWeIT has .8443 and 69 MB, without the l1 term .8712 and 354 MB. These runs are on "
        "Overlapped-CIFAR-100.",
        sweeps=_ablations(_ALSO_WITHOUT),
        measures=_MEASURES,
        claimed=("tasks/accuracy", "tasks/model_megabytes"),
        baseline={SWEEP: "FedWeIT"},
    ),
    Study(
        name="fedweit_table_1",
        title="FedWeIT with 100 clients",
        claim="With 100 clients, five a round, FedWeIT is ahead of a net for each task, and the others are behind it.",
        paper="Table 1, Overlapped-CIFAR-100: FedWeIT has .3958, single-task learning .3296, FedProx-APD .3255, FedCurv .2911, "
        "FedProx .2411, FedProx-Stable-SGD .2229.",
        sweeps=tuple(Sweep(method, f"--config fedweit_overlapped_100_clients_{method}.yaml {_OPTIONS}") for method in _TABLE_1),
        measures=_MEASURES,
        claimed=("tasks/accuracy",),
        baseline={SWEEP: "stl"},
    ),
    Study(
        name="fedweit_table_2",
        title="FedWeIT on Overlapped-CIFAR-100",
        claim="FedWeIT is ahead of all methods but a net for each task, and sends less than those that send the body.",
        paper="Table 2, Overlapped-CIFAR-100, three seeds: single-task learning has .572, FedWeIT .552, FedProx-APD .522, APD "
        ".508, EWC .443, Stable-SGD and FedProx-Stable-SGD .433, FedProx-EWC .415, FedCurv .404, FedProx .390, SCAFFOLD .228.",
        sweeps=tuple(Sweep(method, f"--config fedweit_overlapped_{method}.yaml {_OPTIONS}") for method in _TABLE_2),
        measures=_MEASURES,
        claimed=("tasks/accuracy", "MB_up"),
        baseline={SWEEP: "fedweit"},
    ),
    Study(
        name="fedweit_size",
        title="FedWeIT: what leaves so much of A",
        claim="A stronger l1 term brings the size of the models down to the paper's, at which A keeps 2 % of its values, and "
        "costs little accuracy.",
        paper="Table 2, Overlapped-CIFAR-100: 75 MB for five clients, of which the dense part is 61; with the l1 strength of "
        "its authors' code, 1e-3, ours has 92.",
        sweeps=(Sweep("", f"--config fedweit_overlapped_fedweit.yaml {_SIZES} {_OPTIONS}"),),
        measures=_MEASURES,
        claimed=("tasks/accuracy", "tasks/model_megabytes"),
        baseline={"model.tasks.l1": "0.001"},
    ),
    Study(
        name="fedweit_figure_7",
        title="FedWeIT, Figure 7: accuracy by what is sent",
        claim="FedWeIT is ahead of FedProx-APD at every share of B that is sent.",
        paper="Figure 7, on NonIID-50, a picture of FedWeIT and FedProx-APD over the share of B that is sent. The text "
        "does not say how APD chooses its share: here by its masks, and the shares are ours.",
        sweeps=tuple(
            Sweep(name, f"--config fedweit_noniid50_{config}.yaml --set model.density=0.03,0.1,0.3,1.0 {_OPTIONS}")
            for name, config in {"FedWeIT": "fedweit", "FedProx-APD": "sparse_apd"}.items()
        ),
        measures=_MEASURES,
        claimed=("tasks/accuracy",),
        baseline={SWEEP: "FedWeIT"},
    ),
    *(
        Study(
            name=f"fedweit_lambda_1_{setting}",
            title=f"FedWeIT's search: lambda_1, {name}",
            claim="With the printed lambda_1, .1 to .4, A keeps nothing, and FedWeIT is less accurate than with the 1e-3 of "
            "its authors' code, whether in the code's form or in that of equation 2.",
            paper="Appendix A sets lambda_1 to [.1, .4] for all experiments and does not say which of the two, or whether a "
            "value between them, belongs to which. The .2 is ours.",
            sweeps=tuple(
                Sweep(form, f"--config fedweit_{setting}_{config}.yaml --set model.tasks.l1=0.001,0.1,0.2,0.4 {_OPTIONS}")
                for form, config in {"code": "fedweit", "equation 2": "paper"}.items()
            ),
            measures=_MEASURES,
            claimed=("tasks/accuracy", "tasks/model_megabytes"),
            baseline={"model.tasks.l1": "0.001"},
        )
        for setting, name in _SETTINGS.items()
    ),
    *(
        Study(
            name=f"fedweit_lambda_{method}_{setting}",
            title=f"FedWeIT's search: lambda of {name}, {of}",
            claim=f"A larger lambda within the printed range makes {name} forget less.",
            paper="Appendix A sets lambda to [.01, 1] for EWC and FedCurv and does not say which value is for which. The .1 "
            "is ours. The configs have 1.",
            sweeps=(Sweep("", f"--config fedweit_{setting}_{method}.yaml --set {key}=0.01,0.1,1.0 {_OPTIONS}"),),
            measures=_MEASURES,
            claimed=("tasks/accuracy", "tasks/forgetting"),
            baseline={key: "1.0"},
        )
        for setting, of in _SETTINGS.items()
        for method, (name, key) in _LAMBDAS.items()
    ),
    Study(
        name="digits_density",
        title="FedWeIT on digits: accuracy by what is sent",
        claim="Sending a tenth of B's outputs or fewer costs little accuracy.",
        paper="Figure 7, on NonIID-50, a picture.",
        sweeps=(Sweep("", "--config digits_fedweit.yaml --set model.density=0.03,0.1,0.3,1.0 --seeds 3"),),
        measures=_MEASURES,
        baseline={"model.density": "1.0"},
    ),
    Study(
        name="digits_schedule",
        title="FedWeIT on digits: synchronous and asynchronous tasks",
        claim="Clients that begin their next task without waiting for the others are as accurate, and the run ends sooner.",
        paper="Figure 9, on NonIID-50, a picture.",
        sweeps=(
            Sweep(
                "",
                "--config digits_fedweit.yaml --set model.tasks.schedule=synchronous,asynchronous --seeds 3 "
                "--model.tasks.patience 2 --model.tasks.smallest_rate 2e-4 --model.tasks.rounds_per_task 20 "
                "--trainer.max_steps 100",
            ),
        ),
        measures={**_MEASURES, "rounds": "rounds"},
        claimed=("tasks/accuracy", "rounds"),
        baseline={"model.tasks.schedule": "synchronous"},
    ),
    Study(
        name="fedweit_interference",
        title="FedWeIT: a client with other images",
        claim="A body that two clients share makes both less accurate, one with MNIST and one with CIFAR-10. With FedWeIT the "
        "client with MNIST is as accurate as by itself.",
        paper="Figure 2, curves of a client with MNIST beside one with CIFAR-10 or SVHN. It does not say what was trained. "
        "Nine runs were made before, without client_tasks: the seed drew which client has which images, so that a column of a "
        "client mixed both. Their means by dataset were .957, .971 and .971 for MNIST, .454, .496 and .469 for CIFAR-10.",
        sweeps=tuple(
            Sweep(
                name,
                f"--config fedweit_interference.yaml {learner} --seeds 3 --model.tasks.evaluate_every 4 "
                "--data.source.sources.CIFAR10 image_folder --data.tasks.client_tasks [[MNIST_0],[CIFAR10_0]]",
            )
            for name, learner in _ARRANGEMENTS.items()
        ),
        measures={
            "tasks/accuracy_of_client/0": "accuracy of the client with MNIST",
            "tasks/accuracy_of_client/1": "of the client with CIFAR-10",
        },
        claimed=("tasks/accuracy_of_client/0", "tasks/accuracy_of_client/1"),
        baseline={SWEEP: "one body"},
    ),
]
