"""The report as files: ``report.html``, ``report.md``, tables as CSV and LaTeX, figures as PNG, SVG and PDF."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from jinja2 import Environment
from markupsafe import Markup, escape

from fl_lightning.report.figure_files import Format, write_figure_file
from fl_lightning.report.figures import INK, PAPER, Drawing
from fl_lightning.report.safe_text import markdown, markdown_code, one_line
from fl_lightning.report.sections import Section
from fl_lightning.report.table_files import write_table
from fl_lightning.report.tables import Table
from fl_lightning.report.template import FIGURE, HTML, TABLE
from fl_lightning.state.atomic_files import atomic_write

_GENERATOR = '<meta name="generator" content="fl-lightning report">'
_DPI = 150


@dataclass(frozen=True)
class Report:
    """All that the files say."""

    title: str
    lead: Sequence[str]  # paragraphs
    sections: Sequence[Section]
    runs: Sequence[Table]  # what was read
    remarks: Sequence[str]
    settings: Sequence[tuple[str, str]]  # config keys and values that all runs share

    @property
    def tables(self) -> list[Table]:
        """All tables in the order of the page, that of the runs last."""
        return [table for section in self.sections for table in section.tables] + list(self.runs)

    @property
    def drawings(self) -> list[Drawing]:
        """All figures in the order of the page."""
        return [drawing for section in self.sections for drawing in section.drawings]


def check_out(out: Path) -> None:
    """Raise a ValueError unless ``out`` is a new or empty folder, or that of an earlier report."""
    page = out / "report.html"
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out is {out}, which is a file: give a folder")
    if out.is_dir() and any(out.iterdir()) and not (page.exists() and _GENERATOR in page.read_text(errors="replace")):
        raise ValueError(f"--out is {out}, which holds something that is no report: give another folder")


def write_report(report: Report, out: Path) -> None:
    """Write all files, each whole or not at all, the page last; files that an earlier report had and this one lacks go.

    Raises:
        OSError: if a file cannot be written.
    """
    earlier = _files_named_in(out / "report.md")
    for table in report.tables:
        write_table(table, out / "tables")
    pictures = {drawing.name: _write_figure(drawing, out / "figures") for drawing in report.drawings}
    with atomic_write(out / "report.md") as path:
        path.write_text(_markdown(report), encoding="utf-8")
    with atomic_write(out / "report.html") as path:
        path.write_text(_html(report, pictures), encoding="utf-8")
    for name in earlier - _files_named_in(out / "report.md"):
        (out / name).unlink(missing_ok=True)


def _files_named_in(report: Path) -> set[str]:
    text = report.read_text(encoding="utf-8", errors="replace") if report.exists() else ""
    return set(re.findall(r"\]\(((?:figures|tables)/\w+\.(?:png|svg|pdf|csv|tex))\)", text))


def _write_figure(drawing: Drawing, folder: Path) -> str:
    """Write a PNG, an SVG and a PDF; gives the SVG's text."""
    for format in get_args(Format):
        path = folder / f"{drawing.name}.{format}"
        write_figure_file(drawing.figure, path, format, _DPI, "white" if format == "pdf" else PAPER)
        drawing.figure.set_layout_engine("none")  # the layout stands, and finding it again takes as long as drawing
    return (folder / f"{drawing.name}.svg").read_text(encoding="utf-8")


def _html(report: Report, pictures: dict[str, str]) -> str:
    environment = Environment(autoescape=True, finalize=_printable)
    table_template, figure_template = environment.from_string(TABLE), environment.from_string(FIGURE)

    def figure(drawing: Drawing) -> Markup:
        return Markup(figure_template.render(drawing=drawing, svg=_inline(pictures[drawing.name], drawing)))

    def table_of(table: Table, heading: str) -> Markup:
        return Markup(table_template.render(table=table, heading=heading))

    return environment.from_string(HTML).render(**_fields(report), figure=figure, table_of=table_of)


def _printable(value: object) -> object:
    return one_line(value) if type(value) is str else value  # not Markup, which is part of the page


def _fields(report: Report) -> dict[str, Any]:
    return {name: getattr(report, name) for name in ("title", "lead", "sections", "runs", "remarks", "settings")}


def _inline(svg: str, drawing: Drawing) -> Markup:
    """An SVG file as a part of the page: in its colours, with unique names, described for those who cannot see it."""
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor").replace(PAPER, "none")
    svg = re.sub(r' id="image\w+"', "", svg)  # nothing refers to them, and equal colour bars have equal ones
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{drawing.name}-", svg)
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)
    wide = ' class="wide"' if drawing.wide else ""
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{escape(drawing.title)}"{wide}', 1))


def _markdown(report: Report) -> str:
    parts = [f"# {markdown(report.title)}", *map(markdown, report.lead)]
    for section in report.sections:
        parts.append(f"## {markdown(section.title)}")
        for drawing in section.drawings:
            parts.append(f"![{markdown(drawing.title)}](figures/{drawing.name}.png)")
            parts.append(f"{markdown(drawing.caption)} ([SVG](figures/{drawing.name}.svg), [PDF](figures/{drawing.name}.pdf))")
        parts += [_markdown_table(table) for table in section.tables]
    parts += ["## Runs", *map(_markdown_table, report.runs)]
    if report.remarks:
        parts += ["### Skipped or incomplete", "\n".join(f"- {markdown(remark)}" for remark in report.remarks)]
    settings = [f"- {markdown_code(key)}: {markdown_code(value) if value else 'empty'}" for key, value in report.settings]
    parts += ["### Settings that all runs share", "\n".join(settings)]
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> str:
    lines = [_markdown_row(map(markdown, table.columns)), "| --- " + "| ---: " * (len(table.columns) - 1) + "|"]
    for number, row in enumerate(table.rows):
        cells = enumerate(map(markdown, row))
        lines.append(_markdown_row(_marked(cell, (number, column), table) for column, cell in cells))
    files = f"([CSV](tables/{table.name}.csv), [LaTeX](tables/{table.name}.tex))"
    return "\n".join(lines) + f"\n\n{markdown(table.note)} {files}".replace("\n\n (", "\n\n(")


def _marked(cell: str, position: tuple[int, int], table: Table) -> str:
    """Bold, or underlined by the tag for it that sites with Markdown leave in."""
    return f"**{cell}**" if position in table.bold else f"<ins>{cell}</ins>" if position in table.underlined else cell


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
