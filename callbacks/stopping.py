"""Why a fit ended before its last round."""

from datetime import timedelta

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EarlyStopping, Timer
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason

from fl_lightning.module import FederatedModule
from fl_lightning.run.trainer_settings import callbacks_of


def reason_to_stop(trainer: Trainer, module: FederatedModule) -> str | None:
    """One line that names what ended the fit; None if it came to ``trainer.max_steps``."""
    if not trainer.should_stop or trainer.global_step >= trainer.max_steps:
        return None
    reasons = list(filter(None, map(_reason_of, callbacks_of(trainer))))
    if module.needs.data.task_streams and not reasons:
        reasons = ["every client has learned all of its tasks"]
    why = "; ".join(reasons) or "a callback set trainer.should_stop"
    return f"Ended after round {trainer.global_step} of {trainer.max_steps}: {why}"


def _reason_of(callback: Callback) -> str | None:
    if isinstance(callback, EarlyStopping) and callback.stopping_reason != EarlyStoppingReason.NOT_STOPPED:
        return f"EarlyStopping: {(callback.stopping_reason_message or '').removesuffix(' Signaling Trainer to stop.')}"
    if isinstance(callback, Timer) and (left := callback.time_remaining()) is not None and left <= 0:
        return f"trainer.max_time is over, after {timedelta(seconds=round(callback.time_elapsed()))} of training"
    return None
