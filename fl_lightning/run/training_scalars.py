"""The logged values of a round's training."""

from lightning.pytorch import Trainer

from fl_lightning.protocol import RoundReport


def training_scalars(report: RoundReport) -> dict[str, float]:
    """Lost and undone rounds, clients with an update that is not finite, missing clients, and the mean loss of the others."""
    scalars = {
        "train/nonfinite_clients": float(len(report.nonfinite)),
        "train/round_undone": float(report.undone),
        "train/round_lost": float(report.lost),
    }
    if report.missing is not None:
        scalars["train/missing_clients"] = float(len(report.missing))
    counted = [loss for client, loss in zip(report.clients, report.losses, strict=True) if client not in report.nonfinite]
    if counted:
        scalars["train/loss"] = sum(counted) / len(counted)
    return scalars


def is_logged(trainer: Trainer, round: int, is_evaluated: bool) -> bool:
    """Whether loggers get them after a round: every ``trainer.log_every_n_steps``, and whenever the run is evaluated.

    With only Lightning's default of every 50 steps, a short run would not log a loss.
    """
    every = trainer.log_every_n_steps  # pyright: ignore[reportAttributeAccessIssue]
    return every > 0 and (round % every == 0 or is_evaluated or round == trainer.max_steps)
