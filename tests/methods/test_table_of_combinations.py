"""Every method with every loss, net, optimizer, precision, engine and process: it trains, or is refused before training.

A method meets each of these in five mixtures; which of a mixture's settings is refused, runs with one at a time tell.
docs/combinations.md is what these tests found. The last one compares; with WRITE_PAGES=1 it writes the page again.
"""

import importlib.util
import multiprocessing
import os
import re
from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl
import pytest
import torch
from declared_by_tests import sends
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from torch import Tensor, nn
from torch.utils._pytree import keystr, tree_leaves_with_path
from written_pages import hold_page

from fl_lightning import FederatedModule, losses, methods, optimizers
from fl_lightning.engines.engine_choice import ENGINES
from fl_lightning.optimizers import FedAdam, FedYogi
from fl_lightning.protocol import pack

ROUNDS = 2
ALONE = {"cohorts": [[1], [1]]}  # every kind of visit is traced, which takes the time


# What is varied, one thing at a time ----------------------------------------------------------------------------------


class Variation(NamedTuple):
    """Settings, and how far from the base they are to lead."""

    settings: dict[str, Any]
    at_least: float = 1e-6
    at_most: float = inf
    dtype: torch.dtype = torch.float64  # of the weights
    rounding: float = 1e-9  # between two engines


BASE = Variation({}, at_least=0, at_most=0)
LOSSES = {
    "CE": BASE,
    "TCE": Variation({"loss": losses.TruncatedCrossEntropy()}),
    "WSM": Variation({"loss": losses.ReweightedSoftmax()}),
    "masked CE": Variation({"loss": losses.MaskedCrossEntropy()}),
    "FedLC": Variation({"loss": losses.CalibratedCrossEntropy()}),
    "balanced CE": Variation({"loss": losses.WeightedCrossEntropy()}),
}
NETS = {
    "no norm": BASE,
    "BatchNorm": Variation({"norm": True}),
    "GroupNorm": Variation({"layer": partial(nn.GroupNorm, 1, 5)}),
    "dropout": Variation({"layer": partial(nn.Dropout, 0.5)}),
}
OPTIMIZERS = {
    "SGD": BASE,
    "momentum": Variation({"optimizer": partial(torch.optim.SGD, lr=0.05, momentum=0.9)}),
    "Adam": Variation({"optimizer": partial(torch.optim.Adam, lr=0.02)}),
    "AdamW": Variation({"optimizer": partial(torch.optim.AdamW, lr=0.02)}),
    "RMSprop": Variation({"optimizer": partial(torch.optim.RMSprop, lr=0.005)}),
}
_ADAGRAD = partial(torch.optim.Adagrad, lr=0.05, initial_accumulator_value=1e-6, eps=1e-3)
SERVERS = {
    "mean": BASE,
    "FedAvgM": Variation({"server_optimizer": partial(torch.optim.SGD, lr=1.0, momentum=0.9)}),
    "FedAdam": Variation({"server_optimizer": FedAdam}),
    "FedYogi": Variation({"server_optimizer": FedYogi}),
    "FedAdagrad": Variation({"server_optimizer": _ADAGRAD}),
}
PRECISIONS = {
    "64-true": BASE,
    "32-true": Variation({"precision": "32-true"}, 1e-9, 1e-4, torch.float32, 1e-5),
    "bf16-mixed": Variation({"precision": "bf16-mixed"}, 1e-5, 0.05, torch.float32, 0.05),
    "bf16-true": Variation({"precision": "bf16-true"}, 1e-4, 0.2, torch.bfloat16, 0.15),
    "16-true": Variation({"precision": "16-true"}),
}
COLUMNS = {**LOSSES, **NETS, **OPTIMIZERS, **SERVERS, **PRECISIONS}
# 25 mixtures in which any two columns of different lists meet, the points of an affine plane of order 5, so of lists of five.
# In the five of a line a method meets each column.
LISTS = [
    OPTIMIZERS,
    SERVERS,
    {k: v for k, v in LOSSES.items() if k != "balanced CE"},
    NETS,
    {k: v for k, v in PRECISIONS.items() if k != "16-true"},
    ("sequential", "vectorized"),
]
SLOPES = [(1, 0), (0, 1), (1, 1), (1, 2), (1, 3), (1, 4)]
LINES = [
    [[list(columns)[(p * a + q * (a + c)) % 5 % len(columns)] for columns, (p, q) in zip(LISTS, SLOPES)] for a in range(5)]
    for c in range(5)
]


