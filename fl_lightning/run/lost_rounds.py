"""Lost and undone rounds: counted, and after ten in a row the end of a run, with a line that names the client and the reason.

Also the first update that is far larger than others, which can make the model useless without a lost round.
"""

import warnings
from collections.abc import Collection

from fl_lightning.protocol import RoundReport

_MOST = 10
MOST_AT_END = 1  # of the last rounds of a run; with more it ends with an error


class LostRounds:
    """``count``, the number of rounds in a row without effect at the server: too few updates came, or its step was undone.

    Args:
        at_sites: whether a client without a finite update may be one whose site sent no reply.
        least: number of finite updates that ``model.aggregation`` needs; 1 without one.
    """

    def __init__(self, at_sites: bool = False, least: int = 1) -> None:
        self._at_sites, self._least = at_sites, least
        self.begin()

    def begin(self) -> None:
        """Forget the rounds of an earlier run."""
        self.count = 0
        self._last_counted: RoundReport | None = None  # of the newest round with an effect
        self._cure = "see the warnings of these rounds"  # of the newest round without one
        self._is_far_named = False

    def add(self, report: RoundReport, senders: Collection[int]) -> None:
        """Count a round; a round for which no client was drawn does not count.

        Args:
            senders: clients that send; if there is none, the round is lost if every client's fit was.

        Raises:
            FloatingPointError: after ten in a row.
        """
        if not report.clients and not report.missing:
            return
        arrived = report.num_updates > 0 if senders else len(report.nonfinite) < len(report.clients)
        if arrived and not report.undone:
            self._name_far_update(report)
            self.count, self._last_counted = 0, report
            return
        self.count += 1
        why, in_a_row, self._cure = self._explained(report, senders)
        if self.count == _MOST:
            raise FloatingPointError(f"{in_a_row}: {self._cure}")
        if self.count == 1 and report.lost:
            warnings.warn(f"round {report.round} is lost: {why}", stacklevel=2)

    def check_end(self) -> None:
        """The run is over.

        Raises:
            FloatingPointError: if its last two rounds or more were without effect.
        """
        if self.count > MOST_AT_END:
            raise FloatingPointError(
                f"the last {self.count} rounds had no effect, so the model is that of the round before them: {self._cure}"
            )

    def _name_far_update(self, report: RoundReport) -> None:
        before = self._last_counted and self._last_counted.largest_norm
        usual = report.far_above(before and before[0])
        if usual is None or self._is_far_named or (largest := report.largest_norm) is None:
            return
        self._is_far_named = True
        warnings.warn(
            f"round {report.round}: the {_named(largest)}, where {usual:.3g} is usual: the global model may be useless from "
            "here on; look at what that client sends, or resume from an earlier checkpoint without it",
            stacklevel=3,
        )

    def _explained(self, report: RoundReport, senders: Collection[int]) -> tuple[str, str, str]:
        """Why a round had no effect, the same of ten in a row, and what to do."""
        in_a_row = f"in {_MOST} rounds in a row"
        if report.undone:
            why = what_blew_up(report)
            cure = "lower the learning rate of model.server_optimizer or model.optimizer, or set model.clip_local_gradients"
            return why, f"{_MOST} rounds in a row were lost or undone (last: {why})", cure
        if report.missing and not report.clients:
            why = f"every upload was late or lost (clients {', '.join(map(str, report.missing))})"
            return why, f"{why} {in_a_row}", "raise data.devices.deadline, or lower data.devices.lost_uploads"
        if (why := self._too_few_for_a_rule(report, senders)) is not None:
            cure = (
                "lower model.aggregation.hostile, or have more clients in a round: data.clients_per_round, data.client_sampler"
            )
            return why, f"{why}, {in_a_row.removeprefix('in ')}", cure
        some_sent = report.largest_norm is not None and 2 * len(report.nonfinite) <= len(report.clients)
        if some_sent or not report.nonfinite:
            why = f"all clients {'with a finite update ' if report.nonfinite else ''}had weight 0"
            last = f"last: {', '.join(map(str, report.clients))}"
            return why, f"{why} {in_a_row} ({last})", "give some a weight above 0 in update_weight"
        who = f"clients {', '.join(map(str, report.nonfinite))}{self._before()}"
        most = "no client" if len(report.nonfinite) == len(report.clients) else "fewer than half of the clients"
        why, cure = f"{most} sent a finite update", "lower model.optimizer.lr or set model.clip_local_gradients"
        if self._at_sites:
            cure = f"look at the sites of clients that sent no reply, which warnings name; if all replied, {cure}"
        return f"{why} ({who})", f"{why} {in_a_row} (last: {who})", cure

    def _too_few_for_a_rule(self, report: RoundReport, senders: Collection[int]) -> str | None:
        """A rule's reason for a lost round; None: it was lost for another."""
        sent = {*senders} & {*report.clients}
        finite = len(sent.difference(report.nonfinite))
        if not report.lost or self._least == 1 or 2 * finite < len(sent):
            return None
        zero = "" if finite < self._least else ", some of weight 0"
        return f"{finite} clients sent a finite update{zero}, fewer than model.aggregation needs"

    def _before(self) -> str:
        """The client with the largest update in the last round that counted: clients that got its result may be innocent."""
        if self._last_counted is None or (largest := self._last_counted.largest_norm) is None:
            return ""
        return f"; before them, in round {self._last_counted.round}, the {_named(largest)}"


def what_blew_up(report: RoundReport) -> str:
    """The client with the largest update in a round with an undone step."""
    largest = report.largest_norm
    who = "no client sent a finite update" if largest is None else _named(largest)
    return f"the server's step made the global model or the server's state non-finite ({who})"


def _named(largest: tuple[float, int]) -> str:
    norm, client = largest
    return f"largest norm of an update: {norm:.3g}, of client {client}"
