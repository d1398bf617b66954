"""The choice of the engine: the requested one, a fixed rule, or the fastest one measured."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from fl_lightning.algorithm import FederatedAlgorithm, drawn_visits, joined
from fl_lightning.checks import ArgumentError
from fl_lightning.engines.captured import CapturedEngine
from fl_lightning.engines.engine import Engine
from fl_lightning.engines.engine_timing import Timing, kept_timing, timed
from fl_lightning.engines.flower import FlowerEngine
from fl_lightning.engines.local_step import ELEMENTWISE, PROPORTIONAL
from fl_lightning.engines.net_behaviour import can_pad
from fl_lightning.engines.round_hooks import RoundHooks
from fl_lightning.engines.run_context import RunContext
from fl_lightning.engines.sequential import SequentialEngine
from fl_lightning.engines.vectorized import VectorizedEngine
from fl_lightning.engines.visit_program import MOST_PROGRAMS
from fl_lightning.functional.aggregation import State
from fl_lightning.models.federated_net import copied_net
from fl_lightning.protocol import Visit

EngineName = Literal["auto", "tune", "sequential", "vectorized", "captured", "flower"]
"""Of ``model.engine``; ``auto`` and ``tune`` choose one that trains clients here, ``flower`` has them trained elsewhere."""

ENGINES: dict[str, type[Engine]] = {
    "sequential": SequentialEngine,
    "vectorized": VectorizedEngine,
    "captured": CapturedEngine,
}
"""Those that train clients here, by the value of ``model.engine``."""

# Limits from benchmarks/RESULTS.md, of three processors. Without convolutions, stacking is faster on all up to so many weights
# times samples of a step. With some, it is slower on all if a step has more samples or most weights are in convolutions; for
# the other nets the processors differ, so the machine at hand is measured.
_STACKABLE_WORK = 3.5e7
_STACKABLE_IMAGES = 20
_RIVALS = ("sequential", "vectorized")
# The measurement: this many clients and local steps, and the median of this many turns.
_MEASURED_CLIENTS, _MEASURED_STEPS, _TURNS = 10, 3, 3
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
    return next((visits for round in rounds if (visits := drawn_visits(method, round))), [])


def choose_engine(
    method: FederatedAlgorithm,
    context: RunContext,
    asked: EngineName,
    tuned: str | None,
    rounds: range,
) -> Choice:
    """The engine for a value of ``model.engine``.

    Args:
        tuned: the engine that the run began with under ``auto`` or ``tune``; None: the run begins.
        rounds: the remaining rounds.
    """
    if asked not in ("auto", "tune"):
        return Choice(asked, "model.engine")
    if asked == "auto" and (choice := by_rule(method, context, range(1, rounds.stop))) is not None:
        return choice
    if tuned is not None and (asked == "tune" or tuned in _RIVALS):
        return Choice(tuned, "measured when the run began")
    measure = once_on_this_machine if asked == "auto" else by_measurement
    return measure(method, context, rounds.start, first_visits(method, rounds))


def start_engine(
    method: FederatedAlgorithm, context: RunContext, asked: str, choice: Choice, round: int, visits: Sequence[Visit]
) -> StartedEngine:
    """The engine of a choice, after a rehearsal of the method's hooks under it.

    Args:
        asked: the value of ``model.engine``; if it is ``auto``, ``sequential`` replaces an engine that cannot run the method,
            and ``captured`` if two visits end differently than under ``sequential``. The first process decides for all.
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
            _rehearsed(method, context, Choice("sequential", ""), round, visits)  # a mistake that no engine can run is said
            raise _cannot_run(method, choice, error) from error
        started, why = None, _cannot_be(method, choice.name, _error_text(error))
    if started is None:  # only here is the memory of the other engine free again, which the error holds
        started = _rehearsed(method, context, Choice("sequential", why), round, visits)
    if asked != "auto" or (agreed := Choice(*context.ranks.broadcast(started.choice))) == started.choice:
        return started
    try:
        return _rehearsed(method, context, agreed, round, visits)
    except Exception as error:
        raise _cannot_run(method, agreed, error) from error


