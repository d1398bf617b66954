"""Clients at their own sites: the server sends requests and books replies, and trains no client itself."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.engines.cohort_share import Share
from fl_lightning.engines.engine import Engine, Rehearsal
from fl_lightning.engines.run_context import RunContext
from fl_lightning.functional.aggregation import State
from fl_lightning.protocol import (
    Accuracy,
    ClientState,
    CohortModels,
    Evaluation,
    Packed,
    Reply,
    Request,
    Visit,
    pack,
    unpack,
)


class Sites(Protocol):
    """The connection of a server to its clients' sites."""

    def meet(self, common: Mapping[str, object], num_clients: int) -> None:
        """Wait for the sites of all clients, before the first round.

        Args:
            common: settings that all sites must have too, as plain values by key.

        Raises:
            ValueError: if a client has no site in time, or a site has other settings.
        """
        ...

    def visit(self, round: int, requests: Mapping[int, Packed]) -> Mapping[int, Packed]:
        """Send packed requests, by client; returns the packed replies of the clients that answer in time."""
        ...

    def evaluate(self, round: int, models: Mapping[int, Packed]) -> Mapping[int, Packed]:
        """Send packed evaluations, by client; returns the packed accuracies of the clients that answer in time."""
        ...


_SITES: ContextVar[Sites] = ContextVar("sites")  # the command line builds engines far from where Flower gives its connection


@contextmanager
def connected(sites: Sites) -> Iterator[None]:
    """Engines named ``flower`` that are started in the block use these sites."""
    token = _SITES.set(sites)
    try:
        yield
    finally:
        _SITES.reset(token)


def present_sites() -> Sites:
    """The sites of the enclosing :func:`connected`.

    Raises:
        ValueError: if there is none.
    """
    try:
        return _SITES.get()
    except LookupError:
        raise ValueError(
            "model.engine is flower, which only runs in Flower's ServerApp: write one with fl-lightning federation init DIR "
            "--config X.yaml and start it with flwr run DIR, or set model.engine to sequential"
        ) from None


class FlowerEngine(Engine):
    """Sends the cohort's requests to the clients' sites and books their replies in the order of the cohort.

    Clients' states stay at the sites. The server's store has a stamp instead of each, of
    :class:`fl_lightning.sites.site_states.SiteStates`, which is committed and saved as a state is. A client that does not
    answer counts as one with an update that is not finite: it is left out of the mean, and its state stays as before. The sites
    have the same method with the same arguments.
    """

    def __init__(self, method: FederatedAlgorithm, context: RunContext) -> None:
        super().__init__(method, context)
        self._sites = present_sites()

    def fit_share(self, round: int, visits: dict[int, Visit], share: Share, max_steps: int | None = None) -> None:
        asks, requests, device = share.models is not None, dict[int, Request](), self.context.device
        for position, visit in visits.items():
            requests[position] = replace(self.request(round, visit, max_steps), returns_model=asks)
        replies = self._sites.visit(round, {request.client: pack(request) for request in requests.values()})
        for position, request in requests.items():
            packed = replies.get(request.client)
            reply = self._lost(request) if packed is None else unpack(Reply, {path: t.to(device) for path, t in packed.items()})
            self.book(position, reply, share, partial(model_of, reply))

    def rehearse(self, round: int, visits: object, max_steps: int | None = None) -> Rehearsal:
        """Nothing: the sites show their settings before, and states of clients take no space here."""
        return Rehearsal(0, list)

    def _models(self, visits: Sequence[Visit], after: dict[int, State], before: dict[int, State] | None) -> CohortModels:
        models = super()._models(visits, after, before)
        asked = partial(self._accuracies, self.method.round, models.clients, [after[position] for position in sorted(after)])
        return replace(models, accuracies_at_sites=asked)

    def _accuracies(self, round: int, clients: Sequence[int], models: Sequence[State]) -> tuple[Tensor, Tensor]:
        """Accuracies on the validation parts of K clients: of the global model, (K,), and of each of their models, (K, K).

        K messages for each of K + 1 models, one model after the other, as all messages together take K times the memory.
        """
        before, *after = (self._row(round, clients, model) for model in (self.sent_down, *models))
        return before, torch.stack(after)

    def _row(self, round: int, clients: Sequence[int], model: State) -> Tensor:
        """(K,), NaN where no answer came in time."""
        answers = self._sites.evaluate(round, {client: pack(Evaluation(round, client, model)) for client in clients})
        nothing = torch.full((1,), torch.nan, dtype=torch.float64)
        return torch.cat([unpack(Accuracy, answers[k]).accuracy if k in answers else nothing for k in clients])

    def _lost(self, request: Request) -> Reply:
        """The books of a client that did not answer."""
        nan = torch.full((1,), torch.nan, device=self.context.device)
        state = ClientState(method={"stamp": nan.expand(2)})
        return Reply(request.round, request.client, nan, state=state, bytes_down=self.traffic.down(request))


def model_of(reply: Reply) -> State:
    """The model of the client that made a reply, in the memory of the reply; empty if it made none."""
    sent = [reply.upload[part].tensors for part in ("weights", "buffers") if part in reply.upload]
    return {name: tensor for tensors in (*sent, reply.model) for name, tensor in tensors.items()}
