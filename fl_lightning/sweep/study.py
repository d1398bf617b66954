"""The state of a sweep, in Optuna's tables in ``study.db``, and the distribution of its runs to workers.

The study ``runs`` has a trial for every attempt at a run. A run that was interrupted leaves a failed attempt without an error
and is queued again; the newest attempt is the state of a run. Random and TPE search keep their points in a second study,
``points``, with means over seeds as values.

Several workers, on one machine or on many that share the folder, work on one study. Steps that two must not take at once are
taken under the lock of the folder, and a worker holds the lock of each of its runs. The operating system releases these locks
when a process ends. So a run that is not finished and has a free lock was interrupted; this needs no clock, time limit or list
of hosts.
"""

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from fl_lightning.checks import first_line
from fl_lightning.checks.extras import needing_extra
from fl_lightning.sweep.points import Axis, Drawn, Point, Range, Run, as_typed

with needing_extra("sweep", "fl-lightning sweep"):
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.trial import FrozenTrial, Trial, TrialState
    from sqlalchemy import URL
    from sqlalchemy.exc import DatabaseError

_WAIT = 60  # seconds to wait for another worker that uses the database
_WITHDRAWN = "withdrawn"  # attribute of an attempt that was never made
_UNPRUNED = 5  # runs that must have ended before others are compared with them

