"""Config files: found by bare name, put together from pieces.

A file may name others under ``base``: their values hold where it says nothing itself. A bundled config may be a row of a table,
a combination of others without a file.
"""

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from fl_lightning.command_line.bundled_configs import bundled_configs, bundled_files, bundled_folder, bundled_rows
from fl_lightning.command_line.former_configs import FORMER_CONFIGS
from fl_lightning.state.strict_yaml import MAX_CHARACTERS, check_yaml, load_yaml

_LONGEST_CHAIN = 50  # of files that are each based on the next
# Where seed_everything arrives; what stands there is overwritten.
SEED_KEYS = ("data.seed", "model.seed", "model.init_args.seed")
_SEEDED = "seed_everything is the seed of every random choice: give that instead"


@contextmanager
def whole_configs(arguments: Sequence[str]) -> Iterator[list[str]]:
    """The command line with the path of a whole config instead of each config's name; paths hold within the block.

    Raises:
        FileNotFoundError: naming it and the nearest bundled config, if a config is neither a file nor bundled.
        ValueError: naming the file, if it holds no YAML mapping, one of the traps of :mod:`fl_lightning.state.strict_yaml`, or
            is a base of itself; naming the option, if its value holds such a trap.
    """
    _check_values(arguments)
    with TemporaryDirectory() as folder:
        yield [_whole(value, Path(folder)) if option == "--config" else value for option, value in pairwise(["", *arguments])]


def _whole(name: str, folder: Path) -> str:
    """The path of a config: its file, or that of a file in ``folder`` where it is put together from several."""
    path = _file(name, Path())
    if path is not None and "base" not in _content(path, name):
        return str(path)
    composed = folder / Path(name).name
    composed.write_text(yaml.safe_dump(_values(name, "config", Path(), (), {}), sort_keys=False), encoding="utf-8")
    return str(composed)


def _values(name: str, key: str, folder: Path, above: tuple[Path, ...], known: dict[Path, dict[str, Any]]) -> dict[str, Any]:
    """All values of a config, a file or a row of a table; ``above`` and ``known`` as in :func:`_read`.

    Raises:
        FileNotFoundError: if there is none of that name, with the nearest one, or what says the same today.
    """
    path = _file(name, folder)
    if path is not None:
        return _read(path, name, above, known)
    if name in bundled_rows():
        row, merged = bundled_rows()[name], {}
        for base in row.base:
            merged = _merge(merged, _values(base, f"base in {name}", bundled_folder(), above, known))
        for option, value in row.values.items():
            merged = _merge(merged, _nested(option.split("."), value, merged))
        return merged
    if name in FORMER_CONFIGS:
        raise FileNotFoundError(f"{key} is {name}, which is no more: {FORMER_CONFIGS[name]} says the same")
    close = difflib.get_close_matches(name, bundled_configs(), n=1)
    cure = f"did you mean {close[0]}?" if close else "fl-lightning configs lists them"
    raise FileNotFoundError(f"{key} is {name}, neither a file here nor a bundled config: {cure}")


def _nested(option: Sequence[str], value: Any, config: Any) -> Any:
    """A value under its key of the command line, as a config has it: arguments of a class under ``init_args``."""
    if not option:
        is_class = isinstance(value, str) and isinstance(config, dict) and "class_path" in config
        return {"class_path": value} if is_class else value
    if isinstance(config, str):  # a class by its name alone
        config = {"class_path": config}
    inner = config.get("init_args", {}) if "class_path" in config else config
    nested = {option[0]: _nested(option[1:], value, inner.get(option[0], {}))}
    return {"class_path": config["class_path"], "init_args": nested} if "class_path" in config else nested


def _read(path: Path, name: str, above: tuple[Path, ...], known: dict[Path, dict[str, Any]]) -> dict[str, Any]:
    """The values of a file and of those that it is based on.

    Args:
        above: the files that are based on it, the first one first.
        known: the values of files that were read before; those of this one are added.
    """
    path = path.resolve()
    if path in above:
        raise ValueError(f"config is {name}, which is based on itself: correct the key base")
    if len(above) > _LONGEST_CHAIN:
        first = above[0].name
        raise ValueError(f"config is {first}, under which bases lie deeper than {_LONGEST_CHAIN} levels: shorten the chain")
    if path not in known:
        content, merged = _content(path, name), {}
        for base in _names(content.pop("base", []), name):
            merged = _merge(merged, _values(base, f"base in {name}", path.parent, (*above, path), known))
        known[path] = _merge(merged, content)
    return known[path]


