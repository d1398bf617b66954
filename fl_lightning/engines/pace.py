"""The visits of a round that reach the server, where clients have devices that fail or are slow."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from fl_lightning.engines.round_hooks import RoundHooks
from fl_lightning.engines.traffic import Traffic
from fl_lightning.protocol import Request, RoundReport, Visit
from fl_lightning.protocol.devices import Devices, Work


class Pace(NamedTuple):
    """The visits of a round as the devices make them."""

    visits: Sequence[Visit]  # those with an upload that the server takes, with the local steps that they have time for
    missing: list[int] | None  # clients of the others, which received the model and change nothing; None without devices
    bytes_down: int  # that these received
    seconds: float | None  # simulated, of the round; None: visits take no time

    def noted(self, report: RoundReport) -> RoundReport:
        """A report of the visits, with what is missing; a round without any upload in time is lost."""
        return replace(
            report,
            missing=self.missing,
            bytes_down=report.bytes_down + self.bytes_down,
            seconds=self.seconds,
            lost=report.lost or (bool(self.missing) and not self.visits),
        )


def paced(
    devices: Devices | None, hooks: RoundHooks, traffic: Traffic, bytes_up: int, round: int, visits: Sequence[Visit]
) -> Pace:
    """How the devices make the visits of a cohort.

    Args:
        devices: of the clients; None: all visits end.
        bytes_up: bytes of an upload of weights and buffers; further tensors of a method take no time.
    """
    if devices is None:
        return Pace(visits, None, 0, None)
    method, works, broadcasts = hooks.method, list[Work](), list[dict[str, Any]]()
    for visit in visits:
        client, fit = visit.client, method.num_local_steps(visit.client)
        steps = min(fit, visit.num_steps or fit)
        broadcast = hooks.sent_down(visit)
        broadcasts.append(broadcast)
        down = traffic.down(Request(round, client, 0, broadcast=broadcast, receives=visit.receives))
        up = bytes_up if visit.sends else 0
        works.append(Work(client, steps, method.expected_work(client) / fit, down, up))
    finishes, seconds = devices.finishes(works, round, method.seed, method.data.cohort_size)
    there = [
        visit._replace(num_steps=finish.steps, broadcast=broadcast)
        for visit, finish, broadcast in zip(visits, finishes, broadcasts, strict=True)
        if finish.arrives
    ]
    missing = [work for work, finish in zip(works, finishes, strict=True) if not finish.arrives]
    return Pace(there, [work.client for work in missing], sum(work.bytes_down for work in missing), seconds)