Stands = Literal["waiting", "running", "done", "pruned", "failed"]
_STANDS: dict[TrialState, Stands] = {
    TrialState.WAITING: "waiting",
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "done",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


@dataclass(frozen=True)
class Record:
    """The state of a run."""

    run: Run
    stands: Stands
    metrics: Mapping[str, float]  # of a finished run
    error: str  # of a failed run
    processor_seconds: float | None = None  # of all its attempts; None if one is unknown, as after kill -9 of its worker


@dataclass(frozen=True)
class Claim:
    """A run of this worker, until its lock is released."""

    run: Run
    trial: Trial
    lock: FileLock


@contextmanager
def _held(lock: FileLock) -> Iterator[None]:
    try:
        lock.acquire()
    except Timeout as error:
        raise TimeoutError(
            f"{lock.lock_file} has been held by another worker for {_WAIT} s, perhaps to queue many runs: repeat the command"
        ) from error
    try:
        yield
    finally:
        lock.release()


class SweepStudy:
    """The state of a sweep.

    Args:
        out: folder of the sweep.
        prune: whether validation accuracies are compared during runs.
        warm_up: number of first rounds without a comparison.

    Raises:
        ValueError: if ``study.db`` cannot be read.
        OSError: if it is new and cannot be written.
    """

    def __init__(self, out: Path, prune: bool = False, warm_up: int = 0) -> None:
        self.out = out
        out.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(out / "study.lock", timeout=_WAIT)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        median = optuna.pruners.MedianPruner(n_startup_trials=_UNPRUNED, n_warmup_steps=warm_up)
        database = out / "study.db"
        with self.lock:
            is_new = not database.exists()
            try:
                # SQLAlchemy and Optuna give %, ?, # and braces of an address meanings of their own; the URI of a file has none.
                address = URL.create("sqlite", database=database.absolute().as_uri(), query={"uri": "true"})
                self._storage = optuna.storages.RDBStorage(str(address), engine_kwargs={"connect_args": {"timeout": _WAIT}})
                self._runs = self._study("runs", pruner=median if prune else optuna.pruners.NopPruner())
            except (DatabaseError, optuna.exceptions.StorageInternalError) as error:
                if is_new:
                    database.unlink(missing_ok=True)
                    failed = f"{database} could not be written ({first_line(error)})"
                    raise OSError(f"{failed}: free some space, or give another --out") from error
                raise ValueError(f"{database} cannot be read as a study: move it away, or give another --out") from error

    def _study(self, name: str, **settings: Any) -> optuna.Study:
        return optuna.create_study(
            study_name=name, storage=self._storage, direction="maximize", load_if_exists=True, **settings
        )

    @property
    def lock(self) -> AbstractContextManager[None]:
        """The lock of the folder, for which other workers wait; one that has it can take it again."""
        return _held(self._lock)

    @property
    def description(self) -> dict[str, Any]:
        """The description stored by :meth:`describe`; empty for a new sweep."""
        return self._runs.user_attrs.get("sweep", {})

    def describe(self, description: dict[str, Any]) -> None:
        """Store the description of the sweep."""
        self._runs.set_user_attr("sweep", description)

    def records(self) -> list[Record]:
        """The state of every run, in the order in which they were first queued."""
        return [_record(attempts) for attempts in self._attempts().values()]

    def queue(self, runs: Iterable[Run]) -> None:
        """Queue the runs that are not in the study yet."""
        with self.lock:
            known = self._newest()
            for run in runs:
                if run.name not in known:
                    self._enqueue(run)

    def withdraw(self, runs: Collection[Run]) -> None:
        """Take runs off the queue, as if they had never been in it."""
        with self.lock:
            for trial in self._trials(TrialState.WAITING):
                if _run(trial.user_attrs) in runs:
                    self._storage.set_trial_user_attr(trial._trial_id, _WITHDRAWN, True)
                    self._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)

    def queue_failed(self) -> None:
        """Queue failed runs again."""
        with self.lock:
            for record in self.records():
                if record.stands == "failed":
                    self._enqueue(record.run)

    def claim(self, search: "Search | None" = None) -> Claim | None:
        """The next run, which then belongs to this worker, unfinished ones first; None if no free run is left."""
        with self.lock:
            self._take_up_interrupted()
            if search is not None:
                self._draw(search)
            if not (waiting := self._trials(TrialState.WAITING)):
                return None
            attempts = self._attempts()  # a run that was begun comes before those that were not
            first = min(waiting, key=lambda trial: (len(attempts[trial.user_attrs["run"]]) == 1, trial.number))
            self._storage.set_trial_state_values(first._trial_id, TrialState.RUNNING)
            trial = Trial(self._runs, first._trial_id)
            run = _run(trial.user_attrs)
            lock = self._run_lock(run)
            lock.acquire(timeout=0)
            return Claim(run, trial, lock)

    def finish(self, claim: Claim, metrics: Mapping[str, float]) -> None:
        """A run is done."""
        claim.trial.set_user_attr("metrics", dict(metrics))
        self._tell(claim, metrics.get("val_accuracy", 0.0))  # only a search goes by it, and all its runs have it

    def fail(self, claim: Claim, error: str) -> None:
        """A run ended with an error."""
        claim.trial.set_user_attr("error", error)
        self._tell(claim, state=TrialState.FAIL)

    def prune(self, claim: Claim) -> None:
        """A run was ended early."""
        self._tell(claim, state=TrialState.PRUNED)

    def report(self, claim: Claim, accuracies: Sequence[tuple[int, float]]) -> bool:
        """Store validation accuracies of a run, by round; returns whether it should be ended early."""
        for round, accuracy in accuracies:
            claim.trial.report(accuracy, round)
            if claim.trial.should_prune():  # asked in each round: how many come at once depends on the machine
                return True
        return False

    def note_time(self, claim: Claim, processor_seconds: float) -> None:
        """Store the processor time of an attempt whose process has ended."""
        claim.trial.set_user_attr("processor_seconds", processor_seconds)

    def _tell(self, claim: Claim, value: float | None = None, state: TrialState | None = None) -> None:
        with self.lock:
            self._runs.tell(claim.trial, value, state)
            claim.lock.release()

    def _trials(self, *states: TrialState) -> list[FrozenTrial]:
        return self._runs.get_trials(deepcopy=False, states=states or None)

    def _attempts(self) -> dict[str, list[FrozenTrial]]:
        attempts: dict[str, list[FrozenTrial]] = {}
        for trial in self._trials():
            if _WITHDRAWN in trial.user_attrs:
                continue
            attempts.setdefault(trial.user_attrs["run"], []).append(trial)
        return attempts

    def _newest(self) -> dict[str, FrozenTrial]:
        return {run: attempts[-1] for run, attempts in self._attempts().items()}

    def _enqueue(self, run: Run) -> None:
        self._runs.enqueue_trial({}, user_attrs={**run.point, "seed": run.seed, "run": run.name, "point": dict(run.point)})

    def _run_lock(self, run: Run) -> FileLock:
        folder = self.out / run.name
        folder.mkdir(parents=True, exist_ok=True)
        return FileLock(folder / "run.lock")

    def _take_up_interrupted(self) -> None:
        newest = self._newest()
        for trial in self._trials(TrialState.RUNNING):
            run = _run(trial.user_attrs)
            lock = self._run_lock(run)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue  # another worker has it
            lock.release()
            if newest[run.name].number == trial.number:
                self._enqueue(run)  # before the next line: a kill between the two loses nothing
            self._runs.tell(trial.number, state=TrialState.FAIL)

    def _draw(self, search: "Search") -> None:
        """Settle the points whose runs have ended, and draw new ones if no run is waiting."""
        points = self._study("points", sampler=search.sampler(0))
        trials = []
        for trial in points.get_trials(deepcopy=False):
            if len(trial.params) == len(search.axes):
                trials.append(trial)
            elif not trial.state.is_finished():  # its worker was killed while it drew: the point is drawn again
                points.tell(trial.number, state=TrialState.FAIL)
        self.queue(run for trial in trials for run in search.runs(trial.params))  # for added seeds
        for trial in trials:
            if trial.state == TrialState.RUNNING:
                self._settle(points, trial.number, search.runs(trial.params))
        drawn = len(trials)
        while not self._trials(TrialState.WAITING) and drawn < search.trials:
            points.sampler = search.sampler(drawn)
            self.queue(search.runs(points.ask(search.distributions()).params))
            drawn += 1

    def _settle(self, points: optuna.Study, number: int, runs: Sequence[Run]) -> None:
        """Store a point's value, the mean over its seeds, once all have ended; without those that failed it would flatter."""
        newest = self._newest()
        trials = [newest[run.name] for run in runs]
        if all(trial.state.is_finished() for trial in trials):
            failed = any(trial.state == TrialState.FAIL for trial in trials)
            values = [trial.value for trial in trials if trial.value is not None and not failed]
            mean = sum(values) / len(values) if values else None
            points.tell(number, mean, None if values else TrialState.FAIL)


