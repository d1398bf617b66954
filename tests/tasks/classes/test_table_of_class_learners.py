"""Every class learner with every loss, engine, defence, stream and federated method: it learns all tasks, or is refused before.

docs/combinations_of_classes.md is what these tests found. The last one compares; with WRITE_PAGES=1 it writes the page again.
"""

import re
from collections.abc import Callable
from functools import partial
from types import MappingProxyType

import pytest
import torch
from class_names import embeddings_of
from declared_by_tests import needs_of
from pairs import Pair
from torch import nn
from written_pages import hold_page

from fl_lightning import losses, methods
from fl_lightning import tasks as learners
from fl_lightning.callbacks import FederatedCallback
from fl_lightning.engines.engine_choice import ENGINES
from fl_lightning.privacy import DPSGD, UserLevelDP
from fl_lightning.tasks import ClassLearner, ClassStream, DomainStream

SMALL = {"MFCL": {"generator_steps": 2, "generator_batch": 4, "generated": 2, "noise": 3}}
SMALL["TARGET"] = {"warm_up": 1, "kept_rounds": 1, "synthesis_batch": 4, "generated": 3, "student_steps": 2}
SMALL["TARGET"]["student_rate"] = 0.01
SMALL["LANDER"] = {**SMALL["TARGET"], "embeddings": embeddings_of("abcdef"), "generator_steps": 3}
SMALL["LANDER"] |= {"rounds_per_task": 2}  # with one round a task would end as it began
SMALL |= {name: {"memory": 8} for name in ("Replay", "ICaRL", "GLFC")}
LEARNERS = {name: kind for name, kind in vars(learners).items() if name in learners.__all__ and kind is not ClassLearner}
LEARNERS = {"ClassLearner": ClassLearner, **{k: v for k, v in LEARNERS.items() if issubclass(v, ClassLearner)}}
OURS = ["FedAvg", *sorted(set(methods.__all__) - {"FedAvg"}, key=str.lower)]

# What is varied, one thing at a time: settings of the method and the data, and the run that it must differ from, or equal.
MIXED = {"softmax_over": "seen"}
ONE_CLIENT = {"cohorts": [[0]] * 4}
COLUMNS = {
    "CE": {},
    "TCE": {"loss": losses.TruncatedCrossEntropy()},
    "WSM": {"loss": losses.ReweightedSoftmax()},
    "masked CE": {"loss": losses.MaskedCrossEntropy()},
    "FedLC": {"loss": losses.CalibratedCrossEntropy()},
    "balanced CE": {"loss": losses.WeightedCrossEntropy()},
    "vectorized": {"engine": "vectorized"},
    "captured": {"engine": "captured", **ONE_CLIENT},  # every task is traced anew
    "DP-SGD": {"privacy": DPSGD(noise_multiplier=0.1)},
    "user-level DP": {"privacy": UserLevelDP(noise_multiplier=0.01), "server_weighting": "uniform"},
    "cumulative": {"tasks": ClassStream(2, cumulative=True), **MIXED},
    "blurry": {"tasks": ClassStream(2, blurry=0.3), **MIXED},
    "own pace": {"tasks": ClassStream(2, moving=0.5, joining=1), **MIXED},
    "domains": {"tasks": DomainStream()},
}
RUNS = {**COLUMNS, "CE, one client": ONE_CLIENT}
SAME = ("vectorized", "captured")
CELLS = [(row, column) for row in LEARNERS for column in COLUMNS]
PAIRS = [(federation, learner) for federation in OURS[1:] for learner in LEARNERS]  # the others are those of FedAvg


def test_nothing_public_is_left_out():
    """Every local loss, engine and stream of ours is a column."""
    settings = COLUMNS.values()
    others = {"CrossEntropy", "Loss", "TokenCrossEntropy"}
    assert {type(s["loss"]).__name__ for s in settings if "loss" in s} | others == set(losses.__all__)
    assert {"sequential", *(s["engine"] for s in settings if "engine" in s)} == set(ENGINES)
    assert {"ServerEWC", "LwF", "Replay", "ICaRL", "GLFC", "MFCL", "TARGET", "LANDER"} < set(LEARNERS)


