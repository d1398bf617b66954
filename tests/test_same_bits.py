"""Final weights as they are on record: a change of structure leaves every bit as it is.

Sums of floats depend on the processor and on torch. Where a calibration says that they are those of the record, weights are
compared by digests, elsewhere by norms and projections, to rounding. Those of the captured engine are compared to rounding
everywhere: a compiler on the spot writes its kernels for that processor. ``WRITE_SAME_BITS=1 pytest -m slow
tests/test_same_bits.py`` writes a new record.
"""

import hashlib
import json
import os
from pathlib import Path

import pytest
import torch
from class_names import embeddings_of
from options import NO_PICTURES

pytestmark = pytest.mark.slow
RECORD = Path(__file__).parent / "same_bits.json"
# Relative to a tensor's norm, ten times and more what the kernels of another processor change, as those that
# ATEN_CPU_CAPABILITY=default DNNL_MAX_CPU_ISA=SSE41 chooses. BatchNorm, with few samples, magnifies it, and so do MFCL's
# generator, whose bias differs by up to 1.4e-3 by ATEN_CPU_CAPABILITY and MKL_CBWR, and those of TARGET and LANDER.
ROUNDING = 1e-4
COMPILED = {"captured"}  # has no digest
MAGNIFIED = {"batch_norm_local": 5e-3, "mfcl": 5e-3, "target": 1e-3, "lander": 1e-3}
QUIET = " ".join(["--trainer.enable_progress_bar false", *NO_PICTURES])  # callbacks change no weight
SETTING = (
    "fit --config digits_tce.yaml --data.num_clients 20 --data.clients_per_round 5 "
    f"--trainer.max_steps 6 --trainer.val_check_interval 3 --data.monitor_test 3 --trainer.accelerator cpu {QUIET}"
)
TASKS = (
    "fit --config digits_fedweit.yaml --model.net MLP --model.net.hidden [16] --trainer.max_steps 8 "
    f"--trainer.val_check_interval 4 --trainer.accelerator cpu {QUIET} --callbacks.task_attention.every 0"
)
DIGITS = f"{SETTING} --model.net MLP --model.net.hidden [16]"
CLASSES = (
    "fit --config digits_classes.yaml --model.net MLP --model.net.hidden [16] --trainer.max_steps 6 "
    f"--trainer.val_check_interval 3 {QUIET} --model.tasks.rounds_per_task 2"
)
LEARNED = "--model.server_weighting uniform --model.tasks TaskLearner --model.tasks.rounds_per_task 2"
RUNS = {
    "sequential": f"{SETTING} --model.net CNN2 --model.local_steps 2 --model.engine sequential",
    "vectorized": f"{DIGITS} --model.engine vectorized --model.learning_rate_decay 0.9",
    "captured": f"{DIGITS} --model.engine captured --trainer.max_steps 2",
    "server_adam_schedule": f"{DIGITS} --model.server_optimizer FedAdam --model.server_optimizer.lr 0.01 "
    "--model.lr_scheduler torch.optim.lr_scheduler.ExponentialLR --model.lr_scheduler.gamma 0.95",
    "scaffold_disk": f"{DIGITS} --model SCAFFOLD --model.client_state disk",
    "fedcurv_all": f"{DIGITS} --model FedCurv --model.remember all",
    "feddyn": f"{DIGITS} --model FedDyn",
    "fednova": f"{DIGITS} --model FedNova --model.optimizer.momentum 0.9",
    "fedgma": f"{DIGITS} --model FedGMA",
    "fedntd": f"{DIGITS} --model FedNTD --model.engine vectorized",
    "moon": f"{DIGITS} --model MOON --data.cohorts [[1,2],[2,3],[1,3]] --trainer.max_steps 3",
    "fedreg": f"{DIGITS} --model FedReg --model.modified_gradients true --model.engine vectorized",
    "feddf": f"{DIGITS} --model FedDF --model.distillation_steps 5 --data.public_size 100",
    "flashback": f"{DIGITS} --model Flashback --data.public_size 100",
    "dp_sgd": f"{DIGITS} --model FedProx --model.mu 0.1 --model.loss CrossEntropy --model.privacy DPSGD "
    "--model.privacy.noise_multiplier 1 --model.privacy.accounting true",
    "user_level": f"{DIGITS} --model.loss CrossEntropy --model.server_weighting uniform --model.privacy UserLevelDP "
    "--model.privacy.clipping_norm 1 --model.privacy.noise_multiplier 0.1",
    "batch_norm_local": f"{SETTING} --data.augment+=Pad --data.augment.padding 12 --model.net ResNet9 "
    "--model.batch_norm_buffers local --model.local_steps 1 --trainer.max_steps 2 "
    "--trainer.limit_val_batches 0 --data.monitor_test 0",
    "fedweit": f"{TASKS} --model.tasks.rounds_per_task 2",
    "fedprox_apd": f"{TASKS} --model FedProx {LEARNED} --model.tasks APD",
    "scaffold_on_tasks": f"{TASKS} --model SCAFFOLD --model.optimizer Adam --model.optimizer.lr 0.01 {LEARNED} "
    "--model.tasks.reset_adam_each_round false",
    "fedprox_ewc": f"{TASKS} --model FedProx {LEARNED} --model.tasks EWC",
    "fedavg_stable_sgd": f"{TASKS} --model FedAvg {LEARNED} --model.tasks StableSGD",
    "scaffold_on_classes": f"{CLASSES} --model SCAFFOLD --model.engine vectorized",
    "fedcurv_on_classes": f"{CLASSES} --model FedCurv",
    "lwf": f"{CLASSES} --model.tasks LwF",
    "server_ewc": f"{CLASSES} --model.tasks ServerEWC --model.tasks.penalty 10",
    "replay_blurry": f"{CLASSES} --model.tasks Replay --model.tasks.memory 20 --data.tasks.blurry 0.2 "
    "--data.clients_per_round 3",
    "icarl": f"{CLASSES} --model.tasks ICaRL --model.tasks.memory 20",
    "mfcl": f"{CLASSES} --model.tasks MFCL --model.tasks.generator_steps 5",
    "target": f"{CLASSES} --model.tasks TARGET --model.tasks.warm_up 1 --model.tasks.kept_rounds 2 --model.tasks.generated 16 "
    "--model.tasks.generator_steps 3 --model.tasks.synthesis_batch 32 --model.tasks.student_steps 5 "
    "--model.tasks.student_rate 0.01 --model.tasks.distillation 1",
    "lander": f"{CLASSES} --model.tasks LANDER --model.tasks.embeddings {embeddings_of('0123456789')} "
    "--model.tasks.warm_up 1 --model.tasks.kept_rounds 2 --model.tasks.generated 16 --model.tasks.generator_steps 3 "
    "--model.tasks.synthesis_batch 32 --model.tasks.student_steps 5 --model.tasks.student_rate 0.01",
    "glfc_moving": f"{CLASSES} --model.tasks GLFC --model.tasks.memory 20 --data.tasks.moving 0.5 --data.tasks.joining 1 "
    "--data.clients_per_round 3",
}
# Cut in two: the second command goes on from the first one's checkpoint.
RESUMED = {"resumed": (f"{DIGITS} --model SCAFFOLD --trainer.max_steps 3", f"{DIGITS} --model SCAFFOLD --ckpt_path last")}
# Sums over ranks, and states that travel between them.
TWO_PROCESSES = {"two_processes": f"{DIGITS} --model SCAFFOLD --model.engine sequential --trainer.devices 2"}


