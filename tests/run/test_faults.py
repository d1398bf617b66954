"""The n-th call about a file fails, or kills the run: it ends in one line, and goes on to the bits of a run without a fault."""

import errno
import json
import os
import signal
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from faults import KILL, Faults
from lightning.pytorch.callbacks import ModelCheckpoint

from fl_lightning import SCAFFOLD
from fl_lightning.callbacks import RunSummary
from fl_lightning.command_line.errors import error_line
from fl_lightning.data import FederatedDataModule
from fl_lightning.protocol import pack
from fl_lightning.run.record_logger import RecordLogger
from fl_lightning.state.client_states import MemoryStates

LAST = Path("checkpoints", "last.ckpt")


def go_on(folder: Path, kind: str, data: FederatedDataModule, rounds: int = 2, origin: Path | None = None) -> None:
    """A run with a checkpoint after each round, from the last that there is, or from that of the run in ``origin``."""
    method = SCAFFOLD(torch.nn.Linear(4, 3, dtype=torch.float64), client_state=kind, engine="sequential")
    with torch.no_grad():
        for weight in method.net.parameters():
            weight.fill_(0.1)
    method.write_to(folder)
    last = next((path for one in (folder, origin) if one and (path := one / LAST).exists()), None)
    trainer = pl.Trainer(
        max_steps=rounds,
        max_epochs=-1,
        accelerator="cpu",
        precision="64-true",
        default_root_dir=folder,
        logger=RecordLogger(folder),
        callbacks=[ModelCheckpoint(folder / "checkpoints", filename="last", enable_version_counter=False), RunSummary()],
        val_check_interval=1,
        check_val_every_n_epoch=None,
        log_every_n_steps=1,
        **dict.fromkeys(("enable_progress_bar", "enable_model_summary", "num_sanity_val_steps"), False),
    )
    trainer.fit(method, datamodule=data, ckpt_path=last)


def ending(folder: Path) -> dict[str, Any]:
    """What a run ends with: all that a further round would depend on, and what was recorded."""
    checkpoint = torch.load(folder / LAST, weights_only=True)
    states = MemoryStates()
    states.restore(checkpoint["federated"].pop("client_states"))
    record = [json.loads(line) for line in (folder / "record.jsonl").read_text().splitlines()]
    return {
        "round": checkpoint["global_step"],
        "net": checkpoint["state_dict"],
        "server": checkpoint["optimizer_states"],
        "clients": {client: pack(states.read(client)) for client in sorted(states.clients())},
        "newest": checkpoint["federated"]["newest"],
        "results": json.loads((folder / "results.json").read_text()),
        "record": [(line["round"], line["scalars"]) for line in record if "scalars" in line],
    }


def same(one: Any, other: Any) -> bool:
    """Bit for bit; NaN, for what is not measured, is itself."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one.nan_to_num(7), other.nan_to_num(7))
    return one == other or one != one


def says(job: Callable[[], object]) -> str | None:
    """The error in which a job ends, as the command line says it; None: it ends without one."""
    try:
        job()
    except (OSError, ValueError) as error:
        return error_line(error)
    return None


def is_killed(job: Callable[[], object]) -> bool:
    child = os.fork()
    if child == 0:
        try:
            job()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def one_of_each(calls: list[tuple[str, str]], folder: str = "") -> list[int]:
    """The number of a call of each kind about the files of a folder, in the midst of those of its kind."""
    numbers: dict[str, list[int]] = {}
    for number, (call, path) in enumerate(calls):
        if path.startswith(folder):
            numbers.setdefault(call, []).append(number)
    return [of_kind[len(of_kind) // 2] for of_kind in numbers.values()]


def goes_on_after_faults(
    tmp_path: Path,
    toy_data: Callable[..., Any],
    kind: str,
    fault: int,
    chosen: Callable[[list[tuple[str, str]]], Iterable[int]],
) -> None:
    """An error of the disk once, a disk that stays full, or kill -9, instead of each chosen call of a run about its files.

    A run ends as if nothing had been where a file could not be deleted, where one that could not be linked was copied, and
    where an older checkpoint could not be read: its states stay.
    """
    origin = tmp_path / "origin" if kind == "linked" else None
    if origin is not None:
        go_on(origin, "disk", toy_data(clients_per_round=2), rounds=1)

    def run(folder: Path, at: int | None = None) -> list[tuple[str, str]]:
        with Faults(folder, fault, at, lasting=fault == errno.ENOSPC) as faults:
            go_on(folder, "memory" if kind == "memory" else "disk", toy_data(clients_per_round=2), origin=origin)
        return faults.calls

    calls = run(tmp_path / "whole")
    expected = ending(tmp_path / "whole")
    assert {call for call, _ in calls} == {
        "open",
        "write",
        "fsync",
        "mkdir",
        "replace",
        "unlink",
        *(["link"] * (kind == "linked")),
    }
    for number in chosen(calls):
        folder, (call, path) = tmp_path / str(number), calls[number]
        where = f"{call} {path}, call {number} of {len(calls)}"
        meet = partial(run, folder, number)
        if fault == KILL:
            assert is_killed(meet), where
        elif (line := says(meet)) is not None:
            assert str(folder) in line, where
            assert "\n" not in line, where
        else:
            assert call in ("unlink", "link", "open"), where
            assert same(ending(folder), expected), where
            continue
        if not (folder / LAST).exists():
            folder = folder / "again"  # as the command line begins a new version
        run(folder)
        assert same(ending(folder), expected), where


_NEEDS_PROC = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")


@_NEEDS_PROC
@pytest.mark.parametrize("fault", [errno.EIO, errno.ENOSPC, KILL], ids=["EIO", "ENOSPC", "kill"])
@pytest.mark.parametrize(("kind", "files"), [("memory", ""), ("disk", "client_states")])
@pytest.mark.one_in(3)
def test_a_fault_at_a_call_of_each_kind(tmp_path, toy_data, kind, files, fault):
    """About all files of a run, and about those of clients' states."""
    goes_on_after_faults(tmp_path, toy_data, kind, fault, partial(one_of_each, folder=files))


@pytest.mark.slow
@_NEEDS_PROC
@pytest.mark.parametrize(("kind", "fault"), [("memory", errno.EIO), ("disk", KILL), ("linked", errno.ENOSPC)])
def test_a_fault_at_any_call(tmp_path, toy_data, kind, fault):
    """Every second: a client's file takes seven calls, so that those of one are the others of the next."""
    goes_on_after_faults(tmp_path, toy_data, kind, fault, lambda calls: range(0, len(calls), 2))
