"""Final weights as digests: a change of structure leaves every bit as it is.

Sums of floats depend on the processor and on torch; on others than those of the record, which a calibration tells, the tests
are skipped. The captured engine is absent: a compiler on the spot writes its kernels for that processor, and its tests compare
it with the sequential engine. ``python tests/test_same_bits.py`` prints a new record.
"""

import hashlib
import json
import sys
from pathlib import Path

import pytest
import torch

from fl_lightning.command_line import cli

pytestmark = pytest.mark.slow
RECORD = Path(__file__).parent / "same_bits.json"
DIGITS = (
    "fit --config digits_tce.yaml --model.net MLP --model.net.hidden [16] --data.num_clients 20 --data.clients_per_round 5 "
    "--trainer.max_steps 6 --trainer.val_check_interval 3 --data.monitor_test 3 --trainer.enable_progress_bar false "
    "--trainer.accelerator cpu --callbacks.client_forgetting.every 3 --callbacks.label_counts.every 0 "
    "--callbacks.per_class_accuracy.every 0 --callbacks.round_forgetting.every 0"
)
TASKS = (
    "fit --config digits_fedweit.yaml --model.net MLP --model.net.hidden [16] --model.rounds_per_task 2 --trainer.max_steps 8 "
    "--trainer.val_check_interval 4 --trainer.enable_progress_bar false --trainer.accelerator cpu"
)
CNN = "--model.net CNN2 --model.local_steps 2"
RUNS = {
    "sequential": f"{DIGITS} {CNN} --model.engine sequential",
    "vectorized": f"{DIGITS} --model.engine vectorized --model.learning_rate_decay 0.9",
    "server_adam_schedule": f"{DIGITS} --model.server_optimizer FedAdam --model.server_optimizer.lr 0.01 "
    "--model.lr_scheduler torch.optim.lr_scheduler.ExponentialLR --model.lr_scheduler.gamma 0.95",
    "scaffold_disk": f"{DIGITS} --model Scaffold --model.client_state disk",
    "fedcurv_all": f"{DIGITS} --model FedCurv --model.remember all",
    "feddyn": f"{DIGITS} --model FedDyn",
    "fednova": f"{DIGITS} --model FedNova --model.optimizer.momentum 0.9",
    "fedgma": f"{DIGITS} --model FedGMA",
    "fedntd": f"{DIGITS} --model FedNTD --model.engine vectorized",
    "moon": f"{DIGITS} --model Moon --data.cohorts [[1,2],[2,3],[1,3]] --trainer.max_steps 3",
    "fedreg": f"{DIGITS} --model FedReg --model.modified_gradients true --model.engine vectorized",
    "feddf": f"{DIGITS} --model FedDF --model.distillation_steps 5 --data.public_size 100",
    "flashback": f"{DIGITS} --model Flashback --data.public_size 100",
    "dp_sgd": f"{DIGITS} --model FedProx --model.mu 0.1 --model.loss CrossEntropy --model.privacy DPSGD "
    "--model.privacy.noise_multiplier 1 --model.privacy.accounting true",
    "user_level": f"{DIGITS} --model.loss CrossEntropy --model.server_weighting uniform --model.privacy UserLevelDP "
    "--model.privacy.clipping_norm 1 --model.privacy.noise_multiplier 0.1",
    "batch_norm_local": f"{DIGITS} --data.augment+=Pad --data.augment.padding 12 --model.net ResNet9 "
    "--model.batch_norm_buffers local --model.local_steps 1 --trainer.max_steps 2 "
    "--trainer.limit_val_batches 0 --data.monitor_test 0",
    "fedweit": TASKS,
    "fedprox_apd": f"{TASKS} --model FedProxAPD",
    "scaffold_on_tasks": f"{TASKS} --model ScaffoldOnTasks --model.optimizer Adam --model.optimizer.lr 0.01 "
    "--model.reset_adam_each_round false",
    "fedprox_ewc": f"{TASKS} --model FedProxEWC",
    "fedavg_stable_sgd": f"{TASKS} --model FedAvgStableSGD",
}
# Cut in two: the second command goes on from the first one's checkpoint.
RESUMED = {"resumed": (f"{DIGITS} --model Scaffold --trainer.max_steps 3", f"{DIGITS} --model Scaffold --ckpt_path last")}


def digest(tensors: dict[str, torch.Tensor]) -> str:
    """Of names, types, shapes and bits."""
    known = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        known.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        known.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return known.hexdigest()[:16]


def calibration() -> str:
    """What sums, products and a convolution give here."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, 65, generator=generator) for _ in range(2))
    image, kernel = torch.randn(2, 3, 9, 9, generator=generator), torch.randn(4, 3, 3, 3, generator=generator)
    parts = [a @ b.T, a.sum(dim=1), torch.conv2d(image, kernel), a.log_softmax(dim=1), a.double() @ b.double().T]
    return f"{torch.__version__.split('+')[0]} {digest({str(i): part for i, part in enumerate(parts)})}"


def final_weights() -> str:
    """Of the run in the present folder; the global net alone, whatever else a checkpoint calls its parts."""
    (checkpoint,) = Path("runs").glob("*/version_*/checkpoints/last.ckpt")
    state = torch.load(checkpoint, weights_only=True)["state_dict"]
    return digest({name: tensor for name, tensor in state.items() if name.startswith("net.")})


def run(*commands: str) -> str:
    for command in commands:
        assert not cli.main(command.split())
    return final_weights()


@pytest.fixture(scope="module")
def record() -> dict[str, str]:
    stored = json.loads(RECORD.read_text())
    if stored["calibration"] != calibration():
        pytest.skip(f"the record is of {stored['calibration']}, this is {calibration()}")
    return stored["runs"]


@pytest.mark.parametrize("name", [*RUNS, *RESUMED])
def test_a_run_ends_with_the_recorded_weights(name, record, tmp_path, monkeypatch):
    """Two engines, every kind of client state and method, some with privacy or tasks, and a run that was cut in two."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fl-lightning"])
    assert run(*RESUMED.get(name, (RUNS.get(name),))) == record[name]


if __name__ == "__main__":
    import os
    import tempfile

    torch.set_num_threads(1)
    sys.argv = ["fl-lightning"]
    runs = {}
    for name in (*RUNS, *RESUMED):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            runs[name] = run(*RESUMED.get(name, (RUNS.get(name),)))
            os.chdir("/")
    RECORD.write_text(json.dumps({"calibration": calibration(), "runs": runs}, indent=2) + "\n")