@dataclass(frozen=True)
class Search:
    """Random or TPE search for points.

    Each point is drawn by a separate sampler, seeded with the number of points before it: the result does not depend on the
    worker that draws it.
    """

    kind: Drawn
    axes: Sequence[Axis]
    seeds: Sequence[int]
    trials: int

    def sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        """The sampler of the point after ``seed`` others."""
        if self.kind == "random":
            return optuna.samplers.RandomSampler(seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return optuna.samplers.TPESampler(seed=seed, constant_liar=True)

    def distributions(self) -> dict[str, BaseDistribution]:
        """The distribution of each key's values."""
        return {axis.key: _distribution(axis) for axis in self.axes}

    def runs(self, params: Mapping[str, Any]) -> list[Run]:
        """The runs of a drawn point, one a seed."""
        point: Point = {axis.key: as_typed(params[axis.key]) for axis in self.axes}
        return [Run(point, seed) for seed in self.seeds]


def _distribution(axis: Axis) -> BaseDistribution:
    if not isinstance(axis, Range):
        return CategoricalDistribution(axis.values)
    if axis.whole:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return FloatDistribution(axis.low, axis.high, log=axis.log)


def _run(attributes: Mapping[str, Any]) -> Run:
    return Run(attributes["point"], attributes["seed"])


def _record(attempts: Sequence[FrozenTrial]) -> Record:
    newest, spent = attempts[-1], [trial.user_attrs.get("processor_seconds") for trial in attempts]
    known = [seconds for seconds in spent if seconds is not None]
    kept, seconds = newest.user_attrs, sum(known) if len(known) == len(spent) else None
    # An interrupted attempt is queued again before it is marked as failed; one with neither is about to be.
    return Record(_run(kept), _STANDS[newest.state], kept.get("metrics", {}), kept.get("error", ""), seconds)
