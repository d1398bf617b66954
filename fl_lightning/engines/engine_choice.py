"""The choice of the engine: the requested one, a fixed rule, or the fastest one measured."""

import time
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

import torch
from torch import nn

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.checks import ArgumentError
from fl_lightning.engines.captured import CapturedEngine
from fl_lightning.engines.engine import Engine
from fl_lightning.engines.flower import FlowerEngine
from fl_lightning.engines.local_step import ELEMENTWISE, PROPORTIONAL
from fl_lightning.engines.net_behaviour import mixes_samples
from fl_lightning.engines.round_hooks import RoundHooks
from fl_lightning.engines.run_context import RunContext
from fl_lightning.engines.sequential import SequentialEngine
from fl_lightning.engines.vectorized import VectorizedEngine
from fl_lightning.engines.visit_program import MOST_PROGRAMS
from fl_lightning.functional.aggregation import State
from fl_lightning.models.federated_net import copied_net
from fl_lightning.protocol import Visit

_Runs = Literal["sequential", "vectorized", "captured"]
EngineName = Literal["auto", "tune", _Runs, "flower"]
"""Of ``model.engine``; ``auto`` and ``tune`` choose one that trains clients here, ``flower`` has them trained elsewhere."""

_CLASSES: tuple[type[Engine], ...] = (SequentialEngine, VectorizedEngine, CapturedEngine)
ENGINES = dict(zip(get_args(_Runs), _CLASSES, strict=True))
"""Those that train clients here, by the value of ``model.engine``."""

# Limits up to which stacking is faster, from benchmarks/RESULTS.md. Without convolutions it is weights times samples of a step.
# Stacked convolutions are slower, so a net with some is stacked for few samples a step and if most weights are in other layers.
_STACKABLE_WORK = 3.5e7
_STACKABLE_IMAGES = 8
# Largest distance between a captured visit and the same visit under sequential, as a part of the distance that the visit moves:
# rounding in another order is below, a missing step or a wrong rate above.
_TRUSTED = 0.05


class Choice(NamedTuple):
    """An engine's name, and the reason for it."""

    name: str
    why: str


class StartedEngine(NamedTuple):
    """An engine that is ready for its first round."""

    engine: Engine
    choice: Choice
    state_bytes: int  # the largest state that a client kept in the rehearsal


def first_visits(method: FederatedAlgorithm, rounds: Iterable[int]) -> list[Visit]:
    """The first cohort of these rounds that has a client; empty if none has, as when all tasks are learned."""
    return next((visits for round in rounds if (visits := method.tasks.visits(method.cohort(round)))), [])


def choose_engine(
    method: FederatedAlgorithm,
    context: RunContext,
    asked: EngineName,
    tuned: str | None,
    visits: Sequence[Visit],
    rounds: range,
) -> Choice:
    """The engine for a value of ``model.engine``.

    Args:
        tuned: the fastest engine, measured when the run began; None: not measured yet.
        visits: visits of the first cohort to measure with.
        rounds: the remaining rounds.
    """
    if asked == "auto":
        return by_rule(method, context, range(1, rounds.stop))
    if asked != "tune":
        return Choice(asked, "model.engine")
    if tuned is not None:
        return Choice(tuned, "measured when the run began")
    return by_measurement(method, context, rounds.start, visits)


def start_engine(
    method: FederatedAlgorithm, context: RunContext, asked: str, choice: Choice, round: int, visits: Sequence[Visit]
) -> StartedEngine:
    """The engine of a choice, after a rehearsal of the method's hooks under it.

    Args:
        asked: the value of ``model.engine``; if it is ``auto``, ``sequential`` replaces an engine that cannot run the method,
            and ``captured`` if two visits end differently than under ``sequential``. The first process decides for all.
        round: the first round.
        visits: visits of clients to rehearse with.

    Raises:
        ValueError: if the method cannot run under the engine that was asked for.
    """
    try:
        started = _rehearsed(method, context, choice, round, visits)
        if asked == "auto" and choice.name == "captured":
            _compare(started.engine, SequentialEngine(method, context), round, visits[:2])
    except Exception as error:
        if choice.name == "sequential" or isinstance(error, ArgumentError):  # which no other engine would accept
            raise
        if asked != "auto":
            raise _cannot_run(method, choice, error) from error
        named = f"{type(method).__name__} on {type(method.net).__name__}"
        why = f"{named} cannot be {choice.name}: {_error_text(error)}"
        started = _rehearsed(method, context, Choice("sequential", why), round, visits)
    if asked != "auto" or (agreed := Choice(*context.ranks.broadcast(started.choice))) == started.choice:
        return started
    try:
        return _rehearsed(method, context, agreed, round, visits)
    except Exception as error:
        raise _cannot_run(method, agreed, error) from error


def _cannot_run(method: FederatedAlgorithm, choice: Choice, error: Exception) -> ValueError:
    return ValueError(
        f"model.engine is {choice.name}, under which {type(method).__name__} cannot run ({_error_text(error)}): "
        "set model.engine to sequential"
    )


def _rehearsed(
    method: FederatedAlgorithm, context: RunContext, choice: Choice, round: int, visits: Sequence[Visit]
) -> StartedEngine:
    engine = {**ENGINES, "flower": FlowerEngine}[choice.name](method, context)
    return StartedEngine(engine, choice, engine.rehearse(round, visits[:2], max_steps=1))


