"""How a GPU multiplies and convolves, as the command line chooses it."""

import pytest
import torch
from pretended import pretended_gpu

from fl_lightning import Trainer


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    before, deterministic = torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)
    torch.use_deterministic_algorithms(deterministic)


@pytest.mark.parametrize(
    ("given", "products", "benchmark"),
    [
        ({}, "high", True),
        ({"float32_products": "highest", "benchmark": False}, "highest", False),
        ({"deterministic": True}, "high", False),
        ({"deterministic": "warn"}, "high", False),
        ({"deterministic": False, "benchmark": True}, "high", True),
    ],
)
def test_what_is_typed_wins(given, products, benchmark):
    with pretended_gpu():
        Trainer(accelerator="gpu", devices=1, logger=False, enable_checkpointing=False, **given)
    assert torch.get_float32_matmul_precision() == products
    assert torch.backends.cudnn.allow_tf32 is (products == "high")  # convolutions have a switch of their own
    assert torch.backends.cudnn.benchmark is benchmark


def test_a_processor_is_left_as_it_is():
    Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False)
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cudnn.benchmark
