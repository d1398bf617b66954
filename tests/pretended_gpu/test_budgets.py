"""Launches, copies and waits of a round, by engine, counted on the pretended GPU, where it ends as on the CPU."""

import lightning.pytorch as pl
import pytest
from pretended import Counts, counting
from pretended.runs import assert_same, fit

# Most launches, copies and waits of a round of three clients with two steps each: as counted, and a little more in launches.
BUDGETS = {
    "FedAvg": {"sequential": (530, 4, 2), "vectorized": (285, 5, 2), "captured": (105, 4, 2)},
    "SCAFFOLD": {"sequential": (760, 34, 2), "vectorized": (750, 36, 2), "captured": (450, 36, 2)},
}


class Round(pl.Callback):
    """Keeps the counts of the last round."""

    counts: Counts

    def on_train_batch_start(self, *_):
        self._block = counting()
        self.counts = self._block.__enter__()

    def on_train_batch_end(self, *_):
        self._block.__exit__(None, None, None)


@pytest.mark.parametrize("name", BUDGETS)
def test_a_round_keeps_within_its_budget(name):
    """Augmentation, TCE, a local optimizer with momentum, client states: the end is that of the same run on the CPU."""
    expected = fit("cpu", name, engine="sequential")
    for engine, (launches, copies, waits) in BUDGETS[name].items():
        watch = Round()
        assert_same(fit("gpu", name, engine=engine, watch=[watch]), expected)
        assert watch.counts.waits.total() <= waits, f"{engine}: {watch.counts}"
        assert watch.counts.copies.total() <= copies, f"{engine}: {watch.counts}"
        assert watch.counts.launches.total() <= launches, f"{engine}: {watch.counts}"
