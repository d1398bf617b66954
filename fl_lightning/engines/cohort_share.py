"""The books of a round: replies are counted and noted, and the books of all processes become a report."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fl_lightning.engines.ranks import Ranks
from fl_lightning.engines.sums import Sums, check_weight
from fl_lightning.functional.aggregation import State
from fl_lightning.functional.finite import finite_rows
from fl_lightning.functional.transfers import on_device
from fl_lightning.protocol import ClientState, Gathered, Reply, RoundReport, Visit, Weighted, pack, unpack


class Outcome(NamedTuple):
    """A visit in numbers."""

    loss: float  # mean over its local steps
    is_finite: float  # its update and its state; 1 or 0
    norm: float  # of its update
    bytes_down: int
    bytes_up: int
    has_state: bool  # the client keeps something
    has_weight: bool  # above 0, in the mean


class Rows(NamedTuple):
    """Results of M visits for the sums, as rows (M, ...) in the engine's memory: counted before it continues."""

    kept: Sequence[Tensor]  # has to be finite and is not summed
    sent: dict[str, State]  # is summed, by name of the upload
    weights: Sequence[Tensor | float]  # by name of the upload: (M,) on the device, or a number
    losses: Tensor  # (M,)
    norms: Tensor  # (M,), of their updates
    proven: Collection[str]  # uploads that the norms cover: a norm is finite only if all values that it covers are

    @classmethod
    def of(cls, reply: Reply, norm: Tensor, proven: Collection[str] = ()) -> Self:
        """One row.

        Args:
            norm: (1,), of its update.
            proven: uploads that the norm covers.

        Raises:
            ValueError: for a weight that is out of range.
        """
        weighted = {name: part for name, part in reply.upload.items() if isinstance(part, Weighted)}
        gathered = [tensor for parts in _gathered(reply).values() for tensor in parts.values()]
        for name, part in weighted.items():
            check_weight(f"an upload's {name!r} has the weight", part.weight)
        sent = {name: {key: tensor.detach()[None] for key, tensor in part.tensors.items()} for name, part in weighted.items()}
        kept = [tensor[None] for tensor in (*reply.state.tensors(), *gathered)]
        return cls(kept, sent, [part.weight for part in weighted.values()], reply.loss, norm, proven)

    def count(self, reduced: Sums) -> Tensor:
        """Add the finite rows to the sums; returns the loss, whether all is finite and the norm of each, (M, 3) float64."""
        finite = finite_rows(self.kept, len(self.losses), self.losses.device).all(dim=0)
        if self.proven:
            finite = finite & self.norms.isfinite()
        if self.sent:
            finite = reduced.add_weighted(self.sent, self.weights, finite, self.proven)
        return torch.stack([self.losses.double(), finite.double(), self.norms.double()], dim=1)