def _compare(engine: Engine, reference: Engine, round: int, visits: Sequence[Visit]) -> None:
    """Check that visits end as they do under another engine.

    Raises:
        RuntimeError: if one does not, or is not finite.
    """
    # The compared visit runs in used memory: after the same clients with other batches, then the other client.
    engine.fit_and_forget(round + 1, visits)
    engine.fit_and_forget(round, visits[::-1])
    (found, found_mean), (expected, expected_mean) = (runs.fit_and_forget(round, visits) for runs in (engine, reference))
    moved = max((_distance(model, engine.sent_down) for model in expected), default=0.0)
    for one, other in zip([*found, found_mean], [*expected, expected_mean], strict=True):
        apart = _distance(one, other)
        if not apart <= _TRUSTED * moved:
            raise RuntimeError(
                f"a rehearsal ends {apart:.3g} away from where sequential does, which moves weights by {moved:.3g}"
            )


def _distance(one: State, other: State) -> float:
    """Euclidean distance of the tensors that both have; not a number where a value is not."""
    names = [name for name, tensor in one.items() if name in other and tensor.is_floating_point()]
    squares = [(one[name].double() - other[name].double()).square().sum() for name in names]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


def by_rule(method: FederatedAlgorithm, context: RunContext, rounds: Iterable[int]) -> Choice:
    """The engine of ``auto`` for a method, with the reason: the same for the same command on the same kind of device.

    Args:
        rounds: rounds of the run, from 1 on.
    """
    if context.protection.one_by_one is not None:
        return Choice("sequential", context.protection.one_by_one)
    if method.needs.client_moments:
        return Choice("sequential", "clients keep their optimizer's state")
    parameters = [weight for weight in method.net.parameters() if weight.requires_grad]
    optimizer = type(method.optimizer(parameters))
    if context.device.type != "cuda" or optimizer not in ELEMENTWISE:
        return _by_size(method, optimizer, rounds)
    name, why = _by_size(method, optimizer, rounds)
    if optimizer not in PROPORTIONAL and RoundHooks(method).changes_rates:
        return Choice(name, f"{optimizer.__name__} needs a program for every rate, and {why}")
    if _kinds_of_visits(method) > MOST_PROGRAMS:
        return Choice(name, f"visits are of more than {MOST_PROGRAMS} kinds, and {why}")
    return Choice("captured", "on a GPU a visit is one program")


def _by_size(method: FederatedAlgorithm, optimizer: type[torch.optim.Optimizer], rounds: Iterable[int]) -> Choice:
    """The rule for a CPU, and for a GPU on which ``captured`` is impossible."""
    if optimizer not in ELEMENTWISE:
        return Choice("sequential", f"{optimizer.__name__} cannot be stacked")
    shards = (method.data.num_train(visit.client) for visit in first_visits(method, rounds))
    samples = method.data.batch_size or max(shards, default=1)
    layers = [layer for layer in method.net.modules() if isinstance(layer, nn.modules.conv._ConvNd)]
    weights, in_layers = (sum(weight.numel() for weight in of.parameters()) for of in (method.net, nn.ModuleList(layers)))
    if layers:
        name = "vectorized" if samples <= _STACKABLE_IMAGES and 2 * in_layers < weights else "sequential"
        return Choice(name, f"{samples} samples a step, {in_layers:,} of {weights:,} weights in convolutions")
    work = samples * weights
    name = "vectorized" if work <= _STACKABLE_WORK else "sequential"
    return Choice(name, f"{work:,} weights times samples a step")


def _kinds_of_visits(method: FederatedAlgorithm) -> int:
    """The number of programs that visits need; counting ends beyond ``MOST_PROGRAMS``.

    One for every number of steps and of samples, and two if a client's facts or state can look different at its first visit.
    """
    data = method.data
    kinds: set[tuple[int, int]] = set()
    keeps_some = RoundHooks(method).keeps_state or any(map(method.is_personal, dict(method.net.named_parameters())))
    a_kind = 2 if keeps_some else 1
    mixes = mixes_samples(copied_net(method).train(), data.first_inputs(2))
    for client in range(data.num_clients):
        steps, last = method.num_local_steps(client), data.num_train(client)
        if data.batch_size is not None:  # short batches are padded unless the net mixes samples
            of_epoch = data.steps_per_epoch(client)
            last = last - (of_epoch - 1) * data.batch_size if mixes and steps >= of_epoch else data.batch_size
        kinds.add((steps, last))
        if a_kind * len(kinds) > MOST_PROGRAMS:
            break
    return a_kind * len(kinds)


def by_measurement(method: FederatedAlgorithm, context: RunContext, round: int, visits: Sequence[Visit]) -> Choice:
    """The engine of ``tune``: the one with the fastest second run of a round. The first process decides for all.

    The measurement leaves nothing behind: no state, no step of the server.

    Args:
        round: the first round.
        visits: visits of the cohort to measure with.
    """
    seconds, reasons = {}, {}
    for name in ENGINES:
        try:
            seconds[name] = _seconds(ENGINES[name](method, context), round, visits)
            reasons[name] = f"{name} {seconds[name]:.4g} s a round"
        except Exception as error:  # an engine that cannot run this method is out, for any reason, which is shown
            reasons[name] = f"{name} cannot run this: {_error_text(error)}"
    seconds, reasons = context.ranks.broadcast((seconds, reasons))
    return Choice(min(seconds, key=seconds.__getitem__, default="sequential"), ", ".join(reasons.values()))


def _seconds(engine: Engine, round: int, visits: Sequence[Visit]) -> float:
    seconds = 0.0
    for _ in range(2):  # the first one allocates memory and compiles
        start = time.perf_counter()
        engine.rehearse(round, visits)
        if engine.context.device.type == "cuda":
            torch.cuda.synchronize(engine.context.device)
        seconds = time.perf_counter() - start
    return seconds


def _error_text(error: Exception) -> str:
    """Kind and first line of an error."""
    if "vmap: It looks like you're either (1) calling .item()" in str(error):  # torch's paragraph names no cure
        return "the net or the method decides by the value of a tensor, of which stacked clients have several"
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
