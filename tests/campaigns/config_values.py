"""The values that a run with a config has."""

from pathlib import Path
from typing import Any

from fl_lightning.command_line.config_files import whole_configs
from fl_lightning.state.strict_yaml import load_yaml


def read_config(name: str) -> dict[str, Any]:
    """All values of a config, found as ``--config`` finds it, and of those that it is based on."""
    with whole_configs(["--config", name]) as (_, path):
        return load_yaml(Path(path).read_text(encoding="utf-8"))
