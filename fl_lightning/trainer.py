"""Trainer: Lightning's, with the defaults of a federation."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from lightning.pytorch.accelerators import CUDAAccelerator
from lightning.pytorch.callbacks import Callback, EarlyStopping, ProgressBar
from lightning.pytorch.strategies import Strategy

from fl_lightning.callbacks import PrivacyBudget, RoundProgressBar, RunSummary
from fl_lightning.processes.strategy import FederatedStrategy
from fl_lightning.run.quiet_lightning import quiet_lightning
from fl_lightning.run.round_callback import RoundCallback
from fl_lightning.run.trainer_settings import refuse_float16

Float32Products = Literal["highest", "high", "medium"]


class Trainer(pl.Trainer):
    """Lightning's Trainer for rounds: a training step is a round, and ``max_steps`` is the number of rounds.

    It shows :class:`~fl_lightning.callbacks.RoundProgressBar` and, at the end, the table of
    :class:`~fl_lightning.callbacks.RunSummary`, and logs epsilon by :class:`~fl_lightning.callbacks.PrivacyBudget`, unless a
    callback of that kind is given; ``enable_progress_bar=False`` leaves out the bar. On a CPU a plain
    ``lightning.pytorch.Trainer`` trains the same weights.

    Args:
        max_steps: rounds.
        val_check_interval: rounds between evaluations, or a time.
        callbacks: callbacks that watch the run.
        strategy: of several processes; by default ``federated``, under which they share each cohort.
        float32_products: how precisely a GPU multiplies float32 matrices and convolves: ``highest``, 24 bits of each number;
            ``high``, 11 bits, as TF32 has them, which is faster; ``medium``, 8 bits, convolutions 11. It has no effect on a
            CPU.
        given: arguments of Lightning's Trainer.

    Raises:
        ValueError: if ``precision`` is float16, for which local steps have no gradient scaler.
    """

    def __init__(
        self,
        *,
        max_steps: int = -1,
        max_epochs: int | None = -1,
        val_check_interval: int | float | str | timedelta | dict[str, Any] | None = 10,
        check_val_every_n_epoch: int | None = None,
        log_every_n_steps: int | None = 1,
        num_sanity_val_steps: int | None = 0,
        use_distributed_sampler: bool = False,
        callbacks: list[Callback] | Callback | None = None,
        enable_progress_bar: bool | None = None,
        enable_model_summary: bool | None = False,
        strategy: str | Strategy = "auto",
        float32_products: Float32Products = "high",
        **given: Any,
    ) -> None:
        refuse_float16(str(given.get("precision")))  # on a CPU Lightning takes bfloat16, in a notice that the next line hides
        quiet_lightning()
        if strategy == "auto":
            strategy = strategy_for({name: given[name] for name in ("accelerator", "devices", "num_nodes") if name in given})
        watching = callbacks if isinstance(callbacks, list) else [callbacks] if callbacks else []
        if kind := next((one for one in watching if isinstance(one, type)), None):
            raise TypeError(f"trainer.callbacks has the class {kind.__name__}: give an object, {kind.__name__}()")
        if other := next((one for one in watching if not isinstance(one, Callback)), None):
            raise TypeError(f"trainer.callbacks has {other!r}, must be callbacks: give objects, such as ClientForgetting()")
        keys = [one.state_key for one in watching if isinstance(one, RoundCallback)]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            raise ValueError(f"trainer.callbacks has {twice} twice, which logs under the same names: give one")
        super().__init__(
            max_steps=max_steps,
            max_epochs=max_epochs,
            val_check_interval=val_check_interval,
            check_val_every_n_epoch=check_val_every_n_epoch,
            log_every_n_steps=log_every_n_steps,
            num_sanity_val_steps=num_sanity_val_steps,
            use_distributed_sampler=use_distributed_sampler,
            callbacks=_with_ours(watching, enable_progress_bar is not False),
            enable_progress_bar=enable_progress_bar,
            enable_model_summary=enable_model_summary,
            strategy=strategy,
            **given,
        )
        if isinstance(self.accelerator, CUDAAccelerator):
            choose_arithmetic(float32_products, given.get("benchmark"), bool(given.get("deterministic")))


def strategy_for(devices: Mapping[str, Any]) -> str:
    """The name of the strategy for ``accelerator``, ``devices`` and ``num_nodes``: our own for several processes.

    A trainer that is made for this also tells each process its rank.
    """
    if devices == {"accelerator": "cpu"}:
        return "auto"
    trainer = pl.Trainer(**devices, logger=False, enable_checkpointing=False, enable_progress_bar=False)
    return FederatedStrategy.strategy_name if trainer.num_devices * trainer.num_nodes > 1 else "auto"


def _with_ours(callbacks: list[Callback], shows_bar: bool) -> list[Callback]:
    """The callbacks, followed by epsilon, the bar and the final table, unless they have one of that kind."""
    # First those that end a run, so that the others know their last evaluation and draw it.
    callbacks = sorted(callbacks, key=lambda one: not isinstance(one, EarlyStopping))
    bar: dict[type[Callback], type[Callback]] = {ProgressBar: RoundProgressBar} if shows_bar else {}
    ours = {PrivacyBudget: PrivacyBudget, **bar, RunSummary: RunSummary}
    return [*callbacks, *(make() for kind, make in ours.items() if not any(isinstance(one, kind) for one in callbacks))]


def choose_arithmetic(products: Float32Products, benchmark: bool | None, deterministic: bool) -> None:
    """Set, for this process, what runs on CUDA go faster by.

    Args:
        products: of :func:`torch.set_float32_matmul_precision`; with ``highest`` convolutions do not round to TF32 either.
        benchmark: whether cuDNN times its algorithms for each shape and takes the quickest; None: unless ``deterministic``.
        deterministic: whether the same run must give the same bits.
    """
    torch.set_float32_matmul_precision(products)
    torch.backends.cudnn.allow_tf32 = products != "highest"  # torch's default is True, whatever matrices do
    torch.backends.cudnn.benchmark = not deterministic if benchmark is None else benchmark
