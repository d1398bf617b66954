"""``fl-lightning completion``: a script with which a shell completes command lines, without starting Python.

It contains the subcommands, bundled configs and options of the installed version, except for options of classes that are not
defaults. zsh reads it through its ``bashcompinit``.
"""

from collections.abc import Iterable
from pathlib import Path

from fl_lightning import __version__
from fl_lightning.command_line.known_classes import CLASS_KEYS, known_classes
from fl_lightning.command_line.parsing import class_options, parser_options
from fl_lightning.command_line.trainer_command import trainer_parser
from fl_lightning.config_files.bundled import bundled_files
from fl_lightning.module import FederatedModule


def script(subcommands: Iterable[str]) -> str:
    """The script for bash or zsh."""
    options = dict.fromkeys([*parser_options(trainer_parser("fit")), *class_options(FederatedModule, "model"), *CLASS_KEYS])
    values = [f'      --{key}) words="{" ".join(known_classes(key))}" ;;' for key in CLASS_KEYS]
    parts = {
        "version": [__version__],
        "subcommands": subcommands,
        "options": (f"--{option}" for option in options),
        "configs": bundled_files(),
    }
    text = Path(__file__).with_name("completion.bash").read_text(encoding="utf-8").replace("@values@", "\n".join(values))
    for name, words in parts.items():
        text = text.replace(f"@{name}@", " ".join(words))
    return text