class Share:
    """Books the results of this process's part of a cohort; the dicts are by position in the cohort.

    Args:
        num_visits: of the whole cohort.
        keep_state: gets a client and its state, and must copy it, because the tensors change afterwards.
        keeps_models: whether the clients' models are requested.
    """

    def __init__(
        self, num_visits: int, device: torch.device, keep_state: Callable[[int, ClientState], None], keeps_models: bool = False
    ) -> None:
        self.reduced = Sums(device)
        self.probes: dict[int, State] = {}
        self.models: dict[int, State] | None = {} if keeps_models else None
        self._num_visits, self._device, self._keep_state = num_visits, device, keep_state
        self._counts: dict[int, tuple[int, int, bool, bool]] = {}  # facts of visits that the host has without a transfer
        self._measured: dict[tuple[int, ...], Tensor] = {}  # of some visits: (visits, 3), as of ``Rows.count``

    def book(self, position: int, reply: Reply, norm: Tensor, model: Callable[[], State], proven: Collection[str] = ()) -> None:
        """Book a reply; ``model`` gives the client's model, if it is requested. The others are as for ``Rows.of``."""
        self.measure([position], Rows.of(reply, norm, proven).count(self.reduced))
        self.note(position, reply, model)

    def measure(self, positions: Sequence[int], measured: Tensor) -> None:
        """Take over the counts of the rows of some visits."""
        self._measured[tuple(positions)] = measured

    def note(self, position: int, reply: Reply, model: Callable[[], State]) -> None:
        """Book all of a reply except its row; lasting values are copied."""
        if reply.state:
            self._keep_state(reply.client, reply.state)
        if gathered := _gathered(reply):
            self.reduced.keep(reply.client, gathered)
        if reply.probe:
            self.probes[position] = reply.probe
        if self.models is not None:
            self.models[position] = model()
        self._counts[position] = reply.bytes_down, reply.bytes_up, bool(reply.state), reply.weight > 0

    def gather(self, ranks: Ranks) -> None:
        """Every process gets all probes and gathered uploads, and the sums and outcomes of all visits."""
        here = pack(_Books(self.reduced.layouts, self.probes, self.reduced.gathered_tensors))
        books = [unpack(_Books, part) for part in ranks.gather(here)]
        self.reduced.agree([of_one.layouts for of_one in books])
        for of_one in books:
            probes, gathered = tree_map(lambda tensor: tensor.to(self._device), (of_one.probes, of_one.gathered))
            self.probes |= probes
            self.reduced.gathered_tensors |= gathered
        outcomes = torch.zeros(self._num_visits, len(Outcome._fields), dtype=torch.float64, device=self._device)
        for positions, rows in self._measured.items():
            outcomes[on_device(positions, self._device, torch.int64), :3] = rows
        if self._counts:  # float64 holds them exactly
            rows = on_device(list(self._counts.values()), self._device, torch.float64)
            outcomes[on_device(list(self._counts), self._device, torch.int64), 3:] = rows
        self._measured = {tuple(range(self._num_visits)): self.reduced.sum_over_ranks(outcomes, ranks.sum)}

    def outcomes(self) -> list[Outcome]:
        """Of all visits booked, or gathered, in their order; one transfer from the device."""
        positions = [position for part in self._measured for position in part]
        rows: list[list[float]] = torch.cat(list(self._measured.values())).tolist() if positions else []
        outcomes: list[Outcome] = []
        for position, (loss, is_finite, norm, *of_all) in sorted(zip(positions, rows, strict=True)):
            down, up, has_state, has_weight = of_all or self._counts[position]
            outcomes.append(Outcome(loss, is_finite, norm, int(down), int(up), bool(has_state), bool(has_weight)))
        return outcomes


@dataclass(frozen=True)
class _Books:
    """A process's results for all others, in addition to its sums."""

    layouts: dict[str, State] = field(default_factory=dict[str, State])  # of its sums
    probes: dict[int, State] = field(default_factory=dict[int, State])  # by position
    gathered: dict[int, dict[str, State]] = field(default_factory=dict[int, dict[str, State]])  # by client


def _gathered(reply: Reply) -> dict[str, State]:
    return {name: part.tensors for name, part in reply.upload.items() if isinstance(part, Gathered)}


def round_report(
    round: int, visits: Sequence[Visit], outcomes: Sequence[Outcome], can_be_lost: bool = True, least: int = 1
) -> RoundReport:
    """The result of a cohort's visits.

    Args:
        can_be_lost: whether no update counts if more than half of the sent ones are not finite.
        least: number of finite updates of a weight above 0 below which none counts.
    """
    pairs = list(zip(visits, outcomes, strict=True))
    sent = [outcome for visit, outcome in pairs if visit.sends]
    num_updates = sum(outcome.is_finite == outcome.has_weight == 1 for outcome in sent)
    too_many = can_be_lost and 2 * sum(not outcome.is_finite for outcome in sent) > len(sent)
    lost = bool(sent) and (too_many or num_updates < least)
    return RoundReport(
        round=round,
        clients=[visit.client for visit in visits],
        losses=[outcome.loss for outcome in outcomes],
        num_updates=0 if lost else num_updates,
        nonfinite=[visit.client for visit, outcome in pairs if not outcome.is_finite],
        bytes_down=sum(outcome.bytes_down for outcome in outcomes),
        bytes_up=sum(outcome.bytes_up for outcome in outcomes),
        norms=[outcome.norm for outcome in outcomes],
        lost=lost,
    )
