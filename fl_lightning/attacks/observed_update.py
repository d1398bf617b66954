"""A client's local step as the server sees it, taken by the run's method on the run's data."""

import copy
import io
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn

from fl_lightning.checks import check_each, check_range
from fl_lightning.data import FederatedDataModule
from fl_lightning.engines.sequential import SequentialEngine
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import State, Visit
from fl_lightning.run.round_callback import RoundCallback
from fl_lightning.state.checkpoint import read_checkpoint

_ROUNDING = 1e-3  # of a pixel value in [0, 1], from normalising it and back in half precision


class PixelRange(NamedTuple):
    """The net's inputs for pixels of 0 and of 1, each (1, channels, height, width)."""

    low: Tensor
    high: Tensor

    def pixels(self, inputs: Tensor) -> Tensor:
        """Inputs of the net (n, channels, height, width) as pixel values."""
        return (inputs - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Observation:
    """One client's step as the server sees it, and the truth, by which attacks are scored."""

    client: int
    gradient: State  # by name of the weight, as computed from the update
    label_counts: Tensor  # (C,), of the client; its loss can depend on them
    inputs: Tensor  # (n, channels, height, width), the true ones, as the net takes them
    targets: Tensor  # (n,)


@dataclass(frozen=True)
class ObservedRound:
    """The updates of some clients that all start from the same weights."""

    round: int
    net: nn.Module  # with the weights that the clients received
    pixel_range: PixelRange
    observations: list[Observation]
    silent: list[int]  # clients with an update of 0, as under TCE with images of a single class: nothing to attack


def observe(
    method: FederatedModule,
    data: FederatedDataModule,
    ckpt_path: Path,
    clients: Sequence[int],
    num_images: int,
    **trainer_settings: object,
) -> ObservedRound:
    """Let clients take one local step each, in the round after a checkpoint's, and observe their updates.

    A client's step is on the first ``num_images`` samples of its next visit, augmented as in the run. Batches have this size
    under DP-SGD with accounting too, where the run would draw it.

    Args:
        method, data: those of the run, with one local step, and ``cohorts`` null.
        clients: indices of the clients.
        num_images: n, images of a client.
        trainer_settings: ``accelerator`` and ``precision``.

    Raises:
        ValueError: if a client or its images cannot be attacked.
    """
    data.setup()
    _check(data, clients, num_images)
    step = read_checkpoint(ckpt_path)["global_step"]
    watch = _Watch(clients, num_images)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    with TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        trainer = Trainer(
            max_steps=step + 1,
            max_epochs=-1,
            devices=1,
            limit_val_batches=0,
            num_sanity_val_steps=0,
            callbacks=[watch],
            default_root_dir=folder,
            **{**quiet, **trainer_settings},
        )
        trainer.fit(method, datamodule=data, ckpt_path=ckpt_path)
    return watch.seen


class _Watch(RoundCallback):
    """Observes the clients' steps once the engine and the clients' states are ready, and ends the fit before its round."""

    only_looks = True
    """The attack adds no round to the run, and can have other settings."""

    def __init__(self, clients: Sequence[int], num_images: int) -> None:
        self.clients, self.num_images = clients, num_images

    def on_train_batch_start(self, trainer: Trainer, module: FederatedModule, round: int, batch_idx: int) -> None:
        pixel_range = _pixel_range(module.data)
        # Batches of known size, under DP-SGD with accounting too.
        context = module.engine.context
        protection = replace(context.protection, poisson_batches=False)
        engine = SequentialEngine(module, replace(context, protection=protection, batch_size=self.num_images))
        observations = [_observe_client(engine, round, client, pixel_range) for client in self.clients]
        attackable = [one for one in observations if any(part.any() for part in one.gradient.values())]
        silent = sorted(set(self.clients) - {one.client for one in attackable})
        if not attackable:
            raise ValueError(
                f"clients is {list(self.clients)}, all with an update of 0, as under TCE with images of a single class: there "
                "is nothing to attack, choose other clients"
            )
        self.seen = ObservedRound(round, copy.deepcopy(module.net), pixel_range, attackable, silent)
        trainer.should_stop = True
        raise StopIteration  # as Lightning does if a module's hook skips a batch


def _observe_client(engine: SequentialEngine, round: int, index: int, pixel_range: PixelRange) -> Observation:
    client, _ = engine.fit(engine.request(round, Visit(index), max_steps=1))
    change = engine.method.observed_change(engine.upload(client), client)
    if not change:
        raise ValueError("model of the run sends no weight that is trained: there is nothing to attack")
    if not all(part.isfinite().all() for part in change.values()):
        raise ValueError(f"the update of client {index} is not finite: choose an earlier checkpoint")
    batch = client.labeled(next(engine.samples.batches(index, client.round, 1)))
    pixels = pixel_range.pixels(batch.inputs)
    low, high = pixels.min().item(), pixels.max().item()
    if low < -_ROUNDING or high > 1 + _ROUNDING:
        raise ValueError(
            f"client {index} has an image with values from {low:.4g} to {high:.4g}, must lie in [0, 1]: "
            "divide the images of data.source by their largest value"
        )
    decay = _weight_decay(engine.optimizer)
    gradient = {name: part / client.learning_rate - decay * client.received_state[name] for name, part in change.items()}
    return Observation(index, gradient, client.label_counts, batch.inputs, batch.targets)


def _weight_decay(optimizer: torch.optim.Optimizer) -> float:
    """The weight decay of a step, which the server can subtract.

    Raises:
        ValueError: if the first step is not along the gradient.
    """
    (group,) = optimizer.param_groups
    if type(optimizer) is not torch.optim.SGD or group["nesterov"] or group["maximize"]:
        raise ValueError(
            f"model.optimizer of the run is {type(optimizer).__name__} with its settings, but the attack reads gradients off "
            "steps of SGD without nesterov and maximize: attack a run with that"
        )
    return group["weight_decay"]


def _pixel_range(data: FederatedDataModule) -> PixelRange:
    white = 255 if data.train_set.inputs.dtype == torch.uint8 else 1
    blank = torch.zeros(1, *data.input_shape, device=data.train_set.device)
    return PixelRange(data.preparation.normalise(blank), data.preparation.normalise(blank + white))


def _check(data: FederatedDataModule, clients: Sequence[int], num_images: int) -> None:
    if len(data.input_shape) != 3 or min(data.input_shape[1:]) < 2:
        raise ValueError(
            f"data.source of the run gives samples of shape {data.input_shape}, but the attack is on images "
            "(channels, height, width): choose another run"
        )
    if data.samples.inputs_are_whole:
        raise ValueError(
            "data.source of the run gives whole numbers that are not images, of which there are no gradients, but the attack "
            "follows them: choose another run"
        )
    if not data.objective.tells_classes:
        raise ValueError(
            f"data.source of the run has {data.objective!r}, but the attack recovers images with one class each: choose "
            "another run"
        )
    check_range("num_images", num_images, at_least=1)
    if not clients:
        raise ValueError("clients is empty: name at least one client, such as [0]")
    check_each("clients", clients, at_least=0, at_most=data.num_clients - 1)
    for client in clients:
        if num_images > data.num_train(client):
            raise ValueError(
                f"num_images is {num_images}, but client {client} has {data.num_train(client)} training samples: lower it"
            )
