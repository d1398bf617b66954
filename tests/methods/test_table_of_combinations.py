"""Every method with every loss, net, optimizer, precision, engine and process: it trains, or is refused before training.

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


# What is varied, one thing at a time ----------------------------------------------------------------------------------


class Variation(NamedTuple):
    """A column: settings, and how far from the base they are to lead."""

    settings: dict[str, Any]
    at_least: float = 1e-6
    at_most: float = inf
    dtype: torch.dtype = torch.float64  # of the weights
    rounding: float = 1e-9  # between two modes of running it


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
RUNS = {
    "sequential": BASE,
    "vectorized": Variation({"engine": "vectorized"}, 0, 1e-9),
    "captured": Variation({"engine": "captured"}, 0, 1e-9),
    "two processes": Variation({"processes": 2}, 0, 1e-9),
}
COLUMNS = {**LOSSES, **NETS, **OPTIMIZERS, **SERVERS, **PRECISIONS, **RUNS}
# Each method as the base runs it, and one of them under the other engines.
STACKED, CAPTURED = "FedAvg, vectorized", "FedAvg, captured"
ROWS = {**{name: {} for name in methods.__all__}, STACKED: {"engine": "vectorized"}, CAPTURED: {"engine": "captured"}}
TABLES = {
    "Losses and networks": ({**LOSSES, **NETS}, list(ROWS)),
    "Local and server optimizers": ({**OPTIMIZERS, **SERVERS}, list(ROWS)),
    "Precisions": (PRECISIONS, list(ROWS)),
    "Engines and processes": (RUNS, methods.__all__),
}
CELLS = [(row, column) for columns, rows in TABLES.values() for row in rows for column in columns]

# 25 mixtures in which any two columns of different lists meet: the lines of an affine plane of order 5, so of lists of five.
LISTS = [
    OPTIMIZERS,
    SERVERS,
    {k: v for k, v in LOSSES.items() if k != "balanced CE"},
    NETS,
    {k: v for k, v in PRECISIONS.items() if k != "16-true"},
    ("sequential", "vectorized"),
]
SLOPES = [(1, 0), (0, 1), (1, 1), (1, 2), (1, 3), (1, 4)]
MIXTURES = [
    [list(columns)[(p * a + q * b) % 5 % len(columns)] for columns, (p, q) in zip(LISTS, SLOPES)]
    for a in range(5)
    for b in range(5)
]


def test_nothing_public_is_left_out():
    """Every loss, server optimizer and engine of ours is a column; any two columns of different lists are in a mixture."""
    tried = [variation.settings for variation in COLUMNS.values()]
    of_loss = {type(settings["loss"]).__name__ for settings in tried if "loss" in settings}
    # The loss of texts is for another objective.
    assert of_loss | {"CrossEntropy", "Loss", "TokenCrossEntropy"} == set(losses.__all__)
    assert {getattr(optimizers, name) for name in optimizers.__all__} <= {
        settings.get("server_optimizer") for settings in tried
    }
    assert ENGINES.keys() <= RUNS.keys()
    for i, first in enumerate(LISTS):
        for second in LISTS[:i]:
            assert all(any({a, b} <= set(mixture) for mixture in MIXTURES) for a in first for b in second)


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
def attempt(tiny, events, traced_in_module) -> Callable[..., Outcome]:
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
        arrived = (3, 2) if sends(name) else (0, 0)
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


# The cells --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")  # a worker may run other files between the tests of this one
def known() -> dict[tuple[str, str], Outcome]:
    """By row and column, what has been found so far."""
    return {}


@pytest.fixture
def outcome(attempt, known, request) -> Callable[[str, str], Outcome]:
    """What became of a cell; every run is made once."""

    def find(row: str, column: str) -> Outcome:
        if (row, column) not in known:
            variation = COLUMNS[column]
            if variation is BASE and column != "CE":
                known[row, column] = find(row, "CE")
            elif column == "two processes":
                known[row, column] = request.getfixturevalue("two_processes")[row]
            else:
                settings = {**ROWS[row], **variation.settings}
                known[row, column] = attempt(row.split(",")[0], variation.dtype, **settings)
        return known[row, column]

    return find


# FedAvg's rows are in the quick suite, whose mixtures, below, take the other methods through columns of all lists.
QUICK_ROWS = ("FedAvg", STACKED)


@pytest.mark.parametrize(
    ("row", "column"),
    [
        pytest.param(*cell, marks=() if cell[0] in QUICK_ROWS and cell[1] != "two processes" else pytest.mark.slow)
        for cell in CELLS
    ],
)
def test_a_setting_makes_its_difference(outcome, known, row, column):
    """In float64 to 1e-9: another engine or two processes make none, a precision a small one, everything else some.

    Under another engine FedAvg ends where it does one client after another.
    """
    found, variation = outcome(row, column), COLUMNS[column]
    if found.refusal:
        return
    if column in SERVERS and not sends(row.split(",")[0]):  # so there is nothing to step
        assert distance(found, outcome(row, "CE")) == 0
    elif row in methods.__all__:
        assert variation.at_least <= distance(found, outcome(row, "CE")) <= variation.at_most
        if variation.at_most == inf:
            others = [known[cell] for cell in known if cell[0] == row and COLUMNS[cell[1]].at_most == inf and cell[1] != column]
            assert all(distance(found, other) > 1e-9 for other in others)
    else:
        assert distance(found, outcome("FedAvg", column)) <= variation.rounding


@pytest.mark.parametrize(
    ("name", "mixtures"),
    [
        *(pytest.param(name, [MIXTURES[number % 25]], id=name) for number, name in enumerate(methods.__all__)),
        *(pytest.param(name, MIXTURES, id=f"{name}, all", marks=pytest.mark.slow) for name in methods.__all__),
    ],
)
def test_settings_that_work_alone_work_together(attempt, outcome, name, mixtures):
    """Mixtures train too, unless one of their settings is refused; what cannot be stacked trains one client after another.

    The quick suite tries one of them with each method, another one with the next.
    """
    for *columns, engine in mixtures:
        settings = {key: value for column in columns for key, value in COLUMNS[column].settings.items()}
        refused = any(outcome(name, column).refusal for column in columns)
        # torch.vmap cannot take BatchNorm under autocast.
        alone = any(outcome(STACKED, column).refusal for column in columns) or {"BatchNorm", "bf16-mixed"} <= set(columns)
        for used in ("vectorized", "sequential") if engine == "vectorized" and alone else (engine,):
            found = attempt(name, COLUMNS[columns[-1]].dtype, engine=used, **settings)
            expected = refused or (used == "vectorized" and alone)
            assert bool(found.refusal) == expected, f"{columns}, {used}: {found.refusal or 'not refused'}"


# Two processes ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory) -> dict[str, Outcome]:
    """All methods, one after another, in two forks of this process."""
    folder, port, fork = tmp_path_factory.mktemp("two_processes"), find_free_network_port(), multiprocessing.get_context("fork")
    ranks = [fork.Process(target=fit_all_as_rank, args=(rank, port, folder)) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout=240)
    assert [rank.exitcode for rank in ranks] == [0, 0]
    checkpoints = {name: torch.load(folder / f"{name}.ckpt", weights_only=True) for name in methods.__all__}
    return {
        name: Outcome(end=end_of(saved["state_dict"], saved["federated"]["client_states"]["states"]))
        for name, saved in checkpoints.items()
    }


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

The tables show which methods train with which losses, networks, optimizers, precisions and engines.
[methods.md](methods.md) describes the methods, [engines.md](engines.md) the engines, and
[combinations_of_classes.md](combinations_of_classes.md) has the learners of arriving classes.

- **yes**: the run finished with finite weights, and every weight had changed.
- **no** and a number: the run was refused before the first round, with the error [below](#refusals).

Each cell is a run of two rounds on a tiny federation on the CPU. It differs in one setting from the base: cross entropy, a net
without norm layers, local SGD, the mean at the server, float64, one client after another in one process. The setting made a
difference to the weights, except for another engine or two processes (at most 1e-9), another precision (a small one), and the
server optimizer of `LocalOnly`, which sends nothing. Steps of `captured` are traced without being compiled.

In the rows of the other engines, FedAvg stands for all methods. In addition, every method was run in 25 mixtures, in which any
two of the networks, optimizers, precisions, losses except balanced CE, and engines `sequential` and `vectorized` meet. All of
these train too, unless one of their parts is refused, or BatchNorm meets bf16-mixed under `vectorized`.

CE is `CrossEntropy`, TCE `TruncatedCrossEntropy`, WSM `ReweightedSoftmax`, masked CE `MaskedCrossEntropy` and balanced CE
`WeightedCrossEntropy`; momentum is SGD's. At the server, mean is SGD with rate 1, FedAvgM is the same with momentum, and
FedAdagrad is torch's Adagrad.

`WRITE_PAGES=1 pytest -m slow tests/methods/test_table_of_combinations.py` writes this page from the runs of these tests, which
fail if the page differs.
"""


def render(known: dict[tuple[str, str], Outcome]) -> str:
    refusals = list(dict.fromkeys(known[cell].refusal for cell in CELLS if known[cell].refusal))

    def say(row: str, column: str) -> str:
        refusal = known[row, column].refusal
        return f"no ({refusals.index(refusal) + 1})" if refusal else "yes"

    parts = [HEAD]
    for title, (columns, rows) in TABLES.items():
        lines = [["method", *columns], ["---"] * (len(columns) + 1)]
        lines += [[row, *(say(row, column) for column in columns)] for row in rows]
        parts.append("\n".join([f"## {title}\n", *(f"| {' | '.join(line)} |" for line in lines)]) + "\n")
    notes = [f"{number}. {text}" for number, text in enumerate(refusals, start=1)]
    parts.append("\n".join(["## Refusals\n", *notes]) + "\n")
    return "\n".join(parts)


@pytest.mark.slow
def test_the_page_says_what_was_found(outcome, known):
    """docs/combinations.md, word by word."""
    for cell in CELLS:
        outcome(*cell)
    hold_page("combinations.md", render(known))
