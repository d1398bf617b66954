"""RoundProgressBar: where the run stands, on one line."""

from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from fl_lightning.callbacks.base import FederatedCallback
from fl_lightning.clients import RoundReport
from fl_lightning.module import FederatedModule


class RoundProgressBar(FederatedCallback, ProgressBar):
    """Rounds done of total, validation accuracy, round forgetting, rounds per second and time left."""

    def __init__(self) -> None:
        FederatedCallback.__init__(self, every=1)
        ProgressBar.__init__(self)
        self._enabled = True
        self._progress: Progress | None = None

    def disable(self) -> None:
        self._enabled = False

    def enable(self) -> None:
        self._enabled = True

    @property
    def is_enabled(self) -> bool:
        return self._enabled

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print above the bar."""
        if self._progress is not None:
            self._progress.console.print(*args)
        else:
            print(*args, **kwargs)

    def on_train_start(self, trainer: Trainer, module: FederatedModule) -> None:
        if not self._enabled:
            return
        self._progress = Progress(
            TextColumn("Round", table_column=Column(no_wrap=True)),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[scores]}", table_column=Column(no_wrap=True)),
            _RoundsPerSecond(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            TextColumn("left", table_column=Column(no_wrap=True)),
        )
        self._task = self._progress.add_task("", total=trainer.max_steps, completed=trainer.global_step, scores="")
        self._progress.start()

    def on_round_end(self, trainer: Trainer, module: FederatedModule, round: int, report: RoundReport) -> None:
        if self._progress is not None:
            self._progress.update(self._task, completed=round, scores=_scores(module.newest))

    def on_validation_end(self, trainer: Trainer, module: FederatedModule) -> None:
        if self._progress is not None:
            self._progress.update(self._task, scores=_scores(module.newest))

    def on_train_end(self, trainer: Trainer, module: FederatedModule) -> None:
        self._stop()

    def on_exception(self, trainer: Trainer, module: FederatedModule, exception: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


class _RoundsPerSecond(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("- rounds/s" if speed is None else f"{speed:.1f} rounds/s")


def _scores(newest: dict[str, float]) -> str:
    """The scores that exist, such as ``accuracy 0.812  forgetting 0.034``."""
    shown = []
    accuracy = next((newest[name] for name in ("val/accuracy", "test/accuracy", "tasks/accuracy") if name in newest), None)
    if accuracy is not None:
        shown.append(f"accuracy {accuracy:.3f}")
    drops = [value for name, value in newest.items() if name == "forgetting/round" or name.startswith("forgetting/every_")]
    drops += [newest[name] for name in ("tasks/forgetting",) if name in newest]
    if drops:
        shown.append(f"forgetting {drops[-1]:.3f}")
    return "  ".join(shown)
