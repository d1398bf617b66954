"""Settings of Lightning's trainer that a round cannot honour, refused by name."""

from lightning.pytorch import Trainer

from fl_lightning.launch import num_started
from fl_lightning.strategy import FederatedStrategy


def check_trainer(trainer: Trainer) -> None:
    """Check a trainer before a fit or an evaluation.

    Raises:
        ValueError: naming the setting, its value and the cure.
    """
    refuse_float16(trainer.precision)
    if trainer.state.fn != "fit":
        return
    _refuse_other_strategies(trainer)
    if trainer.max_steps < 1:
        raise ValueError(f"trainer.max_steps is {trainer.max_steps}, must be at least 1: the number of rounds")
    for name, neutral in (("gradient_clip_val", (None, 0)), ("accumulate_grad_batches", (1,))):
        if getattr(trainer, name) not in neutral:
            raise ValueError(
                f"trainer.{name} is {getattr(trainer, name)}, but a training step is a round: use model.clip_local_gradients "
                "for the clients' gradients"
            )
    if not trainer.fast_dev_run:
        for name, neutral in (("limit_train_batches", (None, 1.0)), ("overfit_batches", (0,))):
            if getattr(trainer, name) not in neutral:
                raise ValueError(f"trainer.{name} is {getattr(trainer, name)}, but a training step is a round: use max_steps")
    if getattr(trainer.strategy, "_layer_sync", None) is not None:
        raise ValueError("trainer.sync_batchnorm is True, which would mix the clients of different processes: leave it out")


def _refuse_other_strategies(trainer: Trainer) -> None:
    num_processes = trainer.num_devices * trainer.num_nodes
    if num_processes != num_started() > 1:
        raise ValueError(
            f"trainer.devices is {trainer.num_devices} and trainer.num_nodes is {trainer.num_nodes}, but torchrun started "
            f"{num_started()} processes: set trainer.devices to those of one node, or leave both out"
        )
    if num_processes > 1 and not isinstance(trainer.strategy, FederatedStrategy):
        raise ValueError(
            f"trainer.strategy is {type(trainer.strategy).__name__}, under which "
            f"{num_processes} processes share no cohort: set trainer.strategy to federated"
        )


def refuse_float16(precision: str) -> None:
    """Check ``trainer.precision``.

    Raises:
        ValueError: for float16, whose gradients vanish without a scaler, which local steps do not have.
    """
    if "16" in precision and "bf" not in precision:
        raise ValueError(
            f"trainer.precision is {precision}, but local steps have no gradient scaler, which float16 needs: use bf16-mixed"
        )
