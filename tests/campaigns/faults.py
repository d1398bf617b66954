"""A layer under a run's files: the n-th call that opens, writes, syncs, renames, links, makes or deletes one fails or kills."""

import builtins
import io
import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest import mock

KILL = 0  # instead of an errno
_OF_PATHS = ("replace", "rename", "link", "mkdir", "unlink")


class Faults(AbstractContextManager["Faults"]):
    """Counts the calls about files below a folder while it is entered, and makes one of them fail.

    Args:
        folder: of the files.
        fault: an errno, or ``KILL``.
        at: number of the call that fails, from 0; none by default.
        lasting: whether all later calls fail too, as on a full disk.
    """

    def __init__(self, folder: Path, fault: int = KILL, at: int | None = None, lasting: bool = False) -> None:
        self.calls: list[tuple[str, str]] = []  # names, with the file's path in the folder
        self._folder, self._fault, self._at, self._lasting = f"{folder}{os.sep}", fault, at, lasting
        self._open = open
        system = {name: getattr(os, name) for name in (*_OF_PATHS, "open", "fsync")}
        self._patches = [mock.patch.object(os, name, self._failing(name, system[name])) for name in (*_OF_PATHS, "open")]
        self._patches += [mock.patch.object(os, "fsync", self._failing_sync(system["fsync"]))]
        self._patches += [mock.patch.object(module, "open", self._open_file) for module in (builtins, io)]

    def __enter__(self) -> "Faults":
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for patch in self._patches:
            patch.stop()

    def meet(self, call: str, path: Any, names_path: bool = False) -> None:
        """Be about to make a call.

        Raises:
            OSError: if this is the one that fails.
        """
        if not self._has(path):
            return
        number = len(self.calls)
        self.calls.append((call, os.path.relpath(os.fsdecode(path), self._folder)))
        if self._at is None or not (number == self._at or (self._lasting and number > self._at)):
            return
        if self._fault == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(self._fault, os.strerror(self._fault), *([os.fsdecode(path)] if names_path else []))

    def _has(self, path: Any) -> bool:
        return not isinstance(path, int) and os.path.abspath(os.fsdecode(path)).startswith(self._folder)

    def _failing(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def meet(path: Any, *arguments: Any, **options: Any) -> Any:
            self.meet(name, arguments[0] if name == "link" else path, names_path=True)
            return call(path, *arguments, **options)

        return meet

    def _failing_sync(self, fsync: Callable[[int], None]) -> Callable[[int], None]:
        def meet(descriptor: int) -> None:
            self.meet("fsync", os.readlink(f"/proc/self/fd/{descriptor}"))
            fsync(descriptor)

        return meet

    def _open_file(self, file: Any, mode: str = "r", buffering: int = -1, *text: Any, **options: Any) -> Any:
        """``open``, with a file whose writes fail in the place of one to be written."""
        self.meet("open", file, names_path=True)
        if not self._has(file) or not set(mode) & set("wax+"):
            return self._open(file, mode, buffering, *text, **options)
        raw = _FailingFile(file, mode.replace("b", "").replace("t", ""), self)
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *text, **options)


class _FailingFile(io.FileIO):
    def __init__(self, file: Any, mode: str, faults: Faults) -> None:
        super().__init__(file, mode)
        self._faults = faults

    def write(self, data: Any) -> int:
        self._faults.meet("write", self.name)
        return super().write(data)
