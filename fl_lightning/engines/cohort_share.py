"""What a process's part of a cohort adds up to, and the report that the parts of all processes make."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from fl_lightning.engines.ranks import Ranks
from fl_lightning.exchange import ClientState, Reduction, RoundReport, Visit
from fl_lightning.functional.aggregation import State
from fl_lightning.transfers import on_device


class Outcome(NamedTuple):
    """A visit in numbers; what is true or false is 1 or 0."""

    loss: float  # mean over its local steps
    is_finite: float  # its update and its state
    bytes_down: float
    bytes_up: float
    has_state: float  # the client keeps something
    has_weight: float  # above 0, in the mean
    norm: float  # of its update


class Share:
    """What this process's part of a cohort adds up to; the dicts are by position in the cohort.

    Args:
        num_visits: of the whole cohort.
        device: where clients are trained.
        keep_state: gets a client and what it keeps, whose tensors change afterwards.
        keeps_models: whether somebody wants the clients' models.
    """

    def __init__(
        self, num_visits: int, device: torch.device, keep_state: Callable[[int, ClientState], None], keeps_models: bool = False
    ) -> None:
        self.keep_state = keep_state
        self.reduced = Reduction(device)
        self.probes: dict[int, dict[str, Tensor]] = {}
        self.models: dict[int, State] | None = {} if keeps_models else None
        self._outcomes = torch.zeros(num_visits, len(Outcome._fields), dtype=torch.float64, device=device)

    def record(
        self,
        positions: Sequence[int],
        losses: Tensor,
        finite: Tensor,
        counts: Sequence[tuple[int, int, bool, bool]],
        norms: Tensor,
    ) -> None:
        """Note the outcomes of some visits; ``counts`` are those from ``bytes_down`` to ``has_weight``."""
        table = [(position, *row) for position, row in zip(positions, counts, strict=True)]
        indices, rows = on_device(table, self._outcomes.device, self._outcomes.dtype).split([1, 4], dim=1)
        losses, finite, norms = (column.to(self._outcomes)[:, None] for column in (losses, finite, norms))
        self._outcomes[indices[:, 0].long()] = torch.cat([losses, finite, rows, norms], dim=1)

    def gather(self, ranks: Ranks) -> None:
        """Every process gets all probes, and the sums over all processes."""
        device = self._outcomes.device
        here = (self.reduced.layouts, self.probes, self.reduced.gathered_tensors)
        for layouts, probes, gathered in ranks.gather(tree_map_only(Tensor, Tensor.cpu, here)):
            self.reduced.reserve(layouts)
            for mine, theirs in ((self.probes, probes), (self.reduced.gathered_tensors, gathered)):
                mine.update(tree_map_only(Tensor, lambda tensor: tensor.to(device), theirs))
        self._outcomes = self.reduced.sum_over_ranks(self._outcomes, ranks.sum)

    def outcomes(self) -> list[Outcome]:
        """Of all visits, in one transfer from the device."""
        return [Outcome._make(row) for row in self._outcomes.tolist()]


def round_report(round: int, visits: Sequence[Visit], outcomes: Sequence[Outcome]) -> RoundReport:
    """What a cohort's visits came to."""
    pairs = list(zip(visits, outcomes, strict=True))
    return RoundReport(
        round=round,
        clients=[visit.client for visit in visits],
        losses=[outcome.loss for outcome in outcomes],
        num_updates=sum(visit.sends and outcome.is_finite == outcome.has_weight == 1 for visit, outcome in pairs),
        nonfinite=[visit.client for visit, outcome in pairs if not outcome.is_finite],
        bytes_down=int(sum(outcome.bytes_down for outcome in outcomes)),
        bytes_up=int(sum(outcome.bytes_up for outcome in outcomes)),
        norms=[outcome.norm for outcome in outcomes],
    )
