"""The figures of a run as files for a paper."""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.figure import Figure

from fl_lightning.callbacks.loggers import file_name
from fl_lightning.report.run_figures import Picture, pictures
from fl_lightning.report.runs import Run
from fl_lightning.report.sections import drawings_over_rounds
from fl_lightning.report.study import build_study
from fl_lightning.run.record_lines import RECORD_FILE
from fl_lightning.state.atomic_files import atomic_write

Format = Literal["png", "svg", "pdf"]
_NAMED_ROUNDS = 10  # in an error
_DPI = 300
_NO_METADATA: dict[Format, dict[str, None]] = {
    "png": {},
    "svg": dict.fromkeys(("Creator", "Date", "Format", "Type")),
    "pdf": {"CreationDate": None},
}
# TrueType: publishers refuse the default, Type 3. The salt makes of the same figure the same file.
_SETTINGS: dict[Any, Any] = {"pdf.fonttype": 42, "svg.hashsalt": "fl-lightning"}


def write_figure_file(figure: Figure, path: Path, format: Format, dpi: int = _DPI, paper: str = "white") -> None:
    """Write a figure, whole or not at all; the same figure is the same file."""
    with atomic_write(path) as temporary, matplotlib.rc_context(_SETTINGS):
        figure.savefig(temporary, format=format, dpi=dpi, metadata=_NO_METADATA[format], facecolor=paper)


def draw_run(run: Run, rounds: Sequence[int]) -> tuple[Iterator[tuple[str, Figure]], list[str]]:
    """The figures of a run with their names, each drawn when it is asked for, and remarks on what was left out.

    Args:
        run: curves as in a report, and what callbacks drew, with the names that :class:`CSVLogger` gives their files.
        rounds: of the heatmaps; none: the last measured of each.

    Raises:
        ValueError: if no heatmap is of one of the rounds; after all other pictures, if numbers of one do not fit each other.
    """
    study, remarks = build_study([run], None, None)
    shown = pictures(run.log)
    measured = sorted({round for picture in shown if not picture.of_the_run for round in picture.rounds})
    if missing := [round for round in rounds if round not in measured]:
        more = f" and {len(measured) - _NAMED_ROUNDS} more" if len(measured) > _NAMED_ROUNDS else ""
        there = f"there are {', '.join(map(str, measured[:_NAMED_ROUNDS]))}{more}" if measured else "leave it out"
        raise ValueError(f"--rounds has {missing[0]}, but RUN has no heatmap of that round: {there}")
    curves = ((drawing.name, drawing.figure) for drawing in drawings_over_rounds(study))
    return chain(curves, _drawn(run.folder, shown, rounds)), remarks


def _drawn(folder: Path, shown: Sequence[Picture], rounds: Sequence[int]) -> Iterator[tuple[str, Figure]]:
    """Those of callbacks.

    Raises:
        ValueError: at the end, naming the run's record, if numbers of a picture do not fit each other.
    """
    damage = []
    for picture in shown:
        for round in picture.chosen(rounds):
            try:
                figure = picture.draw(round)
            except ValueError as error:
                damage.append(f"without {picture.tag}, since {error}")
            else:
                yield file_name(picture.tag, round), figure
    if damage:
        raise ValueError(f"{folder / RECORD_FILE} is damaged, all is drawn {' and '.join(damage)}: put it back from a copy")