class Began(FederatedCallback):
    def __init__(self) -> None:
        super().__init__()
        self.rounds = 0

    def on_round_start(self, trainer, module, round):
        self.rounds += 1


@pytest.fixture(scope="session")  # a worker may run other files between the tests of this one
def known() -> dict[tuple[str, str], str | dict[str, torch.Tensor]]:
    """By row and column: why it was refused, or the weights at the end."""
    return {}


@pytest.fixture
def outcome(arriving, known) -> Callable[[str, str], str | dict[str, torch.Tensor]]:
    def find(row: str, column: str):
        if (row, column) not in known:
            known[row, column] = learn(arriving, LEARNERS[row], {**SMALL.get(row, {}), **RUNS[column]})
        return known[row, column]

    return find


def learn(arriving, method, settings, of_data=MappingProxyType({})) -> str | dict[str, torch.Tensor]:
    """Two tasks of one round, or of two; the weights, or why not, which must have been said before the first round."""
    settings = {"optimizer": partial(torch.optim.SGD, lr=0.1), "rounds_per_task": 1, **settings}
    settings["rounds"] = 2 * settings["rounds_per_task"]
    tasks = settings.pop("tasks", ClassStream(2))
    if method is learners.MFCL:  # has one loss of its own
        settings.pop("softmax_over", None)
    new_data = partial(arriving.domains, 2) if isinstance(tasks, DomainStream) else arriving.new_data
    data = new_data(tasks=tasks, cohorts=settings.pop("cohorts", None), **of_data)
    net, began = arriving.new_net(3 if isinstance(tasks, DomainStream) else 6), Began()
    refusal = ""
    try:
        trained = arriving.train(method, data, net, callbacks=[began], **settings)
    except ValueError as error:
        refusal = str(error)
    if refusal:
        assert began.rounds == 0
        assert re.fullmatch(r"(model|data)\..+", refusal)
        return refusal
    assert trained.tasks.is_over
    assert not any(report.undone or report.nonfinite for report in trained.seen.rounds)
    if settings.get("memory"):
        check_memories(trained)
    weights = {name: weight.detach() for name, weight in trained.net.named_parameters()}
    assert all(weight.isfinite().all() for weight in weights.values())
    return weights


def check_memories(trained) -> None:
    """Clients remember samples of both tasks that they took part in, each sample once."""
    shards, remembered = trained.data.shards, {0: set(), 1: set()}
    for client in {client for report in trained.seen.rounds for client in report.clients}:
        memory = trained.stored.states.read(client).method["tasks"]["memory"].tolist()
        assert len(set(memory)) == len(memory) > 0
        earlier = set(shards.train_indices(2 * client).tolist())
        for index in memory:
            remembered[int(index not in earlier)].add(index)
    assert all(remembered.values())


def largest_difference(one, other) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.slow
@pytest.mark.parametrize(("row", "column"), CELLS)
def test_a_setting_makes_its_difference(outcome, row, column):
    """Another engine makes none in float64, to 1e-9; everything else some."""
    found = outcome(row, column)
    if isinstance(found, dict) and column not in ("CE", "domains"):
        difference = largest_difference(found, outcome(row, "CE" if column != "captured" else "CE, one client"))
        assert difference < 1e-9 if column in SAME else difference > 1e-6


