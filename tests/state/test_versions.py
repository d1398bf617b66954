"""Which version of a run ``last`` and ``best`` mean, and when a run has nothing left to do."""

import shutil
from pathlib import Path

import pytest
import torch
from options import NO_PICTURES

from fl_lightning.state.versions import VersionFolder, newest_checkpoint, next_version

RUN = [*"fit --config digits_tce.yaml --model.net MLP --model.net.hidden [8]".split(), *NO_PICTURES, "--trainer.max_steps"]


def make(run_folder: Path, *names: str) -> None:
    for name in names:
        path = run_folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_versions_go_by_their_numbers(tmp_path):
    """Ten is newer than nine, a gap is not filled, and what is no version does not count."""
    make(tmp_path, "version_9/checkpoints/last.ckpt", "version_10/checkpoints/last.ckpt", "version_old/checkpoints/last.ckpt")
    assert newest_checkpoint(tmp_path, "last", "last") == tmp_path / "version_10" / "checkpoints" / "last.ckpt"
    assert next_version(tmp_path) == tmp_path / "version_11"
    assert next_version(tmp_path / "new") == tmp_path / "new" / "version_0"


@pytest.mark.parametrize(
    ("ckpt_path", "newer"), [("last", []), ("best", ["version_1/checkpoints/last.ckpt"]), ("last_if_any", ["version_1/x"])]
)
def test_a_newer_version_without_a_checkpoint_is_refused(main, tmp_path, ckpt_path, newer):
    """Both folders are named; nothing of the older run changes."""
    assert main(*RUN, "2")[0] == 0
    runs = Path("runs/digits_tce")
    (tmp_path / runs / "version_1").mkdir()
    make(tmp_path / runs, *newer)
    before = contents(tmp_path / runs)
    code, _, error = main(*RUN, "4", "--ckpt_path", ckpt_path)
    assert code == 1
    assert error.count("\n") == 1
    assert f"ckpt_path is {ckpt_path}, but {runs}/version_1, the newest version, has no " in error
    assert f"{runs}/version_0/checkpoints/" in error
    assert contents(tmp_path / runs) == before
    shutil.rmtree(tmp_path / runs / "version_1")
    code, out, _ = main(*RUN, "4", "--ckpt_path", ckpt_path)
    assert code == 0
    assert f"The fit continues after round 2, from {runs}/version_0/checkpoints/" in out


def test_last_if_any_begins_a_run_or_goes_on(main, tmp_path):
    """One command for the first start and every other, which says what it does."""
    command = [*RUN, "2", "--ckpt_path", "last_if_any"]
    code, out, error = main(*command)
    assert code == 0, error
    assert "ckpt_path is last_if_any: none in runs/digits_tce, a new run begins" in out
    code, out, _ = main(*command)
    assert code == 0
    assert "runs/digits_tce/version_0 already has 2 rounds" in out
    code, out, _ = main(*RUN, "3", "--ckpt_path", "last_if_any")
    assert code == 0
    assert "ckpt_path is last_if_any: runs/digits_tce/version_0/checkpoints/last.ckpt" in out
    assert [path.name for path in (tmp_path / "runs" / "digits_tce").iterdir()] == ["version_0"]
    code, _, error = main("test", "--config", "digits_tce.yaml", "--model.net", "CNN2", "--ckpt_path", "last_if_any")
    assert code == 1
    assert "holds another net" in error


@pytest.mark.parametrize(("rounds", "code"), [("3", 0), ("2", 1)])
def test_a_finished_run_keeps_its_record(main, tmp_path, rounds, code):
    """As many rounds as it has: nothing to do, and no error. Fewer: an error. No file changes."""
    assert main(*RUN, "3")[0] == 0
    folder = tmp_path / "runs" / "digits_tce"
    before = contents(folder)
    ended, out, error = main(*RUN, rounds, "--ckpt_path", "last")
    assert ended == code
    assert contents(folder) == before
    if code == 0:
        assert "runs/digits_tce/version_0 already has 3 rounds: raise trainer.max_steps" in out
    else:
        assert error.count("\n") == 1
        assert "trainer.max_steps is 2, but the run of ckpt_path has 3 rounds already: raise it" in error


def test_a_record_that_a_kill_left_out_is_written(main, tmp_path):
    """Killed after its last checkpoint: the same command writes the results and trains nothing."""
    assert main(*RUN, "3")[0] == 0
    folder = tmp_path / "runs" / "digits_tce" / "version_0"
    results = (folder / "results.json").read_bytes()
    (folder / "results.json").unlink()
    code, _, error = main(*RUN, "3", "--ckpt_path", "last")
    assert code == 0, error
    assert (folder / "results.json").read_bytes() == results
    assert torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == 3


def test_an_older_checkpoint_does_not_shorten_a_run(main, tmp_path):
    """From a checkpoint after two of six rounds to a fourth: the six are named, and nothing in the folder changes."""
    assert main(*RUN, "2", "--trainer.val_check_interval", "1")[0] == 0
    version = tmp_path / "runs" / "digits_tce" / "version_0"
    shutil.copy(version / "checkpoints" / "last.ckpt", version / "checkpoints" / "two.ckpt")
    assert main(*RUN, "6", "--trainer.val_check_interval", "1", "--ckpt_path", "last")[0] == 0
    before = contents(version)
    code, _, error = main(*RUN, "4", "--ckpt_path", str(version / "checkpoints" / "two.ckpt"))
    assert code == 1
    assert "trainer.max_steps is 4, but " in error
    assert "version_0 has 6 rounds already, which would be lost: raise it" in error
    assert contents(version) == before


def test_every_new_run_gets_the_next_number(tmp_path):
    names = [VersionFolder(tmp_path / "runs" / "digits", None, "runs").path.name for _ in range(3)]
    assert names == ["version_0", "version_1", "version_2"]


def test_a_run_that_goes_on_takes_the_folder_of_its_checkpoint(tmp_path):
    """And never removes it; a checkpoint from elsewhere begins a version, also one next to the versions."""
    run = tmp_path / "runs" / "digits"
    VersionFolder(run, None, "runs")
    newest = VersionFolder(run, None, "runs").path
    assert newest.name == "version_1"
    again = VersionFolder(run, str(run / "version_0" / "checkpoints" / "last.ckpt"), "runs")
    assert again.path == run / "version_0"
    again.remove()
    assert again.path.is_dir()
    others = (tmp_path / "other.ckpt", run / "mine.ckpt", run / "keep" / "last.ckpt")
    assert [VersionFolder(run, str(other), "runs").path.name for other in others] == ["version_2", "version_3", "version_4"]


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
