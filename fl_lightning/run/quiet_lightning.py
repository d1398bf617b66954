"""Lightning's hints and adverts, switched off."""

import logging
import warnings

_TALKATIVE = (
    "pytorch.utilities.rank_zero",
    "fabric.utilities.seed",
    "fabric.utilities.distributed",
    "pytorch.accelerators",
    "pytorch.trainer.connectors.signal_connector",
)


def quiet_lightning() -> None:
    """Leave the screen to the progress bar and the errors: Lightning logs only warnings and errors, and no hints."""
    warnings.filterwarnings("ignore", module="lightning")
    for name in _TALKATIVE:
        logging.getLogger(f"lightning.{name}").setLevel(logging.WARNING)
