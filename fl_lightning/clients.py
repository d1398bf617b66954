"""The former name of :mod:`fl_lightning.exchange`, for one release."""

import warnings

from fl_lightning.exchange import *  # noqa: F403

warnings.warn("fl_lightning.clients is now fl_lightning.exchange", FutureWarning, stacklevel=2)
