"""Every method runs in a plain loop with no trainer."""

from functools import partial

import pytest
import torch

from fl_lightning import FedAvg, methods
from fl_lightning.engines.rounds import run_round
from fl_lightning.engines.run_context import RunContext
from fl_lightning.engines.sequential import SequentialEngine
from fl_lightning.privacy import DPSGD


def loop(method, data, rounds, ckpt_path, callbacks, **_):
    """In the place of a trainer's fit."""
    data.setup()
    data.to(torch.device("cpu"), torch.float64)
    method.join(data)
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


@pytest.mark.parametrize(
    ("name", "given"),
    [("privacy", DPSGD(1.0)), ("lr_scheduler", partial(torch.optim.lr_scheduler.StepLR, step_size=9))],
)
def test_what_a_trainer_alone_carries_out_is_refused(tiny, name, given):
    """Noise and schedules would silently be left out."""
    method = FedAvg(tiny.new_net(), **{name: given})
    with pytest.raises(ValueError, match=f"^model.{name} is .*, but acts in the fit of a trainer alone: leave it out$"):
        method.join(tiny.data)
