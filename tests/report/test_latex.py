"""Tables as LaTeX: booktabs, numbers aligned, the best bold, the second underlined, any text shown as it is."""

import shutil
import subprocess

import pytest

from fl_lightning.report.latex import latex_table
from fl_lightning.report.page import Report, write_report
from fl_lightning.report.scores import final_accuracy
from fl_lightning.report.tables import Table

HOSTILE = r"[a]* \input{x} 50 % $1 #2 & _ ^ ~ {é} <b> | € -1"
MARKS = {"bold": frozenset({(0, 1)}), "underlined": frozenset({(1, 1)})}
ROWS = [["FedAvg, lr 1e-3", "0.812 ± 0.004", "-", "+0.120 (3)"], ["MOON", "10.5", "-0.250", "-"]]


def test_a_table_by_hand():
    """Of .004 there is one digit, of a share of 2 places two; a column without a number is text."""
    table = Table("final", "Final", "By\nseed", ["method", "final", "within 2 %", "pairs"], ROWS, [], **MARKS)
    lines = latex_table(table).splitlines()
    assert lines[0] == r"% Final. By\nseed"
    assert [line.startswith(r"\sisetup{") and line.endswith("}%") for line in lines[2:4]] == [True, True]
    assert (
        lines[1] + "\n" + "\n".join(lines[4:])
        == r"""\begingroup%
\begin{tabular}{lS[table-format=2.3(1)]S[table-format=-1.3]r}
\toprule
method & {final} & {within 2 \%} & pairs \\
\midrule
FedAvg, lr 1e-3 & \bfseries 0.812 +- 0.004 & {--} & +0.120 (3) \\
MOON & 10.5{\llap{\underline{\phantom{$10.5$}}}} & -0.250 & -- \\
\bottomrule
\end{tabular}\endgroup"""
    )


@pytest.mark.parametrize(
    ("cells", "column"),
    [
        (["1", "20"], "S[table-format=2]"),
        (["12 ± 3", "-", "- (1 of 2)"], "S[table-format=2(1)]"),
        (["116.735 ± 91.547", "0.500 ± 0.000"], "S[table-format=3.3(5)]"),
        (["+0.5", "0.25"], "S[table-format=-1.2]"),
        (["007", "1e-5", "1,000", ".5"], "r"),  # not as siunitx would write them
    ],
)
def test_columns_have_space_for_their_numbers(cells, column):
    text = latex_table(Table("x", "", "", ["a", "b"], [["", cell] for cell in cells], []))
    assert f"\\begin{{tabular}}{{l{column}}}" in text.splitlines()


def test_columns_of_text_are_on_the_left_and_numbers_on_the_right(tmp_path):
    """In LaTeX, Markdown and HTML."""
    table = Table("x", "", "", ["method", "measure", "mean"], [["FedAvg", "F_t", "0.5"]], [], texts=2)
    assert r"\begin{tabular}{llS[table-format=1.1]}" in latex_table(table)
    write_report(Report("Title", [], [], [table], [], []), tmp_path)
    assert "\n| --- | --- | ---: |\n" in (tmp_path / "report.md").read_text()
    assert '<td class="text">F_t</td><td>0.5</td>' in (tmp_path / "report.html").read_text().replace("\n", "").replace("  ", "")


def test_any_text_is_shown_as_it_is():
    text = latex_table(Table("x", "", "", ["a"], [[HOSTILE]], []))
    shown = r"{[}a]{*} \textbackslash{}input\{x\} 50 \% \$1 \#2 \& \_ \textasciicircum{} \textasciitilde{} "
    shown += r"\{\textbackslash{}xe9\} \textless{}b\textgreater{} \textbar{} \textbackslash{}u20ac $-$1 \\"
    assert shown in text.splitlines()


