"""InlineFigures: the pictures of callbacks below the cell of a notebook that trains."""

from argparse import Namespace
from collections.abc import Collection
from io import BytesIO
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only
from matplotlib.figure import Figure

from fl_lightning.checks.extras import needing_extra


class InlineFigures(Logger):
    """A logger that shows the figures of callbacks in a notebook, as they are drawn, and writes nothing.

    ``pl.Trainer(logger=[TensorBoardLogger("runs"), InlineFigures()])`` keeps everything in a folder as well.

    Args:
        tags: of the figures to show, such as ``forgetting/clients``; None for all.
        dpi: dots an inch.

    Raises:
        ModuleNotFoundError: without IPython, which every notebook has.
    """

    def __init__(self, tags: Collection[str] | None = None, dpi: int = 60) -> None:
        super().__init__()
        with needing_extra("notebook", "InlineFigures"):
            from IPython.display import Image, display
        self._tags, self._dpi = tags, dpi
        self._show = lambda png: display(Image(data=png))

    @property
    def name(self) -> str:
        return "inline"

    @property
    def version(self) -> int:
        return 0

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Shows nothing."""

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Shows nothing."""

    @rank_zero_only
    def log_figure(self, tag: str, figure: Figure, round: int) -> None:
        """Show a figure of a round, if its tag is one of the chosen ones."""
        if self._tags is None or tag in self._tags:
            drawn = BytesIO()
            figure.savefig(drawn, format="png", dpi=self._dpi)
            self._show(drawn.getvalue())
