"""Checkpoints that are broken, foreign or evil: every one ends in one line that names ckpt_path, and runs no code."""

import io
import os
import pickle
import random
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from fl_lightning.state.atomic_files import atomic_save

pytestmark = pytest.mark.slow

RUN = (
    "fit --config digits_tce.yaml --model SCAFFOLD --model.net MLP --model.net.hidden [8] --trainer.max_steps 3 "
    "--trainer.enable_progress_bar false"
).split()


class Evil:
    """Unpickled, it would leave a file behind."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch ran_code",)


def truncated(share: float) -> Callable[[bytes], bytes]:
    return lambda good: good[: int(share * len(good))]


def flipped(seed: int) -> Callable[[bytes], bytes]:
    """One bit of the weights is another: at a random place of a float of the net, wherever the archive has it."""

    def flip(good: bytes) -> bytes:
        weights = torch.load(io.BytesIO(good), weights_only=True)["state_dict"]["net.features.1.weight"].numpy().tobytes()
        at = good.index(weights) + random.Random(seed).randrange(len(weights))
        return good[:at] + bytes([good[at] ^ 1 << seed % 8]) + good[at + 1 :]

    return flip


def changed(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    """A checkpoint that torch can read, with something else in it."""

    def rewrite(good: bytes) -> bytes:
        checkpoint = torch.load(io.BytesIO(good), weights_only=True)
        result = change(checkpoint)
        with TemporaryDirectory() as folder:
            path = Path(folder) / "changed.ckpt"
            atomic_save(checkpoint if result is None else result, path)
            return path.read_bytes()

    return rewrite


def without(*path: str) -> Callable[[bytes], bytes]:
    def remove(checkpoint: dict[str, Any]) -> None:
        for key in path[:-1]:
            checkpoint = checkpoint[key]
        del checkpoint[path[-1]]

    return changed(remove)


def replaced(value: Any, *path: str) -> Callable[[bytes], bytes]:
    def put(checkpoint: dict[str, Any]) -> None:
        for key in path[:-1]:
            checkpoint = checkpoint[key]
        checkpoint[path[-1]] = value

    return changed(put)


def archive(_: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("notes.txt", "no checkpoint")
    return file.getvalue()


def evil_in_torch(_: bytes) -> bytes:
    file = io.BytesIO()
    torch.save({"state_dict": Evil()}, file)
    return file.getvalue()


WEIGHT = "net.features.1.weight"
BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda good: b"",
    "one_byte": lambda good: b"\x80",
    "text": lambda good: b"trainer:\n  max_steps: 3\n",
    "zeros": lambda good: bytes(len(good)),
    "another_archive": archive,
    "a_png": lambda good: b"\x89PNG\r\n\x1a\n" + bytes(100),
    **{f"truncated_{share}": truncated(share) for share in (0.01, 0.5, 0.9999)},
    **{f"flipped_{seed}": flipped(seed) for seed in range(2)},
    "pickle_with_code": lambda good: pickle.dumps(Evil()),
    "torch_pickle_with_code": evil_in_torch,
    "old_torch_pickle_with_code": lambda good: pickle.dumps({"state_dict": Evil(), "global_step": 3}, protocol=2),
    "a_tensor": changed(lambda checkpoint: torch.zeros(3)),
    "a_list": changed(lambda checkpoint: [checkpoint]),
    "nothing_in_it": changed(lambda checkpoint: {}),
    "weights_alone": changed(lambda checkpoint: checkpoint["state_dict"]),
    "no_weights": without("state_dict"),
    "no_federated_state": without("federated"),
    "a_federated_state_of_nothing": replaced({}, "federated"),
    "no_optimizer": without("optimizer_states"),
    "no_round": without("global_step"),
    "a_weight_missing": without("state_dict", WEIGHT),
    "a_weight_too_many": replaced(torch.zeros(3), "state_dict", "net.extra"),
    "a_weight_of_another_shape": replaced(torch.zeros(3, 3), "state_dict", WEIGHT),
    "a_weight_that_is_a_word": replaced("heavy", "state_dict", WEIGHT),
    "weights_that_are_nan": replaced(torch.full((8, 64), torch.nan), "state_dict", WEIGHT),
    "client_states_of_another_kind": replaced({"kind": "cloud"}, "federated", "client_states"),
    "client_states_out_of_range": replaced({"kind": "memory", "states": {999: {}}}, "federated", "client_states"),
}


@pytest.fixture
def good(main, tmp_path) -> bytes:
    """The checkpoint of a run."""
    code, _, error = main(*RUN)
    assert code == 0, error
    return (tmp_path / "runs" / "digits_tce" / "version_0" / "checkpoints" / "last.ckpt").read_bytes()


def test_every_broken_checkpoint_ends_in_one_line(main, good, tmp_path):
    """Gone on from, every third evaluated too: exit code 1, one line, no advice to trust the file, no folder, no code run."""
    path, wrong = tmp_path / "broken.ckpt", []
    before = set(tmp_path.rglob("*"))
    for number, (name, break_it) in enumerate(BROKEN.items()):
        path.write_bytes(break_it(good))
        for command in (["fit", "--trainer.max_steps", "5"], ["validate"]):
            if command == ["validate"] and (number % 3 or name in VALIDATES):
                continue
            code, _, error = main(command[0], *RUN[1:], *command[1:], "--ckpt_path", str(path))
            known = error.startswith("fl-lightning: error: ") and error.count("\n") == 1 and "ckpt_path" in error
            if code != 1 or not known or re.search(r"\bweights_only", error):  # save_weights_only is another option
                wrong.append(f"{name}, {command[0]}: exit code {code}, {error!r}")
        path.unlink()
        if left := sorted(set(tmp_path.rglob("*")) - before):
            wrong.append(f"{name}: left {left}")
            before |= set(left)
    assert not wrong, "\n".join(wrong)


# What only a fit reads: an evaluation has no need of it.
VALIDATES = {"no_optimizer", "client_states_of_another_kind", "client_states_out_of_range"}


def test_what_is_no_file_is_refused(main, tmp_path):
    """A folder, a pipe that nobody writes to, a link to nowhere."""
    (tmp_path / "folder.ckpt").mkdir()
    os.mkfifo(tmp_path / "pipe.ckpt")
    (tmp_path / "link.ckpt").symlink_to(tmp_path / "nowhere")
    for name in ("folder", "pipe", "link"):
        code, _, error = main(*RUN, "--ckpt_path", f"{name}.ckpt")
        assert code == 1, name
        assert f"ckpt_path is {name}.ckpt" in error
        assert error.count("\n") == 1
