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
    """A visit in numbers."""

    loss: float  # mean over its local steps
    is_finite: float  # its update and its state; 1 or 0
    bytes_down: int
    bytes_up: int
    has_state: bool  # the client keeps something
    has_weight: bool  # above 0, in the mean
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
        self._num_visits, self._device = num_visits, device
        self._counts: dict[int, tuple[int, int, bool, bool]] = {}  # what the host knows of visits by itself
        self._measured: dict[tuple[int, ...], Tensor] = {}  # of some visits: (visits, 3), loss, whether finite, norm

    def record(
        self,
        positions: Sequence[int],
        losses: Tensor,
        finite: Tensor,
        counts: Sequence[tuple[int, int, bool, bool]],
        norms: Tensor,
    ) -> None:
        """Note the outcomes of some visits; ``counts`` are those from ``bytes_down`` to ``has_weight``."""
        self._counts |= zip(positions, counts, strict=True)
        self._measured[tuple(positions)] = torch.stack([losses.double(), finite.double(), norms.double()], dim=1)

    def gather(self, ranks: Ranks) -> None:
        """Every process gets all probes, and the sums over all processes."""
        here = (self.reduced.layouts, self._counts, self.probes, self.reduced.gathered_tensors)
        parts = ranks.gather(tree_map_only(Tensor, Tensor.cpu, here))
        self.reduced.agree([layouts for layouts, *_ in parts])
        for _, counts, probes, gathered in parts:
            self._counts |= counts
            for mine, theirs in ((self.probes, probes), (self.reduced.gathered_tensors, gathered)):
                mine.update(tree_map_only(Tensor, lambda tensor: tensor.to(self._device), theirs))
        measured = torch.zeros(self._num_visits, 3, dtype=torch.float64, device=self._device)
        for positions, rows in self._measured.items():
            measured[on_device(positions, self._device, torch.int64)] = rows
        self._measured = {tuple(range(self._num_visits)): self.reduced.sum_over_ranks(measured, ranks.sum)}

    def outcomes(self) -> list[Outcome]:
        """Of all visits, in one transfer from the device; all 0 for those of other processes that were not gathered."""
        positions = [position for part in self._measured for position in part]
        rows = torch.cat(list(self._measured.values())).tolist() if positions else []
        measured = dict(zip(positions, rows, strict=True))
        outcomes = []
        for position in range(self._num_visits):
            loss, is_finite, norm = measured.get(position, (0.0, 0.0, 0.0))
            outcomes.append(Outcome(loss, is_finite, *self._counts.get(position, (0, 0, False, False)), norm))
        return outcomes


def round_report(round: int, visits: Sequence[Visit], outcomes: Sequence[Outcome]) -> RoundReport:
    """What a cohort's visits came to."""
    pairs = list(zip(visits, outcomes, strict=True))
    return RoundReport(
        round=round,
        clients=[visit.client for visit in visits],
        losses=[outcome.loss for outcome in outcomes],
        num_updates=sum(visit.sends and outcome.is_finite == outcome.has_weight == 1 for visit, outcome in pairs),
        nonfinite=[visit.client for visit, outcome in pairs if not outcome.is_finite],
        bytes_down=sum(outcome.bytes_down for outcome in outcomes),
        bytes_up=sum(outcome.bytes_up for outcome in outcomes),
        norms=[outcome.norm for outcome in outcomes],
    )
