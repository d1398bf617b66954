"""What a round asks of the host, by engine: launches and waits, counted on the pretended GPU, where it ends as on the CPU."""

import lightning.pytorch as pl
import pytest
from pretended import Counts, counting
from pretended.runs import assert_same, fit

# Most launches and most waits of a round of three clients with two steps each: as counted, and a little more in launches.
BUDGETS = {
    "FedAvg": {"sequential": (585, 2), "vectorized": (320, 2), "captured": (455, 2)},
    "SCAFFOLD": {"sequential": (880, 2), "vectorized": (865, 2), "captured": (700, 2)},
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
    for engine, (launches, waits) in BUDGETS[name].items():
        watch = Round()
        assert_same(fit("gpu", name, engine=engine, watch=[watch]), expected)
        assert watch.counts.waits.total() <= waits, f"{engine}: {watch.counts}"
        assert watch.counts.launches.total() <= launches, f"{engine}: {watch.counts}"
