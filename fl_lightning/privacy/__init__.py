"""Defences of clients' samples: ``--model.privacy DPSGD`` or ``UserLevelDP``."""

from fl_lightning.privacy.defence import Privacy
from fl_lightning.privacy.dp_sgd import DPSGD
from fl_lightning.privacy.user_level import UserLevelDP

__all__ = ["DPSGD", "Privacy", "UserLevelDP"]
