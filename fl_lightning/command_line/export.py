"""``fl-lightning export``: write the net of a run as a program that needs torch alone."""

from collections.abc import Sequence
from pathlib import Path

from jsonargparse import ArgumentParser

from fl_lightning.command_line.one_line_errors import parse
from fl_lightning.command_line.plain_help import PlainFormatter
from fl_lightning.export import export, load_classifier
from fl_lightning.state.versions import KEPT, newest_checkpoint
from fl_lightning.training.saved_run import run_config

_RUNS = "runs"  # where fit writes by default


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
    if ckpt_path not in KEPT:
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
