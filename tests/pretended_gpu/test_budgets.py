"""Launches, copies and waits of a round, by engine, counted on the pretended GPU, where it ends as on the CPU."""

from typing import Any

import lightning.pytorch as pl
import pytest
from pretended import Counts, counting
from pretended.runs import assert_same, fit

# Most launches, copies and waits of a round of three clients with two steps each: as counted, and a little more in launches.
BUDGETS = {
    "FedAvg": {"sequential": (530, 4, 2), "vectorized": (285, 5, 2), "captured": (105, 4, 2)},
    "SCAFFOLD": {"sequential": (760, 34, 2), "vectorized": (750, 36, 2), "captured": (450, 36, 2)},
    "BatchNorm": {"sequential": (575, 4, 2), "vectorized": (315, 5, 2), "captured": (205, 6, 2)},
    "bf16-mixed": {"sequential": (620, 4, 2), "vectorized": (295, 5, 2), "captured": (105, 4, 2)},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "FedAvg": {},
    "SCAFFOLD": {"name": "SCAFFOLD"},
    "BatchNorm": {"norm": "batch"},
    "bf16-mixed": {"precision": "bf16-mixed"},
}


class Round(pl.Callback):
    """Keeps the counts of the last round."""

    counts: Counts

    def on_train_batch_start(self, *_):
        self._block = counting()
        self.counts = self._block.__enter__()

    def on_train_batch_end(self, *_):
        self._block.__exit__(None, None, None)


@pytest.mark.parametrize("case", BUDGETS)
@pytest.mark.one_in(2)
def test_a_round_keeps_within_its_budget(case):
    """Augmentation, TCE, a local optimizer with momentum, client states: the end is that of the same run on the CPU."""
    expected = fit("cpu", engine="sequential", **SETTINGS[case])
    for engine, (launches, copies, waits) in BUDGETS[case].items():
        watch = Round()
        ended = fit("gpu", engine=engine, watch=[watch], **SETTINGS[case])
        assert_same(ended, expected, atol=0.05 if case == "bf16-mixed" else 1e-6)
        assert watch.counts.waits.total() <= waits, f"{engine}: {watch.counts}"
        assert watch.counts.copies.total() <= copies, f"{engine}: {watch.counts}"
        assert watch.counts.launches.total() <= launches, f"{engine}: {watch.counts}"
