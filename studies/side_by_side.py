"""``python -m studies.side_by_side PICTURE RUN RUN...``: client forgetting of several runs as one picture, on one scale.

The picture of the README, by runs of the study ``digits_losses``.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from fl_lightning.callbacks.figures import heatmap
from fl_lightning.functional import client_forgetting
from fl_lightning.report.figure_files import write_figure_file
from fl_lightning.report.measured_rounds import client_forgetting_rounds, logged_clients, logged_tensor
from fl_lightning.report.runs import Run, read_runs

_DPI = 150
_PANEL = (3.6, 3.5)  # inches


def side_by_side(runs: Sequence[Run]) -> Figure:
    """A heatmap of forgetting for each run, row the model of a client, column the data of a client.

    Forgetting is the accuracy before the client's fit less that after. All are of the last round that every run measured,
    on the scale from -1 to 1. The title of a panel has the run's loss and the mean over pairs of different clients.

    Raises:
        ValueError: if no round was measured in all runs.
    """
    common = set.intersection(*(set(client_forgetting_rounds(run.log)) for run in runs))
    if not common:
        raise ValueError("RUNS have no common round of client forgetting: set callbacks.client_forgetting.every alike")
    round = max(common)
    figure = Figure(figsize=(_PANEL[0] * len(runs), _PANEL[1]), layout="constrained")
    draw = partial(heatmap, row_title="model of client", column_title="data of client", diverging=True)
    for axes, run in zip(figure.subplots(1, len(runs), squeeze=False)[0], runs, strict=True):
        scores = client_forgetting(*(logged_tensor(run.log, f"clients/accuracy_{when}", round) for when in ("before", "after")))
        names = list(map(str, logged_clients(run.log, "clients/cohort", round)))
        title = f"{run.results['loss']}\nforgetting {-scores.per_model.nanmean():z.2f}"
        draw(axes, -scores.forgetting, names, names, title=title)
    figure.suptitle(f"Accuracy that a client's fit costs on the data of others, round {round}")
    return figure


def main(arguments: Sequence[str]) -> None:
    """Draw; raises as :func:`read_runs` and :func:`side_by_side` do."""
    parser = argparse.ArgumentParser(prog="python -m studies.side_by_side", description=__doc__)
    parser.add_argument("picture", type=Path, help="the PNG file")
    parser.add_argument("runs", type=Path, nargs="+", help="folders of one run each, in the order of the panels")
    given = parser.parse_args(arguments)
    runs = [run for folder in given.runs for run in read_runs([folder])[0]]
    write_figure_file(side_by_side(runs), given.picture, "png", _DPI)


if __name__ == "__main__":
    main(sys.argv[1:])
