"""Clients fitted once more for callbacks, without a change to the run."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from torch import nn

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.engines.run_context import RunContext
from fl_lightning.engines.sequential import SequentialEngine
from fl_lightning.protocol import Client, CohortModels, Visit
from fl_lightning.run.arguments import TrainingArguments
from fl_lightning.state.client_states import MemoryStates

_OF_THE_NET = {"adapter", "trained", "personal", "aggregation"}  # done to the net that is given, or after the fits


def refit(
    method: FederatedAlgorithm, context: RunContext, round: int, visits: Iterable[Visit]
) -> Iterator[tuple[Client, nn.Module]]:
    """Let clients take the first local step of a round, one after another, and keep nothing of it.

    Yields:
        Each client after its step, and its model, which the next client's step overwrites.
    """
    engine = SequentialEngine(method, context)
    for visit in visits:
        client, _ = engine.fit(engine.request(round, visit, max_steps=1))
        yield client, engine.net


def refit_by_fedavg(method: FederatedAlgorithm, context: RunContext, round: int, clients: Sequence[int]) -> CohortModels:
    """Models of clients after FedAvg's local steps from a method's global weights, on the batches of a round.

    With ``batch_norm_buffers: local`` every client starts from the global buffers.
    """
    common = {name: getattr(method, name) for name in TrainingArguments.__annotations__ if name not in _OF_THE_NET}
    plain = FederatedAlgorithm(method.net, **common).to(context.device)
    plain.join(method.data)
    engine = SequentialEngine(plain, replace(context, states=MemoryStates()))
    fit = engine.run(round, [Visit(client) for client in clients], keep_models=True)
    return fit.models  # pyright: ignore[reportReturnType]
