"""An attack on a run from its checkpoint: observe updates, invert and score them, and write the results."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from fl_lightning.attacks.inversion import Inversion, Inverter
from fl_lightning.attacks.observed_update import ObservedRound, observe
from fl_lightning.attacks.scores import ClientScore, print_table, score, write_picture, write_scores
from fl_lightning.checks import check_file
from fl_lightning.data import FederatedDataModule
from fl_lightning.module import FederatedModule
from fl_lightning.run.saved_run import build_run, run_config

_EXAMPLE = "runs/digits_tce/version_0/checkpoints/last.ckpt"
_SHOW_EVERY = 20  # iterations: reading the objective waits for the device


@dataclass(frozen=True)
class Target:
    """The target of an attack.

    Args:
        ckpt_path: a checkpoint of a run, in the run's folder or next to a copy of its ``config.yaml``.
        clients: clients with the attacked updates, one after another.
        num_images: images in a client's batch; all are recovered from a single local step on them.
        out: folder of ``attack.json`` and ``attack.png``; by default ``attack`` in the folder of the run.
        accelerator: device of the attack: ``cpu``, ``gpu`` or ``auto``.

    Raises:
        ValueError: if no checkpoint is given.
        FileNotFoundError: if it does not exist.
    """

    ckpt_path: str | None = None
    clients: Sequence[int] = (0,)
    num_images: int = 1
    out: str | None = None
    accelerator: str = "auto"

    def __post_init__(self) -> None:
        if self.ckpt_path is None:
            raise ValueError(f"ckpt_path is missing: give a checkpoint, such as {_EXAMPLE}")
        check_file("ckpt_path", self.ckpt_path, f"give a checkpoint, such as {_EXAMPLE}")


@dataclass(frozen=True)
class AttackedRun:
    """A run, built from its config."""

    folder: Path
    method: FederatedModule
    data: FederatedDataModule
    precision: str | int | None


def load_run(ckpt_path: Path, root: str | None = None) -> AttackedRun:
    """Build the method and the data of the run that wrote a checkpoint, for single steps of single clients.

    Args:
        root: folder of the data, instead of that in the run's config.

    Raises:
        FileNotFoundError: if the run's config is not there.
        ValueError: if it is not a config, or of a run with tasks.
    """
    folder, stored = run_config(ckpt_path)
    if stored["data"].get("tasks") is not None:
        raise ValueError("data.tasks of the run is set, but the attack is on runs without tasks: choose another checkpoint")
    stored["model"]["init_args"].update(local_steps=1, local_epochs=None, engine="sequential", aggregation=None)
    stored["data"].update(client_sampler=None, cohorts=None, clients_per_round=1)
    if root is not None:
        stored["data"]["root"] = root
    built = build_run(stored, FederatedModule, FederatedDataModule)
    return AttackedRun(folder, built.model, built.data, (stored.get("trainer") or {}).get("precision"))


def attack(target: Target, settings: Inversion, root: str | None = None) -> None:
    """Attack a run; prints a table, writes ``attack.json`` and ``attack.png``.

    Args:
        root: folder of the data, if it is not where the run had it.

    Raises:
        FileNotFoundError, ValueError: in one line, if something cannot be attacked.
    """
    ckpt_path = Path(str(target.ckpt_path))
    attacked = load_run(ckpt_path, root)
    seen = observe(
        attacked.method,
        attacked.data,
        ckpt_path,
        target.clients,
        target.num_images,
        accelerator=target.accelerator,
        precision=attacked.precision,
    )
    scores, seconds = _attack(seen, attacked, settings)
    _report(scores, seconds, seen, attacked, target, settings)


def _attack(seen: ObservedRound, attacked: AttackedRun, settings: Inversion) -> tuple[list[ClientScore], float]:
    """Attack every client's update; returns the scores, and the seconds for all of them."""
    inverter = Inverter(seen.net, attacked.method.loss, seen.pixel_range, settings)
    start, scores = time.perf_counter(), []
    with _progress(settings.iterations * len(seen.observations)) as show:
        for observation in seen.observations:
            recovered = inverter.invert(observation, show)
            scores.append(score(observation, recovered, seen.pixel_range, attacked.data.classes))
            if not Console().is_terminal:
                passed = f"{time.perf_counter() - start:.0f} s"
                print(f"Client {observation.client} attacked, {len(scores)} of {len(seen.observations)}, {passed}", flush=True)
    return scores, time.perf_counter() - start


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int, Tensor], None]]:
    """Show a bar on a terminal, and elsewhere a line for each client; yields a function to call in every iteration."""
    columns = (TextColumn("Iteration"), MofNCompleteColumn(), BarColumn(), TextColumn("objective {task.fields[objective]}"))
    with Progress(*columns, TimeRemainingColumn(), disable=not Console().is_terminal) as progress:
        task = progress.add_task("", total=total, objective="")

        def show(iteration: int, objectives: Tensor) -> None:
            progress.advance(task)
            if not progress.disable and iteration % _SHOW_EVERY == 0:
                progress.update(task, objective=f"{objectives.min().item():.3g}")

        yield show


def _report(
    scores: Sequence[ClientScore],
    seconds: float,
    seen: ObservedRound,
    attacked: AttackedRun,
    target: Target,
    settings: Inversion,
) -> None:
    out = Path(target.out) if target.out is not None else attacked.folder / "attack"
    method, iterations = attacked.method, settings.iterations * len(scores)
    names = {"method": type(method).__name__, "loss": repr(method.loss), "net": type(seen.net).__name__}
    settings_used = {**asdict(target), **asdict(settings), "clients": list(target.clients)}
    speed = {"seconds": round(seconds, 3), "iterations_per_second": round(iterations / seconds, 3)}
    write_scores(
        out / "attack.json", scores, {**names, "round": seen.round, **speed, "silent": seen.silent, "settings": settings_used}
    )
    write_picture(out / "attack.png", scores)
    title = f"{names['method']}, {names['net']}, round {seen.round}: {settings.distance}, {settings.iterations:,} iterations"
    print_table(scores, title)
    if seen.silent:
        print(f"Nothing to attack: the update of clients {', '.join(map(str, seen.silent))} is 0.")
    right, images = sum(client.num_labels_right for client in scores), target.num_images * len(scores)
    print(f"Labels {settings.labels}: {right} of {images} right. {speed['iterations_per_second']:.4g} iterations/s.")
    print(f"Scores: {out / 'attack.json'}\nPicture: {out / 'attack.png'}")
