"""What README.md and docs/ show runs: every fenced block of every page, from the page itself."""

import re
import shutil
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from options import NO_PICTURES
from page_runner import RUNS_HERE, PageRunner, holds_output
from pages import PAGES, ROOT, Block, blocks, commands

# Pages all of whose blocks another test runs; whatever page is not here runs below.
ELSEWHERE = {
    "docs/federations.md": "sites/test_real_federation.py::test_the_page",
    "docs/forgetbench.md": "bench/test_forgetbench.py::test_a_method_in_a_file_of_ones_own",
    "docs/how_forgetting_is_measured.md": "test_site.py::test_pictures_show_what_the_page_says",
    "docs/site/index.md": "test_site.py::test_the_landing_pages_python_runs",
    "docs/start.md": "test_tutorials.py::test_start",
    "docs/tutorials/a_papers_table.md": "test_tutorials.py::test_a_papers_table",
    "docs/tutorials/a_sweep_with_a_report.md": "test_tutorials.py::test_a_sweep_with_a_report",
    "docs/tutorials/data_and_net.md": "test_tutorials.py::test_data_and_net",
    "docs/tutorials/several_processes.md": "test_tutorials.py::test_several_processes",
}
# Pages of studies are what their declarations make of them, whose commands tests/test_study_command.py parses.
OF_STUDIES = [page for page in PAGES if re.fullmatch("docs/results/.*/report.md", page)]
WITH_BLOCKS = [page for page in PAGES if blocks(page) and page not in ELSEWHERE and page not in OF_STUDIES]


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory, run_in):
    """One round of the first example."""
    folder = tmp_path_factory.mktemp("finished")
    few = ["--trainer.max_steps", "1", "--model.net.hidden", "16", *NO_PICTURES]
    return run_in(folder, "fit", "--config", "digits_tce.yaml", *few) / "runs"


def _not_drawn(figure: Figure) -> np.ndarray:
    plt.close(figure)
    return np.zeros((3, 1, 1), "uint8")


def _empty_picture(figure: Figure, path: Path, format: str, **settings: object) -> None:
    path.write_text("<svg></svg>")


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_BLOCKS)
def test_every_block_runs(page, main, command_line, finished_run, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "studies").symlink_to(ROOT / "studies")  # commands of studies name files of a clone
    monkeypatch.setattr("fl_lightning.sweep.worker.subprocess", RUNS_HERE)
    monkeypatch.setattr("fl_lightning.sweep.worker._POLL", 0)
    monkeypatch.setattr("fl_lightning.watch.server.LiveServer.serve_forever", lambda server: None)
    monkeypatch.setattr("fl_lightning.callbacks.loggers.figure_to_image", _not_drawn)
    monkeypatch.setattr(Figure, "savefig", _empty_picture)
    monkeypatch.setenv("COLUMNS", "200")
    shutil.copytree(finished_run, tmp_path / "runs")
    modules = set(sys.modules)
    try:
        PageRunner(page, main, command_line).run()
    finally:
        for name in {name for name in set(sys.modules) - modules if name.startswith("my_")}:
            del sys.modules[name]


def test_pages_that_run_elsewhere():
    """The tests that are said to run them are there, and name the page; their commands are ours or need no test."""
    for page, test in ELSEWHERE.items():
        file, _, name = test.partition("::")
        text = (ROOT / "tests" / file).read_text()
        assert f"def {name}(" in text, test
        assert file == "test_site.py" or f'"{page.removeprefix("docs/")}"' in text, test
        shown = [block for block in blocks(page) if block.language not in ("python", "py", "yaml", "toml", "math")]
        programs = {program for block in shown for program, *_ in commands(block.script)}
        flower = {"flower-superlink", "flower-supernode", "flwr", "ssh-keygen"}
        assert programs <= {"fl-lightning", "pip", "python3", "tensorboard", *flower}, page


def test_every_fence_is_found():
    """Of any length, with any language, also in lists."""
    for page in PAGES:
        fences = [line for line in (ROOT / page).read_text().splitlines() if line.lstrip().startswith(("```", "~~~"))]
        assert len(fences) == 2 * len(blocks(page)), page


def test_code_fits_its_column():
    """88 columns fit between the sidebars of a window 1280 pixels wide; ruff wraps Python in docs/ and its notebooks."""
    edited = [page for page in PAGES if not page.startswith("docs/results/")]  # pages of studies
    shown = [block for page in edited for block in blocks(page)]
    assert [f"{block}: {line}" for block in shown for line in block.text.splitlines() if len(line) > 88] == []


TABLE = "Round 1/2  accuracy 0.5\nRound 2/2  accuracy 0.7\n┌───┬──────┐\n│ a │ 0.71 │\n│ b │ -    │\n└───┴──────┘\n"


@pytest.mark.parametrize(
    ("shown", "fault"),
    [
        (TABLE.replace("0.71", "0.8 "), None),
        (TABLE.replace("│ b │ -    │\n", ""), "something stands above"),
        (TABLE.replace("│ b", "│ c"), "not printed: │ c"),
        (TABLE.replace("┌", "Another line\n┌"), "not printed: Another line"),
        ("...\n└───┴──────┘", None),
    ],
)
def test_a_shown_output_is_held_to_what_was_printed(shown, fault):
    """Numbers and widths may differ, words, rows and columns may not."""
    block = Block("page.md", 1, "", shown)
    if fault is None:
        holds_output(block, shown, TABLE)
    else:
        with pytest.raises(AssertionError, match=fault):
            holds_output(block, shown, TABLE)


def test_what_nothing_runs_fails(monkeypatch, main, command_line):
    """A language, a program or a command that no test knows."""
    for language, text in (("toml", "a = 1\n"), ("", "make all\n"), ("bash", "make all\n")):
        monkeypatch.setattr("page_runner.blocks", lambda page, block=Block("page.md", 1, language, text): [block])
        with pytest.raises((AssertionError, ValueError)):
            PageRunner("page.md", main, command_line).run()