def test_best_and_second_of_each_condition(write_run, study):
    """Under alpha .1 two methods share .75, and .5 is the second; under alpha 1 there is one."""
    for loss, final in (("CrossEntropy", 0.75), ("TruncatedCrossEntropy", 0.5), ("ReweightedSoftmax", 0.75)):
        write_run(loss, {1: 0.25, 2: final}, model__loss=loss)
    write_run("other", {1: 0.25, 2: 0.25}, data__partition__alpha=1.0)
    table = final_accuracy(study())
    marked = {name: {table.rows[row][2] for row, _ in getattr(table, name)} for name in ("bold", "underlined")}
    assert marked == {"bold": {"0.750", "0.250"}, "underlined": {"0.500"}}
    assert len(table.bold) == 3


@pytest.fixture
def compiled(tmp_path):
    """The pages of a document's body as text, by a real LaTeX; None where nothing reads a PDF."""
    if not shutil.which("pdflatex") or subprocess.run(["kpsewhich", "siunitx.sty"], capture_output=True).returncode:
        pytest.skip("there is no pdflatex, or no siunitx: install texlive-latex-recommended and texlive-science")

    def compile(body: str) -> str | None:
        page = r"\documentclass{article}\usepackage{booktabs, siunitx, graphicx}\usepackage[paperwidth=60cm]{geometry}"
        (tmp_path / "page.tex").write_text(page + rf"\begin{{document}}{body}\end{{document}}")
        command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "page.tex"]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120)
        assert ended.returncode == 0, ended.stdout[-2000:]
        assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
        if not shutil.which("pdftotext"):
            return None
        return subprocess.run(["pdftotext", "-layout", "page.pdf", "-"], cwd=tmp_path, capture_output=True, text=True).stdout

    return compile


def test_a_real_latex_takes_it(tmp_path, compiled):
    """Twice on one page: what a table sets ends with it."""
    rows = [*ROWS, [HOSTILE, HOSTILE, "", ""]]
    marks = {"bold": frozenset({(0, 1), (2, 1)}), "underlined": frozenset({(1, 1), (2, 2)})}
    (tmp_path / "a.tex").write_text(latex_table(Table("x", "", "", ["a", "b %", "c", "d"], rows, [], **marks)))
    shown = compiled(r"\input{a}\par\input{a}\par\num{12345}")
    if shown is not None:
        assert shown.replace(" ", "").count("0.812±0.004") == 2
        assert "12 345" in shown  # grouped, as outside the tables


@pytest.mark.slow
def test_a_real_latex_takes_a_whole_report(write_run, main, tmp_path, compiled):
    """One document with every table and every figure of a report's folder, and with the tables of a comparison."""
    for loss, drop in (("CrossEntropy", 0.5), ("TruncatedCrossEntropy", 0.25)):
        for seed in range(3):
            curve = {1: 0.25, 2: 0.5 + seed / 8 - drop / 4}
            scalars = {"forgetting/round": {2: drop + seed / 16}, "communication/total_up": {2: 1e6}}
            scalars |= {"communication/total_down": {2: 1e6}, "class_accuracy/a_b & <c>": curve}
            write_run(loss, curve, seed=seed, model__loss=loss, scalars=scalars)
    assert main("report", "runs")[0] == 0
    assert main("compare", "runs/seed_0/CrossEntropy", "runs/seed_0/TruncatedCrossEntropy", "--out", "both")[0] == 0
    tables = sorted(path.relative_to(tmp_path) for folder in ("report", "both") for path in (tmp_path / folder).rglob("*.tex"))
    figures = sorted(path.relative_to(tmp_path) for path in (tmp_path / "report").rglob("*.pdf"))
    assert {"final_accuracy", "forgetting", "forgetting_tests", "settings", "comparison"} <= {path.stem for path in tables}
    assert {"accuracy", "forgetting_round", "class_accuracy"} <= {path.stem for path in figures}
    included = [rf"\input{{{path.with_suffix('')}}}\par" for path in tables]
    included += [rf"\includegraphics[width=10cm]{{{path}}}\par" for path in figures]
    shown = compiled("".join(included))
    if shown is not None:
        assert "95 % interval" in shown
        assert "share of values" in shown  # of a figure
