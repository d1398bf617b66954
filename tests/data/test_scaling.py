"""A trained net is given inputs as it was trained on them."""

import re

import lightning.pytorch as pl
import pytest
import torch

from fl_lightning import FedAvg
from fl_lightning.data import from_arrays


class Flat(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)

    def forward(self, inputs):
        return super().forward(inputs.flatten(1))


def of_pixels(*values: int, **settings):
    """Six images of two pixels, all of the same two values, whose mean is theirs and whose deviation is half their distance."""
    images = torch.tensor(values, dtype=torch.uint8).expand(6, 1, 1, 2).clone()
    targets = torch.arange(6) % 2
    return from_arrays(images, targets, [range(6)], **{"test_inputs": images, "test_targets": targets, **settings})


def evaluate(path, data) -> None:
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
    trainer.test(FedAvg(Flat()), datamodule=data, ckpt_path=path, verbose=False)


@pytest.fixture
def checkpoint(fit, tmp_path):
    """Of a net that was trained on pixels of 0 and 255: mean 0.5, deviation 0.5."""
    fit(FedAvg(Flat()), of_pixels(0, 255), 1).save_checkpoint(tmp_path / "one.ckpt")
    return tmp_path / "one.ckpt"


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ((0, 51), "[0.1] and [0.1]"),  # measured anew on other data
        ((0, 255, [0.25], [0.75]), "[0.25] and [0.75]"),
    ],
)
def test_other_statistics_are_refused(checkpoint, data, found):
    """Whether they were given or measured; both are named, with options to copy."""
    first, second, *given = data
    data = of_pixels(first, second, **dict(zip(("mean", "std"), given)))
    cure = "leave both out where the data is the same, or give --data.mean [0.5] --data.std [0.5]"
    with pytest.raises(ValueError, match=re.escape(found) + r".* was trained with \[0.5\] and \[0.5\]: " + re.escape(cure)):
        evaluate(checkpoint, data)


def test_other_data_may_have_the_statistics_of_the_training(checkpoint):
    """Given as the error says; so may the same data."""
    evaluate(checkpoint, of_pixels(0, 51, mean=[0.5], std=[0.5]))
    evaluate(checkpoint, of_pixels(255, 0))


def test_floats_that_were_used_as_they_are_stay_so(fit, tmp_path, toy_data):
    """There are no statistics to give."""
    method = FedAvg(torch.nn.Linear(4, 3))
    fit(method, toy_data(), 1).save_checkpoint(tmp_path / "one.ckpt")
    trainer = pl.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False)
    with pytest.raises(ValueError, match=r"was trained with null and null: leave both out$"):
        trainer.test(method, datamodule=toy_data(mean=[0.0], std=[2.0]), ckpt_path=tmp_path / "one.ckpt", verbose=False)


def test_other_names_of_classes_are_said(checkpoint):
    """A warning: data may call the same classes otherwise, or count others."""
    with pytest.warns(UserWarning, match="the data has the classes b, a, but the net of ckpt_path was trained on 0, 1: "):
        evaluate(checkpoint, of_pixels(0, 255, classes=["b", "a"]))