class WithFc(nn.Module):
    """The tiny net, its class layer under another name."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.body, self.fc = net.features, net.classifier

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(inputs))


@pytest.mark.parametrize("name", ["MFCL", "LANDER"])
def test_a_captured_step_reads_features_before_a_layer_of_any_name(arriving, name):
    """To 1e-9, the weights of one client after another."""
    ends = []
    for engine in ("sequential", "captured"):
        settings = {"rounds_per_task": 1, **SMALL[name], "engine": engine}
        data = arriving.new_data(tasks=ClassStream(2), **ONE_CLIENT)
        net, rounds = WithFc(arriving.new_net()), 2 * settings["rounds_per_task"]
        trained = arriving.train(LEARNERS[name], data, net, rounds=rounds, **settings)
        ends.append({name: weight.detach() for name, weight in trained.net.named_parameters()})
    assert largest_difference(*ends) < 1e-9


@pytest.fixture(scope="session")
def pairs() -> dict[tuple[str, str], str]:
    """By federation and learner: why the two do not combine, or nothing."""
    return {}


@pytest.fixture
def combined(arriving, pairs) -> Callable[[str, str], None]:
    """Try a federation with a learner, once: the two learn all tasks, or are refused in one line."""

    def find(federation: str, learner: str) -> None:
        if (federation, learner) in pairs:
            return
        method = getattr(methods, federation)
        if (refusal := LEARNERS[learner](**SMALL.get(learner, {})).obstacle_to(method)) is not None:
            assert ": use " in refusal
            pairs[federation, learner] = f"{federation} {refusal}"
            return
        end = learn(arriving, Pair(method, LEARNERS[learner]), SMALL.get(learner, {}), needs_of(federation)[0])
        assert isinstance(end, dict), end
        pairs[federation, learner] = ""

    return find


@pytest.mark.slow
@pytest.mark.parametrize(("federation", "learner"), PAIRS)
def test_a_learner_in_a_federation_learns_all_tasks(combined, federation, learner):
    combined(federation, learner)


# The page ---------------------------------------------------------------------------------------------------------------

HEAD = """\
# What combines on arriving classes

The tables show which learners of [arriving classes](arriving_classes.md) train with which losses, engines, defences, streams
and methods.

- **yes**: the run ended finite, and all tasks were learned. Clients with a memory remember samples of both tasks, each sample
  once.
- **no** and a number: refused before the first round, or when the method is made, with the error [below](#refusals).

Each cell is a run of two tasks of one round, with LANDER of two, on a tiny federation, in float64 on the CPU. It differs in
one setting from the base: FedAvg, cross entropy, local SGD, one client after another in one process, `ClassStream` with two
tasks. The setting made a difference to the weights, except for another engine (at most 1e-9). Runs of `captured` have one
client, and their steps are traced without being compiled. Other tests check that two processes, and a run in two parts,
change nothing.

CE is `CrossEntropy`, TCE `TruncatedCrossEntropy`, WSM `ReweightedSoftmax`, masked CE `MaskedCrossEntropy` and balanced CE
`WeightedCrossEntropy`; user-level DP is `UserLevelDP`. Own pace is `moving: 0.5` and `joining: 1`. Where tasks have samples of
earlier classes, `model.tasks.softmax_over` is `seen`.

`WRITE_PAGES=1 pytest -m slow tests/tasks/classes/test_table_of_class_learners.py` writes this page from the runs of these
tests, which fail if the page differs.
"""


def render(known, pairs) -> str:
    said = [*(known[cell] for cell in CELLS), *(pairs[pair] for pair in PAIRS)]
    refusals = list(dict.fromkeys(text for text in said if isinstance(text, str) and text))

    def say(found) -> str:
        return f"no ({refusals.index(found) + 1})" if isinstance(found, str) and found else "yes"

    def table(title, head, rows) -> str:
        lines = [head, ["---"] * len(head), *rows]
        return "\n".join([f"## {title}\n", *(f"| {' | '.join(line)} |" for line in lines)]) + "\n"

    cells = [[row, *(say(known[row, column]) for column in COLUMNS)] for row in LEARNERS]
    both = [[name, *(say(pairs[name, learner]) for learner in LEARNERS)] for name in OURS[1:]]
    notes = [f"{number}. {text}" for number, text in enumerate(refusals, start=1)]
    parts = [HEAD, table("Losses, engines, defences and streams", ["learner", *COLUMNS], cells)]
    parts += [table("Federated methods", ["method", *LEARNERS], both), "\n".join(["## Refusals\n", *notes]) + "\n"]
    return "\n".join(parts)


@pytest.mark.slow
def test_the_page_says_what_was_found(outcome, combined, known, pairs):
    """docs/combinations_of_classes.md, word by word."""
    for cell in CELLS:
        outcome(*cell)
    for pair in PAIRS:
        combined(*pair)
    hold_page("combinations_of_classes.md", render(known, pairs))
