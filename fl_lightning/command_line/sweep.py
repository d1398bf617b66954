"""``fl-lightning sweep``: many runs of ``fit``, over values and seeds."""

from collections.abc import Collection, Sequence

from jsonargparse import Namespace

from fl_lightning.command_line.errors import error_line
from fl_lightning.command_line.trainer_command import parse_trainer_command
from fl_lightning.config_files.reading import config_text
from fl_lightning.report.runs import flatten
from fl_lightning.sweep.entered_sweep import EnteredSweep
from fl_lightning.sweep.points import Axis, Range, Run, as_options
from fl_lightning.sweep.screen import open_screen
from fl_lightning.sweep.settings import Settings, parse_settings
from fl_lightning.sweep.worker import Stop


def run(arguments: Sequence[str]) -> None:
    """Run a sweep, or the rest of it.

    Raises:
        ValueError: in one line, if the command does not fit the folder, or runs have failed.
        SystemExit: with 130 or 143 after Ctrl-C or SIGTERM.
    """
    run_sweep(parse_settings(arguments))


def run_sweep(settings: Settings) -> None:
    """Run a sweep, or the rest of it, as :func:`run` does."""
    with Stop() as stop:
        sweep = enter(settings)
        with open_screen() as screen:
            sweep.work(screen, stop)
    sweep.report(stop.signals)


def enter(settings: Settings, left_out: Collection[Run] = ()) -> EnteredSweep:
    """Begin a sweep in its folder, or continue it; nothing runs yet.

    Args:
        left_out: runs of a grid that the folder does not need, since their results are known.

    Raises:
        ValueError: in one line, if the settings or the folder do not fit.
    """
    configs = _check_points(settings)
    asks = "--prune" if settings.prune else "--search tpe" if settings.search == "tpe" else None
    if asks and any(config.data.val_fraction == 0 or config.data.tasks is not None for config in configs):
        raise ValueError(f"{asks} goes by validation accuracy, and there is none: set data.val_fraction above 0")
    return EnteredSweep(settings, config_text(settings.config), configs[0].trainer.max_steps, left_out)


def _check_points(settings: Settings) -> list[Namespace]:
    """Configs of the points with each value of each key, and the first of every other key; the first point comes first."""
    shared = ["--config", settings.config, *settings.options]
    config = parse_trainer_command("fit", shared)
    if config.ckpt_path is not None:
        raise ValueError(
            f"ckpt_path is {config.ckpt_path} in {settings.config}, from which every run would continue: remove it there"
        )
    first = {axis.key: axis.values[0] for axis in settings.axes}
    others: list[Namespace] = []
    for axis in settings.axes:
        seen: dict[str, Namespace] = {}
        for value in axis.values:
            parsed = _parsed([*shared, *as_options({**first, axis.key: value})], axis, value)
            if isinstance(axis, Range) and axis.whole and isinstance(dict(flatten(parsed.as_dict())).get(axis.key), float):
                low, high = axis.values
                raise ValueError(
                    f"--set {axis.key}={low}..{high} has only whole numbers: give {low}.0..{high}.0 for all between"
                )
            if same := [other for other, config in seen.items() if repr(config) == repr(parsed)]:  # 1 == 1.0, which differ
                raise ValueError(f"--set {axis.key} has {same[0]} and {value}, which are the same: leave one out")
            seen[value] = parsed
        others += seen.values()
    return others or [config]


def _parsed(options: Sequence[str], axis: Axis, value: str) -> Namespace:
    try:
        return parse_trainer_command("fit", options)
    except Exception as error:
        line = error_line(error)
        if line.startswith(f"{axis.key} is ") or value == axis.values[0]:
            raise
        raise ValueError(f"with {axis.key}={value}, {line}") from error
