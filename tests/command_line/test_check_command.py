"""``fl-lightning check RUN``: a whole run is said to be one, and each file that is not as it was written is named."""

import shutil
from pathlib import Path

import pytest
import torch
from options import NO_PICTURES

VERSION = Path("runs/digits_tce/version_0")
LAST = VERSION / "checkpoints" / "last.ckpt"
RUN = (
    "fit --config digits_tce.yaml --model SCAFFOLD --model.client_state disk --model.net MLP --model.net.hidden [8] "
    "--data.clients_per_round 3 --trainer.max_steps 2"
).split()


@pytest.fixture(scope="module")
def trained(run_in, tmp_path_factory):
    return run_in(tmp_path_factory.mktemp("trained"), *RUN, *NO_PICTURES)


@pytest.fixture
def version(main, trained, tmp_path):
    """A copy of the run, in the working folder."""
    shutil.copytree(trained / "runs", tmp_path / "runs")
    return VERSION


def states():
    return sorted(VERSION.glob("client_states/*/*.pt"))


def test_a_whole_run_is_said_to_be_one(main, version):
    """By its folder or by one above it; nothing is changed."""
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    named = len(torch.load(LAST, weights_only=True)["federated"]["client_states"]["index"])
    for folder in (version, Path("runs")):
        code, out, error = main("check", str(folder))
        assert (code, error) == (0, "")
        assert f"{LAST}: round 2, {named} states of clients, as written\n" in out
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


SPOIL = {
    "a bit of a checkpoint": (
        lambda: flip(LAST),
        "last.ckpt, which is not a checkpoint that can be read (its bytes",
    ),
    "a checkpoint without digest": (
        lambda: torch.save(torch.load(LAST, weights_only=True), LAST),
        "last.ckpt, which has lost the digest of its run",
    ),
    "a bit of a state": (lambda: flip(states()[0]), "cannot be read (its bytes have changed since they were written"),
    "another client's state": (
        lambda: shutil.copy(states()[0], states()[1]),
        "cannot be read (it is not the file that the run wrote",
    ),
    "no state": (lambda: states()[0].unlink(), "cannot be read (No such file or directory)"),
    "results": (lambda: (VERSION / "results.json").write_text("{"), "version_0: its results.json"),
}


@pytest.mark.parametrize("name", SPOIL)
def test_what_is_not_as_it_was_written_is_named(main, version, name):
    """On the standard output; the error counts."""
    spoil, says = SPOIL[name]
    spoil()
    code, out, error = main("check", "runs")
    assert code == 1
    assert error.count("\n") == 1
    assert "RUN is runs, " in error
    assert says in out + error


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "RUN is missing: give the folder of a run"),
        (["absent"], "RUN is absent, which is not a folder"),
        (["empty"], "holds no checkpoint"),
    ],
)
def test_what_is_no_run_is_one_line(main, tmp_path, arguments, says):
    (tmp_path / "empty").mkdir()
    code, _, error = main("check", *arguments)
    assert (code, error.count("\n")) == (1, 1)
    assert says in error
