"""What a run with clients at their own sites refuses, because it would need their samples or their models at the server."""

from collections.abc import Iterator
from typing import Any

from lightning.pytorch import Trainer

from fl_lightning.algorithm import LocalTraining
from fl_lightning.protocol.hooks import overridden
from fl_lightning.run.round_callback import round_callbacks


def refuse_what_stays(method: Any, trainer: Trainer) -> None:
    """Refuse what cannot cross from the sites to the server, before the first round.

    Args:
        method: a ``FederatedModule`` with its data.
        trainer: trainer of the fit.

    Raises:
        ValueError: naming the key, its value and what to do.
    """
    if line := next(_obstacles(method, trainer), None):
        raise ValueError(f"model.engine is flower, and {line}")


def _obstacles(method: Any, trainer: Trainer) -> Iterator[str]:
    name, data, evaluates = type(method).__name__, method.data, trainer.limit_val_batches != 0
    if method.needs.data.public_samples or data.public_size > 0:
        yield f"{name} with data.public_size {data.public_size} needs public samples at every site: use a method without"
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
        yield f"the trainer has {trainer.world_size} processes, of which sites know one: set trainer.devices to 1"
    if evaluates and data.has_validation:
        yield f"data.val_fraction is {data.val_fraction}, but validation parts stay at the sites: set it to 0"
    if evaluates and method.keeps_models:
        yield f"the personal models of {name} stay at the sites, where nothing is evaluated: set trainer.limit_val_batches to 0"
    for callback in round_callbacks(trainer):
        rounds = range(1, trainer.max_steps + 1)
        if callback.reads_clients or any(map(callback.wants_models, rounds)):
            key = getattr(callback, "key", type(callback).__name__)
            yield f"{key} reads clients' models or samples, which stay at the sites: set every and clients_every to 0"
