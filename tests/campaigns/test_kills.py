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
from fork_server import start
from options import NO_PICTURES

from fl_lightning.state.client_states import MemoryStates

pytestmark = pytest.mark.slow

KILLS = 8  # of each kind
LONGEST = 60  # seconds that a run may take
QUIET = ["--trainer.enable_progress_bar", "false", *NO_PICTURES]
RUN = [
    *"fit --config digits_tce.yaml --model.net MLP --model.net.hidden [8] --trainer.max_steps 12".split(),
    *"--data.num_clients 8 --data.clients_per_round 3 --trainer.val_check_interval 2 --data.monitor_test 2".split(),
    *QUIET,
]
TASKS = [
    *"fit --config digits_fedweit.yaml --model.net MLP --model.net.hidden [8] --model.rounds_per_task 2".split(),
    *"--trainer.max_steps 10 --trainer.val_check_interval 2 --data.num_clients 3 --data.clients_per_round 3".split(),
    *"--callbacks.task_attention.every 0 --model.local_epochs null --model.local_steps 3".split(),
    *QUIET,
]
KINDS = {
    "server_momentum": [*RUN, *"--model.server_optimizer.momentum 0.9 --callbacks.client_forgetting.every 6".split()],
    "server_adam_schedule": [
        *RUN,
        *"--model.server_optimizer FedAdam --model.server_optimizer.lr 0.01".split(),
        *"--model.lr_scheduler torch.optim.lr_scheduler.ExponentialLR --model.lr_scheduler.gamma 0.95".split(),
    ],
    "scaffold_memory": [*RUN, *"--model SCAFFOLD".split()],
    "scaffold_disk": [*RUN, *"--model SCAFFOLD --model.client_state disk".split()],
    "feddyn_disk": [*RUN, *"--model FedDyn --model.client_state disk".split()],
    "fedcurv": [*RUN, *"--model FedCurv".split()],
    "moon_disk": [*RUN, *"--model MOON --model.client_state disk".split()],
    "feddf_public": [*RUN, *"--model FedDF --model.distillation_steps 5 --data.public_size 100".split()],
    "flashback": [*RUN, *"--model Flashback --data.public_size 100".split()],
    "user_level": [
        *RUN,
        *"--model.loss CrossEntropy --model.server_weighting uniform".split(),
        *"--model.privacy UserLevelDP --model.privacy.clipping_norm 1 --model.privacy.noise_multiplier 0.1".split(),
    ],
    "batch_norm_local": [*RUN, *"--model.net batch_norm_net.BatchNormNet --model.batch_norm_buffers local".split()],
    "fedweit_memory": TASKS,
    "fedweit_disk": [*TASKS, "--model.client_state", "disk"],
    "vectorized_decay": [*RUN, *"--model.engine vectorized --model.learning_rate_decay 0.9".split()],
}


def newest_version(folder: Path) -> Path:
    return max((folder / "runs").glob("*/version_*"), key=lambda path: int(path.name.removeprefix("version_")))


def final_state(version: Path) -> dict[str, Any]:
    """What a run ends with: all that a further round would depend on, and what was measured."""
    checkpoint = torch.load(version / "checkpoints" / "last.ckpt", weights_only=True)
    states = MemoryStates()
    states.restore(checkpoint["federated"].pop("client_states"))
    return {
        "round": checkpoint["global_step"],
        "net": checkpoint["state_dict"],
        "server": checkpoint["optimizer_states"],
        "schedule": checkpoint["lr_schedulers"],
        "clients": {client: states.read(client).to_plain() for client in sorted(states.clients())},
        "newest": checkpoint["federated"]["newest"],
        "results": (version / "results.json").read_text(),
    }


def differences(expected: Any, actual: Any, path: str = "") -> list[str]:
    """Where two nested containers of tensors and plain values differ, bit for bit."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        keys = sorted(expected.keys() | actual.keys(), key=str)
        missing = [f"{path}/{key}" for key in keys if key not in expected or key not in actual]
        both = [key for key in keys if key in expected and key in actual]
        return missing + [difference for key in both for difference in differences(expected[key], actual[key], f"{path}/{key}")]
    if isinstance(expected, list | tuple) and isinstance(actual, list | tuple) and len(expected) == len(actual):
        pairs = enumerate(zip(expected, actual, strict=True))
        return [difference for i, pair in pairs for difference in differences(*pair, f"{path}/{i}")]
    if isinstance(expected, torch.Tensor):
        # What is not measured yet is NaN, which equals nothing.
        pair = [value.nan_to_num(nan=torch.inf) if value.is_floating_point() else value for value in (expected, actual)]
        return [] if expected.dtype == actual.dtype and torch.equal(*pair) else [path]
    return [] if expected == actual or expected != expected else [path]


def run_through(folder: Path, arguments: list[str], instants: Iterator[float]) -> int:
    """Start a run, kill it after the next of some seconds and go on, until it ends by itself; returns the kills."""
    kills = 0
    while True:
        process, instant = start(folder, *arguments, "--ckpt_path", "last_if_any"), next(instants, None)
        process.join(timeout=LONGEST if instant is None else instant)
        if not process.is_alive():
            log = (folder / "log.txt").read_text()
            assert process.exitcode == 0, log[-2000:]
            assert "Traceback" not in log
            return kills
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert instant is not None, f"a run took more than {LONGEST} s: {(folder / 'log.txt').read_text()[-2000:]}"
        kills += 1


@pytest.fixture(scope="module", autouse=True)
def _imported(tmp_path_factory):
    """The server has imported everything before a run is timed."""
    process = start(tmp_path_factory.mktemp("first"), "--version")
    process.join(timeout=LONGEST)
    assert process.exitcode == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_killed_again_and_again_ends_as_one_never_killed(tmp_path, raw_records, kind):
    """Kills at instants uniform over the time from a run's first file to its end, each followed by the same command.

    Weights, states and results are the same to the bit, and so is every record of TensorBoard, each there once. The seed gives
    the same shares of the time to every campaign; which rounds they fall into is the machine's.
    """
    started = time.time()
    assert run_through(tmp_path / "whole", KINDS[kind], iter(())) == 0
    whole, ended = newest_version(tmp_path / "whole"), time.time()
    begun = min(path.stat().st_mtime for path in whole.iterdir())  # its first file
    kills, random_numbers = 0, random.Random(kind)
    while kills < KILLS:
        folder = tmp_path / f"killed_{len(list(tmp_path.iterdir()))}"
        instants = (random_numbers.uniform(begun, ended) - started for _ in range(KILLS - kills))
        kills += run_through(folder, KINDS[kind], instants)
        assert differences(final_state(whole), final_state(newest_version(folder))) == []
        assert raw_records(newest_version(folder)) == raw_records(whole)
