"""Devices: how fast clients work, and which uploads do not arrive."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from fl_lightning.checks import check_range
from fl_lightning.checks.csv_files import read_rows
from fl_lightning.functional.random_streams import numpy_stream

__all__ = ["Devices"]


class Device(NamedTuple):
    """A client's device: samples a second in training, bytes a second down and up."""

    samples_per_second: float
    download: float
    upload: float


class Work(NamedTuple):
    """A visit's work."""

    client: int
    steps: int
    samples_per_step: float
    bytes_down: int
    bytes_up: int


class Finish(NamedTuple):
    """How a visit ends."""

    steps: int  # local steps that it takes
    seconds: float  # from the round's start until its upload arrives, or would
    arrives: bool  # whether the server takes its upload


class Devices:
    """Clients that are slow, and uploads that are lost. Seconds are simulated: no process waits.

    A visit takes the time of its download, its local steps and its upload. The round ends when the server has all uploads that
    it waits for, or at the deadline.

    Args:
        file: path of a CSV file with the columns client, samples_per_second, download and upload (bytes a second), a line for
            each client; None: visits take no time.
        deadline: seconds after which a round ends, above 0; None: never.
        partial_work: whether clients that would miss the deadline take fewer local steps, at least 1; else they take all.
        over_selection: factor on ``data.clients_per_round``, at least 1. The server takes the first ``clients_per_round``
            uploads (Bonawitz et al., MLSys 2019, arXiv 1902.01046).
        lost_uploads: probability that an upload is lost, at least 0 and below 1.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a value is out of range, or needs a file.
    """

    def __init__(
        self,
        file: str | None = None,
        deadline: float | None = None,
        partial_work: bool = False,
        over_selection: float = 1.0,
        lost_uploads: float = 0.0,
    ) -> None:
        if deadline is not None:
            check_range("data.devices.deadline", deadline, above=0, below=math.inf, hint="null is none")
        check_range("data.devices.over_selection", over_selection, at_least=1, below=math.inf, hint="1 draws no more clients")
        check_range("data.devices.lost_uploads", lost_uploads, at_least=0, below=1, hint="0 loses none")
        for name, value, default in (
            ("deadline", deadline, None),
            ("partial_work", partial_work, False),
            ("over_selection", over_selection, 1),
        ):
            if file is None and value != default:
                raise ValueError(f"data.devices.{name} is {value}, but no client is late without data.devices.file: give one")
        if partial_work and deadline is None:
            raise ValueError("data.devices.partial_work is True, but no client is late without data.devices.deadline: set it")
        self.file, self.deadline, self.partial_work = file, deadline, partial_work
        self.over_selection, self.lost_uploads = over_selection, lost_uploads
        self._devices = None if file is None else _read(file)

    def __repr__(self) -> str:
        return f"Devices(file={self.file})"

    @property
    def speeds(self) -> list[list[float]]:
        """The lines of the file, by client: its index and three speeds; empty without a file."""
        return [[client, *device] for client, device in sorted((self._devices or {}).items())]

    def drawn(self, size: int, num_clients: int) -> int:
        """Clients to draw for a cohort of ``size``.

        Raises:
            ValueError: if the federation has fewer, a client has no line in the file, or the file names an unknown client.
        """
        drawn = math.ceil(size * self.over_selection - 1e-9)
        if drawn > num_clients:
            raise ValueError(
                f"data.devices.over_selection is {self.over_selection}, which draws {drawn} clients, but data.num_clients is "
                f"{num_clients}: lower it, or data.clients_per_round"
            )
        named = range(num_clients) if self._devices is None else self._devices.keys()
        if unknown := sorted({*named} - {*range(num_clients)}):
            raise ValueError(
                f"data.devices.file is {self.file}, which names client {unknown[0]}, but data.num_clients is {num_clients}: "
                "remove its line, or raise data.num_clients"
            )
        if missing := sorted({*range(num_clients)} - {*named}):
            raise ValueError(f"data.devices.file is {self.file}, which has no line for client {missing[0]}: add one")
        return drawn

    def check_upload(self, num_bytes: int) -> None:
        """Refuse a deadline that passes before any client has sent so many bytes.

        Raises:
            ValueError: if there is such a deadline.
        """
        seconds, client = min(
            ((num_bytes / device.upload, client) for client, device in (self._devices or {}).items()), default=(0, 0)
        )
        if self.deadline is not None and seconds > self.deadline:
            raise ValueError(
                f"data.devices.deadline is {self.deadline:g} s, but no client can meet it: an upload has {num_bytes:,} bytes, "
                f"which take client {client}, the fastest, {seconds:.3g} s: raise it, or choose a smaller model.net"
            )

    def awaited(self, num_visits: int, drawn: int) -> int:
        """Uploads that end a round of so many visits: all, or with over-selection those of a cohort.

        Args:
            num_visits: visits of the round, fewer than ``drawn`` if clients are away.
            drawn: result of :meth:`drawn`, of which this is the inverse.
        """
        return num_visits if self.over_selection == 1 else min(int(drawn / self.over_selection + 1e-9), num_visits)

    def finishes(self, visits: Sequence[Work], round: int, seed: int, drawn: int) -> tuple[list[Finish], float | None]:
        """How the visits of a round end, and the seconds until the round does; None: they take no time.

        Args:
            round: counted from 1.
            drawn: clients that a round draws, the result of :meth:`drawn`.
            seed: seed of the run; lost uploads depend on it, the round and the client.
        """
        times = [self._time(work) for work in visits]
        in_time = [self.deadline is None or seconds <= self.deadline for _, seconds in times]
        lost = [work.bytes_up > 0 and self._is_lost(work.client, round, seed) for work in visits]
        arriving = [row for row in range(len(visits)) if in_time[row] and not lost[row]]
        awaited = self.awaited(len(visits), drawn)
        taken = sorted(sorted(arriving, key=lambda row: (times[row][1], row))[:awaited])
        finishes = [Finish(*times[row], row in taken) for row in range(len(visits))]
        if self._devices is None:
            return finishes, None
        if len(taken) < awaited and self.deadline is not None:
            return finishes, self.deadline
        waited_for = taken if len(taken) == awaited else range(len(visits))
        return finishes, max((times[row][1] for row in waited_for), default=0.0)

    def _time(self, work: Work) -> tuple[int, float]:
        """Local steps of a visit, and its seconds."""
        if self._devices is None:
            return work.steps, 0.0
        device = self._devices[work.client]
        exchange = work.bytes_down / device.download + work.bytes_up / device.upload
        step = work.samples_per_step / device.samples_per_second
        steps = work.steps
        if self.partial_work and self.deadline is not None:
            steps = min(max(int((self.deadline - exchange) / step + 1e-9), 1), steps)
        return steps, exchange + steps * step

    def _is_lost(self, client: int, round: int, seed: int) -> bool:
        return self.lost_uploads > 0 and numpy_stream(seed, round, client, "lost upload").random() < self.lost_uploads


def _read(path: str) -> dict[int, Device]:
    devices: dict[int, Device] = {}
    for number, row in read_rows(path, "data.devices.file", ("client", *Device._fields)):
        try:
            client, device = int(row["client"]), Device(*(float(row[name]) for name in Device._fields))
            is_good = client not in devices and all(0 < value < math.inf for value in device)
        except ValueError:
            client, device, is_good = -1, Device(0, 0, 0), False
        if not is_good:
            raise ValueError(
                f"data.devices.file is {path}, whose line {number} must be an index of another client and three numbers above 0"
            )
        devices[client] = device
    return devices
