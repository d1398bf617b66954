"""Clients fitted once more for callbacks, without a change to the run."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from torch import nn

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.engines.run_context import RunContext
from fl_lightning.engines.sequential import SequentialEngine
from fl_lightning.protocol import Client, CohortModels, Visit
from fl_lightning.state.client_states import MemoryStates


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
    """Models of clients after FedAvg's local steps from a method's global weights, on the batches of a round."""
    plain = FederatedAlgorithm(
        method.net,
        loss=method.loss,
        optimizer=method.optimizer,
        local_steps=method.local_steps,
        local_epochs=method.local_epochs,
        learning_rate_decay=method.learning_rate_decay,
        client_lr_scheduler=method.client_lr_scheduler,
        visit_lr_scheduler=method.visit_lr_scheduler,
        clip_local_gradients=method.clip_local_gradients,
        micro_batch_size=method.micro_batch_size,
        seed=method.seed,
        hostile=method.hostile,
        class_layer=method.class_layer,
    ).to(context.device)
    plain.join(method.data)
    engine = SequentialEngine(plain, replace(context, states=MemoryStates()))
    fit = engine.run(round, [Visit(client) for client in clients], keep_models=True)
    return fit.models  # pyright: ignore[reportReturnType]
