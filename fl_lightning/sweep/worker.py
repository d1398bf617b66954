"""A worker of a sweep: takes runs, starts them as processes, watches them and reports their ends."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fl_lightning.sweep.points import as_options, point_name
from fl_lightning.sweep.run_folder import RunFolder
from fl_lightning.sweep.screen import Screen
from fl_lightning.sweep.study import Claim, Search, SweepStudy
from fl_lightning.sweep.table import rows

_POLL = 0.2  # seconds between looks at the processes
_LOOK = 2.0  # seconds between looks at their curves
_GRACE = 10.0  # seconds until a stopped run is killed; it ends by itself within five


class Stop:
    """Signals to stop: SIGINT or SIGTERM within the block. After a second one, runs end at once."""

    def __init__(self) -> None:
        self.signals: list[int] = []

    def __enter__(self) -> "Stop":
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        self.signals.append(number)


@dataclass
class _Job:
    """A run of this worker."""

    claim: Claim
    folder: RunFolder
    process: subprocess.Popen
    pruned: bool = False
    newest: tuple[int, float] | None = None  # round and validation accuracy
    processor_seconds: float = 0.0  # once its process has ended

    @property
    def ended(self) -> bool:
        """Whether its process has ended; if so, its processor time is added to that of this process' children."""
        before = _of_children()
        has_ended = self.process.poll() is not None
        self.processor_seconds += _of_children() - before
        return has_ended

    def signal(self, number: int) -> None:
        """Send a signal to the run and the processes that it started."""
        if not self.ended:
            os.killpg(self.process.pid, number)

    @property
    def progress(self) -> str:
        score = "started" if self.newest is None else f"round {self.newest[0]} {self.newest[1]:.3f}"
        return f"seed {self.claim.run.seed}: {score}"


@dataclass
class Worker:
    """Works until no free run is left, or a signal stops it."""

    study: SweepStudy
    config: Path  # that all runs share
    options: Sequence[str]  # for every fit
    jobs: int  # runs at once
    search: Search | None  # for points; None for a grid
    prune: bool  # whether runs are ended early
    screen: Screen
    stop: Stop
    _running: list[_Job] = field(default_factory=list)

    def work(self) -> None:
        """Run the rest of the sweep, ``jobs`` at a time, until it is done or a signal stops it."""
        next_look = 0.0
        try:
            while not self.stop.signals:
                self._collect()
                self._fill()
                if not self._running:
                    return
                if time.monotonic() >= next_look:
                    self._look()
                    next_look = time.monotonic() + _LOOK
                time.sleep(_POLL)
        finally:
            self._end()

    def _fill(self) -> None:
        while len(self._running) < self.jobs and (claim := self.study.claim(self.search)) is not None:
            folder = RunFolder(self.study.out / claim.run.name, self.config.stem)
            if (metrics := folder.metrics()) is not None:  # the worker that waited for it ended before it did
                self.study.note_time(claim, 0.0)
                self._done(claim, metrics)
                continue
            resumed = folder.prepare()
            self._running.append(_Job(claim, folder, self._start(claim, folder, resumed)))
            self.screen.say(f"{claim.run.name}: {'resumed from its checkpoint' if resumed else 'started'}")

    def _start(self, claim: Claim, folder: RunFolder, resumed: Sequence[str]) -> subprocess.Popen:
        of_sweep = ["--seed_everything", str(claim.run.seed), "--trainer.default_root_dir", str(folder.path), *resumed]
        options = ["--config", str(self.config), *self.options, *as_options(claim.run.point), *of_sweep]
        environment = dict(os.environ)
        if self.jobs > 1:  # otherwise each would use all cores, and wait for the others
            environment.setdefault("OMP_NUM_THREADS", str(max(1, torch.get_num_threads() // self.jobs)))
        with open(folder.output, "wb") as output:
            return subprocess.Popen(
                # -P: a file of the working folder does not replace a library's, as in fl-lightning fit.
                [sys.executable, "-P", "-m", "fl_lightning.command_line.run_of_sweep", "fit", *options],
                stdin=subprocess.PIPE,  # closes when this process ends, and with it the run
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches only this process, which then ends the runs
            )

    def _collect(self) -> None:
        """Report the processes that have ended."""
        for job in [job for job in self._running if job.ended]:
            self._running.remove(job)
            self.study.note_time(job.claim, job.processor_seconds)
            metrics = job.folder.metrics()
            if metrics is not None:
                self._done(job.claim, metrics)
            elif job.pruned:
                self.study.prune(job.claim)
                self.screen.say(f"{job.claim.run.name}: pruned, {job.progress.split(': ')[1]}")
            else:
                error = job.folder.error(job.process.returncode)
                self.study.fail(job.claim, error)
                self.screen.say(f"{job.claim.run.name}: failed: {error}")

    def _done(self, claim: Claim, metrics: Mapping[str, float]) -> None:
        self.study.finish(claim, metrics)
        names = [name for name in ("test_accuracy", "val_accuracy") if name in metrics]
        scores = [f", final {name.replace('_', ' ')} {metrics[name]:.4f}" for name in names]
        self.screen.say(f"{claim.run.name}: done{''.join(scores)}")

    def _look(self) -> None:
        """Read the curves, end runs to prune, and show the state of all."""
        progress: dict[str, list[str]] = {}
        for job in self._running:
            accuracies = job.folder.new_accuracies()
            job.newest = accuracies[-1] if accuracies else job.newest
            if self.prune and not job.pruned and self.study.report(job.claim, accuracies):
                job.pruned = True
                job.signal(signal.SIGTERM)
            progress.setdefault(point_name(job.claim.run.point), []).append(job.progress)
        self.screen.show(rows(self.study.records()), {name: ", ".join(texts) for name, texts in progress.items()})

    def _end(self) -> None:
        """End the remaining runs; their checkpoints stay, and the next worker continues from them."""
        for job in self._running:
            job.signal(signal.SIGTERM)
        deadline = time.monotonic() + _GRACE
        while not all(job.ended for job in self._running):
            if time.monotonic() > deadline or len(self.stop.signals) > 1:
                for job in self._running:
                    job.signal(signal.SIGKILL)
            time.sleep(_POLL)
        for job in self._running:
            self.study.note_time(job.claim, job.processor_seconds)
            job.claim.lock.release()


def _of_children() -> float:
    """Processor seconds of ended children and of their children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
