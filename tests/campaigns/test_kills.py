"""kill -9 between two checkpoints: whatever a run keeps, it ends with the weights and states of a run never killed."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from fork_server import start
from options import NO_PICTURES
from recorded import lines

from fl_lightning.protocol import pack
from fl_lightning.state.client_states import MemoryStates

pytestmark = pytest.mark.slow

LONGEST = 60  # seconds that a run may take
KILLED = """
import os
import signal

from fl_lightning.callbacks import FederatedCallback


class Killed(FederatedCallback):
    def on_aggregate_end(self, trainer, module, round):
        if round == 3:
            os.kill(os.getpid(), signal.SIGKILL)
"""
QUIET = ["--trainer.enable_progress_bar", "false", *NO_PICTURES]
SETTING = [
    *"fit --config digits_tce.yaml --trainer.max_steps 5".split(),
    *"--data.num_clients 8 --data.clients_per_round 3 --trainer.val_check_interval 2 --data.monitor_test 2".split(),
    *QUIET,
]
RUN = [*SETTING, *"--model.net MLP --model.net.hidden [8]".split()]
# What lies in memory, in files, in the server's optimizer and schedule, in a defence, in a net and in tasks.
# tests/methods/test_every_method.py has the checkpoint of every method.
KINDS = {
    "memory": [
        *RUN,
        *"--model SCAFFOLD --model.server_optimizer FedAdam --model.server_optimizer.lr 0.01".split(),
        *"--model.lr_scheduler torch.optim.lr_scheduler.ExponentialLR --model.lr_scheduler.gamma 0.95".split(),
        *"--callbacks.client_forgetting.every 4".split(),
    ],
    "disk": [*RUN, *"--model SCAFFOLD --model.client_state disk --model.engine vectorized".split()],
    "user_level": [
        *RUN,
        *"--model.loss CrossEntropy --model.server_weighting uniform --model.learning_rate_decay 0.9".split(),
        *"--model.privacy UserLevelDP --model.privacy.clipping_norm 1 --model.privacy.noise_multiplier 0.1".split(),
    ],
    "batch_norm_local": [*SETTING, *"--model.net batch_norm_net.BatchNormNet --model.batch_norm_buffers local".split()],
    "tasks": [
        *"fit --config digits_fedweit.yaml --model.net MLP --model.net.hidden [8] --model.tasks.rounds_per_task 2".split(),
        *"--trainer.max_steps 5 --trainer.val_check_interval 2 --data.num_clients 3 --data.clients_per_round 3".split(),
        *"--callbacks.task_attention.every 0 --model.local_epochs null --model.local_steps 3".split(),
        *"--model.client_state disk".split(),
        *QUIET,
    ],
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
        "clients": {client: pack(states.read(client)) for client in sorted(states.clients())},
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


def run(folder: Path, *arguments: str) -> int | None:
    """The exit code of a run."""
    process = start(folder, *arguments)
    process.join(timeout=LONGEST)
    return process.exitcode


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_ends_as_one_never_killed(tmp_path, raw_records, kind):
    """Killed in round 3, when the clients have written what they keep, and gone on with from the checkpoint of round 2.

    Weights, states and results are the same to the bit, and so is every line of the record and every record of TensorBoard,
    each there once.
    """
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run(whole, *KINDS[kind]) == 0, (whole / "log.txt").read_text()[-2000:]
    killed.mkdir()
    (killed / "killed.py").write_text(KILLED)
    assert run(killed, *KINDS[kind], "--trainer.callbacks+=killed.Killed") == -signal.SIGKILL
    assert run(killed, *KINDS[kind], "--ckpt_path", "last") == 0, (killed / "log.txt").read_text()[-2000:]
    assert differences(final_state(newest_version(whole)), final_state(newest_version(killed))) == []
    assert lines(newest_version(killed)) == lines(newest_version(whole))
    assert raw_records(newest_version(killed)) == raw_records(newest_version(whole))
