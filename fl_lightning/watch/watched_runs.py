"""What the page shows of the runs below a folder, each read again when one of its files has changed."""

import math
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_lightning.callbacks.forgetting_names import forgetting_name, forgetting_sign
from fl_lightning.callbacks.tags import metadata, overview_tag
from fl_lightning.report.costs import duration, time_of_rounds
from fl_lightning.report.figures import Palette
from fl_lightning.report.groups import group_runs, identity
from fl_lightning.report.log import thinned
from fl_lightning.report.runs import Run, read_run, reason, run_folders
from fl_lightning.report.safe_text import one_line
from fl_lightning.report.tables import DASH
from fl_lightning.watch.heatmaps import KINDS, measured_rounds

_MOST_POINTS = 400  # of a curve
_SETTLED = 600  # seconds after which a file that is cut off is not one that is being written
_SILENT = 300, 10  # a run that logged nothing for so many seconds, and so many of its rounds, is not called running
_NEWEST = 4  # values of a run's card
_TITLES = {"test/accuracy": "test accuracy", "val/accuracy": "validation accuracy", "tasks/accuracy": "accuracy on tasks"}
Stamp = frozenset[tuple[str, int, int]]  # name, bytes and time of change of each file


@dataclass(frozen=True, eq=False)
class _Watched:
    stamp: Stamp
    run: Run | None  # None if it cannot be read, or not yet
    remarks: list[str]
    remarks_from: float  # when they are shown, in s since 1970
    shown: dict[str, Any]  # of the run, without what changes with the time of day
    a_round: float | None  # seconds that it takes, if that is known


