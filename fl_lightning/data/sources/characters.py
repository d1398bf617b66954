"""Characters: texts, character by character, for a language model."""

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor

from fl_lightning.checks import check_range
from fl_lightning.data.samples import Dataset, Samples
from fl_lightning.data.sources.source import Source
from fl_lightning.objectives import NextToken

_ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
_OTHER = len(_ALPHABET)  # the token of all other characters
_TEST_EVERY = 5  # every fifth window of a text is for tests


class Characters(Source):
    """Windows of texts, with the next characters as targets: :class:`fl_lightning.objectives.NextToken`.

    Each text is a natural client, for the partition :class:`~fl_lightning.data.Natural`. Tokens are those of printable ASCII,
    the line break, and one for all other characters: the same for every text. Every fifth window of a text is for tests.

    Args:
        folder: its files ``*.txt`` are the texts, and those of its folders, which are then the units of forgetting; None: the
            79 chapters on the language that come with Python for ``help()``, 460 kB, which differ between versions of Python.
        texts: name patterns (``fnmatch``) of the texts to take, such as ``["[a-m]*"]``; by default all.
        length: characters of a window, T.

    Raises:
        FileNotFoundError: if the folder has no text.
        ValueError: if ``length`` is below 2, a pattern fits no text, no text has five windows, or texts are in the folder
            and in its folders.
    """

    def __init__(self, folder: str | None = None, texts: Sequence[str] = ("*",), length: int = 64) -> None:
        check_range("data.source.length", length, at_least=2)
        self.folder, self.texts, self.length = None if folder is None else Path(folder), tuple(texts), length

    def load(self, root: Path) -> Dataset:
        found = dict(topics) if self.folder is None else _read(self.folder)
        for pattern in self.texts:
            if not any(fnmatch(name, pattern) for name in found):
                raise ValueError(f"data.source.texts has {pattern!r}, which fits no text: the first is {min(found)!r}")
        windows = {name: self._windows(found[name]) for name in sorted(found) if any(fnmatch(name, p) for p in self.texts)}
        windows = {name: part for name, part in windows.items() if len(part) >= _TEST_EVERY}
        if not windows:
            raise ValueError(
                f"data.source.length is {self.length}, and no text has {_TEST_EVERY} windows: lower it, or give longer texts"
            )
        groups = sorted({name.rpartition("/")[0] for name in windows})
        groups = groups if len(groups) > 1 else []
        if "" in groups:
            raise ValueError(
                f"data.source.folder is {self.folder}, which has texts and folders of texts: move the texts into a folder"
            )
        tests = {name: torch.arange(len(part)) % _TEST_EVERY == _TEST_EVERY - 1 for name, part in windows.items()}
        train, owners = _samples({name: part[~tests[name]] for name, part in windows.items()}, groups)
        test, test_owners = _samples({name: part[tests[name]] for name, part in windows.items()}, groups)
        objective, units = NextToken(_OTHER + 1, groups).fitted(train.targets, test.targets, None)
        return Dataset(train, test, units, owners, test_owners, objective=objective)

    def _windows(self, text: str) -> Tensor:
        """(n, T + 1) tokens; the last one of a window is the first of the next."""
        number = {character: token for token, character in enumerate(_ALPHABET)}
        tokens = torch.tensor([number.get(character, _OTHER) for character in text], dtype=torch.int64)
        if len(tokens) <= self.length:
            return tokens.new_empty(0, self.length + 1)
        return tokens.unfold(0, self.length + 1, self.length)


def _samples(windows: dict[str, Tensor], groups: Sequence[str]) -> tuple[Samples, Tensor]:
    """Inputs and targets of all texts, and the text of each window."""
    joined = torch.cat([*windows.values()])
    sizes = torch.tensor([len(part) for part in windows.values()])
    targets = joined[:, 1:]
    if groups:
        group = torch.tensor([groups.index(name.rpartition("/")[0]) for name in windows]).repeat_interleave(sizes)
        targets = torch.cat([targets, group[:, None]], dim=1)
    return Samples(joined[:, :-1].contiguous(), targets.contiguous()), torch.arange(len(windows)).repeat_interleave(sizes)


def _read(folder: Path) -> dict[str, str]:
    """The texts by path in the folder, without ``.txt``."""
    files = sorted((*folder.glob("*.txt"), *folder.glob("*/*.txt")))
    if not files:
        raise FileNotFoundError(f"data.source.folder is {folder}, which has no text: give a folder with files *.txt")
    return {str(file.relative_to(folder).with_suffix("").as_posix()): file.read_text("utf-8", "replace") for file in files}
