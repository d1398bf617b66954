"""Why clients forget: what the probes measured, as a table of scalars."""

from fl_lightning.report.study import INTERVAL_IS, Spread, Study
from fl_lightning.report.tables import Table, interval, mean_and_sd, spread

_PREFIXES = ("head/", "drift/", "cka/", "cka_rounds/", "events/")


def table(study: Study) -> Table | None:
    """The newest value of each scalar of a probe, over seeds, methods below each other; None if no run has any."""
    logs = [run.log for group in study.finished for run in group.runs]
    names = dict.fromkeys(name for prefix in _PREFIXES for log in logs for name in log.scalars if name.startswith(prefix))
    rows, records = [], []
    for name in names:
        for group in study.finished:
            found = [run.log.newest(name) for run in group.runs if name in run.log.scalars]
            if found:
                values = Spread.of_all(found, len(group.runs))
                rows.append([group.label, name, spread(values), interval(values)])
                ends = dict(zip(("low", "high"), values.interval, strict=True))
                records.append({"method": group.label, "scalar": name} | mean_and_sd("value", values) | ends)
    note = "The newest measurement of each run, mean ± standard deviation over seeds; the interval is that of the mean, "
    note += f"{INTERVAL_IS}."
    columns = ["method", "scalar", "mean", "its 95 % interval"]
    return Table("probes", "Probes", note, columns, rows, records) if rows else None
