"""The table of forgetbench, from results files."""

from collections.abc import Callable, Sequence

from fl_lightning.bench.federation import Federation, federations
from fl_lightning.bench.results_file import Cell, CellRun
from fl_lightning.callbacks.forgetting_names import forgetting_sign
from fl_lightning.report.safe_text import markdown as escaped
from fl_lightning.report.safe_text import markdown_code
from fl_lightning.report.study import SPREAD_IS, Spread
from fl_lightning.report.tables import markdown, not_all, spread_and_interval
from fl_lightning.sweep.run_scalars import PROCESSOR_SECONDS

NOTE = f"{SPREAD_IS} Positive is forgetting. MB are 10^6 bytes, up and down; seconds are processor time."


def table(cells: Sequence[Cell]) -> str:
    """Markdown: a section for each federation with results, a row for each file, the most accurate first."""
    sections = []
    for of in federations().values():
        rows = [(_accuracy(of, cell), _row(of, cell)) for cell in cells if cell.federation == of.name]
        if rows:
            ordered = [row for _, row in sorted(rows, key=lambda pair: (-pair[0], pair[1]))]
            head = ["method", "seeds", *of.measures, "MB", "seconds", "code"]
            sections += [f"### {of.name}", markdown(head, ordered)]
            sections += [f"Rows of `{of.name}` are of differently stored images."] * (len(_samples(of, cells)) > 1)
    return "\n\n".join([*sections, NOTE])


def _row(of: Federation, cell: Cell) -> list[str]:
    measured = [_over_seeds(cell, _measure(scalar)) for scalar in of.measures.values()]
    costs = [_over_seeds(cell, cost) for cost in (_megabytes, _seconds)]
    over = any(
        _megabytes(run) > of.megabytes or (_seconds(run) or 0.0) > 3600 * of.processor_hours for run in cell.runs.values()
    )
    seeds = f"{len(cell.runs)} of {len(of.seeds)}" + ", over budget" * over
    name, commit = (markdown_code(text).replace("|", r"\|") for text in (cell.label, cell.commit[:7]))
    return [name, seeds, *measured, *costs, f"{escaped(cell.version)} {commit}"]


def _accuracy(of: Federation, cell: Cell) -> float:
    first = _measure(next(iter(of.measures.values())))
    values = [value for run in cell.runs.values() if (value := first(run)) is not None]
    return sum(values) / len(values) if values else 0.0


def _over_seeds(cell: Cell, number: Callable[[CellRun], float | None]) -> str:
    values = [value for run in cell.runs.values() if (value := number(run)) is not None]
    return not_all(len(values), len(cell.runs)) or spread_and_interval(Spread(tuple(values)))


def _measure(scalar: str) -> Callable[[CellRun], float | None]:
    """A scalar of a run with the sign by which positive is forgetting; None of a run that lacks it."""
    sign = forgetting_sign(scalar.removesuffix("/mean").removesuffix("/last"))
    return lambda run: sign * run.numbers[scalar] if scalar in run.numbers else None


def _megabytes(run: CellRun) -> float:
    return run.numbers["MB_up"] + run.numbers["MB_down"]


def _seconds(run: CellRun) -> float | None:
    return run.numbers.get(PROCESSOR_SECONDS)


def _samples(of: Federation, cells: Sequence[Cell]) -> set[str]:
    return {run.samples for cell in cells if cell.federation == of.name for run in cell.runs.values()}
