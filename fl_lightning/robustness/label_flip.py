"""Label flip: hostile clients train on wrong labels.

V. Tolpegin, S. Truex, M. E. Gursoy, L. Liu: Data Poisoning Attacks Against Federated Learning Systems. ESORICS 2020. arXiv
2007.08432. Departure: all classes are flipped, c to C - 1 - c, where the paper flips one class to another.
"""

from fl_lightning.robustness.hostile import Hostile


class LabelFlip(Hostile):
    """In local steps, class c of a hostile client counts as C - 1 - c, and so do its label counts. It sends what it trains."""

    flips_labels = True