def test_nothing_public_is_left_out():
    """Every loss, server optimizer and engine of ours is tried; any two columns of different lists are in a mixture."""
    tried = [variation.settings for variation in COLUMNS.values()]
    of_loss = {type(settings["loss"]).__name__ for settings in tried if "loss" in settings}
    # The loss of texts is for another objective.
    assert of_loss | {"CrossEntropy", "Loss", "TokenCrossEntropy"} == set(losses.__all__)
    assert {getattr(optimizers, name) for name in optimizers.__all__} <= {
        settings.get("server_optimizer") for settings in tried
    }
    assert ENGINES.keys() == {"sequential", "vectorized", "captured"}
    for line in LINES:
        assert all(set(columns) == set(met) for columns, met in zip(LISTS[:-1], zip(*line)))
    for i, first in enumerate(LISTS):
        for second in LISTS[:i]:
            assert all(any({a, b} <= set(mixture) for line in LINES for mixture in line) for a in first for b in second)


# A run and what became of it ------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """Why a run was refused, or every tensor that it ended with: weights, buffers, the server's and the clients' states."""

    refusal: str = ""
    end: dict[str, Tensor] = {}


@pytest.fixture
def events(monkeypatch) -> list[str]:
    """``visits`` whenever clients are fitted, in a rehearsal too, and ``round`` for each round."""
    happened = []

    def noted(event: str, function: Callable) -> Callable:
        def call(*arguments):
            happened.append(event)
            return function(*arguments)

        return call

    for owner, function, event in (
        (FederatedModule, "training_step", "round"),
        *((engine, "fit_share", "visits") for engine in ENGINES.values() if "fit_share" in vars(engine)),
    ):
        monkeypatch.setattr(owner, function, noted(event, vars(owner)[function]))
    return happened


@pytest.fixture
def attempt(tiny, events) -> Callable[..., Outcome]:
    """Run a method: finite to the end and away from the start in every weight, or refused before a client's first step."""

    def run(name: str, dtype: torch.dtype = torch.float64, layer: Callable | None = None, **settings) -> Outcome:
        events.clear()
        tiny.new_net = partial(net_with, tiny, layer)
        try:
            method = tiny.train_any(name, rounds=ROUNDS, **{"norm": False, **settings})
        except ValueError as error:
            text = str(error)
            # What an engine cannot run may show in its rehearsal alone, which leaves nothing behind.
            assert "round" not in events
            assert not events or text.startswith("model.engine is "), text
            assert re.match(r"(model|data|trainer)\.", text), text
            assert "\n" not in text
            return Outcome(refusal=text)
        assert events[-2:] == ["round", "visits"]
        assert type(method.engine) is ENGINES[settings.get("engine", "sequential")]
        arrived = [len(cohort) if sends(name) else 0 for cohort in settings.get("cohorts", tiny.cohorts)[:ROUNDS]]
        assert [(r.num_updates, r.nonfinite) for r in method.reports] == [(count, []) for count in arrived]
        start = dict(tiny.new_net(settings.get("norm", False)).named_parameters())
        model = method.personal_model(dict(method.net.named_parameters()), method.stored.states.read(1))
        for weight, value in method.net.named_parameters():
            assert value.dtype == dtype, weight
            if weight in method.constant_names:
                continue
            began = start.get(weight, value)  # what a method gives clients in addition the server's net has as it began
            if method.is_personal(weight) or not method.has_global_model:
                value = model[weight]
            # bfloat16 has 8 bits: near 1, where norms begin, a step is 0.004 or nothing.
            assert dtype == torch.bfloat16 or (value - began).abs().max() > 1e-4, weight
        states = {client: pack(method.stored.states.read(client)) for client in method.stored.states.clients()}
        outcome = Outcome(end=end_of(method.state_dict(), states))
        assert all(value.isfinite().all() for value in outcome.end.values())
        return outcome

    return run


