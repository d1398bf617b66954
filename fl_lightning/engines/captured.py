"""One client after another, the local step compiled and, on a GPU, replayed as one CUDA graph."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map, tree_map_only

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.engines.local_step import LocalStep, facts_of
from fl_lightning.engines.net_behaviour import draws
from fl_lightning.engines.run_context import RunContext
from fl_lightning.engines.sequential import SequentialEngine
from fl_lightning.exchange import Batch, Client

_MAX_GRAPHS = 64


class CapturedEngine(SequentialEngine):
    """Runs a cohort client by client, with ``torch.compile`` around the gradients of the local step.

    Batches all have one shape, short ones being filled up with samples that do not count, unless the net mixes samples: then
    every size is compiled for itself.

    Raises:
        ValueError: if the net draws: filled batches and compiled layers draw otherwise.
    """

    def __init__(self, method: FederatedAlgorithm, context: RunContext) -> None:
        super().__init__(method, context)
        if draws(self.net, self._two_samples()):
            raise ValueError("model.net draws in training, as dropout does, which a compiled step would do otherwise")
        self.full_batches = not self.mixes_samples
        self._client: Client | None = None  # whose visit it is, and its facts: they do not change from step to step
        self._untrained = [name for name in self.working_state if name not in self.trained]
        # Every combination of shapes, of clients with and without state and of what hooks ask of the round is a graph.
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MAX_GRAPHS)
        # With fullgraph a break in the graph is an error, not a part of the step that runs uncaptured without a word.
        step = LocalStep(method, self.net, context.protection.estimate)
        self._captured = torch.compile(step, mode="reduce-overhead", fullgraph=True)

    def _step(self, client: Client, batch: Batch, step: int) -> Tensor:
        if client is not self._client:
            self._client, self._facts = client, _without_aliases(facts_of(client, self.dtype))
            client.keep(self._facts["state"])
            # As numbers, every round and every step would be another graph.
            self._round = torch.full((), client.round, dtype=torch.int64, device=self.context.device)
            self._position = torch.zeros((), dtype=torch.int64, device=self.context.device)
        else:
            self._position = self._position + 1
        client.begin_step(step, self._rests(client, step))  # one graph a phase
        torch.compiler.cudagraph_mark_step_begin()
        trained = {name: self.working_state[name] for name in self.trained}
        untrained = {name: self.working_state[name] for name in self._untrained}
        facts = {**self._facts, "state": client.state}
        result = self._captured(trained, untrained, batch, self._round, self._position, facts, client.resting)
        self.load(result.untrained)
        client.keep(tree_map(torch.clone, result.state))
        self._apply(result.gradients)
        return result.loss.clone()  # the next replay overwrites what this one returned


def _without_aliases(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts of a client in which no tensor stands twice.

    Where one does, torch 2.14 fails to say why another structure of facts is another graph: it looks for names that are gone.
    """
    seen: set[int] = set()

    def once(tensor: Tensor) -> Tensor:
        if id(tensor) in seen:
            return tensor.clone()
        seen.add(id(tensor))
        return tensor

    return tree_map_only(Tensor, once, facts)
