"""Training samples that the server has and no client."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from fl_lightning.data.loaders import EvaluationInputs
from fl_lightning.data.prepared_samples import PreparedSamples
from fl_lightning.protocol import Batch


@dataclass(frozen=True)
class PublicData:
    """The server's samples, as evaluation sees them.

    Args:
        samples: of the dataset.
        indices: which training samples are the server's, (``data.public_size``,).
    """

    samples: PreparedSamples
    indices: Tensor

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def targets(self) -> Tensor:
        """(``data.public_size``,) classes."""
        return self.samples.targets("train", self.indices)

    def inputs(self) -> EvaluationInputs:
        """All inputs."""
        return self.samples.inputs("train", self.indices)

    def batches(self, positions: Sequence[Tensor]) -> Iterator[Batch]:
        """A batch for each tensor of positions among these samples."""
        return self.samples.batches("train", [self.indices[part] for part in positions])
