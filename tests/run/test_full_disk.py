"""Disks that are full, before a run or in its midst: one line that names what could not be written, and nothing half made."""

import errno
import os
import re
from pathlib import Path

import pytest
import torch

from fl_lightning import FedAvg
from fl_lightning.command_line.errors import error_line
from fl_lightning.data import from_arrays
from fl_lightning.data.cache import cached
from fl_lightning.data.samples import Dataset, Samples
from fl_lightning.data.scaling import recorded_inputs
from fl_lightning.export import Classifier, export
from fl_lightning.sweep.study import SweepStudy

RUN = [
    "fit",
    "--config",
    "digits_tce.yaml",
    "--model.net",
    "MLP",
    "--trainer.max_steps",
    "3",
    "--trainer.val_check_interval",
    "1",
]
needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full, the device that is always full")


def test_full_before_the_start(main, tmp_path, largest_file):
    """The first record of the event file does not fit: no folder is left."""
    with largest_file(10):
        code, _, error = main(*RUN)
    assert code == 1
    assert error == (
        "fl-lightning: error: runs/digits_tce/version_0 could not be written (File too large): "
        "free some space or choose another folder\n"
    )
    assert os.listdir(tmp_path) == []


def test_full_while_curves_are_written(main, tmp_path, largest_file):
    """TensorBoard writes in another thread, which prints nothing; what the run had written by then stays."""
    with largest_file(20_000):
        code, _, error = main(*RUN, "--trainer.enable_checkpointing", "false")
    assert code == 1
    assert re.fullmatch(
        r"fl-lightning: error: runs/digits_tce/version_0 could not be written \(File too large\): "
        r"free some space or choose another folder\n",
        error,
    )
    assert not (tmp_path / "runs/digits_tce/version_0/results.json").exists()


def test_the_config_is_written_whole_or_not_at_all(main, tmp_path, monkeypatch):
    """A resume whose new config.yaml does not fit leaves the old one."""
    assert main(*RUN)[0] == 0
    config = tmp_path / "runs/digits_tce/version_0/config.yaml"
    before = config.read_text()

    def write_text(path, text, write_text=Path.write_text, **settings):
        if "config" not in path.name:
            return write_text(path, text, **settings)
        write_text(path, "half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", write_text)
    code, _, error = main(*RUN, "--trainer.max_steps", "4", "--ckpt_path", "last")
    assert code == 1
    assert error.startswith("fl-lightning: error: runs/digits_tce/version_0/config.yaml could not be written (No space left")
    assert config.read_text() == before
    assert not list(config.parent.glob(".config*"))


@needs_full
def test_a_full_cache_is_named_with_its_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("FL_LIGHTNING_CACHE", str(tmp_path))
    samples = Samples(torch.arange(4.0).reshape(2, 2), torch.tensor([0, 1]))

    def load():
        return cached("toy", "x", lambda _: Dataset(samples, samples, ("a", "b")))

    load()
    (file,) = tmp_path.glob("toy-*.pt")
    file.unlink()
    (tmp_path / f".{file.name}.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match="free some space or choose another folder with FL_LIGHTNING_CACHE=FOLDER$") as caught:
        load()
    assert str(caught.value).startswith(f"{file} could not be written (No space left on device)")
    assert list(tmp_path.glob("*.pt")) == []


@needs_full
def test_an_export_to_a_full_disk_is_one_error(tmp_path, fit):
    """torch would abort the process."""
    inputs = torch.linspace(-1, 1, 40).reshape(10, 4)
    trainer = fit(FedAvg(torch.nn.Linear(4, 2), local_steps=1), from_arrays(inputs, torch.arange(10) % 2, [range(10)]), 1)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    record = recorded_inputs(torch.load(tmp_path / "a.ckpt", weights_only=True))
    (tmp_path / ".net.pt2.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"net\.pt2 could not be written \(No space left on device\)"):
        export(Classifier(trainer.model.net, (), record).eval(), tmp_path / "net.pt2")
    assert not (tmp_path / "net.pt2").exists()


def test_a_sweep_that_cannot_begin_leaves_no_study(tmp_path, largest_file):
    """Its file is not taken for a broken one by the next try."""
    said = r"study\.db could not be written \(.*\): free some space, or give another --out"
    with pytest.raises(OSError, match=said), largest_file(10):
        SweepStudy(tmp_path / "sweep")
    assert SweepStudy(tmp_path / "sweep").records() == []


def test_every_other_full_disk_is_one_line_with_a_cure():
    """The system names the file where it could not be made, and none where it could not grow."""
    said = "could not be written (No space left on device): free some space or choose another folder"
    assert error_line(OSError(errno.ENOSPC, "No space left on device", "a/b")) == f"a/b {said}"
    assert error_line(OSError(errno.ENOSPC, "No space left on device")) == f"a file or the standard output {said}"
