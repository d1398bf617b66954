"""Which engine runs the clients: the one that was asked for, a fixed rule, or what measures fastest."""

import time
from typing import TYPE_CHECKING

import torch
from torch import nn

from fl_lightning.clients.captured import CapturedEngine
from fl_lightning.clients.engine import Engine
from fl_lightning.clients.sequential import SequentialEngine
from fl_lightning.clients.vectorized import ELEMENTWISE, VectorizedEngine

if TYPE_CHECKING:
    from fl_lightning.module import FederatedModule

ENGINES: dict[str, type[Engine]] = {
    "sequential": SequentialEngine,
    "vectorized": VectorizedEngine,
    "captured": CapturedEngine,
}
"""By the value of ``model.engine``; ``auto`` and ``tune`` choose one of these."""

# Weights times samples of a local step up to which stacking was measured, and won: benchmarks/RESULTS.md.
_STACKABLE_WORK = 3.5e7
_CLIENT_HOOKS = ("client_start", "client_loss", "client_penalty", "client_gradients", "client_step", "client_result")
_CLIENT_HOOKS += ("kept_state", "probe")


def start_engine(method: "FederatedModule") -> Engine:
    """The engine that ``model.engine`` means, after a rehearsal of what the method's hooks do under it; says which and why.

    Raises:
        ValueError: if the method cannot run under the engine that was asked for.
        MemoryError, OSError: if there is no room for what the clients keep.
    """
    name, why = _choose(method)
    visits = method.cohort(method.first_round)
    try:
        engine = ENGINES[name](method)
        state_bytes = engine.rehearse(method.first_round, visits[:2], max_steps=1) if _needs_rehearsal(method, name) else 0
    except Exception as error:
        if name == "sequential":
            raise
        if method.engine_name != "auto":
            raise ValueError(
                f"model.engine is {name}, under which {type(method).__name__} cannot run ({_error_text(error)}): "
                "set model.engine to sequential"
            ) from error
        name, why = "sequential", f"it cannot be {name}: {_error_text(error)}"
        engine = ENGINES[name](method)
        state_bytes = engine.rehearse(method.first_round, visits[:2], max_steps=1)
    method.print(f"Engine: {name} ({why})")
    if state_bytes > 0:
        touched = min(method.data.num_clients, method.trainer.max_steps * len(visits))
        room = method.client_states.require_room(touched, state_bytes)
        method.print(f"{room}, more with each task" if method.learns_tasks else room)
    return engine


def _choose(method: "FederatedModule") -> tuple[str, str]:
    if method.engine_name == "auto":
        return by_rule(method)
    if method.engine_name != "tune":
        return method.engine_name, "model.engine"
    if method.tuned_engine is not None:
        return method.tuned_engine, "measured when the run began"
    method.tuned_engine, why = by_measurement(method)
    return method.tuned_engine, why


def _needs_rehearsal(method: "FederatedModule", name: str) -> bool:
    """Whether something can go wrong, or be kept, that the engine does not know beforehand."""
    keeps = method.keeps_weights or method.keeps_moments or len(method.personal) > 0
    return name != "sequential" or keeps or any(map(method.overrides, _CLIENT_HOOKS))


def by_rule(method: "FederatedModule") -> tuple[str, str]:
    """What ``auto`` means for a method, and why: the same answer for the same command on the same kind of device."""
    if method.privacy is not None and method.privacy.clips_samples:
        return "sequential", "DP-SGD clips with hooks in the layers"
    if method.keeps_moments:
        return "sequential", "clients keep their optimizer's state"
    layers = [layer for layer in method.net.modules() if isinstance(layer, nn.modules.conv._ConvNd)]
    if layers:
        return "sequential", f"the net has {len(layers)} convolutions"
    parameters = [weight for weight in method.net.parameters() if weight.requires_grad]
    if type(method.local_optimizer(parameters)) not in ELEMENTWISE:
        return "sequential", f"{type(method.local_optimizer(parameters)).__name__} cannot be stacked"
    shards = (method.data.num_train(visit.client) for visit in method.cohort(1))
    samples = method.data.batch_size or max(shards, default=1)  # nobody comes where all tasks are learned
    work = samples * sum(weight.numel() for weight in method.net.parameters())
    name = "vectorized" if work <= _STACKABLE_WORK else "sequential"
    return name, f"{work:,} weights times samples a step"


def by_measurement(method: "FederatedModule") -> tuple[str, str]:
    """What ``tune`` means: the engine whose second try at a round is the fastest. The first process decides for all.

    Nothing that is measured is kept: no state, no step of the server.
    """
    seconds = {}
    for name in ENGINES:
        try:
            seconds[name] = _seconds(ENGINES[name](method), method.first_round)
        except Exception as error:  # an engine that cannot run this method is out, whatever the reason, which is shown
            seconds[name] = float("inf")
            method.print(f"Engine {name} cannot run this: {_error_text(error)}")
    seconds = method.trainer.strategy.broadcast(seconds)
    name = min(seconds, key=seconds.__getitem__)
    return name, ", ".join(f"{name} {value:.4g} s a round" for name, value in seconds.items())


def _seconds(engine: Engine, round: int) -> float:
    visits = engine.method.cohort(round)
    for _ in range(2):  # the first one makes room and compiles
        start = time.perf_counter()
        engine.rehearse(round, visits)
        if engine.method.device.type == "cuda":
            torch.cuda.synchronize(engine.method.device)
        seconds = time.perf_counter() - start
    return seconds


def _error_text(error: Exception) -> str:
    """Kind and first line of an error."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
