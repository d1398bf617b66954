"""Planted faults: each fails what every engine's rounds pass, and is named with its line."""

from pathlib import Path

import pytest
import torch
from pretended.runs import loop

from fl_lightning import FedAvg
from fl_lightning.data import FederatedDataModule

ENGINES = ["sequential", "vectorized", "captured"]
MOST_WAITS = 1  # for the report: no trainer looks whether the model is finite


def check(method: type[FedAvg], engine: str) -> None:
    """A round on the device, within its budget of waits."""
    _, counts = loop("gpu", method, engine)
    assert counts.waits.total() <= MOST_WAITS, str(counts)


class LabelCountsOnTheCPU(FedAvg):
    def client_loss(self, net, batch, client):
        counts = torch.ones(4)
        return super().client_loss(net, batch, client) + 0 * (net.classifier.bias * counts).sum()


class Item(FedAvg):
    def client_step(self, net, batch, client):
        loss = super().client_step(net, batch, client)
        return loss * 0 + loss.item()


class GeneratorOfTheCPU(FedAvg):
    def client_loss(self, net, batch, client):
        noise = torch.randn(4, generator=torch.Generator(), device=batch.targets.device)
        return super().client_loss(net, batch, client) + 0 * noise.sum()


class NumbersInTheStep(FedAvg):
    def client_loss(self, net, batch, client):
        return super().client_loss(net, batch, client) * torch.tensor(1.0, device=batch.targets.device)


class IndexList(FedAvg):
    def client_loss(self, net, batch, client):
        return super().client_loss(net, batch, client) + 0 * net.classifier.weight[[0, 1]].sum()


MUTANTS = [LabelCountsOnTheCPU, Item, GeneratorOfTheCPU, NumbersInTheStep, IndexList]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_sound_method_passes(engine):
    check(FedAvg, engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.one_in(3)
def test_a_planted_fault_is_found(mutant, engine):
    """The message has the line of this file that is at fault; a stacked ``.item()`` torch itself refuses."""
    line = rf"tests/pretended_gpu/{Path(__file__).name}:\d+"
    with pytest.raises((AssertionError, RuntimeError), match=rf"{line}|support vmap over calling .item\(\)"):
        check(mutant, engine)


def test_label_counts_that_stay_on_the_cpu_are_found(monkeypatch):
    """In the package: what a loss is told of a client lies where the batch does not."""
    counts = FederatedDataModule.label_counts
    monkeypatch.setattr(FederatedDataModule, "label_counts", property(lambda data: counts.fget(data).cpu()))
    with pytest.raises(RuntimeError, match=r"on the CPU.* at fl_lightning/functional/losses.py:\d+"):
        check(FedAvg, "sequential")
