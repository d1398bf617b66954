"""Tables and pictures of ``studies/run.py``: ``python studies/accuracy_results.py OUT PICTURE.png TARGET [TARGET ...]``.

Prints a Markdown table of the test accuracy of every run under ``OUT``, and draws the curves and, where they were measured, the
distributions of round and local forgetting.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fl_lightning.functional import rounds_to_target


@dataclass(frozen=True)
class Run:
    """What a run logged; the untrained round 0 is left out of ``accuracy``."""

    name: str
    seed: str
    accuracy: dict[int, float]  # by round
    round_forgetting: list[float]  # F_t
    local_forgetting: np.ndarray  # (values, 2): F_kt of clients, each with how many had it


def read_runs(out: Path) -> list[Run]:
    """All runs under a study's folder, by name and seed."""
    folders = sorted(out.glob("seed_*/*/version_*"), key=lambda folder: (folder.parent.name, folder.parts[-3]))
    return [_read(folder) for folder in folders]


def _read(folder: Path) -> Run:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0}).Reload()
    accuracy = {point.step: point.value for point in events.Scalars("test/accuracy") if point.step > 0}
    rounds = [point.value for point in events.Scalars("forgetting/round") if point.step > 1]
    local = []
    if "forgetting/local" in events.Tags()["histograms"]:
        for event in events.Histograms("forgetting/local"):
            buckets = event.histogram_value
            local += zip(buckets.bucket_limit, buckets.bucket, strict=True)
    return Run(folder.parent.name, folder.parts[-3].removeprefix("seed_"), accuracy, rounds, np.array(local).reshape(-1, 2))


def table(runs: list[Run], targets: list[float]) -> str:
    """Markdown: last and best test accuracy, and the first round that reached each target."""
    lines = [f"| run | seed | rounds | last | best (round) | rounds to {', '.join(f'{t:g}' for t in targets)} |"]
    lines.append("| --- " * 6 + "|")
    for run in runs:
        best = max(run.accuracy, key=run.accuracy.__getitem__)
        reached = [rounds_to_target(list(run.accuracy.values()), target) for target in targets]
        cells = [run.name, run.seed, len(run.accuracy), f"{run.accuracy[max(run.accuracy)]:.3f}"]
        cells += [f"{run.accuracy[best]:.3f} ({best})", ", ".join("-" if r is None else str(r) for r in reached)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def draw(runs: list[Run]) -> Figure:
    """Accuracy over rounds, and cumulative distributions of F_t and F_kt where clients' models were measured."""
    has_local = any(len(run.local_forgetting) for run in runs)
    figure = Figure(figsize=(16 if has_local else 7, 4), layout="constrained")
    panels = figure.subplots(1, 3 if has_local else 1, squeeze=False)[0]
    names = sorted({run.name for run in runs})
    labelled: set[str] = set()
    for run in runs:
        style = {"color": f"C{names.index(run.name)}", "label": None if run.name in labelled else run.name.rsplit("_", 1)[-1]}
        labelled.add(run.name)
        panels[0].plot(list(run.accuracy), list(run.accuracy.values()), lw=1, **style)
        if has_local:
            _draw_distribution(panels[1], np.array([(value, 1.0) for value in run.round_forgetting]), **style)
            _draw_distribution(panels[2], run.local_forgetting, **style)
    panels[0].set(xlabel="round", title="test accuracy")
    for axes, title in zip(panels[1:], ("round forgetting F_t", "local forgetting F_kt"), strict=False):
        axes.set(xlabel="mean drop in per-class accuracy", ylabel="share of values at most this", title=title)
    for axes in panels:
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return figure


def _draw_distribution(axes: Axes, counted: np.ndarray, **style: str | None) -> None:
    """Cumulative distribution of values (n, 2), each with its count."""
    values, counts = counted[np.argsort(counted[:, 0])].T
    axes.step(values, np.cumsum(counts) / counts.sum(), where="post", **style)


def show(out: Path, picture: Path, targets: Sequence[float]) -> None:
    """Print the table of all runs under ``out`` with the rounds to each target accuracy, and draw their picture."""
    found = read_runs(out)
    print(table(found, list(targets)))
    draw(found).savefig(picture, dpi=110)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit("usage: python studies/accuracy_results.py OUT PICTURE.png TARGET [TARGET ...]")
    show(Path(sys.argv[1]), Path(sys.argv[2]), [float(target) for target in sys.argv[3:]])