def _cannot_be(method: FederatedAlgorithm, name: str, error: str) -> str:
    return f"{type(method).__name__} on {type(method.net).__name__} cannot be {name}: {error}"


def _cannot_run(method: FederatedAlgorithm, choice: Choice, error: Exception) -> ValueError:
    return ValueError(
        f"model.engine is {choice.name}, under which {type(method).__name__} cannot run ({_error_text(error)}): "
        "set model.engine to sequential"
    )


def _rehearsed(
    method: FederatedAlgorithm, context: RunContext, choice: Choice, round: int, visits: Sequence[Visit]
) -> StartedEngine:
    engine = {**ENGINES, "flower": FlowerEngine}[choice.name](method, context)
    # A second step of a stack reads the state that the first one left.
    rehearsal = engine.rehearse(round, visits[:2], max_steps=2 if choice.name == "vectorized" else 1)
    # Where gradients are a transform of torch's, those of a loss that depends on no weight are zeros, and a loss does not tell
    # which weights it depends on.
    sent = choice.name in ("vectorized", "captured") and any(visit.sends for visit in visits[:2])
    if sent and (engine.outside or not any(outcome.norm for outcome in rehearsal.outcomes())):
        SequentialEngine(method, context).rehearse(round, visits[:2], max_steps=1)
    return StartedEngine(engine, choice, rehearsal.state_bytes)


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


