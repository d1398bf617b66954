"""``fl-lightning sweep``: many runs of ``fit``, over values and seeds."""

import signal
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from rich.console import Console

from fl_lightning.atomic_files import atomic_write
from fl_lightning.command_line.config_files import whole_configs
from fl_lightning.command_line.sweep_point_check import check_points
from fl_lightning.state.strict_yaml import load_yaml
from fl_lightning.sweep.points import Choices, Run, grid
from fl_lightning.sweep.screen import Screen, open_screen
from fl_lightning.sweep.settings import Settings, parse_settings
from fl_lightning.sweep.study import Search, SweepStudy
from fl_lightning.sweep.table import as_csv, as_table, rows, totals
from fl_lightning.sweep.worker import Stop, Worker

_WARM_UP = 5  # a fifth of the rounds pass before a run is compared with others


def run(arguments: Sequence[str]) -> None:
    """Run a sweep, or what is left of it.

    Raises:
        ValueError: in one line, if the command or the folder does not fit, or runs have failed.
        SystemExit: with 130 or 143 after Ctrl-C or SIGTERM.
    """
    settings = parse_settings(arguments)
    with Stop() as stop:
        sweep = enter(settings)
        with open_screen() as screen:
            work(sweep, screen, stop)
    _report(sweep.study, settings, stop.signals)


@dataclass(frozen=True)
class EnteredSweep:
    """A sweep whose runs are queued in its folder."""

    settings: Settings
    study: SweepStudy
    config: Path  # what all runs share, kept in the folder


def enter(settings: Settings, left_out: Collection[Run] = ()) -> EnteredSweep:
    """Begin a sweep in its folder, or go on with it; nothing runs yet.

    Args:
        settings: what the command line asks for.
        left_out: runs of a grid that the folder does not need, since their results are known.

    Raises:
        ValueError: in one line, if the settings or the folder do not fit.
    """
    with whole_configs(["--config", settings.config]) as (_, path):
        config = check_points(settings, path)
        _check_validation(settings, config)
        text = Path(path).read_text(encoding="utf-8")
    study = SweepStudy(settings.out, settings.prune, config.trainer.max_steps // _WARM_UP)
    return EnteredSweep(settings, study, _queue(study, settings, text, left_out))


def work(sweep: EnteredSweep, screen: Screen, stop: Stop) -> None:
    """Run what is left of a sweep, until nothing is or a signal asks for an end."""
    settings = sweep.settings
    search = _search(settings)
    Worker(sweep.study, sweep.config, settings.options, settings.jobs, search, settings.prune, screen, stop).work()


def _check_validation(settings: Settings, config: Namespace) -> None:
    asks = "--prune" if settings.prune else "--search tpe" if settings.search == "tpe" else None
    if asks and (config.data.val_fraction == 0 or config.data.tasks is not None):
        raise ValueError(f"{asks} goes by validation accuracy, and there is none: set data.val_fraction above 0")
    if settings.prune and config.trainer.logger in (False, []):
        raise ValueError("--prune goes by what runs log, and trainer.logger is false: leave it out, or name a logger")


def _queue(study: SweepStudy, settings: Settings, config: str, left_out: Collection[Run]) -> Path:
    """Begin the sweep in its folder or go on with it; gives the path of the config, which is kept there.

    Raises:
        ValueError: if the folder holds another sweep.
    """
    description = _described(settings, config)
    shared = settings.out / "config" / f"{Path(settings.config).stem}.yaml"
    with study.alone():
        _check_same(study.description, description, settings.out)
        if not study.description:
            with atomic_write(shared) as path:
                path.write_text(config, encoding="utf-8")
        study.describe(description)
        if settings.search == "grid":
            choices = [axis for axis in settings.axes if isinstance(axis, Choices)]
            runs = [Run(point, seed) for seed in settings.seeds for point in grid(choices)]
            study.queue(run for run in runs if run not in left_out)
        if settings.retry_failed:
            study.queue_failed()
    return shared


def _described(settings: Settings, config: str) -> dict[str, Any]:
    varied = {axis.key: list(axis.values) for axis in settings.axes}
    return {
        "config": load_yaml(config),
        "options": list(settings.options),
        "search": settings.search,
        "set": varied,
        "seeds": list(settings.seeds),
    }


def _check_same(old: dict[str, Any], new: dict[str, Any], out: Path) -> None:
    """Whether ``new`` is the sweep in the folder, or more of it."""
    if not old:
        return
    cure = "give the same, or another --out"
    if old["config"] != new["config"]:
        raise ValueError(f"out is {out}, which holds a sweep of another config, or of this one before it was changed: {cure}")
    if _by_key(old["options"]) != _by_key(new["options"]):
        before, now = (" ".join(options) or "none" for options in (old["options"], new["options"]))
        raise ValueError(f"out is {out}, which holds another sweep: its options for fit are {before}, here {now}: {cure}")
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


def _by_key(options: Sequence[str]) -> list[list[str]]:
    """Options for ``fit`` with their values, in an order that is the same however options of different keys were mixed.

    Options of a key and of what lies below it stay in their order, in which ``fit`` reads them.
    """
    given: list[list[str]] = []
    for word in options:
        if word.startswith("--"):
            given.append(word.split("=", 1))
        else:
            given[-1].append(word)
    return sorted(given, key=lambda option: option[0].rstrip("+").split(".")[:2])


def _search(settings: Settings) -> Search | None:
    if settings.search == "grid":
        return None
    return Search(settings.search, settings.axes, settings.seeds, settings.trials or 0)


def _report(study: SweepStudy, settings: Settings, signals: Sequence[int]) -> None:
    """Show and write the results, and end with the exit code that they ask for."""
    found = rows(study.records())
    with study.alone(), atomic_write(settings.out / "results.csv") as path:
        path.write_text(as_csv(found), encoding="utf-8")
    if signals:
        name = signal.Signals(signals[0]).name
        print(f"fl-lightning: stopped by {name}, {totals(found)}: the same command goes on from here", file=sys.stderr)
        sys.exit(128 + signals[0])
    Console().print(as_table(found))
    print(f"Results: {settings.out / 'results.csv'}")
    for row in found:
        for seed, error in row.errors.items():
            print(f"failed: {Run(row.point, seed).name}: {error}")
    if any(row.counts["running"] for row in found):
        print("Other workers are at the runs that are left.")
    if failed := sum(row.counts["failed"] for row in found):
        total = sum(sum(row.counts.values()) for row in found)
        raise ValueError(f"{failed} of {total} runs failed: --retry-failed tries again")
