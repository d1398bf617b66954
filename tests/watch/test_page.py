"""The page in a real browser, without a screen."""

import html
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fl_lightning.watch import server
from fl_lightning.watch.server import LiveServer
from fl_lightning.watch.watched_runs import WatchedRuns

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]


def dumped(address: str, folder: Path, *options: str) -> str:
    """What a page has become after some seconds of its clock, as HTML."""
    always = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=7000"]
    command = [CHROMIUM, *always, *options, f"--user-data-dir={folder / 'browser'}", "--dump-dom", address]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.fixture
def page(tmp_path) -> Callable[..., str]:
    """The page as it stands after some seconds of its clock, as HTML."""

    def show(width: int = 1280, *options: str, ended: str | None = None) -> str:
        (tmp_path / "runs").mkdir(exist_ok=True)
        with LiveServer(WatchedRuns(tmp_path / "runs"), 0) as serving:
            threading.Thread(target=serving.serve_forever, args=(0.01,), daemon=True).start()
            serving.runs.refresh()
            serving.ended = ended
            shown = dumped(serving.address, tmp_path, f"--window-size={width},1200", *options)
            serving.shutdown()
        return shown

    return show


def test_a_run_that_goes_on_next_to_two_that_have_ended(page, write_run):
    """Cards, a line of the legend for each run and chart, heatmaps with who took part; what a name holds is text."""
    tensors = {
        "clients/cohort": {2: [3, 8]},
        "clients/accuracy_before": {2: [0.5, 0.5]},
        "clients/accuracy_after": {2: [[0.75, 0.25], [0.5, 1.0]]},
    }
    curves = {"test/accuracy": {1: 0.25, 2: 0.5}, "forgetting/round": {2: 0.125}}
    write_run("<b>one", curves, tensors, rounds=2)
    write_run("two", curves, tensors, rounds=2)
    write_run("three", curves, rounds=100, start=time.time() - 4)
    shown = page()
    assert "1 running, 2 finished. Read at" in shown
    assert "round 2 of 100, 3 min 16 s left" in shown
    assert "&lt;b&gt;one" in shown
    assert "<b>one" not in shown
    assert re.findall(r'aria-label="([^"]+) over rounds"', shown) == ["test accuracy", "round forgetting F_t"]
    assert shown.count('class="u-series"') == 2 * (1 + 3)  # the round, and a line a run
    values = re.findall(r'class="u-value"[^>]*>([^<]*)<', shown)
    assert values == ["2", "0.500", "0.500", "0.500", "2", "0.125", "0.125", "0.125"]  # the last ones
    assert shown.count("Round 2. Took part: clients 3, 8.") == 2
    assert shown.count("<td title") == 8
    assert "3, 8: 0.250" in shown


def test_a_reader_that_has_ended_is_named(page, write_run):
    write_run("one", {"test/accuracy": {1: 0.25}}, rounds=1)
    said = "The runs are no longer read (MemoryError: all taken). Start fl-lightning watch again."
    assert said in page(ended="MemoryError: all taken")


def test_slider_choice_and_pointer(page, write_run, tmp_path, monkeypatch):
    """A hand on the page: back to round 1, one run less, the values at the pointer, and a part of the rounds."""
    after = {1: [[1.0, 0.0], [0.5, 0.5]], 2: [[0.5, 0.5], [0.5, 0.5]]}
    before, cohort = {round: [0.5, 0.5] for round in after}, {1: [4, 7], 2: [3, 8]}
    tensors = {"clients/cohort": cohort, "clients/accuracy_before": before, "clients/accuracy_after": after}
    for name in ("one", "two"):
        write_run(name, {"test/accuracy": {0: 0.0, 1: 0.25, 2: 0.5}}, tensors, rounds=2)
    shutil.copytree(Path(server.__file__).parent, tmp_path / "page")
    hand = """setTimeout(() => {
      document.querySelectorAll("#runs input")[1].click();
      const slider = document.getElementById("round");
      slider.value = 0;
      slider.dispatchEvent(new Event("input"));
      const { plot } = state.charts.get("test/accuracy");
      plot.setCursor({ left: plot.valToPos(1, "x"), top: 10 });
      plot.setScale("x", { min: 0, max: 1 });
      setTimeout(draw, 500);
      const value = () => document.querySelectorAll("#charts .u-value")[1].textContent;
      setTimeout(() => { document.title = `${value()} up to round ${plot.scales.x.max}`; }, 1000);
    }, 3000);"""
    with (tmp_path / "page" / "page.js").open("a") as script:
        script.write(hand)
    monkeypatch.setattr(server, "files", lambda package: tmp_path / "page")
    shown = page()
    assert "<title>0.250 up to round 1</title>" in shown  # new answers keep what was zoomed into
    assert re.findall(r"Took part: clients ([\d, ]+)\.", shown) == ["4, 7"]
    assert "4, 7: 0.500" in shown
    assert shown.count('class="u-series"') == 1 + 1


def test_a_folder_without_runs(page):
    assert "No runs yet. They appear here as they begin." in page(width=390)


# Of a page in a frame as wide as a phone: its width in pixels, its background, and that of its text.
MEASURED = """(frame => {
  const { documentElement, body } = frame.contentDocument, style = frame.contentWindow.getComputedStyle(body);
  document.title = [documentElement.scrollWidth, style.backgroundColor, style.color].join("; ");
})(document.querySelector("iframe"))"""
DARK = "<title>390; rgb(20, 23, 26); rgb(230, 233, 236)</title>"


def test_who_took_part_on_a_phone_in_the_dark(page, write_run, tmp_path, monkeypatch):
    """Three clients in two rounds; nothing is wider than the phone, and ink and paper are those of dark mode."""
    write_run("one", {"test/accuracy": {1: 0.25, 2: 0.5}}, {"clients/round_cohort": {1: [0, 2], 2: [1, 2]}}, rounds=2)
    shutil.copytree(Path(server.__file__).parent, tmp_path / "page")
    with (tmp_path / "page" / "page.js").open("a") as script:
        script.write(f"""if (window === top) {{
          const phone = `<iframe src="${{location}}" style="width: 390px; border: 0"></iframe>`;
          document.body.insertAdjacentHTML("beforeend", phone);
          setTimeout(() => {MEASURED}, 5000);
        }}""")
    monkeypatch.setattr(server, "files", lambda package: tmp_path / "page")
    monkeypatch.delitem(server._HEADERS, "Content-Security-Policy")  # which allows no frame
    shown = page(1280, "--blink-settings=preferredColorScheme=0")
    assert DARK in shown
    assert "who took part, over rounds" in shown
    assert shown.count("<td title") == 6


def test_a_report_on_a_phone_in_the_dark(write_run, main, tmp_path):
    """Wide tables and figures scroll in their places, and the page does not."""
    curves = {"test/accuracy": {1: 0.25, 2: 0.5}, "forgetting/round": {2: 0.125}, "class_accuracy/cat": {1: 0.5, 2: 0.5}}
    write_run("a_run_with_a_long_name", curves, rounds=2)
    assert main("report", "runs")[0] == 0
    report = html.escape((tmp_path / "report" / "report.html").read_text())
    frame = f'<!doctype html><iframe style="width: 390px; border: 0" srcdoc="{report}"></iframe>'
    (tmp_path / "phone.html").write_text(f"{frame}<script>addEventListener('load', () => {MEASURED})</script>")
    assert DARK in dumped((tmp_path / "phone.html").as_uri(), tmp_path, "--blink-settings=preferredColorScheme=0")
