"""What other people's code still says, and what it is told."""

import importlib
import sys

import pytest

from fl_lightning import MOON, SCAFFOLD, FedAvg, Moon, Scaffold, continual, exchange
from fl_lightning.continual import FedAvgOnTasks
from fl_lightning.data import IID


def test_the_former_classes_are_the_present_ones():
    assert issubclass(Scaffold, SCAFFOLD)
    assert issubclass(Moon, MOON)
    assert issubclass(continual.ScaffoldOnTasks, continual.TaskLearner)
    assert issubclass(continual.ScaffoldOnTasks, SCAFFOLD)


def test_the_former_package_of_the_exchange_says_where_it_is(monkeypatch):
    monkeypatch.delitem(sys.modules, "fl_lightning.clients", raising=False)
    with pytest.warns(FutureWarning, match=r"fl_lightning\.clients is now fl_lightning\.exchange"):
        clients = importlib.import_module("fl_lightning.clients")
    assert clients.Visit is exchange.Visit


@pytest.mark.parametrize("former", ["keeps_weights", "keeps_moments", "wants_places", "sends_nonzeros", "learns_tasks"])
def test_a_class_with_a_former_attribute_is_refused(former):
    """It would be ignored, and the method be another one."""
    with pytest.raises(TypeError, match=rf"Mine\.{former} is no more: declare needs = fl_lightning\.Needs\(\w+=True\)"):
        type("Mine", (FedAvg,), {former: True})


@pytest.mark.parametrize(
    ("base", "former", "present"),
    [
        (FedAvg, "beside_gradients", "released_without_noise"),
        (FedAvgOnTasks, "own_tensors", "per_task_tensors"),
        (IID, "share_out", "partition"),
    ],
)
def test_a_class_that_overrides_a_renamed_method_is_refused(base, former, present):
    """What it says would never be asked."""
    with pytest.raises(TypeError, match=rf"Mine\.{former} is now called {present}: rename it"):
        type("Mine", (base,), {former: lambda self: None})
