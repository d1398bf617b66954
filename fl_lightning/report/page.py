"""The report as files: ``report.html``, ``report.md``, tables as CSV and LaTeX, figures as PNG, SVG and PDF."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import get_args

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

from fl_lightning.report.figure_files import Format, write_figure_file
from fl_lightning.report.figures import INK, PAPER, Drawing
from fl_lightning.report.safe_text import markdown, markdown_code, one_line
from fl_lightning.report.sections import Section
from fl_lightning.report.table_files import write_table
from fl_lightning.report.tables import Table
from fl_lightning.state.atomic_files import atomic_write

_GENERATOR = '<meta name="generator" content="fl-lightning report">'


@dataclass(frozen=True)
class Report:
    """All that the files contain."""

    title: str
    lead: Sequence[str]  # paragraphs
    sections: Sequence[Section]
    runs: Sequence[Table]  # what was read
    remarks: Sequence[str]
    settings: Sequence[tuple[str, str]]  # config keys and values that all runs share


def check_out(out: Path) -> None:
    """Raise a ValueError unless the folder ``out`` is new or empty, or that of an earlier report."""
    page = out / "report.html"
    if out.is_dir() and any(out.iterdir()) and not (page.exists() and _GENERATOR in page.read_text(errors="replace")):
        raise ValueError(f"--out is {out}, which holds something other than a report: give another folder")


def write_report(report: Report, out: Path) -> None:
    """Write all files, each whole or not at all, the page last; files that an earlier report had and this one lacks go."""
    earlier = _files_named_in(out / "report.md")
    for table in chain(*(section.tables for section in report.sections), report.runs):
        write_table(table, out / "tables")
    drawings = chain(*(section.drawings for section in report.sections))
    svgs = {drawing.name: _inline(_write_figure(drawing, out / "figures"), drawing) for drawing in drawings}
    for name, safe in (("report.md", markdown), ("report.html", one_line)):
        with atomic_write(out / name) as path:
            path.write_text(_rendered(report, f"{name}.jinja", safe, svgs), encoding="utf-8")
    for name in earlier - _files_named_in(out / "report.md"):
        (out / name).unlink(missing_ok=True)


def _files_named_in(report: Path) -> set[str]:
    text = report.read_text(encoding="utf-8", errors="replace") if report.exists() else ""
    return set(re.findall(r"\]\(((?:figures|tables)/\w+\.(?:png|svg|pdf|csv|tex))\)", text))


def _write_figure(drawing: Drawing, folder: Path) -> str:
    """Write a PNG, an SVG and a PDF; gives the SVG's text."""
    for format in get_args(Format):
        path = folder / f"{drawing.name}.{format}"
        write_figure_file(drawing.figure, path, format, paper="white" if format == "pdf" else PAPER)
        drawing.figure.set_layout_engine("none")  # the layout is found, and finding it again takes as long as drawing
    return (folder / f"{drawing.name}.svg").read_text(encoding="utf-8")


def _rendered(report: Report, template: str, safe: Callable[[str], str], svgs: Mapping[str, Markup]) -> str:
    """The report by a template of this folder; ``safe`` replaces texts, but not markup, which is part of the page."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=".html." in template,
        finalize=lambda value: safe(value) if type(value) is str else value,
        keep_trailing_newline=True,
    )
    environment.filters["code"] = lambda text: Markup(markdown_code(text))
    return environment.get_template(template).render(vars(report), svgs=svgs)


def _inline(svg: str, drawing: Drawing) -> Markup:
    """An SVG file as a part of the page: in its colours, with unique names, described for those who cannot see it."""
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor").replace(PAPER, "none")
    svg = re.sub(r' id="image\w+"', "", svg)  # nothing refers to them, and equal colour bars have equal ones
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{drawing.name}-", svg)
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{escape(drawing.title)}"', 1))
