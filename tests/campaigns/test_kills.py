"""kill -9 at random instants: whatever a run keeps, it ends with the weights and states of a run never killed."""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import start

from fl_lightning.clients.states import MemoryStates

pytestmark = pytest.mark.slow

KILLS = 8
RUN = (
    "fit --config digits_tce.yaml --model.net MLP --model.net.hidden [16] --data.num_clients 20 --data.clients_per_round 5 "
    "--trainer.max_steps 30 --trainer.val_check_interval 3 --data.monitor_test 3 --trainer.enable_progress_bar false "
    "--callbacks.client_forgetting.every 15 --callbacks.per_class_accuracy.every 15 --callbacks.round_forgetting.every 15"
).split()
TASKS = [
    *"fit --config digits_fedweit.yaml --model.net MLP --model.net.hidden [16] --model.rounds_per_task 3".split(),
    *"--trainer.max_steps 15 --trainer.val_check_interval 2 --trainer.enable_progress_bar false".split(),
]
KINDS = {
    "server_momentum": [*RUN, *"--model.server_optimizer.momentum 0.9".split()],
    "server_adam_schedule": [
        *RUN,
        *"--model.server_optimizer FedAdam --model.server_optimizer.lr 0.01".split(),
        *"--model.lr_scheduler torch.optim.lr_scheduler.ExponentialLR --model.lr_scheduler.gamma 0.95".split(),
    ],
    "scaffold_memory": [*RUN, *"--model Scaffold".split()],
    "scaffold_disk": [*RUN, *"--model Scaffold --model.client_state disk".split()],
    "feddyn_disk": [*RUN, *"--model FedDyn --model.client_state disk".split()],
    "fedcurv": [*RUN, *"--model FedCurv".split()],
    "moon_disk": [*RUN, *"--model Moon --model.net CNN2 --model.client_state disk --trainer.max_steps 12".split()],
    "feddf_public": [*RUN, *"--model FedDF --model.distillation_steps 5 --data.public_size 100".split()],
    "flashback": [*RUN, *"--model Flashback --data.public_size 100".split()],
    "user_level": [
        *RUN,
        *"--model.loss CrossEntropy --model.server_weighting uniform".split(),
        *"--model.privacy UserLevelDP --model.privacy.clipping_norm 1 --model.privacy.noise_multiplier 0.1".split(),
    ],
    "batch_norm_local": [
        *RUN,
        *"--data.augment+=Pad --data.augment.padding 12 --model.net ResNet9 --model.batch_norm_buffers local".split(),
        *"--trainer.max_steps 6".split(),
    ],
    "fedweit_memory": TASKS,
    "fedweit_disk": [*TASKS, "--model.client_state", "disk"],
    "vectorized_decay": [*RUN, *"--model.engine vectorized --model.learning_rate_decay 0.9".split()],
}


def final_state(folder: Path) -> dict[str, Any]:
    """What the newest version of a run ends with: all that a further round would depend on, and the curves."""
    version = max((folder / "runs").glob("*/version_*"), key=lambda path: int(path.name.removeprefix("version_")))
    checkpoint = torch.load(version / "checkpoints" / "last.ckpt", weights_only=True)
    states = MemoryStates()
    states.restore(checkpoint["federated"].pop("client_states"))
    return {
        "round": checkpoint["global_step"],
        "net": checkpoint["state_dict"],
        "server": checkpoint["optimizer_states"],
        "schedule": checkpoint["lr_schedulers"],
        "clients": {client: states.read(client) for client in sorted(states.clients())},
        "newest": checkpoint["federated"]["newest"],
        "results": (version / "results.json").read_text(),
    }


def differences(expected: Any, actual: Any, path: str = "") -> list[str]:
    """Where two nested containers of tensors and plain values differ, bit for bit."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        keys = sorted(expected.keys() | actual.keys(), key=str)
        missing = [f"{path}/{key}" for key in keys if key not in expected or key not in actual]
        both = [key for key in keys if key in expected and key in actual]
        return missing + [place for key in both for place in differences(expected[key], actual[key], f"{path}/{key}")]
    if isinstance(expected, list | tuple) and isinstance(actual, list | tuple) and len(expected) == len(actual):
        pairs = enumerate(zip(expected, actual, strict=True))
        return [place for i, pair in pairs for place in differences(*pair, f"{path}/{i}")]
    if isinstance(expected, torch.Tensor):
        # What is not measured yet is NaN, which equals nothing.
        pair = [value.nan_to_num(nan=torch.inf) if value.is_floating_point() else value for value in (expected, actual)]
        return [] if expected.dtype == actual.dtype and torch.equal(*pair) else [path]
    return [] if expected == actual or expected != expected else [path]


def run_through(folder: Path, arguments: list[str], instants: Iterator[float]) -> int:
    """Start a run, kill it after the next of some seconds and go on, until it ends by itself; returns the kills."""
    kills = 0
    while True:
        process = start(folder, *arguments, "--ckpt_path", "last_if_any")
        process.join(timeout=next(instants, 120))
        if not process.is_alive():
            log = (folder / "log.txt").read_text()
            assert process.exitcode == 0, log[-2000:]
            assert "Traceback" not in log
            return kills
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        kills += 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_killed_again_and_again_ends_as_one_never_killed(tmp_path, kind):
    """Kills at instants uniform over the time of a whole run, each followed by the same command, run after run."""
    begun = time.monotonic()
    assert run_through(tmp_path / "whole", KINDS[kind], iter(())) == 0
    seconds = time.monotonic() - begun
    expected, random_numbers, kills = final_state(tmp_path / "whole"), random.Random(kind), 0
    while kills < KILLS:
        folder = tmp_path / f"killed_{kills}"
        instants = (random_numbers.uniform(0, seconds) for _ in range(KILLS - kills))
        kills += run_through(folder, KINDS[kind], instants)
        assert differences(expected, final_state(folder)) == []
