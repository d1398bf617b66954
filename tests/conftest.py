"""What several test files share: a quiet trainer, a toy federation, the command line as a real process."""

import gc
import os

import no_garbage_yet  # noqa: F401

# Before torch counts processors: nets are tiny, and tests run side by side.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # a pool of compilers starts for longer than these few take

import resource
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import lightning.pytorch as pl
import pytest
import torch
from asked_once import answers
from fork_server import CommandLine
from hypothesis import settings

from fl_lightning.command_line import cli
from fl_lightning.data import FederatedDataModule, from_arrays

# An example on a busy machine takes longer than hypothesis's 200 ms, which says nothing of the code.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# Torch cannot fork a process if its first backward pass comes after a traced step, which adds the device of fake tensors:
# tests of two processes would fail if the first test of their worker were one of the captured engine.
torch.ones(1, requires_grad=True).sum().backward()


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the cases of a test that is marked ``one_in(n)`` every n-th is quick, from the first on; the others are slow."""
    cases: Counter[str] = Counter()
    for item in items:
        if mark := item.get_closest_marker("one_in"):
            test = item.nodeid.partition("[")[0]
            if cases[test] % mark.args[0]:
                item.add_marker("slow")
            cases[test] += 1


def pytest_collection_finish() -> None:
    """What is imported and collected stays: the garbage collector need not look at it, nor at the rest with every test."""
    gc.freeze()
    gc.set_threshold(5_000, 10, 10)
    gc.enable()


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which the tests of an installed package do without
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadgroup`` tests that share runs or unpacked archives run in one process, any other where it may.

    The file tells, as the name of a group does not arrive: pytest 9.2 no longer reads the ids that pytest-xdist 3.8 changes.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class SomeFilesWhole(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return path if Path(path).name.startswith(("test_table_of_", "test_real_data")) else nodeid

    return SomeFilesWhole(config, log)


@pytest.fixture(autouse=True)
def _cache_of_the_test(tmp_path_factory, monkeypatch):
    """Decoded data of tests stays with the tests."""
    monkeypatch.setenv("FL_LIGHTNING_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True)
def _environment_as_before():
    """What launchers write into the environment goes with the test: the next one's run would believe that it was started."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture(scope="session", autouse=True)
def _asked_once():
    with pytest.MonkeyPatch.context() as patch:
        for answer in answers():
            patch.setattr(*answer)
        yield


@pytest.fixture
def fit() -> Callable[..., pl.Trainer]:
    """Fit a method for some rounds on the CPU, quietly, and return the trainer."""

    def run(method, data, rounds: int, ckpt_path=None, **settings) -> pl.Trainer:
        defaults = {
            "max_steps": rounds,
            "max_epochs": -1,
            "accelerator": "cpu",
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "val_check_interval": 1,
            "check_val_every_n_epoch": None,
            "num_sanity_val_steps": 0,
            "log_every_n_steps": 1,
        }
        trainer = pl.Trainer(**{**defaults, **settings})
        trainer.fit(method, datamodule=data, ckpt_path=ckpt_path)
        return trainer

    return run


@pytest.fixture(autouse=True)
def _traced(request):
    """Captured steps are traced to graphs which run as they are, operator by operator: compiling takes seconds.

    Tests of what is compiled are marked ``compiled``.
    """
    if request.node.get_closest_marker("compiled"):
        yield
        return
    compile, used = torch.compile, []

    def trace(*step, mode=None, **options):
        used.append(step)
        return compile(*step, **{"backend": "eager", **options})

    with mock.patch.object(torch, "compile", trace):
        yield
    if used:
        torch._dynamo.reset()  # no test depends on what those before it have traced


