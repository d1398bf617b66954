"""Yoon et al., FedWeIT: what each of its parts is worth, and its tables on Overlapped-CIFAR-100."""

from studies.declaration import SWEEP, Study, Sweep

_OPTIONS = "--seeds 3 --model.evaluate_every 5"
_MEASURES = {
    "tasks/accuracy": "accuracy on all tasks",
    "tasks/forgetting": "forgetting",
    "tasks/backward_transfer": "backward transfer",
    "tasks/model_megabytes": "models, MB",
    "MB_up": "MB up",
    "MB_down": "MB down",
    "seconds": "seconds",
}
_ABLATIONS = {
    "FedWeIT": "",
    "without A": "--model.adaptive false",
    "A stay with the client": "--model.num_foreign 0",
    "B stays with the client": "--model.share_base false",
    "without the mask": "--model.mask false",
    "without the l1 term": "--model.l1 0",
    "without the l2 term": "--model.l2 0",
}
_TABLE_1 = ("stl", "fedcurv", "fedprox", "fedprox_apd", "fedprox_stable_sgd", "fedweit")
_TABLE_2 = ("stl", "ewc", "stable_sgd", "apd", "fedprox", "scaffold", "fedcurv", "fedprox_ewc", "fedprox_stable_sgd")
_TABLE_2 += ("fedprox_apd", "fedweit")

STUDIES = [
    Study(
        name="fedweit_ablations",
        title="FedWeIT: what each of its parts is worth",
        claim="Without A, without others' A, without a shared B and without the mask FedWeIT is less accurate; without the l1 "
        "term it is as accurate and larger; without the l2 term it forgets.",
        paper="Tables B.7 and B.8, on NonIID-50: FedWeIT has .8443 and 69 MB; without A .6566, with A that stay .7921, with B "
        "that stays .7788, without the mask .7871, without l1 .8712 and 354 MB, without l2 .5676. These runs are on "
        "Overlapped-CIFAR-100.",
        sweeps=tuple(
            Sweep(name, f"--config fedweit_overlapped_fedweit.yaml {_OPTIONS} {change}".rstrip())
            for name, change in _ABLATIONS.items()
        ),
        measures=_MEASURES,
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
        baseline={SWEEP: "fedweit"},
    ),
    Study(
        name="fedweit_table_2",
        title="FedWeIT on Overlapped-CIFAR-100",
        claim="FedWeIT is ahead of all methods but a net for each task, and sends less than those that send the body.",
        paper="Table 2, Overlapped-CIFAR-100, three seeds: single-task learning has .572, FedWeIT .552, FedProx-APD .522, APD "
        ".508, EWC .443, Stable-SGD and FedProx-Stable-SGD .433, FedProx-EWC .415, FedCurv .404, FedProx .390, SCAFFOLD .228.",
        sweeps=tuple(Sweep(method, f"--config fedweit_overlapped_{method}.yaml {_OPTIONS}") for method in _TABLE_2),
        measures=_MEASURES,
        baseline={SWEEP: "fedweit"},
    ),
    Study(
        name="fedweit_size",
        title="FedWeIT: what leaves so much of A",
        claim="A stronger l1 term brings the size of the models down to the paper's, at which A keeps 2 % of its values, and "
        "costs little accuracy.",
        paper="Table 2, Overlapped-CIFAR-100: 75 MB for five clients, of which the dense part is 61; with the l1 strength of "
        "its authors' code, 1e-3, ours has 92.",
        sweeps=(Sweep("", f"--config fedweit_overlapped_fedweit.yaml --set model.l1=0.001,0.002,0.004,0.008 {_OPTIONS}"),),
        measures=_MEASURES,
        baseline={"model.l1": "0.001"},
    ),
]
