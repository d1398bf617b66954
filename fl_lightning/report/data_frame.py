"""Runs as a data frame, for further analyses."""

import warnings
from pathlib import Path

from fl_lightning.checks.extras import needing_extra
from fl_lightning.report.runs import Run, read_runs

with needing_extra("analysis", "load_runs"):
    import pandas as pd


def load_runs(*folders: str | Path) -> pd.DataFrame:
    """Scalars and settings of all runs in some folders, at any depth; a warning names what is skipped or read in part.

    Args:
        folders: such as ``runs/digits_tce``, or that of a sweep.

    Returns:
        A row for each run and each round in which it logged a scalar, by ``run``, the folder, and ``round``. A column for each
        scalar, float, NaN in rounds without it: ``test/accuracy``. After them a column for each setting that any run has, by
        its key on the command line, the same in all rows of a run: ``model`` is the import path of the method,
        ``model.optimizer.lr`` a number. Lists are tuples; NaN where a run lacks the setting or has null.

    Raises:
        FileNotFoundError: if a folder does not exist, or none of them holds a run that can be read.
        ModuleNotFoundError: without the extra ``analysis``.
    """
    runs, remarks = read_runs([Path(folder) for folder in folders])
    for remark in remarks:
        warnings.warn(remark, stacklevel=2)
    parts = [(_scalars(run), run) for run in runs]
    names = [str(run.folder) for run in runs]
    scalars = pd.concat([part for part, _ in parts], keys=names, names=["run"])
    settings = pd.concat([_settings(run, part.index) for part, run in parts], keys=names, names=["run"])
    return pd.concat([scalars, settings], axis=1)


def _scalars(run: Run) -> pd.DataFrame:
    curves = {name: pd.Series(curve.values, curve.rounds) for name, curve in run.log.scalars.items()}
    return pd.DataFrame(curves).rename_axis("round")


def _settings(run: Run, rounds: pd.Index) -> pd.DataFrame:
    return pd.DataFrame({key: [value] * len(rounds) for key, value in run.config.items()}, rounds)
