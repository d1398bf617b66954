"""What a run with clients at their own sites refuses, because it would need their samples or their models at the server."""

from collections.abc import Iterator
from typing import Any

from lightning.pytorch import Trainer

from fl_lightning.algorithm import LocalTraining, checked_cohort
from fl_lightning.checks import counted
from fl_lightning.protocol.client_state import num_bytes
from fl_lightning.protocol.hooks import overridden
from fl_lightning.run.round_callback import round_callbacks


def refuse_what_stays(method: Any, trainer: Trainer) -> None:
    """Refuse what cannot cross from the sites to the server, before the first round.

    Args:
        method: a ``FederatedModule`` with its data.
    """
    if line := next(_obstacles(method, trainer), None):
        raise ValueError(f"model.engine is flower, and {line}")


def evaluation_messages(method: Any, trainer: Trainer, first: int) -> str:
    """A line on the messages of evaluations at the sites in a run's rounds from ``first`` on; empty if there are none.

    Args:
        method: a ``FederatedModule`` with its data.
        first: counted from 1.
    """
    asking = [callback for callback in round_callbacks(trainer) if callback.evaluates_at_sites]
    rounds = range(first, trainer.max_steps + 1)
    due = [round for round in rounds if any(callback.wants_models(round) for callback in asking)]
    if not due or not method.data.has_validation:
        return ""
    sizes = [len(checked_cohort(method, round)) for round in due]
    messages, size = sum(size * (size + 1) for size in sizes), num_bytes(dict(method.net.state_dict())) / 1e6
    return (
        f"Client forgetting at the sites: {messages} messages in {counted(len(due), 'round')}, K x (K + 1) for K clients, "
        f"with a model of {size:.3g} MB each"
    )


def _obstacles(method: Any, trainer: Trainer) -> Iterator[str]:
    name, data, evaluates = type(method).__name__, method.data, trainer.limit_val_batches != 0
    if method.needs.data.public_samples or data.public_size > 0:
        yield f"{name} with data.public_size {data.public_size} needs public samples at every site: use a method without them"
    if method.needs.data.counts_of_cohort:
        yield f"{name} weighs a client by the label counts of others, which stay at their sites: use another method"
    if overridden(method, LocalTraining.probe):
        yield f"{name} asks clients' models for values that are not sent: use a method without a probe"
    if data.tasks is not None:
        yield "data.tasks has a clock for all clients, which sites do not follow: set it to null"
    if method.privacy is not None:
        yield "model.privacy draws its noise from the seed, which all sites have: set it to null"
    if method.initial_weights is not None and method.needs.initial_model:
        yield f"{name} uses its initial weights at the sites, which do not have model.initial_weights: leave it out"
    if trainer.precision != "32-true":
        yield f"trainer.precision is {trainer.precision}, which sites do not follow: set it to 32-true"
    if trainer.world_size > 1:
        yield f"the trainer has {trainer.world_size} processes, but sites connect to one: set trainer.devices to 1"
    if evaluates and method.keeps_models:
        yield f"the personal models of {name} stay at the sites, where nothing is evaluated: set trainer.limit_val_batches to 0"
    for callback in round_callbacks(trainer):
        asks = any(map(callback.wants_models, range(1, trainer.max_steps + 1)))
        kind, key = type(callback).__name__, getattr(callback, "key", None)
        key = kind if key is None else f"{kind} of {key}" if key == "trainer.callbacks" else key
        if callback.reads_clients(method):
            yield f"{key} reads clients' samples or label counts, which stay at the sites: {callback.cure_at_sites}"
        if asks and method.keeps_models:
            yield f"{key} asks for the personal models of {name}, which stay at the sites: set every and clients_every to 0"
