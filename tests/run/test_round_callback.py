"""Who is called at the seams of a round."""

from lightning.pytorch import Callback
from torch import nn

from fl_lightning import FedAvg
from fl_lightning.run.round_callback import RoundCallback


class Seams:
    """Notes when it is called."""

    def __init__(self, wanted: int = 2) -> None:
        self.seen: list[str] = []
        self.wanted = wanted

    def wants_models(self, round):
        return round == self.wanted

    def on_round_start(self, trainer, module, round):
        self.seen.append(f"start {round}")

    def on_cohort_fit_end(self, trainer, module, round, models):
        self.seen.append(f"fits {round}")

    def on_aggregate_end(self, trainer, module, round):
        self.seen.append(f"aggregate {round}")

    def on_round_end(self, trainer, module, round, report):
        self.seen.append(f"end {round}")


class Watching(Seams, RoundCallback):
    """One of ours."""


class LightningsAlone(Seams, Callback):
    """Has methods of the same names by chance."""


def test_a_round_calls_those_that_say_they_watch_rounds(fit, toy_data):
    """In the order of a round, with models where each wants them; another callback of Lightning is left to Lightning."""
    watching, other = Watching(), LightningsAlone()
    fit(FedAvg(nn.Linear(4, 3).double()), toy_data(), 2, callbacks=[watching, other, early := Watching(1)])
    assert watching.seen == ["start 1", "aggregate 1", "end 1", "start 2", "fits 2", "aggregate 2", "end 2"]
    assert other.seen == []
    assert early.seen == ["start 1", "fits 1", "aggregate 1", "end 1", "start 2", "aggregate 2", "end 2"]


def test_a_callback_that_overrides_nothing_is_called_and_does_nothing(fit, toy_data):
    fit(FedAvg(nn.Linear(4, 3).double()), toy_data(), 1, callbacks=[RoundCallback()])
