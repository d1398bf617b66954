"""RunSummary: the run in a short table and in a file."""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EarlyStopping, Timer
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from lightning.pytorch.loggers import TensorBoardLogger
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from fl_lightning import __version__
from fl_lightning.callbacks.federated_callback import FederatedCallback, folder_of
from fl_lightning.callbacks.forgetting_names import forgetting_name, forgetting_sign, is_lost_accuracy
from fl_lightning.checks import check_choice, check_each, counted
from fl_lightning.functional import final_accuracy
from fl_lightning.functional.accuracy_curves import first_round_reaching, late_evaluations
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import RoundReport
from fl_lightning.protocol.learner import Learner
from fl_lightning.run.provenance import commit
from fl_lightning.run.trainer_settings import callbacks_of
from fl_lightning.state.atomic_files import atomic_write

TestAccuracy = Literal["best", "last", "last_rounds_mean", "moving_average"]
_NEWEST = 10  # evaluations in the moving average
_PERSONAL_IN_TABLE = {  # endings of tags below personal/, in words
    "std": "std over clients",
    "worst_decile": "worst tenth of clients",
    "fine_tuned_mean": "fine-tuned",
    "new_clients_mean": "new clients",
    "new_clients_fine_tuned_mean": "new clients, fine-tuned",
}
_LEFT_OUT_IN_TABLE = 3  # clients


