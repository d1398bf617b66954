"""The folder of a run: what ckpt_path names."""

import pytest
from jsonargparse import Namespace

from fl_lightning.command_line.run_folder import find_checkpoint, run_folder


@pytest.fixture
def run(tmp_path):
    """A run of two versions with a last checkpoint each, and no best."""
    for version in ("version_0", "version_1"):
        folder = tmp_path / "digits" / version / "checkpoints"
        folder.mkdir(parents=True)
        (folder / "last.ckpt").touch()
    return tmp_path / "digits"


@pytest.mark.parametrize("name", ["last", "last_if_any"])
def test_a_name_is_the_newest_versions_and_is_said(run, capsys, name):
    newest = str(run / "version_1" / "checkpoints" / "last.ckpt")
    assert find_checkpoint(name, run, may_begin=True) == newest
    assert capsys.readouterr().out == f"ckpt_path is {name}: {newest}\n"


def test_a_path_is_taken_as_it_is(run):
    path = str(run / "version_0" / "checkpoints" / "last.ckpt")
    assert find_checkpoint(path, run, may_begin=False) == path


def test_a_new_run_begins_where_there_is_none(tmp_path, capsys):
    assert find_checkpoint("last_if_any", tmp_path, may_begin=True) is None
    assert capsys.readouterr().out == f"ckpt_path is last_if_any: none in {tmp_path}, a new run begins\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("best", "ckpt_path is best, but .*version_1, the newest version, has no best.ckpt, as it ran without .*: use last$"),
        ("nowhere.ckpt", "ckpt_path is nowhere.ckpt, which does not exist: give last, best, last_if_any or a file"),
    ],
)
def test_what_is_not_there_is_named(run, name, message):
    with pytest.raises(FileNotFoundError, match=message):
        find_checkpoint(name, run, may_begin=True)


def test_an_evaluation_begins_nothing(tmp_path):
    with pytest.raises(FileNotFoundError, match="ckpt_path is last_if_any, but .* holds no such checkpoint"):
        find_checkpoint("last_if_any", tmp_path, may_begin=False)


def test_a_run_without_validation_is_not_to_be_removed(run):
    (run / "version_0" / "checkpoints" / "best.ckpt").touch()
    with pytest.raises(
        FileNotFoundError, match=r": use last, or give the path of an older version's, .*version_0.*best\.ckpt$"
    ):
        find_checkpoint("best", run, may_begin=False)


@pytest.mark.parametrize(("root", "folder"), [("runs", "elsewhere/digits"), ("D", "D/digits")])
def test_the_config_of_a_run_leads_to_its_folder_unless_another_is_given(run, tmp_path, monkeypatch, root, folder):
    """Wherever the run has been moved to since."""
    monkeypatch.chdir(tmp_path)
    run.parent.joinpath("elsewhere").mkdir()
    moved = run.rename("elsewhere/digits").relative_to(".") / "version_0" / "config.yaml"
    moved.write_text("trainer: {default_root_dir: runs}\n")
    config = Namespace(config=[str(moved)], trainer=Namespace(default_root_dir=root))
    assert str(run_folder(config)) == folder
