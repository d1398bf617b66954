"""What other people's code still says, and what it is told."""

import importlib
import sys

import pytest

from fl_lightning import MOON, SCAFFOLD, FedAvg, Moon, Scaffold, exchange


def test_the_former_classes_are_the_present_ones():
    assert issubclass(Scaffold, SCAFFOLD)
    assert issubclass(Moon, MOON)


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
