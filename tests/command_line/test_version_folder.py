"""The folder of a version: nobody else has it, and a run that never began leaves nothing."""

from pathlib import Path

import pytest

from fl_lightning.command_line.version_folder import VersionFolder


def test_every_new_run_gets_the_next_number(tmp_path):
    names = [VersionFolder(tmp_path / "runs" / "digits", None, "runs").path.name for _ in range(3)]
    assert names == ["version_0", "version_1", "version_2"]


def test_a_run_that_goes_on_takes_the_folder_of_its_checkpoint(tmp_path):
    """And never removes it; a checkpoint from elsewhere begins a version."""
    run = tmp_path / "runs" / "digits"
    VersionFolder(run, None, "runs")
    newest = VersionFolder(run, None, "runs").path
    assert newest.name == "version_1"
    again = VersionFolder(run, str(run / "version_0" / "checkpoints" / "last.ckpt"), "runs")
    assert again.path == run / "version_0"
    again.remove()
    assert again.path.is_dir()
    assert VersionFolder(run, str(tmp_path / "other.ckpt"), "runs").path.name == "version_2"


def test_what_a_run_made_is_removed_and_nothing_else(tmp_path):
    """Parents that it made go with the version, unless another run has something there."""
    alone = VersionFolder(tmp_path / "alone" / "digits", None, "alone")
    alone.remove()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    first, second = (VersionFolder(tmp_path / "mine" / "runs" / "digits", None, "runs") for _ in range(2))
    (first.path / "checkpoints").mkdir()
    first.remove()
    assert [path.name for path in tmp_path.rglob("version_*")] == ["version_1"]
    second.remove()
    assert [path.name for path in tmp_path.rglob("version_*")] == []
    assert (tmp_path / "mine").is_dir()


def test_a_folder_that_cannot_be_made_is_named_and_leaves_no_parent(tmp_path, monkeypatch):
    make = Path.mkdir

    def full(self: Path, *arguments, **settings) -> None:
        if self.name == "version_0":
            make(self.parent, parents=True)
            raise OSError(28, "No space left on device", str(self))
        make(self, *arguments, **settings)

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(OSError, match=r"^trainer.default_root_dir is runs, where .*version_0 cannot be made \(No space left"):
        VersionFolder(tmp_path / "runs" / "digits", None, "runs")
    assert list(tmp_path.iterdir()) == []
