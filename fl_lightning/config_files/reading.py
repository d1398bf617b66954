"""Config files: found by bare name, put together with those that they are based on.

A file may name others under ``base``: their values hold where it sets nothing itself.
"""

import difflib
from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import yaml

from fl_lightning.config_files.bundled import bundled_files, bundled_folder
from fl_lightning.state.strict_yaml import MAX_CHARACTERS, load_yaml

_LONGEST_CHAIN = 50  # of files that are each based on the next
# Where seed_everything arrives; a value there is overwritten.
SEED_KEYS = ("data.seed", "model.seed", "model.init_args.seed")
_METHODS = ("model", "model.init_args.tasks")
SEEDED = "seed_everything is the seed of every random choice: give that instead"


def config_values(name: str) -> dict[str, Any]:
    """All values of a config, those of its bases included.

    Raises:
        FileNotFoundError: naming it and a bundled config of a similar name, if it is neither a file nor bundled.
        ValueError: naming the file, if it holds no YAML mapping, one of the traps of :mod:`fl_lightning.state.strict_yaml`, or
            is a base of itself.
    """
    return _read(_found(name, "config", Path()), name, (), {})


def config_text(name: str) -> str:
    """A config as the text of one file, ready to be copied: its own, or all values below its head where it has a base.

    Raises:
        FileNotFoundError, ValueError: as :func:`config_values`.
    """
    path = _found(name, "config", Path())
    text = path.read_text(encoding="utf-8")
    if "base" not in _content(path, name):
        return text.rstrip("\n")
    head = takewhile(lambda line: line.startswith("#"), text.splitlines())
    values = yaml.safe_dump(config_values(name), sort_keys=False, default_flow_style=None, width=120)
    return "\n".join([*head, values.rstrip("\n")])


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
            merged = _merge(merged, _read(_found(base, f"base in {name}", path.parent), base, (*above, path), known))
        known[path] = _merge(merged, content)
        _check_mappings(known[path], name)
    return known[path]


def _names(base: object, name: str) -> list[str]:
    names = [base] if isinstance(base, str) else base
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        raise ValueError(f"base in {name} is {base}, must be the name of a file or a list of names")
    return names


def _merge(base: dict[str, Any], over: dict[str, Any], key: str = "") -> dict[str, Any]:
    """Both mappings in one; where they differ ``over`` wins, and another class leaves the base's arguments behind.

    Not so another method or learner of tasks: all methods have net, loss, optimizers and the like in common, all learners how
    long a task lasts. A text can be a class, by its path.
    """
    is_another = "class_path" in over and not _is_same_class(base.get("class_path"), over["class_path"])
    if is_another and key not in _METHODS:
        base = {key: value for key, value in base.items() if key not in ("init_args", "dict_kwargs")}
    merged = dict(base)
    for name, value in over.items():
        below, full = base.get(name), f"{key}.{name}".lstrip(".")
        if isinstance(below, str) and isinstance(value, dict) and below.rpartition(".")[2][:1].isupper():
            below = {"class_path": below}
        elif isinstance(below, dict) and isinstance(value, str):
            stays = full in _METHODS or _is_same_class(below.get("class_path"), value)
            value = {"class_path": value} if stays else value
        merged[name] = _merge(below, value, full) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _is_same_class(one: object, other: object) -> bool:
    """Whether the path of one class is that of the other without some packages or modules: SGD is torch.optim.SGD."""
    shorter, longer = sorted((str(one).split("."), str(other).split(".")), key=len)
    parts = iter(longer)
    return shorter[-1] == longer[-1] and all(part in parts for part in shorter)


def _found(name: str, key: str, folder: Path) -> Path:
    """The file that a name means: in ``folder``, in the working folder, or bundled.

    A bundled config is based on bundled ones, whatever files are in the working folder.
    """
    if not folder.is_relative_to(bundled_folder()):
        for searched in (folder, Path()):
            path = searched / name
            if path.is_file():
                return path
            if path.exists() and not path.is_dir():
                raise FileNotFoundError(f"{key} is {name}, which is a pipe or a device: give a file")
    if name in bundled_files():
        return bundled_files()[name]
    # Without the endings: these make all names alike.
    near = difflib.get_close_matches(Path(name).stem, [path.stem for path in bundled_files().values()], n=1)
    cure = f"did you mean {near[0]}.yaml?" if near else "fl-lightning configs lists them"
    raise FileNotFoundError(f"{key} is {name}, neither a file here nor a bundled config: {cure}")


def _content(path: Path, name: str) -> dict[str, Any]:
    if path.stat().st_size > 4 * MAX_CHARACTERS:  # of up to four bytes
        raise ValueError(f"config is {name} of {path.stat().st_size:,} bytes, too large for a config: shorten it")
    try:
        content = load_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"config is {name}, which is not YAML ({' '.join(str(error).split())}): correct the file") from error
    except ValueError as error:
        raise ValueError(f"config is {name}, which cannot be taken ({error}): correct the file") from error
    if not isinstance(content, dict):
        raise ValueError(f"config is {name}, which holds no keys: fl-lightning fit --print_config shows what it may hold")
    return content


def _check_mappings(content: dict[str, Any], name: str) -> None:
    """Raise a ValueError where keys are missing or in a wrong place: the parser would take the defaults, or fail obscurely."""
    for key in SEED_KEYS:
        if _has(content, key.split(".")):
            raise ValueError(f"{key} is given in {name}, but {SEEDED}")
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
    """Every ``init_args`` in a config with its key; raises a ValueError where a key is not text, or an argument not in one."""
    if isinstance(value, list):
        for number, part in enumerate(value):
            yield from _init_args(part, f"{key}[{number}]")
    elif isinstance(value, dict):
        for name, part in value.items():
            if not isinstance(name, str):
                raise ValueError(f"{key or 'the config'} has the key {name}, which is not a name: correct it")
            full = f"{key}.{name}".lstrip(".")
            if name == "init_args":
                yield full, part
            elif "class_path" in value and name not in ("class_path", "dict_kwargs"):
                raise ValueError(f"{full} is {part}, but not under init_args, like all arguments of a class: move it there")
            yield from _init_args(part, full)


def flat_values(value: object, key: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a config under their keys of the command line, a class under that of its object."""
    if not isinstance(value, dict):
        yield key, value
        return
    for name, part in value.items():
        yield from flat_values(part, key if name in ("class_path", "init_args") else f"{key}.{name}".lstrip("."))


def options_of(arguments: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Key and value of each option; None if there is no value."""
    for word, after in pairwise([*arguments, "--"]):
        key, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--"):
            yield key.removesuffix("+"), value if equals else None if after.startswith("--") else after


def shortened(value: str) -> str:
    """A value as a line has room for it."""
    return value if len(value) < 80 else f"{value[:77]}..."
