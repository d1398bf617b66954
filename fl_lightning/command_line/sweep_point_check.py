"""Whether every key and value of a sweep can be parsed, before anything runs."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from jsonargparse import Namespace

from fl_lightning.command_line.federated_cli import FederatedCLI, run_cli
from fl_lightning.command_line.one_line_errors import error_line
from fl_lightning.sweep.points import Axis, as_options
from fl_lightning.sweep.settings import Settings


class _ConfigChecker(FederatedCLI):
    """Reads a command line as ``fit`` would, and builds nothing."""

    def instantiate_classes(self) -> None:
        """Nothing."""

    def _run_subcommand(self, subcommand: str) -> None:
        """Nothing."""

    def read(self, arguments: Sequence[str]) -> Namespace:
        """The config that these arguments give."""
        self.config = self.parse(["fit", *arguments])
        self.before_instantiate_classes()
        return self.config.fit


def check_points(settings: Settings, config: str) -> Namespace:
    """Parse the first point, and each other value of each key instead of the first; gives the first point's config.

    Args:
        settings: of the sweep.
        config: path of the whole config.

    Raises:
        ValueError: naming the key and the nearest that exists, if a key is unknown; naming both, if two values are the same.
        Exception: as ``fit``, if something else cannot be parsed.
    """
    shared = ["--config", config, *settings.options]
    checker = run_cli(["fit", *shared], _ConfigChecker)
    known = known_keys(checker.config.fit.as_dict())
    first = {axis.key: axis.values[0] for axis in settings.axes}
    for axis in settings.axes:
        seen: dict[str, Namespace] = {}
        for value in axis.values:
            parsed = _read(checker, shared, {**first, axis.key: value}, axis, known)
            if same := [other for other, config in seen.items() if config == parsed]:
                raise ValueError(f"--set {axis.key} has {same[0]} and {value}, which are the same: leave one out")
            seen[value] = parsed
    return checker.read([*shared, *as_options(first)])


def known_keys(config: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The keys of a config as the command line takes them: ``model.optimizer.lr``."""
    keys = []
    for name, value in config.items():
        key = prefix if name in ("class_path", "init_args") else f"{prefix}.{name}".lstrip(".")
        keys += known_keys(value, key) if isinstance(value, Mapping) else [key]
    return list(dict.fromkeys(keys))


def _read(checker: _ConfigChecker, shared: Sequence[str], point: Mapping[str, str], axis: Axis, known: list[str]) -> Namespace:
    try:
        return checker.read([*shared, *as_options(point)])
    except Exception as error:
        line = error_line(error)
        if f"{axis.key} is no option here" in line.replace(f"={point[axis.key]}", ""):
            raise ValueError(f"--set {axis.key} is no option of fit: {_nearest(axis.key, known)}") from error
        if line.startswith(f"{axis.key} is ") or point[axis.key] == axis.values[0]:
            raise
        raise ValueError(f"with {axis.key}={point[axis.key]}, {line}") from error


def _nearest(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {close[0]}?" if close else "fl-lightning fit --print_config shows those there are"
