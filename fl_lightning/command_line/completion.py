"""``fl-lightning completion``: a script that has a shell complete command lines, without starting Python.

It holds the subcommands, bundled configs and options of the installed version, those of classes that are no default excepted.
zsh reads it through its ``bashcompinit``.
"""

from collections.abc import Iterable

from fl_lightning import __version__
from fl_lightning.command_line.known_classes import CLASS_KEYS, known_classes
from fl_lightning.command_line.parsing import class_options, parser_options
from fl_lightning.command_line.trainer_command import trainer_parser
from fl_lightning.config_files.bundled import bundled_files
from fl_lightning.module import FederatedModule

_SCRIPT = """\
# Completes command lines of fl-lightning {version}.
if [[ -n ${{ZSH_VERSION-}} ]]; then autoload -Uz compinit bashcompinit; (( $+functions[compdef] )) || compinit; bashcompinit; fi
_fl_lightning() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} option=${{COMP_WORDS[COMP_CWORD-1]}} words=""
  if (( COMP_CWORD == 1 )); then
    words="{subcommands}"
  elif [[ $word == -* ]]; then
    words="{options}"
  else
    case $option in
{values}
      --config) words="{configs} $(compgen -f -X '!*.yaml' -- "$word")" ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _fl_lightning fl-lightning
"""


def script(subcommands: Iterable[str]) -> str:
    """What bash or zsh reads to complete command lines."""
    options = dict.fromkeys([*parser_options(trainer_parser("fit")), *class_options(FederatedModule, "model"), *CLASS_KEYS])
    values = [f'      --{key}) words="{" ".join(known_classes(key))}" ;;' for key in CLASS_KEYS]
    return _SCRIPT.format(
        version=__version__,
        subcommands=" ".join(subcommands),
        options=" ".join(f"--{option}" for option in options),
        values="\n".join(values),
        configs=" ".join(bundled_files()),
    )