def digest(tensors: dict[str, torch.Tensor]) -> str:
    """Of names, types, shapes and bits."""
    known = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        known.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        known.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return known.hexdigest()[:16]


def statistics(tensors: dict[str, torch.Tensor]) -> dict[str, list[float]]:
    """Of each tensor the norm and a projection, of the size of the norm, onto a direction that is always the same."""
    measured = {}
    for name, tensor in sorted(tensors.items()):
        values = tensor.double().flatten()
        direction = torch.cos(torch.arange(1, len(values) + 1, dtype=torch.float64) ** 2)
        measured[name] = [float(f"{number:.9g}") for number in (values.norm().item(), (values @ direction).item())]
    return measured


def calibration() -> str:
    """What sums, products and a convolution give here."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, 65, generator=generator) for _ in range(2))
    image, kernel = torch.randn(2, 3, 9, 9, generator=generator), torch.randn(4, 3, 3, 3, generator=generator)
    parts = [a @ b.T, a.sum(dim=1), torch.conv2d(image, kernel), a.log_softmax(dim=1), a.double() @ b.double().T]
    return f"{torch.__version__.split('+')[0]} {digest({str(i): part for i, part in enumerate(parts)})}"


def final_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Of the run in a folder; the global net alone, whatever else a checkpoint calls its parts."""
    (checkpoint,) = (folder / "runs").glob("*/version_*/checkpoints/last.ckpt")
    state = torch.load(checkpoint, weights_only=True)["state_dict"]
    return {name: tensor for name, tensor in state.items() if name.startswith("net.")}


def check(name: str, weights: dict[str, torch.Tensor]) -> None:
    """Compare a run's weights with the record, or write them there."""
    stored = json.loads(RECORD.read_text())
    measured = {} if name in COMPILED else {"digest": digest(weights)}
    measured |= {"norm and projection": statistics(weights)}
    if "WRITE_SAME_BITS" in os.environ:
        stored["calibration"], stored["runs"][name] = calibration(), measured
        RECORD.write_text(json.dumps(stored, indent=1) + "\n")
        return
    recorded = stored["runs"][name]
    if "digest" in recorded and stored["calibration"] == calibration():  # one from another processor has none
        assert measured["digest"] == recorded["digest"]
    rounding = MAGNIFIED.get(name, ROUNDING)
    here, there = measured["norm and projection"], recorded["norm and projection"]
    assert here.keys() == there.keys()
    for tensor, values in there.items():
        assert here[tensor] == pytest.approx(values, rel=0, abs=rounding * values[0]), tensor


@pytest.mark.compiled
@pytest.mark.parametrize("name", [*RUNS, *RESUMED])
def test_a_run_ends_with_the_recorded_weights(name, main, tmp_path):
    """Every engine, every kind of client state and method, some with privacy or tasks, and a run that was cut in two."""
    for command in RESUMED.get(name, (RUNS.get(name),)):
        code, _, error = main(*command.split())
        assert code == 0, error
    check(name, final_weights(tmp_path))


@pytest.mark.parametrize("name", TWO_PROCESSES)
def test_two_processes_end_with_the_recorded_weights(name, command_line, tmp_path):
    result = command_line(*TWO_PROCESSES[name].split())
    assert result.returncode == 0, result.stderr
    check(name, final_weights(tmp_path))


def test_an_error_that_rounding_does_not_explain_is_seen():
    """Weights that are longer by a thousandth."""
    weights = {"net.weight": torch.randn(50, 30, generator=torch.Generator().manual_seed(1))}
    before, after = statistics(weights), statistics({"net.weight": weights["net.weight"] * 1.001})
    assert before["net.weight"] != pytest.approx(after["net.weight"], rel=0, abs=ROUNDING * before["net.weight"][0])
