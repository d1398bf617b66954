"""A sweep in its folder: it begins or continues, runs and reports."""

import signal
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fl_lightning.state.atomic_files import atomic_write
from fl_lightning.state.strict_yaml import load_yaml
from fl_lightning.sweep.points import Choices, Run, grid
from fl_lightning.sweep.screen import Screen
from fl_lightning.sweep.settings import Settings
from fl_lightning.sweep.study import Search, SweepStudy
from fl_lightning.sweep.table import as_csv, as_table, rows, totals
from fl_lightning.sweep.worker import Stop, Worker

_WARM_UP = 5  # one fifth of the rounds passes before a run is compared with others


class EnteredSweep:
    """A sweep with its runs queued in its folder.

    Args:
        config: text of the config that all runs share, which is stored in the folder.
        rounds: of a run.
        left_out: runs of a grid that the folder does not need.

    Raises:
        ValueError: if the folder holds another sweep.
    """

    def __init__(self, settings: Settings, config: str, rounds: int, left_out: Collection[Run]) -> None:
        self.settings, self.study = settings, SweepStudy(settings.out, settings.prune, rounds // _WARM_UP)
        stored = next((settings.out / "config").glob("*.yaml"), None)  # the user may have renamed the file since
        self._config = stored or settings.out / "config" / f"{Path(settings.config).stem}.yaml"
        description = described(settings, config)
        with self.study.lock:
            check_same(self.study.description, description, settings.out)
            if not self.study.description:
                with atomic_write(self._config) as path:
                    path.write_text(config, encoding="utf-8")
            self.study.describe(description)
            if settings.search == "grid":
                choices = [axis for axis in settings.axes if isinstance(axis, Choices)]
                runs = [Run(point, seed) for seed in settings.seeds for point in grid(choices)]
                self.study.queue(run for run in runs if run not in left_out)
                self.study.withdraw(left_out)  # queued before they were known to be done elsewhere
            if settings.retry_failed:
                self.study.queue_failed()

    def work(self, screen: Screen, stop: Stop) -> None:
        """Run what is left, until all is done or a signal stops it."""
        asked, search = self.settings, None
        if asked.search != "grid":
            search = Search(asked.search, asked.axes, asked.seeds, asked.trials or 0)
        Worker(self.study, self._config, asked.options, asked.jobs, search, asked.prune, screen, stop).work()

    def report(self, signals: Sequence[int]) -> None:
        """Show and write the results, and end with the exit code for them and for the signals.

        Raises:
            ValueError: with the number of failed runs.
            SystemExit: after a signal.
        """
        found, path = rows(self.study.records()), self.settings.out / "results.csv"
        with self.study.lock, atomic_write(path) as temporary:
            temporary.write_text(as_csv(found), encoding="utf-8")
        if signals:
            name = signal.Signals(signals[0]).name
            print(f"fl-lightning: stopped by {name}, {totals(found)}: run the same command to resume", file=sys.stderr)
            sys.exit(128 + signals[0])
        Console().print(as_table(found))
        print(f"Results: {path}")
        for row in found:
            for seed, error in row.errors.items():
                print(f"failed: {Run(row.point, seed).name}: {error}")
        if any(row.counts["running"] for row in found):
            print("Other workers are at the runs that are left.")
        if failed := sum(row.counts["failed"] for row in found):
            total = sum(sum(row.counts.values()) for row in found)
            raise ValueError(f"{failed} of {total} runs failed: --retry-failed tries again")


def described(settings: Settings, config: str) -> dict[str, Any]:
    """The description of a sweep that its folder stores."""
    return {
        "config": load_yaml(config),
        "options": list(settings.options),
        "search": settings.search,
        "set": {axis.key: list(axis.values) for axis in settings.axes},
        "seeds": list(settings.seeds),
    }


def check_same(old: dict[str, Any], new: dict[str, Any], out: Path) -> None:
    """Check that ``new`` is the sweep in the folder, or an extension of it.

    Raises:
        ValueError: naming the difference.
    """
    if not old:
        return
    cure = "give the same, or another --out"
    if old["config"] != new["config"]:
        raise ValueError(f"out is {out}, which holds a sweep of another config, or of this one before it was changed: {cure}")
    if _by_key(old["options"]) != _by_key(new["options"]):
        before, now = (_by_key(one["options"]) for one in (old, new))
        differ = f"missing here is {_without(before, now)}, new is {_without(now, before)}"
        raise ValueError(f"out is {out}, which holds a sweep with other options for fit, {differ}: {cure}")
    if old["search"] != new["search"] or list(old["set"]) != list(new["set"]):
        before, now = (f"--search {one['search']} over {', '.join(one['set']) or 'nothing'}" for one in (old, new))
        raise ValueError(f"out is {out}, which holds another sweep: {before}, here {now}: {cure}")
    for name, before, now in [("--seeds", old["seeds"], new["seeds"]), *((k, v, new["set"][k]) for k, v in old["set"].items())]:
        fixed = new["search"] != "grid" and name != "--seeds"
        if not set(before) <= set(now) or (fixed and before != now):
            has, may = (", ".join(map(str, values)) for values in (before, now))
            raise ValueError(
                f"out is {out}, whose sweep has {has} for {name}, here {may}: "
                + ("a search keeps its values" if fixed else "it may gain values, and lose none")
                + f": {cure}"
            )


def _without(options: Sequence[Sequence[str]], others: Sequence[Sequence[str]]) -> str:
    return " ".join(word for option in options if option not in others for word in option) or "none"


def _by_key(options: Sequence[str]) -> list[list[str]]:
    """Options for ``fit`` with their values, in an order that does not depend on how options of different keys were mixed.

    Options of a key and of the keys below it stay in their order, in which ``fit`` reads them.
    """
    given: list[list[str]] = []
    for word in options:
        if word.startswith("--"):
            given.append(word.split("=", 1))
        else:
            given[-1].append(word)
    return sorted(given, key=lambda option: option[0].rstrip("+").split(".")[:2])