class RunSummary(FederatedCallback):
    """Writes ``results.json`` into the run's folder and prints accuracy, forgetting, best round and bytes at the end, and why
    the run ended if that was before its last round.

    The file holds the test accuracy in four readings: ``best`` (the highest seen, chosen on the test set: for comparison with
    papers that do so), ``last``, ``last_rounds_mean`` (over the evaluations of the last 100 rounds) and ``moving_average``
    (over the last 10 evaluations), and names the one that the paper's table uses. No mean reaches into the first half of the
    run. ``last_rounds_mean`` is the final accuracy, by which sweeps and reports compare runs, see
    :func:`fl_lightning.functional.final_accuracy`. ``rounds_to_target`` has for each of the ``targets`` the first evaluated
    round whose test accuracy is at least that, null if there is none. ``version`` and ``commit`` are those of the package that
    trained the last rounds; ``commit`` is null where it is not known, and ends in ``-dirty`` where its checkout had other code.

    Args:
        table_uses: which of the four the paper's table reports; the configs set it.
        targets: test accuracies, such as 0.9; the configs set those of the paper's table.

    Raises:
        ValueError: if a target is not above 0 and at most 1.
    """

    key = "callbacks.summary"
    kept = ("_curves", "_left_out", "_undone", "_lost", "_newest", "_before_lost", "_largest", "_far", "_bytes")

    def __init__(self, table_uses: TestAccuracy = "last", targets: Sequence[float] = ()) -> None:
        super().__init__(every=1)
        check_each(f"{self.key}.targets", targets, above=0, at_most=1, hint="0.9 is 90 %")
        check_choice(f"{self.key}.table_uses", table_uses, TestAccuracy)
        self.table_uses, self.targets = table_uses, tuple(targets)
        self._curves: dict[str, dict[int, float]] = {}  # name -> round -> value
        self._left_out: dict[int, int] = {}  # client -> rounds in which its update was not finite
        self._undone: list[int] = []  # rounds whose server step was undone
        self._lost: list[int] = []  # rounds that do not count, as too few finite updates arrived
        self._largest: dict[str, float] | None = None  # of all finite updates: its norm, who sent it and when
        self._newest: dict[str, float] | None = None  # the same of the newest round that counts
        self._before_lost: dict[str, float] | None = None  # the same of the round before the newest lost rounds
        self._far: dict[str, float] | None = None  # the newest that was far larger than what is usual
        self._bytes = {"down": 0, "up": 0}
        self._commit: str | None = None

    def on_fit_start(self, trainer: Trainer, module: FederatedModule) -> None:
        self._commit = commit()  # of the code that trains, which an editor may change meanwhile

    def on_round_end(self, trainer: Trainer, module: FederatedModule, round: int, report: RoundReport) -> None:
        self._bytes["down"] += report.bytes_down
        self._bytes["up"] += report.bytes_up
        if report.undone:
            self._undone.append(round)
        if report.lost:
            self._lost.append(round)
            self._before_lost = self._newest
        elif (largest := report.largest_norm) is not None:
            update = {"norm": largest[0], "client": largest[1], "round": round}
            if report.far_above(None if self._newest is None else self._newest["norm"]) is not None:
                self._far = update
            self._newest = self._newest if report.undone else update
            if self._largest is None or largest[0] > self._largest["norm"]:
                self._largest = update
        for client in report.nonfinite:
            self._left_out[client] = self._left_out.get(client, 0) + 1

    def on_validation_end(self, trainer: Trainer, module: FederatedModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        for name in module.evaluation.names:
            self._curves.setdefault(f"{name}/accuracy", {})[trainer.global_step] = module.newest[f"{name}/accuracy"]

    def on_fit_end(self, trainer: Trainer, module: FederatedModule) -> None:
        folder = folder_of(trainer, module)
        if not trainer.is_global_zero:
            return
        results = self.results(trainer, module)
        if folder is not None:
            with atomic_write(folder / "results.json") as path:
                path.write_text(json.dumps(results, indent=2) + "\n")
        if reason := _reason_to_stop(trainer, module):
            print(reason, flush=True)
        _print_table(results)
        if isinstance(trainer.logger, TensorBoardLogger):
            Console(markup=False).print(f"See the curves: tensorboard --logdir {trainer.logger.log_dir}", soft_wrap=True)

    def results(self, trainer: Trainer, module: FederatedModule) -> dict[str, Any]:
        """What ``results.json`` holds."""
        return {
            "version": __version__,
            "commit": self._commit,
            "method": type(module).__name__,
            "loss": repr(module.loss),
            "learner": None if type(module.tasks) is Learner else type(module.tasks).__name__,
            "rounds": trainer.global_step,
            "max_steps": trainer.max_steps,  # if the config has another number, the run is being extended
            "initial_weights": module.began_from,
            "test_accuracy": _readings(self._curves.get("test/accuracy", {})),
            "table_uses": self.table_uses,
            "rounds_to_target": _rounds_to_targets(self._curves.get("test/accuracy", {}), self.targets),
            "val_accuracy": _readings(self._curves.get("val/accuracy", {})),
            "newest_forgetting": _below(module, "forgetting/"),
            **{group: _below(module, f"{group}/") for group in ("personal", "tasks", "reference", "ccvr", "wise_ft")},
            "privacy": _privacy(module),
            "bytes_down": self._bytes["down"],
            "bytes_up": self._bytes["up"],
            "model_megabytes": 4e-6 * sum(weights.numel() for weights in module.net.parameters()),
            "inputs": module.data.samples.input_record._asdict(),
            "rounds_undone": self._undone,
            "rounds_lost": self._lost,
            "rounds_without_update": module.lost_rounds.count,
            "update_before_lost_rounds": self._before_lost,
            "clients_left_out": {str(client): rounds for client, rounds in sorted(self._left_out.items())},
            "largest_update": self._largest,
            "far_update": self._far,
        }


def _below(module: FederatedModule, prefix: str) -> dict[str, float]:
    """The newest values of scalars whose names begin so, by name."""
    return {name: value for name, value in sorted(module.newest.items()) if name.startswith(prefix)}


def _reason_to_stop(trainer: Trainer, module: FederatedModule) -> str | None:
    """One line that names what ended the fit; None if it came to ``trainer.max_steps``."""
    if not trainer.should_stop or trainer.global_step >= trainer.max_steps:
        return None
    reasons = list(filter(None, map(_reason_of, callbacks_of(trainer))))
    if module.tasks.is_over and not reasons:
        reasons = ["all tasks are learned"]
    why = "; ".join(reasons) or "a callback set trainer.should_stop"
    return f"Ended after round {trainer.global_step} of {trainer.max_steps}: {why}"


def _reason_of(callback: Callback) -> str | None:
    if isinstance(callback, EarlyStopping) and callback.stopping_reason != EarlyStoppingReason.NOT_STOPPED:
        return f"EarlyStopping: {(callback.stopping_reason_message or '').removesuffix(' Signaling Trainer to stop.')}"
    if isinstance(callback, Timer) and (left := callback.time_remaining()) is not None and left <= 0:
        return f"trainer.max_time is over, after {timedelta(seconds=round(callback.time_elapsed()))} of training"
    return None


def _privacy(module: FederatedModule) -> dict[str, Any]:
    """The defence, what it spent (null where nothing is accounted for) and what it does not cover; empty without one."""
    if module.privacy is None:
        return {}
    return {
        "defence": repr(module.privacy),
        "epsilon": module.newest.get("privacy/epsilon") if module.privacy.accounts else None,
        "delta": module.privacy.delta,
        "not_covered": list(module.privacy.not_covered(module)),
    }


def _readings(curve: dict[int, float]) -> dict[str, float]:
    """The four readings of an accuracy curve and the rounds of three; the untrained round 0 counts for none of them."""
    curve = {round: value for round, value in curve.items() if round > 0}
    if not curve:
        return {}
    late = late_evaluations(curve)
    newest = list(late.values())[-_NEWEST:]
    best_round = max(curve, key=lambda round: (curve[round], -round))
    return {
        "best": curve[best_round],
        "best_round": best_round,
        "last": curve[max(curve)],
        "last_round": max(curve),
        "last_rounds_mean": final_accuracy(curve),
        "mean_first_round": min(late),
        "moving_average": sum(newest) / len(newest),
    }


def _rounds_to_targets(curve: dict[int, float], targets: Sequence[float]) -> dict[str, int | None]:
    """The first evaluated round that reaches each target; the untrained round 0 does not count. Empty without evaluations."""
    return {str(target): first_round_reaching(curve, target) for target in targets} if max(curve, default=0) > 0 else {}


def _print_table(results: dict[str, Any]) -> None:
    trained = [results[part] for part in ("method", "loss", "learner") if results[part]]
    table = Table(title=", ".join([*trained, counted(results["rounds"], "round")]), show_header=False)
    table.add_column()
    table.add_column(overflow="fold")  # paths are longer than a line
    for name, label in (("val_accuracy", "validation accuracy"), ("test_accuracy", "test accuracy")):
        if readings := results[name]:
            table.add_row(label, f"{readings['last']:.4f}")
            if results["tasks"]:  # of a few classes, later of all: neither the best nor a mean compares
                continue
            table.add_row(f"best {label}", f"{readings['best']:.4f} in round {readings['best_round']}")
            table.add_row(f"final {label}", f"{readings['last_rounds_mean']:.4f}, {_span(readings)}")
    for name, value in results["personal"].items():
        *_, samples, kind = name.split("/")
        if kind in _PERSONAL_IN_TABLE:
            table.add_row(f"{samples.replace('_', '-')} accuracy, {_PERSONAL_IN_TABLE[kind]}", f"{value:.4f}")
    for target, round in results["rounds_to_target"].items():
        table.add_row(f"{target} of test accuracy reached", "not reached" if round is None else f"in round {round}")
    for name, value in results["newest_forgetting"].items():
        table.add_row(f"{forgetting_name(name)}, last", f"{forgetting_sign(name) * value:z.4f}")
    for name, value in results["reference"].items():
        if name.endswith("/accuracy"):
            before = results["reference"].get(f"{name}_before")  # none in a resumed run that began without the callback
            shown = f"{value:.4f}" if before is None else f"{value:.4f}, {before:.4f} before"
            table.add_row(f"accuracy on {name.split('/')[1]}", shown)
    for share in sorted({name.split("/")[1] for name in results["wise_ft"]}, key=float):
        there = {name.split("/")[2]: value for name, value in results["wise_ft"].items() if name.split("/")[1] == share}
        shown = ", ".join(f"{value:.4f} on {name}" for name, value in there.items())
        table.add_row(f"accuracy with {share} of the change", shown)
    for name, label in (("accuracy", "test accuracy after CCVR"), ("from_best", "forgetting F after CCVR")):
        if (value := results["ccvr"].get(f"ccvr/{name}")) is not None:
            table.add_row(label, f"{value:z.4f}, {results['ccvr'][f'ccvr/{name}_before']:z.4f} before")
    for name, value in results["tasks"].items():
        table.add_row(name, f"{value:z.4f}{_sign(name)}")
    if privacy := results["privacy"]:
        table.add_row("privacy", privacy["defence"])
        if privacy["epsilon"] is not None:
            table.add_row("epsilon", f"{privacy['epsilon']:.4g} at delta {privacy['delta']:g}")
        for what in privacy["not_covered"]:
            table.add_row("not covered by epsilon", what)
    if (origin := results["initial_weights"]) is not None:
        after = "" if origin["round"] is None else f", after its round {origin['round']}"
        table.add_row("initial weights", f"{origin['file']}{after}")
    table.add_row("bytes sent", f"{decimal(results['bytes_down'])} down, {decimal(results['bytes_up'])} up")
    for client, rounds in list(results["clients_left_out"].items())[:_LEFT_OUT_IN_TABLE]:
        table.add_row(f"client {client} left out", f"its update was not finite in {rounds} of its rounds")
    if (more := len(results["clients_left_out"]) - _LEFT_OUT_IN_TABLE) > 0:
        table.add_row(f"{counted(more, 'more client')} left out", "see clients_left_out in results.json")
    if undone := results["rounds_undone"]:
        what = f"{len(undone)}, last round {undone[-1]}: the server's step made the model non-finite"
        table.add_row("rounds undone", what)
    if lost := results["rounds_lost"]:
        table.add_row("rounds lost", f"{len(lost)}, last round {lost[-1]}: too few finite updates arrived")
    if (without := results["rounds_without_update"]) > 0:
        table.add_row("last rounds of no use", f"{without}: the model is that of the round before them")
    # A client that is left out may be honest, and have received what another made of the model.
    if before := results["update_before_lost_rounds"]:
        table.add_row("largest update before them", _named(before))
    if (largest := results["largest_update"]) and (undone or results["clients_left_out"] or results["far_update"]):
        table.add_row("largest finite update", _named(largest))
    if any(map(is_lost_accuracy, results["newest_forgetting"])):
        table.caption = "Positive forgetting is a loss of accuracy."
    Console(markup=False).print(table)


def _named(update: dict[str, float]) -> str:
    return f"norm {update['norm']:.3g}, of client {update['client']} in round {update['round']}"


def _sign(name: str) -> str:
    """Which sign of a score of tasks is forgetting: a transfer is negative where something is forgotten."""
    if name == "tasks/backward_transfer":
        return ", negative is forgetting"
    return ", positive is forgetting" if name.startswith("tasks/forgetting") else ""


def _span(readings: dict[str, float]) -> str:
    """``mean of rounds 101 to 200``, or ``round 20`` if it is the only one: the evaluations in the final accuracy."""
    first, last = readings["mean_first_round"], readings["last_round"]
    return f"round {last}" if first == last else f"mean of rounds {first} to {last}"
