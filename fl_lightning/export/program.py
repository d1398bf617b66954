"""A trained net with the preparation of its inputs, for use without this library."""

import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor, nn

from fl_lightning.checks import first_line
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.augment import Augmentation
from fl_lightning.data.scaling import InputRecord, normalise, recorded_inputs
from fl_lightning.module import FederatedModule, restore_weights
from fl_lightning.run.saved_run import build_run, run_config
from fl_lightning.state.atomic_files import atomic_write
from fl_lightning.state.checkpoint import read_checkpoint


class Classifier(nn.Module):
    """Class probabilities from the net of a run, for inputs as the dataset stores them.

    Args:
        net: takes prepared inputs and gives logits (n, classes).
        changes: ``data.augment`` of the run, here in their form for evaluation.
        inputs: the preparation of the inputs in training.
    """

    def __init__(self, net: nn.Module, changes: Sequence[Augmentation], inputs: InputRecord) -> None:
        super().__init__()
        self.multiply: Tensor | None
        self.add: Tensor | None
        self.net, self.changes, self.inputs = net, tuple(changes), inputs
        self.dtype = next(net.parameters()).dtype
        statistics = inputs.statistics
        scale = (None, None) if statistics is None else statistics.scale(inputs.examples(1))
        for name, part in zip(("multiply", "add"), scale, strict=True):
            self.register_buffer(name, None if part is None else part.to(self.dtype))

    def forward(self, inputs: Tensor) -> Tensor:
        """Probabilities (n, classes).

        Args:
            inputs: (n, ...) as stored: images uint8 (n, channels, height, width), else floats or whole numbers.
        """
        for change in self.changes:
            inputs = change.evaluate(inputs)
        scale = None if self.multiply is None or self.add is None else (self.multiply, self.add)
        return self.net(normalise(inputs, scale, self.dtype)).softmax(dim=-1)


def load_classifier(ckpt_path: str | Path) -> Classifier:
    """The net of a checkpoint with the preparation of its inputs, in evaluation mode on the CPU.

    Args:
        ckpt_path: a checkpoint of a run, in the run's folder or with a copy of its ``config.yaml`` next to it.

    Raises:
        FileNotFoundError: if there is no checkpoint or no config.
        ValueError: if the checkpoint cannot be read, or its clients keep separate models, or its net does not
            tell classes apart.
    """
    checkpoint = read_checkpoint(ckpt_path)
    run = build_run(run_config(Path(ckpt_path))[1], FederatedModule, FederatedDataModule)
    restore_weights(run.model, checkpoint)
    inputs = recorded_inputs(checkpoint)
    if inputs.outputs is not None:
        raise ValueError(
            f"ckpt_path is {ckpt_path}, whose net does not tell classes apart: write its weights with --weights merged, or use "
            "FederatedModule.load_from_checkpoint"
        )
    return Classifier(run.model.net, run.data.augment, inputs).eval()


@torch.no_grad()
def export(classifier: Classifier, path: Path) -> None:
    """Write a ``torch.export`` program of any number of inputs, with ``classes.json`` as an extra file.

    The program is first read back and must give the same results as the classifier.

    Raises:
        OSError: if the file cannot be written.
        ValueError: if the net cannot be exported, or the program gives something else.
    """
    examples, net = _examples(classifier.inputs), type(classifier.net).__name__
    try:
        program = torch.export.export(classifier, (examples,), dynamic_shapes=({0: torch.export.Dim("n", min=1)},))
    except Exception as error:  # torch raises many kinds of errors for code that it cannot trace
        reason = first_line(error)
        raise ValueError(f"model.net {net} cannot be exported by torch.export: {reason}") from error
    content = BytesIO()  # torch aborts the process where it writes to a disk that is full
    torch.export.save(program, content, extra_files={"classes.json": json.dumps(classifier.inputs.classes)})
    content.seek(0)
    written = torch.export.load(content).module()
    for inputs in (examples[:1], examples):
        if not torch.allclose(written(inputs), classifier(inputs), atol=1e-5):
            raise ValueError(f"model.net {net} gives other outputs once exported: use load_classifier and the checkpoint")
    with atomic_write(path) as temporary:
        temporary.write_bytes(content.getbuffer())


def _examples(inputs: InputRecord) -> Tensor:
    """Two random inputs as they are stored."""
    generator, zeros = torch.Generator().manual_seed(0), inputs.examples(2)
    if not isinstance(zeros, Tensor):
        raise ValueError("the net of ckpt_path takes several inputs, but a program takes one: export with --weights merged")
    if zeros.is_floating_point():
        return torch.randn(zeros.shape, generator=generator).to(zeros.dtype)
    return torch.randint(256 if zeros.dtype == torch.uint8 else 2, zeros.shape, generator=generator, dtype=zeros.dtype)
