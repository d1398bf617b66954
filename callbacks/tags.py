"""What the tags of TensorBoard mean, which of them matter most, and which are drawn side by side: ``tags.yaml``."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import yaml
from tensorboard.compat.proto.summary_pb2 import SummaryMetadata  # pyright: ignore[reportAttributeAccessIssue]

from fl_lightning.functional.accuracy_curves import FINAL_IS

_FILE = yaml.safe_load(Path(__file__).with_name("tags.yaml").read_text(encoding="utf-8"))
_OVERVIEW: Mapping[str, str] = _FILE["overview"]

DESCRIPTIONS = {tag: text.format(**_FILE["words"], final=FINAL_IS) for tag, text in _FILE["descriptions"].items()}
"""By a pattern that fits a whole tag; the first one that fits counts."""
CHARTS: Mapping[str, Mapping[str, str]] = _FILE["charts"]
"""Of TensorBoard's Custom Scalars: category -> chart -> a pattern of tags."""


def metadata(tag: str, plugin: str) -> SummaryMetadata:
    """For TensorBoard's plugin: what a tag means; without a description for tags of others."""
    text = next((text for pattern, text in DESCRIPTIONS.items() if re.fullmatch(pattern, tag)), "")
    return SummaryMetadata(summary_description=text, plugin_data=SummaryMetadata.PluginData(plugin_name=plugin))


@cache
def overview_tag(tag: str) -> str | None:
    """The tag under which TensorBoard shows a scalar first; None for those that matter less."""
    return next((name for pattern, name in _OVERVIEW.items() if re.fullmatch(pattern, tag)), None)
