"""Samplers for clients that are not always there: the cohort is drawn among those that are."""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from fl_lightning.checks import check_each, check_whole
from fl_lightning.checks.csv_files import read_lines
from fl_lightning.data.client_sampler import ClientSampler
from fl_lightning.functional.random_streams import numpy_stream

__all__ = ["Availability", "DayAndNight", "SometimesThere", "Trace"]


class Availability(ClientSampler):
    """``clients_per_round`` of the clients that are there, without replacement; all of them where fewer are."""

    may_be_empty = True

    @abstractmethod
    def there(self, round: int, num_clients: int, seed: int) -> np.ndarray:
        """Whether each client is there in a round, (N,) booleans."""

    def cohort(self, round: int, num_clients: int, size: int, seed: int) -> list[int]:
        (there,) = self.there(round, num_clients, seed).nonzero()
        draws = numpy_stream(seed, round, -1, "cohort")
        return sorted(draws.choice(there, min(size, len(there)), replace=False).tolist())

    def largest(self, num_clients: int, size: int) -> int:
        return size


class SometimesThere(Availability):
    """Each client is there in a round by an independent draw.

    Args:
        probability: of client 0, 1, ..., in [0, 1]; one number is that of every client.

    Raises:
        ValueError: if a probability is out of range, or not every client has one.
    """

    def __init__(self, probability: float | list[float]) -> None:
        if isinstance(probability, np.ndarray):
            probability = probability.tolist()
        given = probability if isinstance(probability, Sequence) else [probability]
        check_each("data.client_sampler.probability", given, at_least=0, at_most=1)
        self.probability = probability

    def check(self, num_clients: int) -> None:
        if isinstance(self.probability, Sequence) and len(self.probability) != num_clients:
            raise ValueError(
                f"data.client_sampler.probability has {len(self.probability)} numbers, but data.num_clients is {num_clients}: "
                "give one for each client, or one number"
            )

    def there(self, round: int, num_clients: int, seed: int) -> np.ndarray:
        probability = self.probability[:num_clients] if isinstance(self.probability, Sequence) else self.probability
        return numpy_stream(seed, round, -1, "clients there").random(num_clients) < np.asarray(probability)


class DayAndNight(Availability):
    """Each client is there for some rounds in a row, then away, and so on. The seed draws when its day begins.

    Args:
        day: rounds in which a client is there, at least 1.
        night: rounds in which it is away, at least 1.

    Raises:
        ValueError: if a number is below 1.
    """

    def __init__(self, day: int = 12, night: int = 12) -> None:
        for name, value in (("day", day), ("night", night)):
            check_whole(f"data.client_sampler.{name}", value, at_least=1)
        self.day, self.night = day, night

    def there(self, round: int, num_clients: int, seed: int) -> np.ndarray:
        period = self.day + self.night
        begins = numpy_stream(seed, -1, -1, "time zones").integers(period, size=num_clients)
        return (round + begins) % period < self.day


class Trace(Availability):
    """Clients are there in the rounds that a file lists.

    Args:
        file: path of a CSV file without a header. A line is a client: its index, then for each round 1 if it is there or 0. A
            client without a line is never there.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is something else, or names a client twice or one that does not exist.
    """

    def __init__(self, file: str) -> None:
        self.file = file
        there: dict[int, list[str]] = {}
        for number, (client, *rounds) in read_lines(file, "data.client_sampler.file", "give a CSV file"):
            if not client.isdecimal() or not rounds or not {*rounds} <= {"0", "1"} or int(client) in there:
                raise ValueError(
                    f"data.client_sampler.file is {file}, whose line {number} must be an index of another client, then 0 "
                    "or 1 for each round"
                )
            there[int(client)] = rounds
        lengths = {len(rounds) for rounds in there.values()}
        if len(lengths) != 1:
            raise ValueError(f"data.client_sampler.file is {file}, whose lines must have one number of rounds, at least 1")
        (self.num_rounds,) = lengths
        self._clients, self._there = np.array([*there]), np.array([*there.values()]) == "1"  # (n,) and (n, rounds)

    def largest(self, num_clients: int, size: int) -> int:
        """Of all rounds in the file."""
        return min(size, int(self._there.sum(axis=0).max()))

    def check(self, num_clients: int) -> None:
        if (largest := self._clients.max()) >= num_clients:
            raise ValueError(
                f"data.client_sampler.file is {self.file}, which names client {largest}, but data.num_clients is "
                f"{num_clients}: remove its line, or raise data.num_clients"
            )

    def there(self, round: int, num_clients: int, seed: int) -> np.ndarray:
        joined = self._clients < num_clients
        there = np.zeros(num_clients, dtype=bool)
        there[self._clients[joined]] = self._there[joined, round - 1]
        return there
