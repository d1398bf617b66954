"""Run the comparisons of the pages of docs/results: ``python studies/run.py STUDY OUT [option of fl-lightning ...]``.

Every run goes to ``OUT/seed_S/CONFIG``. A run that was stopped goes on from its checkpoint when the same command is given
again, and one that has finished is left alone; the options go to each run, such as ``--data.root DIR``. In the end the table of
all runs is printed, and their picture, where the study has one, is ``OUT/study.png``.
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import accuracy_results
import privacy_results
import task_results


@dataclass(frozen=True)
class Study:
    """Bundled configs that are compared.

    Args:
        configs: the seeds of each config.
        show: prints the table of the runs in a folder, and draws their picture.
        rounds: of every run; None: as many as the config says.
        options: further options of all runs.
        options_of: further options of single configs.
        attack: options of ``fl-lightning attack``, which then follows every run.
    """

    configs: dict[str, list[int]]
    show: Callable[[Path], None]
    rounds: int | None = None
    options: tuple[str, ...] = ()
    options_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    attack: tuple[str, ...] = ()


_DEFENCES = ("fedavg", "fedprox", "fedcurv", "fedreg", "fedreg_mg", "fedavg_dp_sgd_0.01", "fedavg_dp_sgd_0.1")
_DEFENCES += ("fedavg_dp_sgd_1", "fedprox_dp_sgd_0.1", "fedavg_user_level")
_ON_TASKS = ("stl", "ewc", "stable_sgd", "apd", "fedprox", "scaffold", "fedcurv", "fedprox_ewc", "fedprox_stable_sgd")
_ON_TASKS += ("fedprox_apd", "fedweit")

# Cosine distance: by squared distance FedReg looks like a defence (docs/results/fedreg.md).
_ATTACK = ("--distance", "cosine", "--lr", "0.1", "--tv", "0.001", "--labels", "known", "--iterations", "2000")
# Client 1's first digit is known so well at the end that its update under modified gradients is 0.
_ATTACKED = {"digits": "[0,2,3,4]", "mnist": "[0,2,3,4,5,6,7,8]"}

_FEDREG = ("fedavg", "fedreg", "fedprox", "fedcurv", "scaffold")
_FLASHBACK = ("flashback", "fedavg", "fedprox", "fedntd", "feddf", "moon")


def _accuracies(*targets: float) -> Callable[[Path], None]:
    return lambda out: accuracy_results.show(out, out / "study.png", targets)


def _defences(out: Path) -> None:
    privacy_results.show(out, out / "study.png")


_MNIST_TARGETS = _accuracies(0.9, 0.95, 0.97)
_CIFAR10_TARGETS = _accuracies(0.375, 0.45, 0.5)

STUDIES = {
    "fedreg_mnist": Study(
        {f"fedreg_mnist_two_class_{method}": [0, 1] if method in ("fedavg", "fedreg") else [0] for method in _FEDREG},
        _MNIST_TARGETS,
        rounds=150,
    ),
    "fedreg_mnist_one_class": Study({f"fedreg_mnist_one_class_{method}": [0] for method in _FEDREG}, _MNIST_TARGETS),
    "fedreg_mnist_500_rounds": Study({f"fedreg_mnist_two_class_{method}": [0] for method in _FEDREG}, _MNIST_TARGETS),
    "flashback_cifar10": Study(
        {f"flashback_cifar10_beta_0.1_{method}": [0] for method in _FLASHBACK},
        _CIFAR10_TARGETS,
        rounds=20,
        options=("--callbacks.round_forgetting.clients_every", "2"),
        options_of={"flashback_cifar10_beta_0.1_feddf": ("--model.distillation_steps", "200")},
    ),
    "flashback_cifar10_500_rounds": Study(
        {f"flashback_cifar10_beta_0.1_{method}": [0] for method in _FLASHBACK}, _CIFAR10_TARGETS
    ),
    "mnist_tasks": Study({f"mnist_tasks_{method}": [0, 1, 2] for method in ("fedavg", *_ON_TASKS)}, task_results.show),
    "overlapped_cifar100": Study(
        {
            f"fedweit_overlapped_{method}": [0, 1] if method in ("fedprox", "fedprox_apd", "fedweit") else [0]
            for method in _ON_TASKS
        },
        task_results.show,
        options=("--model.evaluate_every", "5"),
    ),
    **{
        f"privacy_{data}": Study(
            {f"privacy_{data}_{defence}": [0] for defence in _DEFENCES},
            _defences,
            attack=(*_ATTACK, "--clients", clients),
        )
        for data, clients in _ATTACKED.items()
    },
}


def run(study: Study, out: Path, options: list[str]) -> None:
    """Run all of a study, one run after the other, and show what came out.

    Raises:
        subprocess.CalledProcessError: if a run fails.
    """
    for config, seeds in study.configs.items():
        for seed in seeds:
            folder = out / f"seed_{seed}"
            versions = sorted((folder / config).glob("version_*"))
            if versions and (versions[-1] / "results.json").exists():
                _attack(versions[-1], study, options)
                continue
            command = ["fl-lightning", "fit", "--config", f"{config}.yaml", "--seed_everything", str(seed)]
            command += ["--trainer.default_root_dir", str(folder)]
            if study.rounds is not None:
                command += ["--trainer.max_steps", str(study.rounds)]
            command += [*study.options, *study.options_of.get(config, ()), *options]
            if versions and any(versions[-1].glob("checkpoints/*.ckpt")):
                command += ["--ckpt_path", "last"]
            print(" ".join(command), flush=True)
            subprocess.run(command, check=True)
            _attack(versions[-1] if versions else folder / config / "version_0", study, options)
    study.show(out)


def _attack(version: Path, study: Study, options: list[str]) -> None:
    """Attack a finished run, if that is part of the study and not done yet."""
    if study.attack and not (version / "attack" / "attack.json").exists():
        command = ["fl-lightning", "attack", "--ckpt_path", str(version / "checkpoints" / "last.ckpt"), *study.attack, *options]
        print(" ".join(command), flush=True)
        subprocess.run(command, check=True)


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in STUDIES:
        sys.exit(f"usage: python studies/run.py {{{','.join(STUDIES)}}} OUT [option of fl-lightning ...]")
    run(STUDIES[sys.argv[1]], Path(sys.argv[2]), sys.argv[3:])