def _names(base: object, name: str) -> list[str]:
    names = [base] if isinstance(base, str) else base
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise ValueError(f"base in {name} is {base}, must be the name of a file or a list of names")
    return names


def _merge(base: dict[str, Any], over: dict[str, Any], key: str = "") -> dict[str, Any]:
    """Both mappings in one; where they differ ``over`` wins, and another class leaves the base's arguments behind.

    Not so another method: all methods have net, loss, optimizers and the like in common.
    """
    if key != "model" and over.get("class_path", base.get("class_path")) != base.get("class_path"):
        base = {key: value for key, value in base.items() if key != "init_args"}
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(base.get(key), dict)
        merged[key] = _merge(base[key], value, key) if both else value
    return merged


def _file(name: str, folder: Path) -> Path | None:
    """The file that a name means, if it means one: in ``folder``, in the working folder, or bundled.

    A bundled config is based on bundled ones, whatever lies in the working folder.
    """
    if not folder.is_relative_to(bundled_folder()):
        for searched in (folder, Path()):
            if (searched / name).is_file():
                return searched / name
    return bundled_files().get(name)


def _content(path: Path, name: str) -> dict[str, Any]:
    if path.stat().st_size > 4 * MAX_CHARACTERS:  # of up to four bytes
        raise ValueError(f"config is {name} of {path.stat().st_size:,} bytes, too large for a config: shorten it")
    try:
        content = load_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"config is {name}, which is no YAML ({' '.join(str(error).split())}): correct the file") from error
    except ValueError as error:
        raise ValueError(f"config is {name}, which cannot be taken ({error}): correct the file") from error
    if not isinstance(content, dict):
        raise ValueError(f"config is {name}, which holds no keys: fl-lightning fit --print_config shows what it may hold")
    _check_mappings(content, name)
    return content


def _check_mappings(content: dict[str, Any], name: str) -> None:
    """Raise a ValueError where a value stands instead of keys: the parser would take the defaults, or fail obscurely."""
    for key in SEED_KEYS:
        if _has(content, key.split(".")):
            raise ValueError(f"{key} is given in {name}, but {_SEEDED}")
    callbacks = content.get("callbacks")
    sections = {key: content[key] for key in ("data", "trainer", "callbacks") if key in content}
    sections |= {f"callbacks.{key}": value for key, value in (callbacks if isinstance(callbacks, dict) else {}).items()}
    for key, value in [*sections.items(), *_init_args(content)]:
        if not isinstance(value, dict):
            shown = "null" if value is None else value
            raise ValueError(f"{key} is {shown} in {name}, must hold keys and their values: give them, or leave {key} out")


def _has(content: object, path: Sequence[str]) -> bool:
    if not path:
        return True
    return isinstance(content, dict) and path[0] in content and _has(content[path[0]], path[1:])


def _init_args(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Every ``init_args`` in a config with its key; raises a ValueError where a key is no text."""
    if isinstance(value, list):
        for number, part in enumerate(value):
            yield from _init_args(part, f"{key}[{number}]")
    elif isinstance(value, dict):
        for name, part in value.items():
            if not isinstance(name, str):
                raise ValueError(f"{key or 'the config'} has the key {name}, which is no name: correct it")
            full = f"{key}.{name}".lstrip(".")
            if name == "init_args":
                yield full, part
            yield from _init_args(part, full)


def _check_values(arguments: Sequence[str]) -> None:
    """Raise a ValueError where the parser would stumble over the YAML that is the value of an option, or in a file it names."""
    for option, argument in pairwise(["", *arguments]):
        key, _, value = argument.partition("=") if argument.startswith("--") else (option, "", argument)
        if key in (f"--{seed}" for seed in SEED_KEYS):
            raise ValueError(f"{key.removeprefix('--')} is given, but {_SEEDED}")
        if key != "--config" and value:
            try:
                check_yaml(_text_of(value))
            except yaml.YAMLError:
                continue  # a text that means itself
            except (ValueError, OSError) as error:
                raise ValueError(f"{key.removeprefix('--')} is {_shortened(value)}, which cannot be taken: {error}") from error


def _text_of(value: str) -> str:
    """What the parser reads for a value: itself, or the file that it names."""
    if not value.endswith((".yaml", ".yml")) or not Path(value).is_file():
        return value
    if Path(value).stat().st_size > MAX_CHARACTERS:
        raise ValueError(f"the file has more than {MAX_CHARACTERS:,} bytes")
    return Path(value).read_text(encoding="utf-8")


def _shortened(value: str) -> str:
    return value if len(value) < 80 else f"{value[:77]}..."
