"""One visit, one program: its steps are compiled, and on a GPU all of it is replayed as one CUDA graph."""

import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.engines.cohort_share import Share
from fl_lightning.engines.cuda_graph import Stream
from fl_lightning.engines.local_step import LocalStep
from fl_lightning.engines.net_behaviour import draws
from fl_lightning.engines.run_context import RunContext
from fl_lightning.engines.sequential import SequentialEngine
from fl_lightning.engines.visit_program import (
    PROPORTIONAL,
    Inputs,
    Numbers,
    Phases,
    VisitMemory,
    VisitProgram,
    VisitTask,
    known_of,
    likeness,
)
from fl_lightning.exchange import Client, ClientState, PlannedStep, Reduction, Visit
from fl_lightning.exchange.client_state import num_bytes
from fl_lightning.hooks import overridden
from fl_lightning.transfers import on_device

_MAX_GRAPHS = 64
_STREAMS = 4  # visits that a GPU works at side by side


class _Whole(NamedTuple):
    """A visit that one program does from the global weights to the sum over clients."""

    position: int
    visit: Visit
    client: Client
    numbers: Numbers
    steps: list[PlannedStep]


class CapturedEngine(SequentialEngine):
    """Runs a client's visit as a :class:`VisitProgram`, and keeps a program for each kind of visit.

    Where the method reads nothing off single models and the client begins with the global weights, the program is the whole
    visit, and on a GPU several visits run side by side, each with weights and a stream for itself. Elsewhere it is the local
    steps, between what the method's hooks do. Batches all have one shape, short ones being filled up with samples that do not
    count, unless the net mixes samples: then every size has a program.

    Raises:
        ValueError: if the net draws: filled batches and compiled layers draw otherwise.
    """

    def __init__(self, method: FederatedAlgorithm, context: RunContext) -> None:
        super().__init__(method, context)
        if draws(self.net, self._two_samples()):
            raise ValueError("model.net draws in training, as dropout does, which a compiled step would do otherwise")
        self.full_batches = not self.mixes_samples
        # Every combination of shapes, of clients with and without state and of what hooks ask of the round is a graph.
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MAX_GRAPHS)
        step = LocalStep(method, self.net, context.protection.estimate)
        fedavg = FederatedAlgorithm
        hooks = (fedavg.client_start, fedavg.client_result, fedavg.kept_state, fedavg.probe)
        bounded = context.protection.bound is not None
        self._takes_whole = not (
            overridden(method, *hooks) or bounded or self.needs.nonzeros_alone or self.needs.client_moments
        )
        self._task = VisitTask(
            method,
            self.samples,
            # With fullgraph a break in the graph is an error, not a part of the step that runs uncaptured without a word.
            torch.compile(step, fullgraph=True),
            list(self.trained),
            self._global_state,
            self.sent_down,
            self._sent_by_default() if self._takes_whole else {},
            self._kept,
            self.origins,
            self.dtype,
        )
        self._proportional = type(self.optimizer) in PROPORTIONAL
        device = context.device
        self._working = VisitMemory(self.working_state, Reduction(device), Stream(device, parallel=False))
        self._lanes: list[VisitMemory] = []

    def fit_share(self, round: int, visits: dict[int, Visit], share: Share, max_steps: int | None = None) -> None:
        clients = on_device([visit.client for visit in visits.values()], self.context.device, torch.int64)
        counts, train_counts = (table[clients].unbind() for table in (self.data.label_counts, self.data.train_label_counts))
        num_steps = [min(self.method.num_local_steps(visit.client), max_steps or sys.maxsize) for visit in visits.values()]
        planned = self._planned([visit.client for visit in visits.values()], round, num_steps)
        whole: list[_Whole] = []
        rows = zip(visits.items(), counts, train_counts, planned, strict=True)
        for (position, visit), label_counts, train_label_counts, steps in rows:
            client, local = self.receive(round, visit, label_counts, train_label_counts)
            if self._takes_whole and visit.sends and not local and not client.tasks:
                whole.append(_Whole(position, visit, client, self._numbers(client, self.weight(client)), steps))
            else:
                self.start(client, local)
                self.leave(client, visit, position, self._fit_planned(client, steps), share)
        if whole:
            self._fit_whole(whole, share)

    def _planned(self, clients: Sequence[int], round: int, num_steps: Sequence[int]) -> list[list[PlannedStep]]:
        """What visits will see."""
        return self.samples.planned(clients, round, num_steps, self.full_batches) if clients else []

    # The local steps alone, in the working copy -----------------------------------------------------------------------

    def _fit(self, client: Client, num_steps: int) -> Tensor:
        (steps,) = self._planned([client.index], client.round, [num_steps])
        return self._fit_planned(client, steps)

    def _fit_planned(self, client: Client, steps: list[PlannedStep]) -> Tensor:
        row = on_device(self._numbers(client), self.context.device, torch.float64)
        with self.drawing(client, "layers"):
            program, inputs = self._program(self._working, client, steps, row, whole=False)
            loss = program(inputs)
        client.keep(program.state)
        if self.needs.client_moments:
            self.optimizer = program.optimizer
            client.keep_moments(self._moments())
        return loss

    # Whole visits -----------------------------------------------------------------------------------------------------

    def _fit_whole(self, members: Sequence[_Whole], share: Share) -> None:
        rows = on_device([member.numbers for member in members], self.context.device, torch.float64)
        results = torch.zeros(len(members), 3, dtype=torch.float64, device=self.context.device)
        lanes, counts, used = self._memory_of(len(members)), [], []
        up = sum(num_bytes({name: self.sent_down[name] for name in names}) for names in self._task.uploads.values())
        for lane in lanes:
            lane.reduced.clear()
            lane.stream.begin()
        for number, (position, visit, client, numbers, steps) in enumerate(members):
            lane = lanes[number % len(lanes)]
            with lane.stream.present(), self.drawing(client, "layers"):
                program, inputs = self._program(lane, client, steps, rows[number], whole=True)
                used.append(inputs)  # no other queue may be given its memory before this one has read it
                results[number].copy_(program(inputs))
                state = ClientState(program.state, self.kept_weights(lane.tensors))
                if state:
                    share.keep_state(client.index, state)
                if share.models is not None:
                    share.models[position] = self.used_model(lane.tensors, state)
            counts.append((self.bytes_down(visit, client), up, bool(state), numbers.weight > 0))
        for lane in lanes:
            lane.stream.end()
            share.reduced.take(lane.reduced)
        loss, finite, norms = results.unbind(dim=1)
        share.record([member.position for member in members], loss, finite, counts, norms)

    def _memory_of(self, num_visits: int) -> list[VisitMemory]:
        """Where so many visits go, in turn."""
        if self.context.device.type != "cuda":
            return [self._working]
        while len(self._lanes) < min(num_visits, _STREAMS):
            tensors = {name: torch.empty_like(tensor) for name, tensor in self.working_state.items()}
            device = self.context.device
            self._lanes.append(VisitMemory(tensors, Reduction(device), Stream(device, parallel=True)))
        return self._lanes[:num_visits]

    def _sent_by_default(self) -> dict[str, list[str]]:
        """Names of the weights and buffers that ``client_result`` sends where a method leaves it as it is."""
        parts: Mapping[str, list[tuple[str, Tensor]]] = {
            "weights": list(self.method.trained_weights(self.net).items()),
            "buffers": list(self.net.named_buffers()),
        }
        return {part: [name for name, _ in tensors if not self.method.is_personal(name)] for part, tensors in parts.items()}

    # Both -------------------------------------------------------------------------------------------------------------

    def _numbers(self, client: Client, weight: float = 0.0) -> Numbers:
        factor = self.method.client_learning_rate(client.round, client.index)
        client.begin_fit(self._rates[0] * factor)
        rate = float(client.learning_rate)
        return Numbers(client.index, client.num_train, client.num_steps, client.round, rate, factor, weight)

    def _program(
        self, memory: VisitMemory, client: Client, steps: list[PlannedStep], row: Tensor, whole: bool
    ) -> tuple[VisitProgram, Inputs]:
        """The program for a visit, and what it takes."""
        inputs = Inputs(row, steps, known_of(client), client.moments)
        resting = tuple(tuple(self.method.resting(client.index, step)) for step in range(len(steps)))
        factor = self.method.client_learning_rate(client.round, client.index)
        phases = Phases(resting, None if self._proportional and factor != 1 else factor, whole)
        key = likeness(inputs, phases, self._global_state)
        return memory.program(key, lambda: VisitProgram(self._task, memory, phases, inputs)), inputs
