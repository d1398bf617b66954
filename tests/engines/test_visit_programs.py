"""Whole visits as programs: rates that change, ragged shards, what is kept, and the engine that is taken where they go wrong.

Steps run as they are here, without a compiler: tests/engines/test_engines.py compiles them.
"""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from fl_lightning import FedAvg
from fl_lightning.data import from_arrays
from fl_lightning.engines import engine_choice, visit_program
from fl_lightning.engines.captured import CapturedEngine
from fl_lightning.engines.engine_choice import ENGINES, Choice, by_rule, start_engine
from fl_lightning.engines.local_step import ELEMENTWISE, PROPORTIONAL
from fl_lightning.engines.ranks import OneProcess
from fl_lightning.engines.rounds import run_round
from fl_lightning.engines.run_context import RunContext
from fl_lightning.engines.sequential import SequentialEngine
from fl_lightning.protocol import Protection

SIZES = [3, 5, 7, 8]
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
COMPILE = torch.compile


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda step, **_: step)


def momentum(weights):
    return torch.optim.SGD(weights, lr=0.1, momentum=0.9)


def joined(optimizer=momentum, kind=FedAvg, dtype=torch.float64, middle=(nn.Tanh,), **settings):
    """A method on four ragged shards, all of which come in every round."""
    generator = torch.Generator().manual_seed(0)
    clients = [part.tolist() for part in torch.arange(sum(SIZES)).split(SIZES)]
    inputs = torch.randn(sum(SIZES), 4, generator=generator, dtype=torch.float64)
    data = from_arrays(inputs, torch.arange(sum(SIZES)) % 3, clients, batch_size=4, monitor_test=0)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(4, 5), *(layer() for layer in middle), nn.Linear(5, 3)).to(dtype)
    method = kind(net, optimizer=optimizer, **settings)
    data.setup()
    method.join(data)
    data.to(CPU, dtype)
    return method


def after_rounds(engine, precision=nullcontext, **settings):
    method = joined(**settings)
    runs = engine(method, RunContext(precision=precision))
    reports = [run_round(method, runs, round) for round in (1, 2, 3)]
    return torch.cat([weight.detach().flatten() for weight in method.net.parameters()]), reports, runs


@pytest.mark.parametrize("kind", ELEMENTWISE)
@pytest.mark.one_in(3)
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
    assert len(engine._working.programs) == shapes * (1 if kind in PROPORTIONAL else 3)


def test_no_program_makes_room(monkeypatch):
    """Visits of one step and of two: the first kind stays, the other runs and is not kept."""
    monkeypatch.setattr(visit_program, "MOST_PROGRAMS", 1)
    weights, _, engine = after_rounds(CapturedEngine)
    (program,) = engine._working.programs.values()
    assert len(program.phases.resting) == 1
    torch.testing.assert_close(weights, after_rounds(SequentialEngine)[0], rtol=0, atol=1e-12)


def autocast():
    return torch.autocast("cpu", torch.bfloat16)


@pytest.mark.parametrize(
    ("precision", "dtype", "rounds"),
    [(nullcontext, torch.float64, False), (autocast, torch.float32, True), (nullcontext, torch.bfloat16, True)],
)
def test_compiled_steps_in_half_precision_round_between_operations(monkeypatch, precision, dtype, rounds):
    """As uncompiled ones do: what fuses them else keeps float32 from one operation to the next."""
    asked = []
    monkeypatch.setattr(torch, "compile", lambda step, **settings: asked.append(settings["options"]) or step)
    CapturedEngine(joined(dtype=dtype), RunContext(precision=precision))
    assert [options["emulate_precision_casts"] for options in asked] == [rounds]


@pytest.mark.slow
def test_compiled_steps_under_autocast_end_as_uncompiled_ones(monkeypatch):
    """Bit for bit, in three layers with activations that the compiler fuses; without these casts 1e-4 apart."""
    monkeypatch.setattr(torch, "compile", COMPILE)
    settings = {"dtype": torch.float32, "middle": (nn.GELU, lambda: nn.Linear(5, 5), nn.Tanh)}
    ends = [after_rounds(engine, autocast, **settings)[0] for engine in (SequentialEngine, CapturedEngine)]
    torch.testing.assert_close(*ends, rtol=0, atol=0)


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


