"""Whole visits as programs: rates that change, ragged shards, what is kept, and the engine that is taken where they go wrong.

Steps run as they are here, without a compiler: tests/engines/test_engines.py compiles them.
"""

import pytest
import torch
from torch import nn

from fl_lightning import FedAvg
from fl_lightning.data import from_arrays
from fl_lightning.engines import visit_program
from fl_lightning.engines.captured import CapturedEngine
from fl_lightning.engines.engine_choice import Choice, by_rule, start_engine
from fl_lightning.engines.rounds import run_round
from fl_lightning.engines.run_context import RunContext
from fl_lightning.engines.sequential import SequentialEngine
from fl_lightning.engines.vectorized import ELEMENTWISE
from fl_lightning.exchange import Protection

SIZES = [3, 5, 7, 8]
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda step, **_: step)


def joined(optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9), **settings):
    """FedAvg on four ragged shards, all of which come in every round."""
    generator = torch.Generator().manual_seed(0)
    clients = [part.tolist() for part in torch.arange(sum(SIZES)).split(SIZES)]
    inputs = torch.randn(sum(SIZES), 4, generator=generator, dtype=torch.float64)
    data = from_arrays(inputs, torch.arange(sum(SIZES)) % 3, clients, batch_size=4, monitor_test=0)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    method = FedAvg(net, optimizer=optimizer, **settings)
    data.setup()
    method.join(data)
    data.to(CPU, torch.float64)
    return method


def after_rounds(engine, rounds=3, **settings):
    method = joined(**settings)
    runs = engine(method, RunContext())
    reports = [run_round(method, runs, round) for round in range(1, rounds + 1)]
    return torch.cat([weight.detach().flatten() for weight in method.net.parameters()]), reports, runs


@pytest.mark.parametrize("kind", ELEMENTWISE)
def test_rates_that_decay_need_no_other_program(kind):
    """Factors 1, 1/2 and 1/4 in three rounds; of optimizers that are not proportional to their rate, a program each."""
    settings = {"optimizer": lambda weights: kind(weights, lr=0.01), "learning_rate_decay": 0.5}
    weights, reports, engine = after_rounds(CapturedEngine, **settings)
    expected, expected_reports, _ = after_rounds(SequentialEngine, **settings)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-12)
    for report, other in zip(reports, expected_reports, strict=True):
        assert report.losses == pytest.approx(other.losses, abs=1e-12)
        assert report.norms == pytest.approx(other.norms, abs=1e-12)
    shapes = 2  # visits of one step and of two
    assert len(engine._working.programs) == shapes * (2 if kind in visit_program.PROPORTIONAL else 3)


def test_programs_not_used_for_long_make_room(monkeypatch):
    monkeypatch.setattr(visit_program, "_MOST_PROGRAMS", 1)
    weights, _, engine = after_rounds(CapturedEngine)
    assert len(engine._working.programs) == 1
    torch.testing.assert_close(weights, after_rounds(SequentialEngine)[0], rtol=0, atol=1e-12)


def chosen(engine="captured", asked="auto"):
    method = joined()
    started = start_engine(method, RunContext(), asked, Choice(engine, "small"), 1, method.cohort(1))
    return type(started.engine), started.choice


def test_a_captured_visit_is_trusted_where_two_of_them_end_as_under_sequential():
    assert chosen() == (CapturedEngine, ("captured", "small"))


def no_step(self, weights, factor):
    """Nothing moves."""


def nan_step(self, weights, factor):
    weights[0].fill_(torch.nan)


def memory_of_another(self, inputs):
    """What the first visit read is read by all."""


@pytest.mark.parametrize(
    ("where", "fault"), [("_step_optimizer", no_step), ("_step_optimizer", nan_step), ("_feed", memory_of_another)]
)
def test_a_captured_visit_that_ends_elsewhere_is_not(monkeypatch, where, fault):
    """``auto`` takes ``sequential`` and says why; whoever asks for ``captured`` gets it."""
    monkeypatch.setattr(visit_program.VisitProgram, where, fault)
    engine, (name, why) = chosen()
    assert (engine, name) == (SequentialEngine, "sequential")
    assert why.startswith("FedAvg on Sequential cannot be captured: RuntimeError: a rehearsal ends ")
    assert chosen(asked="captured")[0] is CapturedEngine


def test_no_compiler(monkeypatch):
    """Said before the first round: with the engine that is taken, or the one to ask for."""

    def compile(step, **_):
        def fail(*arguments):
            raise FileNotFoundError("no C compiler\nat all")

        return fail

    monkeypatch.setattr(torch, "compile", compile)
    assert chosen() == (
        SequentialEngine,
        ("sequential", "FedAvg on Sequential cannot be captured: FileNotFoundError: no C compiler"),
    )
    with pytest.raises(ValueError, match=r"under which FedAvg cannot run .*no C compiler.*sequential$"):
        chosen(asked="captured")


def test_the_rule_on_a_gpu():
    """No tensor is needed for it: what the method and its optimizer are decides."""
    assert by_rule(joined(), RunContext(GPU), [1]) == ("captured", "on a GPU a visit is one program")
    assert by_rule(joined(), RunContext(CPU), [1]).name == "vectorized"
    alone = RunContext(GPU, protection=Protection(one_by_one="the enclave holds one client"))
    assert by_rule(joined(), alone, [1]) == ("sequential", "the enclave holds one client")
    assert by_rule(joined(Unknown), RunContext(GPU), [1]) == ("sequential", "Unknown cannot be stacked")


class Unknown(torch.optim.SGD):
    """May look at what the device holds."""

    def __init__(self, weights):
        super().__init__(weights, lr=0.1)