@pytest.fixture
def toy_data() -> Callable[..., FederatedDataModule]:
    """Three clients of 5, 10 and 15 float64 samples with 4 features and 3 classes; full batches unless told otherwise."""

    def build(**settings) -> FederatedDataModule:
        generator = torch.Generator().manual_seed(7)
        inputs = torch.randn(42, 4, generator=generator, dtype=torch.float64)
        targets = torch.randint(0, 3, (42,), generator=generator)
        clients = [list(range(0, 5)), list(range(5, 15)), list(range(15, 30))]
        defaults = {
            "batch_size": None,
            "test_inputs": inputs[30:],
            "test_targets": targets[30:],
            "classes": ["cat", "dog", "owl"],
        }
        return from_arrays(inputs[:30], targets[:30], clients, **{**defaults, **settings})

    return build


@pytest.fixture(scope="session")
def splitmix64() -> Callable[[int, int], int]:
    """The ``counter``-th 64-bit draw of Steele, Lea and Flood's generator (OOPSLA 2014) from a seed, in Python's integers."""

    def draw(key: int, counter: int) -> int:
        word = (1 << 64) - 1
        z = (key + (counter + 1) * 0x9E3779B97F4A7C15) & word
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & word
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & word
        return z ^ (z >> 31)

    return draw


@pytest.fixture
def main(tmp_path, monkeypatch, capsys) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """Run ``main`` in an empty folder; gives exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fl-lightning"])
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command line adds its folder
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)

    def run(*arguments: str):
        try:
            code = cli.main(arguments)
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    yield run
    # Files of one name in the folders of two tests are not one module.
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture(scope="session")
def run_in(tmp_path_factory) -> Callable[..., Path]:
    """Run ``main`` in a folder, for what several tests share; gives the folder."""

    def run(folder: Path, *arguments: str) -> Path:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            patch.setenv("FL_LIGHTNING_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
            patch.setattr(sys, "argv", ["fl-lightning"])
            patch.setattr(threading, "excepthook", threading.excepthook)
            assert not cli.main(arguments)
        return folder

    return run


@pytest.fixture
def largest_file() -> Callable[[int], AbstractContextManager[None]]:
    """Let no file grow beyond some bytes in a block, as on a disk that fills up; pytest's own output may go to a file."""

    @contextmanager
    def limited(size: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited


@pytest.fixture
def command_line(tmp_path, tmp_path_factory) -> Callable[..., subprocess.CompletedProcess]:
    """Run ``fl-lightning`` as a real process in an empty folder, by default to its end.

    It is forked from one that has imported everything, as are those that it starts, unless a new interpreter is asked for.
    """

    def run(*arguments: str, wait: bool = True, new_interpreter: bool = False, **environment: str):
        everything = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        if new_interpreter:
            process = subprocess.Popen(
                [sys.executable, "-m", "fl_lightning", *arguments],
                cwd=tmp_path,
                env=everything,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                # Tests that run in the background of a script inherit that Ctrl-C is ignored.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        else:
            process = CommandLine(arguments, tmp_path, tmp_path_factory.mktemp("output") / "of", everything)
        if not wait:
            return process
        out, err = process.communicate(timeout=240)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    return run


@pytest.fixture
def read_scalars() -> Callable[[Path], dict[str, dict[int, float]]]:
    """All scalars in a folder of event files: name -> round -> value."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def read(folder: Path) -> dict[str, dict[int, float]]:
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "images": 0}).Reload()
        return {name: {event.step: event.value for event in events.Scalars(name)} for name in events.Tags()["scalars"]}

    return read


@pytest.fixture
def raw_records() -> Callable[[Path], list[tuple[int, str, bytes]]]:
    """Every record in a folder of event files, in order: round, tag and value.

    HParams' are left out, which have times, and what describes a tag, which each process writes once.
    """
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    def read(folder: Path) -> list[tuple[int, str, bytes]]:
        files = folder.glob("events.out.tfevents.*")
        events = [Event.FromString(record) for file in files for record in RawEventFileLoader(str(file)).Load()]
        values = [(event.step, value) for event in events for value in event.summary.value]
        for _, value in values:
            value.ClearField("metadata")
        records = [(step, value.tag, value.SerializeToString()) for step, value in values]
        return sorted(record for record in records if not record[1].startswith("_hparams_"))

    return read
