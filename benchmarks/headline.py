"""``python -m benchmarks --gpu --headline``: engines, device tests and the full runs of the paper on one GPU, in pieces.

The measurements are in a JSON file, the full runs in a folder like any study's: the same command continues from there.
"""

import json
import os
import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from signal import SIGTERM
from tempfile import TemporaryDirectory
from threading import Timer
from time import monotonic
from typing import Any

import torch

from benchmarks.measurements import Table
from benchmarks.programs import ROOT
from benchmarks.report import circumstances, markdown
from fl_lightning.state.atomic_files import atomic_write
from studies.catalogue import STUDIES
from studies.declared.headline import PRECISION
from studies.runner import run_study

_ENGINES = ("sequential", "vectorized", "captured", "auto")
_ROUNDS = 30  # of each engine
_SECONDS = 600  # of an engine and of a device test, at most
_GPU = (sys.executable, "-m", "benchmarks", "--gpu")
_TESTS = "tests/pretended_gpu/test_every_part.py"
_REAL = {"FL_LIGHTNING_REAL_GPU": "1"}  # the device tests take the GPU that is there for the pretended one
_STUDY = STUDIES["headline"]
_SECTION = "## On a GPU: measured"
_BEFORE = "## On a GPU: counted, not measured"  # the section that follows it

Row = dict[str, Any]


def headline(options: Namespace, root: Path = ROOT) -> int:
    """Measure what is left, for ``options.minutes`` at most but for what is under way, and write what there is.

    Args:
        options: of the command line: ``out``, the JSON file; ``runs``, the folder of the full runs; ``minutes``; ``data``,
            options of ``fit`` that set the folder of CIFAR-10.
        root: of the checkout whose ``benchmarks/RESULTS.md`` and ``docs/`` get the tables.

    Returns:
        the exit code: 0, or 143 where something is left.

    Raises:
        ValueError: in one line, if the full runs' folder or results file does not fit, or one of them failed.
    """
    deadline = monotonic() + 60 * options.minutes
    found, parts = _read(options.out), _parts()
    for done, (name, measure) in enumerate(parts.items()):
        if name in found:
            continue
        if monotonic() >= deadline:
            return _stopped(f"{done} of {len(parts)} measurements are done, and no full run")
        found[name] = {"device": torch.cuda.get_device_name(), **measure()}
        _write(options.out, found)
        _replace_section(root / "benchmarks" / "RESULTS.md", _tables(found))
        print(f"{name}: {found[name]}", flush=True)
    if monotonic() >= deadline:
        return _stopped("all measurements are done, and no full run")
    page = root / "docs" / "results" / _STUDY.name
    with _until(deadline):
        signals = run_study(_STUDY, options.runs, page, 1, options.data, retry_failed=False)
    _link_page(root / "docs" / "results.md")
    return _stopped(f"{page} has the full runs so far") if signals else 0


def _parts() -> dict[str, Callable[[], Row]]:
    engines = {f"engine {name}": partial(_engine, name) for name in _ENGINES}
    return {**engines, **{name: partial(_device_test, name) for name in _tests()}}


def _tests() -> list[str]:
    """The ids of all device tests, each of which is a part of its own: a test of all methods would take hours."""
    listed = _pytest("--collect-only", _TESTS)
    if listed.returncode != 0:
        raise ValueError(f"{_TESTS} cannot be collected: {listed.stdout[-200:]}{listed.stderr[-200:]}")
    return re.findall(rf"^{_TESTS}::.+$", listed.stdout, re.MULTILINE)


def _pytest(*arguments: str) -> subprocess.CompletedProcess[str]:
    return _ended([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "slow or not slow", *arguments])


def _ended(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **_REAL}, capture_output=True, text=True, timeout=_SECONDS)


def _too_long() -> Row:
    return {"error": f"it took longer than {_SECONDS} s"}


