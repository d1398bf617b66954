"""InlineFigures: figures of callbacks in a notebook."""

import sys

import pytest
import torch

from fl_lightning import FedAvg
from fl_lightning.callbacks import ClientForgetting, InlineFigures, LabelCounts

PNG = b"\x89PNG"


@pytest.fixture
def shown(monkeypatch):
    """What IPython is asked to display."""
    display = pytest.importorskip("IPython.display")
    images: list = []
    monkeypatch.setattr(display, "display", images.append)
    return images


def fit_two_rounds(fit, toy_data, logger):
    data = toy_data(val_fraction=0.4)
    callbacks = [ClientForgetting(every=1), LabelCounts(every=0)]
    fit(FedAvg(torch.nn.Linear(4, 3, dtype=torch.float64)), data, 2, precision="64-true", logger=logger, callbacks=callbacks)


def test_chosen_figures_are_shown(fit, toy_data, shown):
    """A heatmap after each of two rounds."""
    fit_two_rounds(fit, toy_data, InlineFigures(["forgetting/clients"]))
    assert [image.data[:4] for image in shown] == [PNG, PNG]


def test_figures_that_are_not_chosen_are_not_shown(fit, toy_data, shown):
    fit_two_rounds(fit, toy_data, InlineFigures(["label_counts/partition"]))
    assert shown == []


def test_without_ipython_it_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", None)
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"^InlineFigures needs the library IPython: pip install 'fl-lightning\[notebook\]'$"
    ):
        InlineFigures()
