"""Tables as LaTeX: booktabs, the best bold, the second underlined, any text shown as it is."""

import shutil
import subprocess

import pytest

from fl_lightning.report.latex import latex_table
from fl_lightning.report.scores import final_accuracy
from fl_lightning.report.tables import Table

HOSTILE = r"[a]* \input{x} 50 % $1 #2 & _ ^ ~ {é} <b> | € -1"
MARKS = {"bold": frozenset({(0, 1)}), "underlined": frozenset({(1, 1)})}
ROWS = [["FedAvg, lr 1e-3", "0.812 ± 0.004", "-"], ["MOON", "0.5", "-0.250"]]


def test_a_table_by_hand():
    table = Table("final", "Final", "By\nseed", ["method", "final", "within 2 %"], ROWS, [], **MARKS)
    assert latex_table(table) == r"""% Final. By\nseed
\begin{tabular}{lrr}
\toprule
method & final & within 2 \% \\
\midrule
FedAvg, lr 1e-3 & \textbf{\boldmath 0.812 $\pm$ 0.004} & -- \\
MOON & \underline{0.5} & $-$0.250 \\
\bottomrule
\end{tabular}
"""


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


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex: install texlive-latex-recommended")
def test_a_real_latex_takes_it(tmp_path):
    rows = [*ROWS, [HOSTILE, HOSTILE, ""]]
    (tmp_path / "a.tex").write_text(latex_table(Table("x", "", "", ["a", "b", "c"], rows, [], **MARKS)))
    page = r"\documentclass{article}\usepackage{booktabs}\begin{document}\input{a}\end{document}"
    (tmp_path / "page.tex").write_text(page)
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "page.tex"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120)
    assert ended.returncode == 0, ended.stdout[-2000:]
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