def _engine(name: str) -> Row:
    """An engine that cannot run the rounds, or not in time, is a row too."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "row.json"
        try:
            ended = _ended([*_GPU, "--engine", name, "--rounds", str(_ROUNDS), "--out", str(out)])
        except subprocess.TimeoutExpired:
            return _too_long()
        if ended.returncode != 0:
            return {"error": (ended.stderr.strip().splitlines() or [f"it ended with exit code {ended.returncode}"])[-1]}
        return json.loads(out.read_text(encoding="utf-8"))["tables"][0]["rows"][0]


def _device_test(name: str) -> Row:
    try:
        ended = _pytest(name)
    except subprocess.TimeoutExpired:
        return _too_long()
    counts = {what: int(number) for number, what in re.findall(r"(\d+) (passed|failed|error)", ended.stdout[-200:])}
    if not counts:
        said = re.search(r"^ERROR.*", ended.stderr + ended.stdout, re.MULTILINE)
        return {"error": said[0] if said else f"pytest ended with exit code {ended.returncode}"}
    row = {"passed": counts.get("passed", 0), "failed": re.findall(r"^(?:FAILED|ERROR) (\S+)", ended.stdout, re.MULTILINE)}
    out_of_memory = re.search(r"^E +(\S*MemoryError.*)", ended.stdout, re.MULTILINE)
    return {**row, "error": out_of_memory[1]} if out_of_memory else row


def _until(deadline: float) -> ExitStack:
    """A block that is asked to end at a time, as a user does: its runs end after their round, with a checkpoint."""
    stack = ExitStack()
    timer = Timer(max(deadline - monotonic(), 0), os.kill, (os.getpid(), SIGTERM))
    timer.start()
    stack.callback(timer.cancel)
    return stack


def _tables(found: Mapping[str, Row]) -> str:
    engines = [{"engine": name.split()[1], **row} for name, row in found.items() if name.startswith("engine ")]
    columns = dict.fromkeys(column for row in engines for column in row)
    rows = [{column: row.get(column, "") for column in columns} for row in engines]
    text = [markdown(Table(f"A round of cifar10_tce.yaml, by engine: {_ROUNDS} rounds in {PRECISION}", rows))] if rows else []
    tests = [
        {
            "test": name.partition("::")[2],
            "device": row["device"],
            "passed": row.get("passed", 0),
            "failed": ", ".join([*(f"`{one.partition('::')[2]}`" for one in row.get("failed", ())), *said]) or "none",
        }
        for name, row in found.items()
        for said in [[row["error"]] if "error" in row else []]
        if name.startswith(_TESTS)
    ]
    text += [markdown(Table(f"Tests that a GPU ends as the CPU does, {_TESTS}", tests))] if tests else []
    return "\n".join(["`python -m benchmarks --gpu --headline` wrote this.", "", *text])


def _replace_section(path: Path, text: str) -> None:
    page = path.read_text(encoding="utf-8")
    before, _, after = page.partition(_SECTION if _SECTION in page else _BEFORE)
    after = f"{_BEFORE}{after.partition(_BEFORE)[2] if _SECTION in page else after}"
    with atomic_write(path) as temporary:
        temporary.write_text(f"{before}{_SECTION}\n\n{text}\n{after}", encoding="utf-8")


def _link_page(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    linked = text.replace(f"| `{_STUDY.name}` |", f"| [{_STUDY.name}](results/{_STUDY.name}/report.md) |")
    with atomic_write(path) as temporary:
        temporary.write_text(linked, encoding="utf-8")


def _stopped(what: str) -> int:
    print(f"benchmarks --gpu --headline: {what}: run the same command to resume", file=sys.stderr)
    return 128 + SIGTERM


def _read(path: Path) -> dict[str, Row]:
    return json.loads(path.read_text(encoding="utf-8"))["measured"] if path.exists() else {}


def _write(path: Path, found: Mapping[str, Row]) -> None:
    about = circumstances(torch.get_num_threads())
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps({**about, "measured": found}, indent=1) + "\n", encoding="utf-8")
