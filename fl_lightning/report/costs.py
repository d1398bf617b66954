"""Tables of what runs cost: bytes, the size of the model, and time."""

import math

import numpy as np

from fl_lightning.report.runs import Run
from fl_lightning.report.study import Spread, Study
from fl_lightning.report.tables import DASH, Table, means_and_sds, number, spread

_PAUSE, _PAUSE_SECONDS = 20, 60  # a break this many times the median round, and so many seconds, is a pause


def communication(study: Study) -> Table | None:
    """Bytes sent and the size of the model next to the final accuracy; None if nothing was counted."""
    rows, records = [], []
    for group in study.finished:
        down, up = (Spread(tuple(megabytes(run, direction) for run in group.runs)) for direction in ("down", "up"))
        if np.isnan(down.mean):
            continue
        size = Spread(tuple(model_megabytes(run) for run in group.runs))
        final, simulated = study.final_of(group), Spread(tuple(simulated_seconds(run) for run in group.runs))
        megabytes_of = [number(of.mean, ",.0f" if of.mean >= 100 else ".3g") for of in (down, up, size)]
        rows.append([group.label, *megabytes_of, number(simulated.mean, ",.0f"), spread(final)])
        names = ("down_mb", "up_mb", "model_mb", "simulated_seconds", "final")
        records.append({"method": group.label} | means_and_sds(names, (down, up, size, simulated, final)))
    note = (
        "Megabytes (10^6 bytes) that the server sent to clients and they sent back in the whole run, and what the model takes "
        "in float32; on task streams the models of all clients, without zeros. Simulated seconds are those of data.devices. "
        f"{DASH} where it was not noted. Means over seeds."
    )
    columns = ["method", "MB down", "MB up", "model, MB", "simulated s", "final accuracy"]
    return Table("communication", "Communication and model size", note, columns, rows, records) if rows else None


def megabytes(run: Run, direction: str) -> float:
    """All that went ``down`` or ``up``, in 10^6 bytes; NaN if it was not counted."""
    # The record of a run that logs every tenth round may lack the last ones, and results of a resumed run are of its start.
    counted = run.results.get(f"bytes_{direction}") if run.results.get("rounds") == run.log.last_round else None
    return (run.log.newest(f"communication/total_{direction}") if counted is None else counted) / 1e6


def simulated_seconds(run: Run) -> float:
    """Simulated time of all rounds, in seconds; NaN without speeds of devices."""
    return run.log.newest("communication/total_seconds")


def model_megabytes(run: Run) -> float:
    """Size of the model, or on task streams of the models of all clients at the end; NaN where it was not noted."""
    of_clients = run.log.newest("tasks/model_megabytes")
    return float(run.results.get("model_megabytes", "nan")) if math.isnan(of_clients) else of_clients


def timing(study: Study) -> Table:
    """Seconds and rounds per second."""
    rows, records = [], []
    for group in study.finished:
        measured = [time_of_rounds(run) for run in group.runs]
        seconds = Spread(tuple(time for _, time in measured))
        speed = Spread(tuple(rounds / time if time > 0 else math.nan for rounds, time in measured))
        texts = [duration(seconds.mean), number(speed.mean, ".3g"), number(speed.deviation, ".2g")]
        rows.append([group.label, str(len(group.runs)), *texts])
        scores = means_and_sds(("seconds", "rounds_per_second"), (seconds, speed))
        records.append({"method": group.label, "runs": len(group.runs)} | scores)
    note = (
        "From the times of log entries: from the first round that a process logged to its last, with evaluations and rounds "
        "repeated after a resume, without starts, the time between processes and breaks of more than "
        f"{_PAUSE} median rounds and {_PAUSE_SECONDS} s. Runs that shared a machine slowed each other down. Means over seeds."
    )
    return Table("time", "Time", note, ["method", "runs", "time", "rounds/s", "its deviation"], rows, records)


def time_of_rounds(run: Run) -> tuple[float, float]:
    """Rounds whose time is known, and the seconds that they took."""
    steps = [np.diff(session[np.argsort(session[:, 0])], axis=0) for session in run.log.sessions]
    rounds, seconds = np.concatenate([np.empty((0, 2)), *steps]).T
    if len(rounds) == 0:
        return 0.0, 0.0
    each = seconds / rounds
    counted = (each >= 0) & (each <= max(_PAUSE * float(np.median(each)), _PAUSE_SECONDS))  # a clock may be set back
    return float(rounds[counted].sum()), float(seconds[counted].sum())


def duration(seconds: float) -> str:
    """``2 h 05 min``, ``3 min 20 s`` or ``4.2 s``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
