"""DescribedTensorBoardLogger: what matters comes first, and every tag says what it is."""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.tensorboard.summary import scalar

from fl_lightning.callbacks.tags import metadata, overview_tag


class DescribedTensorBoardLogger(TensorBoardLogger):
    """TensorBoard's logger of the command line.

    Accuracy and forgetting are logged a second time in the group ``Overview``, which TensorBoard shows first. The first point
    of a tag carries its description, which TensorBoard shows at the chart.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._described: set[str] = set()

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Write scalars, each with ``step``, the round."""
        first = {new: value for tag, value in metrics.items() if (new := overview_tag(tag)) is not None}
        for tag, value in {**first, **metrics}.items():
            self._write(tag, float(value), step)

    def _write(self, tag: str, value: float, step: int | None) -> None:
        summary = scalar(tag, value)
        if tag not in self._described:
            summary.value[0].metadata.MergeFrom(metadata(tag, "scalars"))
            self._described.add(tag)
        self.experiment._get_file_writer().add_summary(summary, step)
