"""How a logger of each class takes figures.

A logger of another class takes figures if it has a method ``log_figure(tag, figure, round)``, as
:class:`~fl_lightning.callbacks.InlineFigures` has. One without gets only scalars and hyper-parameters, with a warning.
"""

import re
import warnings
from functools import singledispatch
from io import BytesIO
from pathlib import Path
from weakref import WeakSet

from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from matplotlib.figure import Figure
from PIL import Image
from torch.utils.tensorboard import summary
from torch.utils.tensorboard._utils import figure_to_image

from fl_lightning.callbacks.tags import metadata
from fl_lightning.run.record_logger import RecordLogger
from fl_lightning.state.atomic_files import atomic_write

_DPI = 150  # of figures as files
_warned: WeakSet[Logger] = WeakSet()


@singledispatch
def write_figure(logger: Logger, tag: str, figure: Figure, round: int) -> None:
    """Give a logger a figure; warn at the first one that a logger does not take, unless it records the numbers behind it."""
    if (log_figure := getattr(logger, "log_figure", None)) is not None:  # a user's logger, or Lightning's dummy
        log_figure(tag, figure, round)
    elif not isinstance(logger, RecordLogger) and logger not in _warned:
        _warned.add(logger)
        warnings.warn(
            f"trainer.logger has {type(logger).__name__}, which takes no figures: it gets only scalars and hyper-parameters",
            stacklevel=2,
        )


@write_figure.register
def _(logger: TensorBoardLogger, tag: str, figure: Figure, round: int) -> None:
    # Before those of class_accuracy, as TensorBoard sorts groups by name.
    shown = re.sub("^forgetting/", "Overview/forgetting_", tag)
    image = summary.image(shown, figure_to_image(figure), dataformats="CHW")
    image.value[0].metadata.MergeFrom(metadata(tag, "images"))
    logger.experiment._get_file_writer().add_summary(image, round)


@write_figure.register
def _(logger: CSVLogger, tag: str, figure: Figure, round: int) -> None:
    """A file next to ``metrics.csv``."""
    with atomic_write(Path(logger.log_dir) / "figures" / f"{file_name(tag, round)}.png") as path:
        figure.savefig(path, format="png", dpi=_DPI)


@write_figure.register
def _(logger: WandbLogger, tag: str, figure: Figure, round: int) -> None:
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=_DPI)
    logger.log_image(tag, [Image.open(drawn)], step=round)


@write_figure.register
def _(logger: MLFlowLogger, tag: str, figure: Figure, round: int) -> None:
    """An artifact of the run."""
    logger.experiment.log_figure(logger.run_id, figure, f"figures/{file_name(tag, round)}.png")


def file_name(tag: str, round: int) -> str:
    """``forgetting_clients_round_100``: of a figure as a file, without an ending."""
    return f"{tag.replace('/', '_')}_round_{round}"
