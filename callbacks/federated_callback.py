"""FederatedCallback: a Lightning callback that also sees the inside of a round."""

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from matplotlib.figure import Figure
from torch import Tensor
from torch.utils.tensorboard import summary
from torch.utils.tensorboard._utils import figure_to_image

from fl_lightning.callbacks.inline_figures import InlineFigures
from fl_lightning.callbacks.tags import metadata
from fl_lightning.checks import check_each, check_range
from fl_lightning.module import FederatedModule
from fl_lightning.training.round_callback import RoundCallback


class FederatedCallback(RoundCallback):
    """A callback with hooks at the seams of a round, in rounds of choice. It reads, and never changes weights or losses.

    Args:
        every: do the costly part in rounds that are a multiple of this; 0 for never.
        rounds: do it in exactly these rounds instead.

    Raises:
        ValueError: if ``every`` or a round is negative.
    """

    key: str = "trainer.callbacks"
    """Where the command line takes its arguments, as errors name them."""

    def __init__(self, every: int = 100, rounds: Sequence[int] | None = None) -> None:
        super().__init__()
        check_range(f"{self.key}.every", every, at_least=0)
        check_each(f"{self.key}.rounds", rounds or (), at_least=0)
        self.every, self.rounds = every, None if rounds is None else frozenset(rounds)

    def due(self, round: int) -> bool:
        """Whether this round is one of the chosen ones."""
        if self.rounds is not None:
            return round in self.rounds
        return self.every > 0 and round % self.every == 0

    def on_load_checkpoint(self, trainer: Trainer, module: FederatedModule, checkpoint: dict[str, Any]) -> None:
        """Before ``load_state_dict``, which needs all of the state that ``state_dict`` writes.

        Raises:
            ValueError: naming what is missing, if the checkpoint has only a part of it.
        """
        saved = checkpoint["callbacks"].get(self.state_key)
        if saved and (missing := sorted(self.state_dict().keys() - saved.keys())):
            raise ValueError(
                f"ckpt_path was written by an earlier version: its state of the callback {type(self).__name__} lacks "
                f"{', '.join(missing)}: go on with that version, or begin a new run from its weights with model.initial_weights"
            )


def log_figure(trainer: Trainer, name: str, figure: Figure, round: int) -> None:
    """Write a figure, with what its name means, to every TensorBoard logger, once over all processes; show it in a notebook."""
    for logger in trainer.loggers:
        if isinstance(logger, InlineFigures):
            logger.log_figure(name, figure)
        elif isinstance(logger, TensorBoardLogger) and trainer.is_global_zero:
            image = summary.image(name, figure_to_image(figure), dataformats="CHW")
            image.value[0].metadata.MergeFrom(metadata(name, "images"))
            logger.experiment._get_file_writer().add_summary(image, round)


def log_distribution(trainer: Trainer, name: str, shares: Tensor, round: int) -> None:
    """Write values in [0, 1], one a client, as a histogram in steps of 1/200 to every TensorBoard logger."""
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger) and trainer.is_global_zero:
            logger.experiment.add_histogram(name, shares, round, bins=torch.linspace(0, 1, 201))


def log_tensors(trainer: Trainer, tensors: dict[str, Tensor], round: int) -> None:
    """Write the numbers behind a figure, in float32, to every TensorBoard logger; TensorBoard shows none, reports read them."""
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger) and trainer.is_global_zero:
            for name, tensor in tensors.items():
                logger.experiment.add_tensor(name, tensor.detach().cpu().float(), round)
