"""Draw accuracy and client forgetting of some runs: ``python studies/curves.py OUT.png LABEL=RUN_FOLDER ...``.

Runs of one label are drawn in one colour, one line each.
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

PANELS = {"test/accuracy": "test accuracy", "forgetting/client_mean": "client forgetting (below 0 is forgetting)"}


def draw_curves(runs: list[tuple[str, Path]]) -> Figure:
    """A panel for each of ``PANELS`` with a line for each run (label, folder)."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    labels = list(dict.fromkeys(label for label, _ in runs))
    for axes, (name, title) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        drawn = set()
        for label, folder in runs:
            points = EventAccumulator(str(folder)).Reload().Scalars(name)
            shown = None if label in drawn else label
            drawn.add(label)
            rounds, values = [point.step for point in points], [point.value for point in points]
            axes.plot(rounds, values, color=f"C{labels.index(label)}", label=shown)
        axes.set(xlabel="round", title=title)
        axes.grid(alpha=0.3)
        axes.legend()
    return figure


if __name__ == "__main__":
    if len(sys.argv) < 3 or not all("=" in argument for argument in sys.argv[2:]):
        sys.exit("usage: python studies/curves.py OUT.png LABEL=RUN_FOLDER ...")
    pairs = [argument.split("=", 1) for argument in sys.argv[2:]]
    draw_curves([(label, Path(folder)) for label, folder in pairs]).savefig(sys.argv[1], dpi=110)
