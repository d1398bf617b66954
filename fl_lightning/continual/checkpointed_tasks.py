"""A checkpoint belongs to the tasks that its run was on."""

from collections.abc import Mapping
from typing import Any

from fl_lightning.state.checkpoint import check_layout

_STREAMS = "streams"


def save_tasks(checkpoint: dict[str, Any], streams: Mapping[str, Any]) -> None:
    """Store what a run that goes on, or is evaluated, must share with this one: keys of the command line and values."""
    checkpoint["federated"][_STREAMS] = dict(streams)


def check_same_tasks(checkpoint: dict[str, Any], streams: Mapping[str, Any]) -> None:
    """Whether a checkpoint is of a run on these tasks.

    Raises:
        ValueError: naming the first key that differs, with both values.
    """
    check_layout(checkpoint)  # in evaluations too
    stored = checkpoint["federated"].get(_STREAMS, {})
    for name, value in streams.items():
        if stored.get(name) != value:
            raise ValueError(
                f"ckpt_path holds a run on other tasks: {name} is {stored.get(name)} there and {value} here: use the data of "
                "that run"
            )
