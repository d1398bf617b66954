"""Every method runs in a plain loop with no trainer."""

from functools import partial

import pytest
import torch

from fl_lightning import FedAvg, methods
from fl_lightning.engines.rounds import run_round
from fl_lightning.engines.run_context import RunContext
from fl_lightning.engines.sequential import SequentialEngine
from fl_lightning.exchange import Federation
from fl_lightning.privacy import DPSGD

MEMBERS = [name for name in vars(Federation) if not name.startswith("_")]


class Site:
    """A federation that has what the protocol names and nothing else."""

    def __init__(self, data):
        self._data = data

    def __getattr__(self, name):
        if name not in MEMBERS:
            raise AttributeError(f"a site has no {name}")
        return getattr(self._data, name)


def loop(method, data, rounds, ckpt_path, callbacks, as_site=False, **_):
    """In the place of a trainer's fit."""
    data.setup()
    data.to(torch.device("cpu"), torch.float64)
    method.join(Site(data) if as_site else data)
    method.double()  # as a trainer's precision 64-true does
    engine = SequentialEngine(method, RunContext())
    callbacks[0].rounds = [run_round(method, engine, round) for round in range(1, rounds + 1)]


@pytest.mark.parametrize("name", methods.__all__)
def test_the_weights_are_those_of_a_fit(tiny, name):
    """All that the net and the server hold, bit for bit, and the reports of the rounds."""
    fitted, by_hand = tiny.train_any(name), type(tiny)(loop).train_any(name)
    assert by_hand.reports == fitted.reports
    for key, tensor in fitted.state_dict().items():
        assert torch.equal(by_hand.state_dict()[key], tensor), key


@pytest.mark.parametrize("name", ["FedAvg", "FedProx", "SCAFFOLD"])
def test_a_site_needs_no_more_than_a_federation_has(tiny, name):
    """It ends where our data module does."""
    by_hand, at_a_site = (type(tiny)(partial(loop, as_site=as_site)).train_any(name) for as_site in (False, True))
    for key, tensor in by_hand.state_dict().items():
        assert torch.equal(at_a_site.state_dict()[key], tensor), key


@pytest.mark.parametrize(
    ("name", "given"),
    [("privacy", DPSGD(1.0)), ("lr_scheduler", partial(torch.optim.lr_scheduler.StepLR, step_size=9))],
)
def test_what_a_trainer_alone_carries_out_is_refused(tiny, name, given):
    """Noise and schedules would silently be left out."""
    method = FedAvg(tiny.new_net(), **{name: given})
    with pytest.raises(ValueError, match=f"^model.{name} is .*, but acts in the fit of a trainer alone: leave it out$"):
        method.join(tiny.data)
