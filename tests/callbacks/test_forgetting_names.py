"""Names and signs of forgetting in tables."""

import re

import pytest

from fl_lightning.callbacks.forgetting_names import forgetting_name, forgetting_sign
from fl_lightning.callbacks.tags import DESCRIPTIONS

TAGS = [
    "forgetting/client_mean",
    "forgetting/client_worst",
    "forgetting/personal_since_visit",
    "forgetting/from_best",
    "forgetting/round",
    "forgetting/every_25",
    "forgetting/local_mean",
    "forgetting/reference_old",
]


@pytest.mark.parametrize("tag", TAGS)
def test_the_sign_is_that_of_the_description(tag):
    """A table turns the sign of what TensorBoard describes as negative where something is forgotten, and of nothing else."""
    text = next(text for pattern, text in DESCRIPTIONS.items() if re.fullmatch(pattern, tag))
    said = re.search(r"(negative|positive) is forgetting\.", text, re.IGNORECASE)[1].lower()
    assert forgetting_sign(tag) == {"negative": -1, "positive": 1}[said]


def test_a_gap_is_part_of_the_name_and_other_tags_stay():
    assert forgetting_name("forgetting/every_25") == "forgetting over 25 rounds F_t"
    assert forgetting_name("forgetting/loss_increase") == "forgetting/loss_increase"
    assert forgetting_sign("forgetting/loss_increase") == 1
