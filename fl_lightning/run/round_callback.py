"""RoundCallback: the hooks that a run calls during a round."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from fl_lightning.protocol import CohortModels, RoundReport
from fl_lightning.protocol.hooks import overridden, warn_of_misspelt
from fl_lightning.run.trainer_settings import callbacks_of


class RoundCallback(Callback):
    """A Lightning callback that also sees the inside of a round; Lightning calls all other callbacks."""

    only_looks: bool = False
    """Whether the fit adds no round to the run of its checkpoint. If so, it can have other settings."""

    cure_at_sites: str = "set every to 0"
    """The cure in the error of a real federation, if the callback reads clients' samples."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        warn_of_misspelt(cls, [name for name in dir(RoundCallback) if name.startswith(("on_", "wants_", "reads_"))])

    def reads_clients(self, module: LightningModule) -> bool:
        """Whether it reads clients' samples or label counts from the data module."""
        return False

    @property
    def evaluates_at_sites(self) -> bool:
        """Whether it asks the sites of a real federation to evaluate models on their clients' validation parts."""
        return False

    def wants_models(self, round: int) -> bool:
        """Whether ``on_cohort_fit_end`` is to be called in this round; keeping the models costs memory for each of them.

        By default in every round, if the callback has that hook.
        """
        return bool(overridden(self, RoundCallback.on_cohort_fit_end))

    def on_round_start(self, trainer: Trainer, module: LightningModule, round: int) -> None:
        """The cohort is drawn, and no client has trained yet."""

    def on_cohort_fit_end(self, trainer: Trainer, module: LightningModule, round: int, models: CohortModels) -> None:
        """All clients have trained; the global model is still the old one. Every process must take part in ``predict``."""

    def on_aggregate_end(self, trainer: Trainer, module: LightningModule, round: int) -> None:
        """The global model is updated."""

    def on_round_end(self, trainer: Trainer, module: LightningModule, round: int, report: RoundReport) -> None:
        """The round is over."""


def round_callbacks(trainer: Trainer) -> list[RoundCallback]:
    """Those of a trainer's callbacks that see the inside of a round."""
    return [callback for callback in callbacks_of(trainer) if isinstance(callback, RoundCallback)]