def net_with(tiny, layer: Callable | None, norm: bool) -> nn.Module:
    """The tiny net, with one more layer behind its first."""
    net = type(tiny).new_net(tiny, norm)
    if layer is not None:
        net.features.insert(1, layer())
    return net


def end_of(server: dict[str, Tensor], states: dict[int, dict[str, Any]]) -> dict[str, Tensor]:
    """All tensors by name, in float64."""
    kept = {f"client {keystr(path)}": value for path, value in tree_leaves_with_path(states)}
    return {name: value.detach().double() for name, value in {**server, **kept}.items()}


def distance(one: Outcome, other: Outcome) -> float:
    """Largest difference of two entries; infinite between different nets."""
    if one.end.keys() != other.end.keys():
        return inf
    return max((value - other.end[name]).abs().max().item() for name, value in one.end.items())


# One after another, and together ----------------------------------------------------------------------------------------


@pytest.fixture
def run(attempt) -> Callable[..., Outcome]:
    """Run a method with some columns at once."""

    def with_columns(name: str, *columns: str, engine: str = "sequential", **of_data: object) -> Outcome:
        settings = {key: value for column in columns for key, value in COLUMNS[column].settings.items()}
        (dtype,) = {torch.float64, *(COLUMNS[column].dtype for column in columns)} - {torch.float64} or {torch.float64}
        return attempt(name, dtype, engine=engine, **settings, **of_data)

    return with_columns


@pytest.mark.parametrize("name", methods.__all__)
def test_a_setting_makes_its_difference(run, name):
    """To the base and to the others, unless it is refused; a server's makes none where nothing is sent. FedAvg tries all."""
    every = [column for column in COLUMNS if COLUMNS[column] is not BASE]
    columns = every if name == "FedAvg" else ["TCE", "momentum", "FedAdam"]
    base, found = run(name), {column: run(name, column) for column in columns}
    found = {column: outcome for column, outcome in found.items() if not outcome.refusal}
    for column, outcome in found.items():
        if column in SERVERS and not sends(name):
            assert distance(outcome, base) == 0
            continue
        assert COLUMNS[column].at_least <= distance(outcome, base) <= COLUMNS[column].at_most
        if COLUMNS[column].at_most == inf:
            assert all(distance(outcome, other) > 1e-9 for one, other in found.items() if one != column)


@pytest.fixture(scope="session")  # a worker may run other files between the tests of this one
def refused() -> dict[str, dict[str, str]]:
    """The columns that a method refuses, with its words, of the methods that have been tried so far."""
    return {}


@pytest.fixture
def refusals(run, refused) -> Callable[[str], dict[str, str]]:
    """Train a method in mixtures of all columns, without those that it refuses alone; gives these."""

    def find(name: str) -> dict[str, str]:
        if name in refused:
            return refused[name]
        found: dict[str, str] = {}
        for *columns, engine in LINES[methods.__all__.index(name) % 5]:
            if {"BatchNorm", "bf16-mixed"} <= set(columns):  # torch.vmap cannot take BatchNorm under autocast
                engine = "sequential"
            if run(name, *columns, engine=engine).refusal:
                found |= {column: text for column in columns if (text := run(name, column).refusal)}
                outcome = run(name, *(column for column in columns if column not in found), engine=engine)
                assert not outcome.refusal, f"{columns}, {engine}: {outcome.refusal}"
        refused[name] = found
        return found

    return find


@pytest.mark.parametrize("name", methods.__all__)
@pytest.mark.one_in(3)
def test_a_method_trains_with_every_setting_in_mixtures(refusals, name):
    """To finite weights that all have moved, or it is refused for one of them alone, before its first round."""
    refusals(name)


@pytest.mark.parametrize(("engine", "line"), [*(("vectorized", line) for line in range(5)), ("captured", 0)])
@pytest.mark.one_in(3)
def test_an_engine_makes_no_difference(run, engine, line):
    """Mixtures end as one client after another does, to the rounding of their precision."""
    of_data = ALONE if engine == "captured" else {}
    for *columns, _ in LINES[line]:
        found = run("FedAvg", *columns, engine=engine, **of_data)
        if engine == "vectorized" and {"BatchNorm", "bf16-mixed"} <= set(columns):
            assert found.refusal.startswith("model.engine is vectorized, under which FedAvg cannot run")
        else:
            assert distance(found, run("FedAvg", *columns, **of_data)) <= COLUMNS[columns[-1]].rounding, columns


