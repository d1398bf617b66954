"""What people read of forgetting: a name for each scalar, and numbers of which the positive ones are forgetting.

Scalars are logged with the signs of their papers, so F_ki and what follows from it are negative where something is forgotten.
Tables, reports and figures show them with the other sign.
"""

import re

_NAMES = {
    "forgetting/client_mean": "client forgetting F_ki",
    "forgetting/client_worst": "client forgetting F_k, worst",
    "forgetting/personal_since_visit": "forgetting since the last visit",
    "forgetting/round": "round forgetting F_t",
    "forgetting/from_best": "forgetting from the best F",
    "forgetting/local_mean": "local forgetting F_kt",
}
_REFERENCE = r"forgetting/reference_(\w+)"
_NEGATIVE = ("forgetting/client_mean", "forgetting/client_worst", "forgetting/personal_since_visit")


def forgetting_name(scalar: str) -> str:
    """What tables call a scalar below ``forgetting/``; its tag where that has no other name."""
    if gap := re.fullmatch(r"forgetting/every_(\d+)", scalar):
        return f"forgetting over {gap[1]} rounds F_t"
    if reference := re.fullmatch(_REFERENCE, scalar):
        return f"forgetting of {reference[1]} by a fit"
    return _NAMES.get(scalar, scalar)


def is_lost_accuracy(scalar: str) -> bool:
    """Whether a scalar below ``forgetting/`` is one: there are cross entropies and correlations, too."""
    return forgetting_name(scalar) != scalar


def forgetting_sign(scalar: str) -> int:
    """-1 for a scalar that is logged negative where something is forgotten, 1 for any other: its factor in tables."""
    return -1 if scalar in _NEGATIVE or re.fullmatch(_REFERENCE, scalar) else 1