def by_rule(method: FederatedAlgorithm, context: RunContext, rounds: Iterable[int]) -> Choice | None:
    """The engine of ``auto`` for a method, with the reason; None if machines differ in which one is faster.

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
    if optimizer not in PROPORTIONAL and RoundHooks(method).changes_rates:
        refused = f"{optimizer.__name__} needs a program for every rate"
    elif _kinds_of_visits(method) > MOST_PROGRAMS:
        refused = f"visits are of more than {MOST_PROGRAMS} kinds"
    else:
        return Choice("captured", "on a GPU a visit is one program")
    by_size = _by_size(method, optimizer, rounds)
    return by_size and by_size._replace(why=f"{refused}, and {by_size.why}")


def _by_size(method: FederatedAlgorithm, optimizer: type[torch.optim.Optimizer], rounds: Iterable[int]) -> Choice | None:
    """The rule for a CPU, and for a GPU on which ``captured`` is impossible."""
    if optimizer not in ELEMENTWISE:
        return Choice("sequential", f"{optimizer.__name__} cannot be stacked")
    samples = _samples_of_a_step(method, first_visits(method, rounds))
    layers = [layer for layer in method.net.modules() if isinstance(layer, nn.modules.conv._ConvNd)]
    weights, in_layers = (sum(weight.numel() for weight in of.parameters()) for of in (method.net, nn.ModuleList(layers)))
    if layers and samples <= _STACKABLE_IMAGES and 2 * in_layers < weights:
        return None
    if layers:
        return Choice("sequential", f"{samples} samples a step, {in_layers:,} of {weights:,} weights in convolutions")
    work = samples * weights
    name = "vectorized" if work <= _STACKABLE_WORK else "sequential"
    return Choice(name, f"{work:,} weights times samples a step")


def _samples_of_a_step(method: FederatedAlgorithm, visits: Iterable[Visit]) -> int:
    return method.data.batch_size or max((method.data.num_train(visit.client) for visit in visits), default=1)


def _kinds_of_visits(method: FederatedAlgorithm) -> int:
    """The number of programs that visits need; counting ends beyond ``MOST_PROGRAMS``.

    One for every number of steps and of samples, and two if a client's facts or state can look different at its first visit;
    as many for each task of arriving classes.
    """
    data = method.data
    kinds: set[tuple[int, int]] = set()
    keeps_some = RoundHooks(method).first_visit_differs or any(map(method.is_personal, dict(method.net.named_parameters())))
    a_kind = 2 if keeps_some else 1
    if method.tasks.class_progress() is not None:
        a_kind *= joined(method).class_streams.num_tasks
    pads = can_pad(method, copied_net(method).train(), data.first_inputs(2))
    for client in range(data.num_clients):
        steps, last = method.num_local_steps(client), data.num_train(client)
        if data.batch_size is not None:  # short batches are padded, or have programs
            of_epoch = data.steps_per_epoch(client)
            last = last - (of_epoch - 1) * data.batch_size if steps >= of_epoch and not pads else data.batch_size
        kinds.add((steps, last))
        if a_kind * len(kinds) > MOST_PROGRAMS:
            break
    return a_kind * len(kinds)


def once_on_this_machine(method: FederatedAlgorithm, context: RunContext, round: int, visits: Sequence[Visit]) -> Choice:
    """The engine of ``auto`` where no rule holds: ``sequential`` or ``vectorized``, whichever is faster on this machine.

    The seconds are kept in the user's cache, so that the same command has the same engine from then on. The first process
    decides for all.
    """
    visits = visits[:_MEASURED_CLIENTS]
    measure = partial(_timing, _RIVALS, method, context, round, visits, 1 + _TURNS, _MEASURED_STEPS)
    timing = kept_timing(_description(method, context, visits), measure) if context.ranks.rank == 0 else None
    seconds, failures, not_kept = context.ranks.broadcast(timing)
    if failures:
        name, error = next(iter(failures.items()))
        return Choice("sequential", _cannot_be(method, name, error))
    when = f"at every start ({not_kept})" if not_kept else "once on this machine"
    measured = ", ".join(f"{name} {seconds[name]:.4g} s" for name in _RIVALS)
    return Choice(min(seconds, key=seconds.__getitem__), f"measured {when}: {measured}")


def _description(method: FederatedAlgorithm, context: RunContext, visits: Sequence[Visit]) -> str:
    """What the seconds of some visits depend on, besides the machine and the code."""
    parameters = list(method.net.parameters())
    optimizer = method.optimizer([weight for weight in parameters if weight.requires_grad])
    weights = [(tuple(weight.shape), weight.requires_grad) for weight in parameters]
    inputs = [(leaf.shape, leaf.dtype) for leaf in tree_leaves(method.data.first_inputs(1))]
    with context.precision():
        numbers = context.device.type, torch.is_autocast_enabled(context.device.type)
    kinds = (type(part) for part in (method, method.loss, method.tasks, optimizer))
    facts = _samples_of_a_step(method, visits), len(visits), *inputs
    return "\n".join(map(str, (method.net, weights, *kinds, *numbers, *facts)))


def by_measurement(method: FederatedAlgorithm, context: RunContext, round: int, visits: Sequence[Visit]) -> Choice:
    """The engine of ``tune``: the one with the fastest second run of a round. The first process decides for all.

    The measurement leaves nothing behind: no state, no step of the server.
    """
    seconds, failures, _ = context.ranks.broadcast(_timing(ENGINES, method, context, round, visits, 2))
    reasons = (
        f"{name} {seconds[name]:.4g} s a round" if name in seconds else f"{name} cannot run this: {failures[name]}"
        for name in ENGINES
    )
    return Choice(min(seconds, key=seconds.__getitem__, default="sequential"), ", ".join(reasons))


def _timing(
    names: Iterable[str],
    method: FederatedAlgorithm,
    context: RunContext,
    round: int,
    visits: Sequence[Visit],
    turns: int,
    max_steps: int | None = None,
) -> Timing:
    """Seconds of some visits under each of these engines: the median of all turns but the first."""
    seconds, failures = dict[str, float](), dict[str, str]()
    for name in names:
        try:
            engine = ENGINES[name](method, context)
            seconds[name] = timed(engine, round, visits, turns, max_steps)
        except Exception as error:  # an engine that cannot run this method is out, for any reason, which is shown
            failures[name] = _error_text(error)
    return Timing(seconds, failures)


def _error_text(error: Exception) -> str:
    """Kind and first line of an error."""
    if "vmap: It looks like you're either (1) calling .item()" in str(error):  # torch's paragraph names no cure
        return "the net or the method decides by the value of a tensor, of which stacked clients have several"
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
