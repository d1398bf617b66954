"""``fl-lightning figures``: files at a paper's width, and what is refused."""

import re

import pytest
import torch
from PIL import Image


@pytest.fixture
def run(write_run, writer):
    """With accuracy by class, and a heatmap of three clients."""
    folder = write_run("a", {1: 0.25, 2: 0.5}, scalars={f"class_accuracy/{name}": {1: 0.25, 2: 0.5} for name in ("cat", "owl")})
    with writer(folder) as more:
        for name, shape in (("cohort", 3), ("accuracy_before", 3), ("accuracy_after", (3, 3))):
            more.add_tensor(f"clients/{name}", torch.ones(shape) / 2, 2)
    return str(folder)


NAMES = {"accuracy", "class_accuracy", "who_forgets_whose_data_2"}


def test_png_svg_and_pdf_at_a_width(run, main, tmp_path):
    """In pixels at 300 dots an inch, and in points of 1/72 inch: a column of ICML is 3.25 inches."""
    for format in ("png", "svg", "pdf"):
        code, out, error = main("figures", run, "out", "--format", format, "--width", "icml")
        assert (code, out, error) == (0, f"3 figures of {run}: out\n", "")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {f"{n}.{e}" for n in NAMES for e in ("png", "svg", "pdf")}
    for name in NAMES:
        assert Image.open(tmp_path / "out" / f"{name}.png").width == 975
        assert re.search(r'<svg [^>]*width="234pt"', (tmp_path / "out" / f"{name}.svg").read_text())
        assert re.search(rb"/MediaBox \[ ?0 0 234 ", (tmp_path / "out" / f"{name}.pdf").read_bytes())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["RUN"], "OUT is missing"),
        (["none", "out"], "RUN is none, which is no folder"),
        (["empty", "out"], "which holds no run"),
        (["RUN", "file"], "OUT is file, which is a file or lies in one"),
        (["RUN", "file/x"], "OUT is file/x, which is a file or lies in one"),
        (["RUN", "out", "--format", "gif"], "--format is 'gif', must be one of png, svg, pdf"),
        (["RUN", "out", "--width", "wide"], "--width is 'wide', must be one of cvpr"),
        (["RUN", "out", "--width", "0"], "--width is 0.0, must be"),
        (["RUN", "out", "--width", "nan"], "--width is nan, must be"),
    ],
)
def test_what_is_refused_in_one_line(run, main, tmp_path, options, said):
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    code, _, error = main("figures", *(run if option == "RUN" else option for option in options))
    assert (code, error.count("\n")) == (1, 1)
    assert said in error
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "file").read_text() == "x"


def test_of_several_runs_one_must_be_chosen(write_run, main):
    folders = [write_run(name, {1: 0.5}) for name in "ab"]
    code, _, error = main("figures", str(folders[0].parents[1]), "out")
    assert code == 1
    assert f"which holds 2 runs: give one of them, such as {folders[0]}" in error
