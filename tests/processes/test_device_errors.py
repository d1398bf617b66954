"""A GPU that is full, busy or behind an old driver ends a run in one line, and the run goes on with what the line says."""

import pytest
import torch
from torch import nn

from fl_lightning.callbacks import FederatedCallback
from fl_lightning.command_line.errors import error_line
from fl_lightning.engines.sequential import SequentialEngine
from fl_lightning.methods import FedAvg

RUN = (
    "fit --config digits_tce.yaml --model.net MLP --model.net.hidden [4] --data.num_clients 4 --data.clients_per_round 2 "
    "--model.engine sequential --trainer.max_steps 3 --trainer.val_check_interval 1 --trainer.enable_progress_bar false "
    "--trainer.accelerator cpu --callbacks.label_counts.every 0 --callbacks.per_class_accuracy.every 0 "
    "--callbacks.round_forgetting.every 0 --callbacks.client_forgetting.every 0"
).split()
CUBLAS = "CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
BUSY = "all CUDA-capable devices are busy or unavailable"
FULL = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.19 GiB of which 1.00 GiB is free. "
    "Process 123 has 40.00 GiB memory in use. Including non-PyTorch memory, this process has 38.00 GiB memory in use."
)
ON_DEVICE = (
    "set data.storage: stream or model.engine: sequential, or take a GPU with more memory; a fit can then resume, with "
    "--ckpt_path last"
)
AT_A_TIME = "lower data.eval_batch_size; a fit can then resume, with --ckpt_path last"
ELSEWHERE = "choose another GPU by CUDA_VISIBLE_DEVICES, or set trainer.accelerator: cpu"
ASKED = "asked for 2.50 GiB, more than the device has left, where process 123 holds 40.00 GiB: "


def final_weights(folder):
    (path,) = folder.glob("digits_tce/version_*/checkpoints/last.ckpt")
    return torch.load(path, weights_only=True)["state_dict"]


class FullDevice(nn.Linear):
    """A net that finds no memory in training mode, or in evaluation mode, for more than two samples."""

    def __init__(self, in_training):
        super().__init__(4, 3)
        self.in_training = in_training

    def forward(self, inputs):
        if self.training == self.in_training and len(inputs) > 2:
            raise torch.OutOfMemoryError(FULL)
        return super().forward(inputs)


class AsksModels(FederatedCallback):
    """A callback that has the clients' models predict."""

    def wants_models(self, round):
        return True

    def on_cohort_fit_end(self, trainer, module, round, models):
        models.predict(module.data.evaluation.test_inputs())


def finds_no_memory(*_, **__):
    raise torch.OutOfMemoryError(FULL)


def message(fit, data, net, **settings):
    with pytest.raises(MemoryError) as error:
        fit(FedAvg(net, engine="sequential"), data, 2, **settings)
    return str(error.value)


@pytest.mark.parametrize(
    ("in_training", "settings", "expected"),
    [
        (True, {}, f"round 1, the clients' local fits {ASKED}{ON_DEVICE}"),
        (False, {}, f"evaluation {ASKED}{AT_A_TIME}"),
        (False, {"limit_val_batches": 0}, f"round 1, what callbacks ask of clients' models {ASKED}{AT_A_TIME}"),
    ],
)
def test_a_full_device_names_what_asked_and_what_to_change(fit, toy_data, in_training, settings, expected):
    data = toy_data(monitor_test=1)
    assert message(fit, data, FullDevice(in_training), callbacks=[AsksModels()], **settings) == expected


def test_a_full_device_names_the_servers_step(fit, toy_data, monkeypatch):
    monkeypatch.setattr(FedAvg, "aggregate", finds_no_memory)
    assert message(fit, toy_data(), nn.Linear(4, 3)) == f"round 1, the server's step {ASKED}{ON_DEVICE}"


def test_a_full_device_names_the_samples(fit, toy_data, monkeypatch):
    data = toy_data()
    data.setup()  # on the CPU
    monkeypatch.setattr(data, "setup", lambda stage: None)
    monkeypatch.setattr(data, "to", finds_no_memory)
    assert message(fit, data, nn.Linear(4, 3)) == f"the samples of data.source {ASKED}set data.storage: stream"


def test_a_run_goes_on_with_what_the_line_says(main, tmp_path, monkeypatch):
    """One line, exit code 1, and in the end the weights of a run that always had the memory."""
    assert main(*RUN, "--trainer.default_root_dir", "whole")[0] == 0
    fit_share, rounds = SequentialEngine.fit_share, iter([1, 1, 2])  # a rehearsal is the first

    def fit_two_rounds(*args, **kwargs):
        return fit_share(*args, **kwargs) if next(rounds, None) else finds_no_memory()

    with monkeypatch.context() as patch:
        patch.setattr(SequentialEngine, "fit_share", fit_two_rounds)
        code, _, error = main(*RUN)
    assert (code, error) == (1, f"fl-lightning: error: round 3, the clients' local fits {ASKED}{ON_DEVICE}\n")
    assert main(*RUN, "--ckpt_path", "last", "--data.eval_batch_size", "100")[0] == 0
    whole, resumed = map(final_weights, (tmp_path / "whole", tmp_path / "runs"))
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (torch.OutOfMemoryError(FULL), f"a tensor {ASKED}{ELSEWHERE}"),
        (
            RuntimeError(f"CUDA error: {BUSY}\nCUDA kernel errors might be"),
            f"the GPU takes no work ({BUSY}), as where another process holds it: {ELSEWHERE}",
        ),
        (
            torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be"),
            f"the GPU takes no work (out of memory), as where another process holds it: {ELSEWHERE}",
        ),
        (
            RuntimeError(f"CUDA error: {CUBLAS}"),
            f"the GPU takes no work ({CUBLAS}), as where another process holds it: {ELSEWHERE}",
        ),
        (
            RuntimeError(
                "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by "
                "downloading and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
            ),
            "the NVIDIA driver is too old for torch (found version 11040): update it, or set trainer.accelerator: cpu",
        ),
    ],
)
def test_what_torch_says_of_a_gpu_is_one_line(error, line):
    assert error_line(error) == line


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named(main):
    code, _, error = main(*RUN, "--trainer.accelerator", "gpu")
    assert code == 1
    cure = "set it to cpu, or check the driver with nvidia-smi"
    assert error == f"fl-lightning: error: trainer.accelerator is gpu, but torch finds no GPU: {cure}\n"