def test_16_true_is_refused(run):
    assert run("FedAvg", "16-true").refusal.startswith("trainer.precision is 16-true")


# Two processes ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_processes_make_no_difference(run, tmp_path):
    """All methods, one after another, in two forks of this process."""
    folder, port, fork = tmp_path, find_free_network_port(), multiprocessing.get_context("fork")
    ranks = [fork.Process(target=fit_all_as_rank, args=(rank, port, folder)) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout=240)
    assert [rank.exitcode for rank in ranks] == [0, 0]
    for name in methods.__all__:
        saved = torch.load(folder / f"{name}.ckpt", weights_only=True)
        found = Outcome(end=end_of(saved["state_dict"], saved["federated"]["client_states"]["states"]))
        assert distance(found, run(name)) <= 1e-9, name


def fit_in_two_processes(method, data, rounds: int, ckpt_path=None, **settings) -> pl.Trainer:
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    steps = {"max_steps": rounds, "max_epochs": -1, "check_val_every_n_epoch": None, "val_check_interval": 1}
    trainer = pl.Trainer(accelerator="cpu", strategy="federated", devices=2, **quiet, **steps, **settings)
    trainer.fit(method, datamodule=data, ckpt_path=ckpt_path)
    return trainer


def fit_all_as_rank(rank: int, port: int, folder: Path) -> None:
    """What each of two processes does, with what Lightning's launcher would tell it."""
    os.environ.update(LOCAL_RANK=str(rank), NODE_RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    spec = importlib.util.spec_from_file_location("federation", Path(__file__).with_name("conftest.py"))
    federation = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(federation)
    for name in methods.__all__:
        method = federation.Tiny(fit_in_two_processes).train_any(name, rounds=ROUNDS, norm=False)
        method.trainer.save_checkpoint(folder / f"{name}.ckpt")


# The page ---------------------------------------------------------------------------------------------------------------

HEAD = """\
# What combines with what

Every method was run with each of these losses, networks, optimizers, precisions and engines. All of them train, except for the
[refusals](#refusals) below. [methods.md](methods.md) describes the methods, [engines.md](engines.md) the engines, and
[combinations_of_classes.md](combinations_of_classes.md) has the learners of arriving classes.

| part | tried |
| --- | --- |
| loss | `CrossEntropy`, TCE, WSM, masked CE, FedLC; balanced CE (`WeightedCrossEntropy`) with FedAvg only |
| network | without norm layers, with BatchNorm, GroupNorm or dropout |
| local optimizer | SGD, SGD with momentum, Adam, AdamW, RMSprop |
| server optimizer | the mean (SGD with rate 1), SGD with momentum (FedAvgM), `FedAdam`, `FedYogi`, torch's Adagrad |
| precision | `64-true`, `32-true`, `bf16-mixed`, `bf16-true` |
| engine | `sequential`, `vectorized`, `captured` |
| processes | one, two |

A run has two rounds on a tiny federation on the CPU. It ends with finite weights, all of which have changed. A method has five
runs, each with a mixture of losses, networks, optimizers and precisions, such that each of these is in one of the five. Of any
two settings, some methods try both together. Three runs per method show that a loss, a local and a server optimizer each make a
difference to its weights, except for the server optimizer of `LocalOnly`, which sends nothing. Engines and two processes make
none (at most 1e-9 in float64, for `captured` 1e-6 in float32 on a simulated GPU), except that `vectorized` takes no BatchNorm
in bf16-mixed. Steps of `captured` are traced, not compiled.

`WRITE_PAGES=1 pytest -m slow tests/methods/test_table_of_combinations.py` writes this page from the runs of these tests, which
fail if the page differs.

## Refusals

These runs end before the first round with an error.

| method | setting | error |
| --- | --- | --- |
"""


@pytest.mark.slow
def test_the_page_says_what_was_found(run, refusals):
    """docs/combinations.md, word by word."""
    rows = [(name, column, text) for name in methods.__all__ for column, text in refusals(name).items()]
    rows.append(("every method", "16-true", run("FedAvg", "16-true").refusal))
    hold_page("combinations.md", HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows))
