"""``fl-lightning export``: a trained net with all that it needs, to be used without this library."""

import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import torch
from jsonargparse import ArgumentParser
from torch import Tensor, nn

from fl_lightning.atomic import atomic_write
from fl_lightning.checkpoint import read_checkpoint
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.augment import Augmentation
from fl_lightning.data.scaling import InputRecord, normalise, recorded_inputs
from fl_lightning.error_line import parse
from fl_lightning.module import FederatedModule
from fl_lightning.plain_help import PlainFormatter
from fl_lightning.saved_run import build_run, run_config
from fl_lightning.versions import newest_checkpoint

_RUNS = "runs"  # where fit writes by default


class Classifier(nn.Module):
    """Class probabilities of inputs as the data set stores them, by the net of a run.

    Args:
        net: takes prepared inputs and gives logits (n, classes).
        changes: ``data.augment`` of the run, here in their form for evaluation.
        inputs: what the net was trained on.
    """

    def __init__(self, net: nn.Module, changes: Sequence[Augmentation], inputs: InputRecord) -> None:
        super().__init__()
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
        scale = None if self.multiply is None else (self.multiply, self.add)
        return self.net(normalise(inputs, scale, self.dtype)).softmax(dim=-1)


def load_classifier(ckpt_path: str | Path) -> Classifier:
    """The net of a checkpoint with the preparation of its inputs, in evaluation mode on the CPU.

    Args:
        ckpt_path: a checkpoint of a run, in the run's own folder or with a copy of its ``config.yaml`` next to it.

    Raises:
        FileNotFoundError: if there is no checkpoint or no config.
        ValueError: if the checkpoint cannot be read, or its clients keep models of their own.
    """
    checkpoint = read_checkpoint(ckpt_path)
    run = build_run(run_config(Path(ckpt_path))[1], FederatedModule, FederatedDataModule)
    run.model.restore_weights(checkpoint)
    return Classifier(run.model.net, run.data.augment, recorded_inputs(checkpoint)).eval()


@torch.no_grad()
def export(classifier: Classifier, path: Path) -> None:
    """Write a ``torch.export`` program of any number of inputs, with ``classes.json`` as an extra file.

    The program is read again and must give what the classifier gives.

    Raises:
        OSError: if the file cannot be written.
        ValueError: if the net cannot be exported, or the program gives something else.
    """
    examples, net = _examples(classifier.inputs), type(classifier.net).__name__
    try:
        program = torch.export.export(classifier, (examples,), dynamic_shapes=({0: torch.export.Dim("n", min=1)},))
    except Exception as error:  # torch raises many kinds for what it cannot trace
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"model.net {net} cannot be exported by torch.export: {reason}") from error
    content = BytesIO()  # torch aborts the process where it writes to a disk that is full
    torch.export.save(program, content, extra_files={"classes.json": json.dumps(classifier.inputs.classes)})
    with atomic_write(path) as temporary:
        temporary.write_bytes(content.getbuffer())
    written = torch.export.load(path).module()
    for inputs in (examples[:1], examples):
        if not torch.allclose(written(inputs), classifier(inputs), atol=1e-5):
            path.unlink()
            raise ValueError(f"model.net {net} gives other outputs once exported: use load_classifier and the checkpoint")


def _examples(inputs: InputRecord) -> Tensor:
    """Two random inputs as they are stored."""
    generator, zeros = torch.Generator().manual_seed(0), inputs.examples(2)
    if zeros.is_floating_point():
        return torch.randn(zeros.shape, generator=generator).to(zeros.dtype)
    return torch.randint(256 if zeros.dtype == torch.uint8 else 2, zeros.shape, generator=generator, dtype=zeros.dtype)


def run(arguments: Sequence[str]) -> None:
    """Export the net of the checkpoint that the command line names.

    Raises:
        FileNotFoundError, ValueError, OSError: in one line, if it cannot be exported.
    """
    parser = ArgumentParser(
        prog="fl-lightning export",
        description="Write the net of a checkpoint with the preparation of its inputs, as a torch.export program that needs "
        "torch alone (docs/using_a_trained_net.md).",
        formatter_class=PlainFormatter,
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_argument("--ckpt_path", type=str, default="best", help="best or last of the newest version, or a checkpoint")
    parser.add_argument("--run_folder", type=str | None, default=None, help="of the versions; default: the newest in runs")
    parser.add_argument("--out", type=str | None, default=None, help="the file; default: next to config.yaml, as best.pt2")
    config = parse(parser, arguments)
    ckpt_path = _checkpoint(config.ckpt_path, config.run_folder)
    classifier = load_classifier(ckpt_path)
    out = Path(config.out) if config.out is not None else run_config(ckpt_path)[0] / f"{ckpt_path.stem}.pt2"
    export(classifier, out)
    inputs = classifier.inputs
    shape = ", ".join(map(str, ["n", *inputs.shape]))
    print(f"Exported: {out}, from {ckpt_path}")
    print(f"Inputs: {inputs.dtype} ({shape}); outputs: probabilities of {len(inputs.classes)} classes")


def _checkpoint(ckpt_path: str, run_folder: str | None) -> Path:
    if ckpt_path not in ("best", "last"):
        return Path(ckpt_path)
    if run_folder is None:
        written = Path(_RUNS).glob("*/version_*/checkpoints/*.ckpt")
        newest = max(written, key=lambda path: path.stat().st_mtime_ns, default=None)
        if newest is None:
            raise FileNotFoundError(
                f"ckpt_path is {ckpt_path}, but {_RUNS} holds no checkpoint of a run: give run_folder, or a checkpoint"
            )
        run_folder = str(newest.parents[2])
    found = newest_checkpoint(Path(run_folder), ckpt_path, ckpt_path)
    if found is None:
        raise FileNotFoundError(f"ckpt_path is {ckpt_path}, but {run_folder} holds no such checkpoint: give another run_folder")
    return found
