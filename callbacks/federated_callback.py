"""FederatedCallback: a Lightning callback that also sees the inside of a round."""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from matplotlib.figure import Figure
from torch import Tensor, nn

from fl_lightning.callbacks.loggers import write_figure
from fl_lightning.checks import check_each, check_whole
from fl_lightning.module import FederatedModule
from fl_lightning.run.record_logger import RecordLogger
from fl_lightning.run.round_callback import RoundCallback
from fl_lightning.state.atomic_files import atomic_write


class FederatedCallback(RoundCallback):
    """A callback with hooks at the seams of a round, in rounds of choice. It reads, and never changes weights or losses.

    Args:
        every: do the costly part in rounds that are a multiple of this; 0 for none, not in the last round either.
        rounds: do it in these rounds too; with ``every`` 0 in exactly these.

    Raises:
        ValueError: if ``every`` or a round is negative.
    """

    key: str = "trainer.callbacks"
    """Where the command line takes its arguments, as errors name them."""
    needs_classes: bool = False
    """Whether it measures only where each sample has one class (:class:`fl_lightning.objectives.SingleLabel`)."""
    kept: Sequence[str] = ()
    """Attributes that a checkpoint has, of numbers, texts, tensors and plain containers; in it without a leading underscore.

    A new run begins with their first values, also where another trainer had the callback before.
    """

    _first_state: dict[str, Any] | None = None

    def __init__(self, every: int = 100, rounds: Sequence[int] | None = None) -> None:
        super().__init__()
        check_whole(f"{self.key}.every", every, at_least=0, hint="rounds, 0 is never")
        if isinstance(rounds, int):
            raise ValueError(f"{self.key}.rounds is {rounds}, must be a list: give [{rounds}]")
        check_each(f"{self.key}.rounds", rounds or (), at_least=0)
        self.every, self.rounds = every, frozenset(rounds or ())

    def setup(self, trainer: Trainer, module: FederatedModule, stage: str) -> None:
        """Forget an earlier run; Lightning loads the state of a checkpoint later."""
        if self._first_state is None:
            self._first_state = self.state_dict()
        elif stage == "fit" and trainer.global_step == 0:
            self.load_state_dict(self._first_state)

    def due(self, round: int) -> bool:
        """Whether this round is one of the chosen ones."""
        return round in self.rounds or (self.every > 0 and round % self.every == 0)

    def wants_models(self, round: int) -> bool:
        """Whether ``on_cohort_fit_end`` is to be called in this round: in the chosen ones, if the callback has that hook."""
        return super().wants_models(round) and self.due(round)

    @property
    def chooses(self) -> bool:
        """Whether any round may be one of the chosen ones."""
        return self.every > 0 or bool(self.rounds)

    def due_by(self, round: int) -> bool:
        """Whether any of the chosen rounds is this one or an earlier one."""
        return min([*self.rounds, *filter(None, [self.every])], default=round + 1) <= round

    def due_or_last(self, trainer: Trainer, round: int) -> bool:
        """Whether this round is a chosen one, or already known to be the last of a run in which some are chosen."""
        return self.due(round) or (self.chooses and (trainer.should_stop or round == trainer.max_steps))

    def last_is_missing(self, trainer: Trainer) -> bool:
        """At the end of a run, whatever ended it: whether some rounds are chosen, and its last one is not."""
        return self.chooses and not self.due(trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        return {name.removeprefix("_"): deepcopy(getattr(self, name)) for name in self.kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name in self.kept:
            setattr(self, name, deepcopy(state_dict[name.removeprefix("_")]))

    def on_load_checkpoint(self, trainer: Trainer, module: FederatedModule, checkpoint: dict[str, Any]) -> None:
        """Before ``load_state_dict``, which needs all of the state that ``state_dict`` writes.

        Raises:
            ValueError: naming what is missing, if the checkpoint has only a part of it.
        """
        saved = checkpoint["callbacks"].get(self.state_key)
        if saved and (missing := sorted(self.state_dict().keys() - saved.keys())):
            raise ValueError(
                f"ckpt_path lacks {', '.join(missing)} of the callback {type(self).__name__}, as where another version wrote "
                "it: resume with that version, or begin a new run from its weights with model.initial_weights"
            )


def folder_of(trainer: Trainer, module: FederatedModule) -> Path | None:
    """The folder of a run, which may be that of its logger; None if it has none. Every process must ask."""
    log_dir = trainer.log_dir if trainer.loggers else None  # the first process tells the others
    if trainer.loggers and isinstance(trainer.loggers[0], RecordLogger):  # of others Lightning takes the folder above
        log_dir = trainer.loggers[0].log_dir
    folder = module.run_folder or log_dir
    return None if folder is None else Path(folder)


def write_net(trainer: Trainer, module: FederatedModule, net: nn.Module, name: str) -> None:
    """Write a net's state dict to a file in the folder of a run, if it has one; ``model.initial_weights`` takes the file."""
    folder = folder_of(trainer, module)
    if folder is not None and trainer.is_global_zero:
        with atomic_write(folder / name) as path:
            torch.save({key: tensor.cpu() for key, tensor in net.state_dict().items()}, path)


def log_figure(trainer: Trainer, name: str, figure: Figure, round: int) -> None:
    """Give a figure to every logger that takes figures, once over all processes."""
    if trainer.is_global_zero:
        for logger in trainer.loggers:
            write_figure(logger, name, figure, round)


def log_distribution(trainer: Trainer, name: str, shares: Tensor, round: int) -> None:
    """Count values in [0, 1], one a client, in steps of 1/200, for TensorBoard's histograms and for reports."""
    bins = torch.linspace(0, 1, 201)
    for logger in trainer.loggers if trainer.is_global_zero else ():
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.add_histogram(name, shares, round, bins=bins)
        elif isinstance(logger, RecordLogger):
            logger.log_distribution(name, shares, bins, round)


def log_tensors(trainer: Trainer, tensors: dict[str, Tensor], round: int) -> None:
    """Record the numbers behind a figure, in float32, from which reports and ``fl-lightning figures`` draw it again."""
    for logger in trainer.loggers:
        if isinstance(logger, RecordLogger):
            logger.log_tensors(tensors, round)
