"""RunSummary: the run in a short table and in a file."""

import json
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from rich.console import Console
from rich.table import Table

from fl_lightning.atomic import atomic_write
from fl_lightning.callbacks.base import FederatedCallback
from fl_lightning.clients import RoundReport
from fl_lightning.module import FederatedModule

TestAccuracy = Literal["best", "last", "last_100_round_mean", "moving_average"]
_WINDOW = 10  # evaluations in the moving average


class RunSummary(FederatedCallback):
    """Writes ``results.json`` into the run's folder and prints accuracy, forgetting, best round and bytes at the end.

    The file holds the test accuracy in four readings: ``best`` (the highest seen, chosen on the test set: for comparison with
    papers that do so), ``last``, ``last_100_round_mean`` (over the evaluations of the last 100 rounds) and
    ``moving_average`` (over the last 10 evaluations), and names the one that the paper's table uses.

    Args:
        table_uses: which of the four the paper's table reports; the configs set it.
    """

    def __init__(self, table_uses: TestAccuracy = "last") -> None:
        super().__init__(every=1)
        self.table_uses = table_uses
        self.folder: Path | None = None  # where results.json goes; by default the logger's folder
        self._curves: dict[str, dict[int, float]] = {}  # name -> round -> value
        self._left_out: dict[int, int] = {}  # client -> rounds in which its update was not finite
        self._bytes = {"down": 0, "up": 0}

    def on_round_end(self, trainer: Trainer, module: FederatedModule, round: int, report: RoundReport) -> None:
        self._bytes["down"] += report.bytes_down
        self._bytes["up"] += report.bytes_up
        for client in report.nonfinite:
            self._left_out[client] = self._left_out.get(client, 0) + 1

    def on_validation_end(self, trainer: Trainer, module: FederatedModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        for name in module.evaluations:
            self._curves.setdefault(f"{name}/accuracy", {})[trainer.global_step] = module.newest[f"{name}/accuracy"]

    def on_fit_end(self, trainer: Trainer, module: FederatedModule) -> None:
        log_dir = trainer.log_dir if trainer.loggers else None  # every process must ask: the first tells the others
        if not trainer.is_global_zero:
            return
        results = self.results(trainer, module)
        folder = self.folder or log_dir
        if folder is not None:
            with atomic_write(Path(folder) / "results.json") as path:
                path.write_text(json.dumps(results, indent=2) + "\n")
        _print_table(results)
        if isinstance(trainer.logger, TensorBoardLogger):
            Console().print(f"See the curves: tensorboard --logdir {log_dir}", soft_wrap=True)

    def results(self, trainer: Trainer, module: FederatedModule) -> dict[str, Any]:
        """What ``results.json`` holds."""
        forgetting = {name: value for name, value in sorted(module.newest.items()) if name.startswith("forgetting/")}
        return {
            "method": type(module).__name__,
            "loss": repr(module.loss),
            "rounds": trainer.global_step,
            "test_accuracy": _readings(self._curves.get("test/accuracy", {})),
            "table_uses": self.table_uses,
            "val_accuracy": _readings(self._curves.get("val/accuracy", {})),
            "newest_forgetting": forgetting,
            "bytes_down": self._bytes["down"],
            "bytes_up": self._bytes["up"],
            "clients_left_out": {str(client): rounds for client, rounds in sorted(self._left_out.items())},
        }

    def state_dict(self) -> dict[str, Any]:
        return {"curves": self._curves, "left_out": self._left_out, "bytes": self._bytes}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._curves, self._left_out, self._bytes = state_dict["curves"], state_dict["left_out"], state_dict["bytes"]


def _readings(curve: dict[int, float]) -> dict[str, float]:
    """The four readings of an accuracy curve and the rounds of two; the untrained round 0 counts for none of them."""
    curve = {round: value for round, value in curve.items() if round > 0}
    if not curve:
        return {}
    final = max(curve)
    best_round = max(curve, key=lambda round: (curve[round], -round))
    last_100 = [value for round, value in curve.items() if round > final - 100]
    newest = [curve[round] for round in sorted(curve)][-_WINDOW:]
    return {
        "best": curve[best_round],
        "best_round": best_round,
        "last": curve[final],
        "last_round": final,
        "last_100_round_mean": sum(last_100) / len(last_100),
        "moving_average": sum(newest) / len(newest),
    }


def _print_table(results: dict[str, Any]) -> None:
    table = Table(title=f"{results['method']}, {results['loss']}, {results['rounds']} rounds", show_header=False)
    for name, label in (("val_accuracy", "validation accuracy"), ("test_accuracy", "test accuracy")):
        if readings := results[name]:
            table.add_row(label, f"{readings['last']:.4f}")
            table.add_row(f"best {label}", f"{readings['best']:.4f} in round {readings['best_round']}")
    for name, value in results["newest_forgetting"].items():
        if not name.endswith("_positive"):
            table.add_row(name, f"{value:.4f}")
    table.add_row("bytes sent", f"{_readable(results['bytes_down'])} down, {_readable(results['bytes_up'])} up")
    for client, rounds in results["clients_left_out"].items():
        table.add_row(f"client {client} left out", f"its update was not finite in {rounds} of its rounds")
    Console().print(table)


def _readable(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"