class WatchedRuns:
    """The runs below a folder. One thread may call `refresh`, and any others the rest at the same time.

    Args:
        folder: of one run, or of many at any depth.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._watched: dict[str, _Watched] | None = None  # by the name on the page
        self._looks: dict[str, dict[str, Any]] = {}  # also by the name: label, colour and line
        self._unlisted: list[str] = []  # remarks on folders that cannot be listed

    def refresh(self) -> None:
        """Look for runs, and read those that have changed. Each is read as far as it is whole."""
        before, found = self._watched or {}, {}
        try:
            folders, self._unlisted = run_folders([self._folder])
        except FileNotFoundError:  # removed since
            folders, self._unlisted = [], []
        for folder in sorted(folders):
            name, stamp = _name(folder, self._folder), _stamp(folder)
            known = before.get(name)
            found[name] = known if known is not None and known.stamp == stamp else _read(folder, stamp, known)
        if found != before:
            # Those of removed runs stay: a request between this line and the next asks for them.
            self._looks = self._looks | _looks({name: one.run for name, one in found.items() if one.run is not None})
        self._watched = found

    def overview(self) -> dict[str, Any]:
        """All runs with their curves, for JSON.

        ``runs`` holds for each run its ``name``, ``label``, ``color``, which is that of its method in a report on up to ten
        methods, ``line`` (its place among the runs of one colour), ``state`` (``running``, ``silent`` or ``finished``),
        ``standing`` and ``newest`` values in words, ``round`` of ``rounds``, ``sessions`` (how often it was started),
        ``measured`` (rounds by kind of heatmap) and ``curves`` (by tag: rounds and values, at most 400; positive is
        forgetting). ``charts`` has the ``title`` of each tag and a ``text`` that describes it, ``kinds`` describes heatmaps.
        ``remarks`` is on files that are damaged, and not on those that may be half written. ``folder``, ``is_read`` and
        ``standing``, in words, are of all runs.
        """
        watched, now = self._watched or {}, time.time()
        found = [(name, one, one.run) for name, one in watched.items() if one.run is not None]
        tags = {tag for _, one, _ in found for tag in one.shown["curves"]}
        charts = {tag: _chart(tag) for tag in sorted(tags, key=lambda tag: (str(overview_tag(tag)), tag))}
        runs = [
            {"name": name, **self._looks[name], **one.shown, **_standing(run, one.a_round, now), "newest": _newest(one, charts)}
            for name, one, run in found
        ]
        remarks = [*self._unlisted, *(remark for one in watched.values() if now > one.remarks_from for remark in one.remarks)]
        return {
            "folder": one_line(str(self._folder)),
            "is_read": self._watched is not None,
            "standing": _standing_of_all(runs) if self._watched is not None else "Reading the runs ...",
            "runs": runs,
            "charts": charts,
            "kinds": {name: kind.described() for name, kind in KINDS.items()},
            "remarks": list(map(one_line, remarks)),
        }

    def run(self, name: str) -> Run:
        """The run of a name on the page.

        Raises:
            KeyError: if there is none, or no longer.
        """
        watched = (self._watched or {})[name]
        if watched.run is None:
            raise KeyError(name)
        return watched.run


def _name(folder: Path, root: Path) -> str:
    inner = folder.relative_to(root)
    return one_line(str(inner) if inner.parts else folder.resolve().name)


def _stamp(folder: Path) -> Stamp:
    """Empty if the folder changes while it is looked at."""
    try:
        found = [(entry.name, entry.stat()) for entry in os.scandir(folder) if not entry.is_dir()]
    except OSError:
        return frozenset()
    return frozenset((name, stat.st_size, stat.st_mtime_ns) for name, stat in found)


def _read(folder: Path, stamp: Stamp, known: _Watched | None) -> _Watched:
    """What could be read before stays where a file is half written."""
    settled = max((time for _, _, time in stamp), default=0) / 1e9 + _SETTLED
    try:
        run = read_run(folder)
        rounds, seconds = time_of_rounds(run)
        told = 0.0 if run.log.is_damaged else settled
        return _Watched(stamp, run, run.log.remarks, told, _shown(run), seconds / rounds if rounds else None)
    except (ValueError, OSError, RecursionError) as error:
        remark = reason(error)
    except Exception as error:  # whatever one run holds, the page goes on with the others
        remark, settled = f"it cannot be shown ({type(error).__name__}: {error})", 0.0
    if known is None:
        known = _Watched(stamp, None, [], 0.0, {}, None)
    return replace(known, stamp=stamp, remarks=[f"{folder}: {remark}"], remarks_from=settled)


def _shown(run: Run) -> dict[str, Any]:
    curves = {}
    for tag, curve in run.log.scalars.items():
        if overview_tag(tag) is not None:
            kept = thinned(len(curve), _MOST_POINTS)
            values = forgetting_sign(tag) * curve.values[kept]
            curves[tag] = {"rounds": curve.rounds[kept].tolist(), "values": numbers(values)}
    return {
        "round": run.log.last_round,
        "rounds": run.config.get("trainer.max_steps", run.log.last_round),
        "sessions": len(run.log.sessions),
        "measured": measured_rounds(run),
        "curves": curves,
    }


def numbers(values: NDArray) -> list:
    """For JSON, which has no NaN; to four digits, more than a screen shows."""
    with np.errstate(over="ignore"):  # in 1e308, say, of a run that diverges
        rounded = np.round(values.astype(np.float64), 4)
    shown = rounded.astype(object)
    shown[~np.isfinite(rounded)] = None
    return shown.tolist()


def _looks(runs: dict[str, Run]) -> dict[str, dict[str, Any]]:
    """Label, colour and line of each run, by its name: the names and colours of a report on all of them."""
    groups, _ = group_runs(list(runs.values()))
    palette, by_config = Palette(groups), {frozenset(group.config.items()): group for group in groups}
    found: dict[str, dict[str, Any]] = {}
    for name, run in runs.items():
        group = by_config[frozenset(identity(run).items())]
        color = palette[group]
        line = sum(look["color"] == color for look in found.values())
        found[name] = {"label": f"{group.label}, seed {run.seed}", "color": color, "line": line}
    return found


def _standing(run: Run, a_round: float | None, now: float) -> dict[str, Any]:
    """Whether a run goes on, and how long it takes; the times of log entries show it."""
    last, rounds = run.log.last_round, run.config.get("trainer.max_steps", run.log.last_round)
    silent = now - run.log.last_time if run.log.sessions else 0.0
    left = (a_round or math.nan) * (float(rounds) - last)
    if run.finished:
        state, said = "finished", "finished"
    elif silent > max(_SILENT[0], _SILENT[1] * (a_round or 0)):
        state, said = "silent", f"nothing new for {duration(60 * (silent // 60))}"
    else:
        state, said = "running", f"{duration(left)} left" if math.isfinite(left) else "time left not known yet"
    return {"state": state, "standing": f"round {last} of {rounds}, {said}"}


def _standing_of_all(runs: list[dict[str, Any]]) -> str:
    states = [run["state"] for run in runs]
    counts = [f"{states.count(state)} {state}" for state in ("running", "silent", "finished") if state in states]
    return f"{', '.join(counts)}." if counts else "No runs yet. They appear here as they begin."


def _newest(one: _Watched, charts: dict[str, dict[str, str]]) -> str:
    """Last values of the first charts in words."""
    last = {charts[tag]["title"]: one.shown["curves"][tag]["values"][-1] for tag in charts if tag in one.shown["curves"]}
    said = [f"{title} {DASH if value is None else f'{value:z.3f}'}" for title, value in list(last.items())[:_NEWEST]]
    return f"last {', '.join(said)}" if said else ""


def _chart(tag: str) -> dict[str, str]:
    text = metadata(tag, "scalars").summary_description
    text = text.replace("Logged with the opposite sign: negative is forgetting", "Positive is forgetting")
    return {"title": _TITLES.get(tag) or forgetting_name(tag), "text": text}
