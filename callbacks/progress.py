"""RoundProgressBar: the progress of a run, on one line of a terminal or in some lines of a file."""

import time
from datetime import timedelta
from importlib.util import find_spec
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from fl_lightning.callbacks.federated_callback import FederatedCallback
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import RoundReport

_LINES = 50  # that a run prints where there is no terminal, evenly over its rounds,
_SECONDS = 10  # but not more often than this
_SILENCE = 600  # nor less often than this, in seconds


class RoundProgressBar(FederatedCallback, ProgressBar):
    """Rounds done of total, validation accuracy, round forgetting, rounds per second and time left.

    A bar in a terminal, and in a notebook that has ipywidgets. Elsewhere, as in ``fit > log``, lines: about fifty over the run,
    at most one in ten seconds and at least one in ten minutes (or a round, where that takes longer), and one at the end. Scores
    are those of the round, or of the newest round that was evaluated, which is then named.
    """

    def __init__(self) -> None:
        FederatedCallback.__init__(self, every=1)
        ProgressBar.__init__(self)
        self._enabled = True
        self._view: _Bar | _Lines | None = None
        self._round = 0

    def disable(self) -> None:
        """Show nothing from here on."""
        self._enabled = False

    def enable(self) -> None:
        """Show the bar again."""
        self._enabled = True

    @property
    def is_enabled(self) -> bool:
        """Whether the bar is shown."""
        return self._enabled

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print above the bar."""
        if self._view is not None:
            self._view.print(*args)
        else:
            print(*args, **{"flush": True, **kwargs})

    def on_train_start(self, trainer: Trainer, module: FederatedModule) -> None:
        if self._enabled:
            console = Console()
            self._round = trainer.global_step
            self._view = (_Bar if _can_redraw(console) else _Lines)(console, self._round, trainer.max_steps)

    def on_round_end(self, trainer: Trainer, module: FederatedModule, round: int, report: RoundReport) -> None:
        self._round = round
        self._update(module, waits=module.evaluation.follows(trainer, round))

    def on_validation_end(self, trainer: Trainer, module: FederatedModule) -> None:
        self._update(module, waits=False)

    def on_train_end(self, trainer: Trainer, module: FederatedModule) -> None:
        self._stop()

    def on_exception(self, trainer: Trainer, module: FederatedModule, exception: BaseException) -> None:
        self._stop()

    def _update(self, module: FederatedModule, waits: bool) -> None:
        if self._view is not None:
            self._view.update(self._round, _scores(module.newest, module.newest_rounds, self._round), waits)

    def _stop(self) -> None:
        if self._view is not None:
            self._view.stop()
            self._view = None


def _can_redraw(console: Console) -> bool:
    """Without ipywidgets rich writes a warning into the notebook at every refresh."""
    return console.is_interactive or (console.is_jupyter and find_spec("ipywidgets") is not None)


class _Bar:
    def __init__(self, console: Console, start: int, total: int) -> None:
        self._progress = Progress(
            TextColumn("Round", table_column=Column(no_wrap=True)),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[scores]}", table_column=Column(no_wrap=True)),
            _Speed(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            TextColumn("left", table_column=Column(no_wrap=True)),
            console=console,
        )
        self._task = self._progress.add_task("", total=total, completed=start, scores="")
        self._progress.start()

    def update(self, round: int, scores: str, waits: bool) -> None:
        self._progress.update(self._task, completed=round, scores=scores)

    def print(self, *args: Any) -> None:
        self._progress.console.print(*args)

    def stop(self) -> None:
        self._progress.stop()


class _Lines:
    def __init__(self, console: Console, start: int, total: int) -> None:
        self._start, self._total = start, total
        self._began = self._last_time = time.monotonic()
        self._round = self._last_round = start
        self._scores = self._last_scores = ""

    def update(self, round: int, scores: str, waits: bool) -> None:
        """``waits``: for the evaluation of the round, which is about to begin."""
        self._round, self._scores = round, scores
        silence = time.monotonic() - self._last_time
        first = self._last_round == self._start
        due = first or round - self._last_round >= self._total / _LINES or silence >= _SILENCE
        if silence >= _SECONDS and due and not waits and round < self._total:  # the last round is always evaluated
            self._say()

    def print(self, *args: Any) -> None:
        print(*args, flush=True)

    def stop(self) -> None:
        if self._round > self._start and (self._round, self._scores) != (self._last_round, self._last_scores):
            self._say()

    def _say(self) -> None:
        self._last_time, self._last_round, self._last_scores = time.monotonic(), self._round, self._scores
        speed = (self._round - self._start) / max(self._last_time - self._began, 1e-9)
        left = timedelta(seconds=round((self._total - self._round) / speed)) if speed else "-"
        parts = [f"Round {self._round}/{self._total}", self._scores, _speed_text(speed), f"{left} left"]
        self.print("  ".join(filter(None, parts)))


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("- rounds/s" if speed is None else _speed_text(speed))


def _speed_text(rounds_per_second: float) -> str:
    if 0 < rounds_per_second < 1:
        return f"{1 / rounds_per_second:.1f} s/round"
    return f"{rounds_per_second:.1f} rounds/s"


def _scores(newest: dict[str, float], rounds: dict[str, int], now: int) -> str:
    """The scores that exist, such as ``accuracy 0.812  F_t 0.034``, with their round where that is not this one."""
    accuracies = [name for name in ("val/accuracy", "test/accuracy", "tasks/accuracy") if name in newest]
    drops = [(name, "F_t") for name in newest if name == "forgetting/round" or name.startswith("forgetting/every_")]
    drops += [(name, "F") for name in ("tasks/forgetting",) if name in newest]
    named = dict([*((name, "accuracy") for name in accuracies[:1]), *drops[-1:]])
    ages = {name: "" if rounds[name] == now else f" after round {rounds[name]}" for name in named}
    shown = [f"{label} {newest[name]:z.3f}" for name, label in named.items()]
    if len(shown) == 2 and len(set(ages.values())) == 1 and any(ages.values()):
        return f"{'  '.join(shown)}, both{next(iter(ages.values()))}"
    return "  ".join(score + age for score, age in zip(shown, ages.values(), strict=True))
