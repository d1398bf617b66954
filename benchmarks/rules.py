"""What a robust rule costs the server, next to the mean."""

from argparse import Namespace
from statistics import median
from time import process_time

import torch
from torch import Tensor

from benchmarks.measurements import Table
from fl_lightning.robustness import RFA, Aggregation, CenteredClipping, CoordinateMedian, Krum, TrimmedMean

_CLIENTS, _WEIGHTS = 10, 1_000_000
_RULES: dict[str, Aggregation | None] = {
    "mean": None,
    "CenteredClipping": CenteredClipping(),
    "Krum": Krum(2),
    "RFA": RFA(),
    "TrimmedMean": TrimmedMean(2),
    "CoordinateMedian": CoordinateMedian(),
}


def rules(options: Namespace) -> Table:
    """Processor seconds to combine the updates of ten clients, a million weights each in float64."""
    torch.set_num_threads(options.threads)
    changes = torch.randn(_CLIENTS, _WEIGHTS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    repeats = options.rounds or 10
    samples = {name: [_seconds(rule, changes) for _ in range(repeats + 1)][1:] for name, rule in _RULES.items()}
    medians = {name: median(values) for name, values in samples.items()}
    rows = [{"rule": name, "CPU ms": 1e3 * value, "to the mean": value / medians["mean"]} for name, value in medians.items()]
    note = f"Medians of {repeats} repeats: {_CLIENTS} clients, {_WEIGHTS:,} weights. The server also holds all updates."
    return Table("Robust rules", rows, [note], samples)


def _seconds(rule: Aggregation | None, changes: Tensor) -> float:
    start = process_time()
    if rule is None:
        changes.mean(dim=0)
    else:
        rule.combine({"weights": changes}, ["weights"])
    return process_time() - start
