"""Memory of processes, as Linux counts it."""

import os
from pathlib import Path

_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


def resident_mib() -> float:
    """What this process holds in memory now, MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_MIB


def anonymous_mib() -> float:
    """What this process holds now without pages of files, which the system drops when it needs the memory, MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def peak_memory_mib() -> float:
    """The most that this process ever held, plus the same of every process that it started and that still lives, MiB.

    Memory that several processes share counts once for each of them.
    """
    return sum(_peak_mib(process) for process in _family(os.getpid()))


def _family(process: int) -> set[int]:
    """A process and its descendants, by id."""
    parents = {int(folder.name): _parent(folder) for folder in Path("/proc").iterdir() if folder.name.isdigit()}
    family = {process}
    while new := {child for child, parent in parents.items() if parent in family} - family:
        family |= new
    return family


def _parent(folder: Path) -> int:
    """Id of the parent, 0 where the process has ended meanwhile."""
    try:
        return int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _peak_mib(process: int) -> float:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
