"""Arguments that a user may mistake: refused or warned about in one line, with the cure."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from fl_lightning import FedAvg, Trainer
from fl_lightning.data import IID, Arrays, FederatedDataModule, Shards, SometimesThere, from_arrays
from fl_lightning.tasks import ClassLearner, ClassStream, Replay

X, Y = torch.randn(12, 4), torch.arange(12) % 3
IMAGES = torch.zeros(12, 8, 8, 3, dtype=torch.uint8)


def federation(**settings):
    return FederatedDataModule("digits", **{"num_clients": 4, "clients_per_round": 2} | settings)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: federation(partition="IID"), "data.partition is 'IID', must be an object of fl_lightning.data: give one"),
        (lambda: federation(partition=IID), "data.partition is 'IID', must be an object"),
        (lambda: federation(clients_per_round=True), "data.clients_per_round is True, must be a whole number"),
        (lambda: federation(seed="1"), "data.seed is '1', must be a whole number"),
        (lambda: FedAvg(nn.Linear(4, 3), seed=None), "model.seed is None, must be a whole number"),
        (lambda: Shards(1.5), "data.partition.classes_per_client is 1.5, must be a whole number"),
        (lambda: ClassStream(joining=0.5), "data.tasks.joining is 0.5, must be a whole number"),
        (lambda: ClassLearner(rounds_per_task=2.5), "model.tasks.rounds_per_task is 2.5, must be a whole number"),
        (lambda: Replay(replayed=2.5), "model.tasks.replayed is 2.5, must be a whole number"),
        (lambda: from_arrays(X, Y, 3), "clients is 3, must list the samples of each client: let a partition deal them, "),
        (
            lambda: FederatedDataModule((X, Y), num_clients=2, clients_per_round=1),
            "data.source is of type tuple, must be a source",
        ),
        (lambda: Arrays(X, Y, objective="MultiLabel"), "give one, such as MultiLabel() or Regression()"),
        (lambda: Arrays(IMAGES, Y), "data.source has images of shape (8, 8, 3): put channels first, (3, 8, 8)"),
        (lambda: Trainer(callbacks=["ClientForgetting"]), "trainer.callbacks has 'ClientForgetting', must be callbacks: give"),
    ],
)
def test_a_mistake_is_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        make()


def test_images_with_few_pixels_and_many_channels_are_taken():
    Arrays(torch.zeros(12, 10, 4, 4, dtype=torch.uint8), Y)


def test_class_0_without_a_sample_is_said():
    with pytest.warns(UserWarning, match="no sample of class 0: count classes from 0, or name them in classes$"):
        Arrays(X, Y + 1)


def test_a_net_that_ends_in_a_softmax_is_said(fit, toy_data):
    net = nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1)).double()
    with pytest.warns(
        UserWarning, match="outputs that sum to 1, as after a softmax, but losses take logits: leave its softmax"
    ):
        fit(FedAvg(net), toy_data(), 1, precision="64-true")


def test_arrays_are_taken_for_lists():
    assert SometimesThere(np.array([0.5, 1.0])).probability == [0.5, 1.0]
    assert len(ClassStream(classes=np.array([["0", "1"], ["2", "3"]])).classes) == 2
