"""The run that an attack is on, built again from its checkpoint and config."""

from dataclasses import dataclass
from pathlib import Path

from fl_lightning.attacks.observed_update import check_method
from fl_lightning.data import FederatedDataModule
from fl_lightning.module import FederatedModule
from fl_lightning.run.saved_run import build_run, run_config


@dataclass(frozen=True)
class AttackedRun:
    """A run, built again from its config."""

    folder: Path
    method: FederatedModule
    data: FederatedDataModule
    precision: str | int | None


def load_run(ckpt_path: Path, root: str | None = None) -> AttackedRun:
    """Build the method and the data of the run that wrote a checkpoint, for single steps of single clients.

    Args:
        root: of the data, instead of that in the run's config.

    Raises:
        FileNotFoundError: if the run's config is not there.
        ValueError: if it is none, or of a method that cannot be attacked.
    """
    folder, stored = run_config(ckpt_path)
    if stored["data"].get("tasks") is not None:
        raise ValueError("data.tasks of the run is set, but the attack is on runs without tasks: choose another checkpoint")
    stored["model"]["init_args"].update(local_steps=1, local_epochs=None, engine="sequential")
    stored["data"].update(client_sampler=None, cohorts=None, clients_per_round=1)
    if root is not None:
        stored["data"]["root"] = root
    built = build_run(stored, FederatedModule, FederatedDataModule)
    check_method(built.model)
    return AttackedRun(folder, built.model, built.data, (stored.get("trainer") or {}).get("precision"))