@pytest.mark.parametrize(
    ("norm", "batch_size", "settings", "kinds"),
    [
        (False, 4, {"local_steps": 1}, 1),
        (False, 4, {"local_epochs": 2}, 2),  # 2 or 4 steps, batches filled up
        (True, 4, {"local_epochs": 2}, 4),  # last batches of 3, 1, 3 and 4 samples
        (True, 4, {"local_steps": 1}, 2),  # of a client with 3 samples, and full ones
        (False, None, {"local_steps": 1}, 4),
    ],
)
def test_the_rule_counts_kinds_of_visits(monkeypatch, norm, batch_size, settings, kinds):
    """Shards of 3, 5, 7 and 8 samples: with one kind less to be had, ``captured`` is not taken."""
    method = joined(**settings)
    method.data.batch_size = batch_size
    if norm:
        method.net.append(nn.BatchNorm1d(3).double())
    for most, name in ((kinds, "captured"), (kinds - 1, "vectorized")):
        monkeypatch.setattr(engine_choice, "MOST_PROGRAMS", most)
        choice = by_rule(method, RunContext(GPU), [1])
        assert choice.name == name
        assert choice.why.startswith("on a GPU" if name == "captured" else f"visits are of more than {most} kinds, and ")


class Remembers(FedAvg):
    def client_result(self, net, client):
        client.state["seen"] = torch.ones(1)
        return super().client_result(net, client)


def test_first_visits_are_kinds_of_their_own_where_clients_keep_states(monkeypatch):
    """Of one step and of two: four programs, for which ``captured`` is taken where four are kept."""
    assert len(after_rounds(CapturedEngine, kind=Remembers)[2]._working.programs) == 4
    for most, name in ((4, "captured"), (3, "vectorized")):
        monkeypatch.setattr(engine_choice, "MOST_PROGRAMS", most)
        assert by_rule(joined(kind=Remembers), RunContext(GPU), [1]).name == name


@pytest.mark.parametrize(
    ("optimizer", "decay", "name"),
    [("SGD", 0.9, "captured"), ("Rprop", 1.0, "captured"), ("Rprop", 0.9, "vectorized"), ("ASGD", 0.9, "vectorized")],
)
def test_the_rule_does_not_take_a_program_for_every_rate(optimizer, decay, name):
    """Rprop and ASGD take steps that are not proportional to their rate."""
    method = joined(lambda weights: getattr(torch.optim, optimizer)(weights, lr=0.1), learning_rate_decay=decay)
    choice = by_rule(method, RunContext(GPU), [1])
    assert choice.name == name
    assert choice.why.startswith(f"{optimizer} needs a program for every rate, and " if name == "vectorized" else "on a GPU")


class Second(OneProcess):
    """The second process of two, whose first has an engine."""

    def __init__(self, choice):
        self.choice = choice

    def broadcast(self, value):
        return self.choice


@pytest.mark.parametrize("name", ["sequential", "captured", "vectorized"])
def test_the_first_process_decides(name):
    """Whatever this one would take."""
    method, agreed = joined(), Choice(name, "said by the first")
    started = start_engine(method, RunContext(ranks=Second(agreed)), "auto", Choice("captured", "small"), 1, method.cohort(1))
    assert (type(started.engine), started.choice) == (ENGINES[name], agreed)


def test_a_process_that_cannot_do_as_the_first_says_so(monkeypatch):
    monkeypatch.setattr(visit_program.VisitProgram, "_visit", lambda self: 1 / 0)
    method, ranks = joined(), Second(Choice("captured", "said by the first"))
    with pytest.raises(ValueError, match=r"^model.engine is captured, under which FedAvg cannot run \(ZeroDivisionError"):
        start_engine(method, RunContext(ranks=ranks), "auto", Choice("captured", "small"), 1, method.cohort(1))


class Unknown(torch.optim.SGD):
    """May look at what the device holds."""

    def __init__(self, weights):
        super().__init__(weights, lr=0.1)
