"""One visit, one program: its steps are compiled, and on a GPU all of it is replayed as one CUDA graph."""

import sys
import zlib
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.engines.cohort_share import Share
from fl_lightning.engines.compilation import compiled
from fl_lightning.engines.cuda_graph import Stream
from fl_lightning.engines.local_step import PROPORTIONAL, LocalStep, run_key
from fl_lightning.engines.net_behaviour import can_pad, draws
from fl_lightning.engines.run_context import RunContext
from fl_lightning.engines.sequential import SequentialEngine
from fl_lightning.engines.sums import Sums
from fl_lightning.engines.visit_program import (
    Inputs,
    Numbers,
    Phases,
    VisitMemory,
    VisitProgram,
    known_of,
    likeness,
)
from fl_lightning.functional.transfers import on_device
from fl_lightning.protocol import Client, ClientState, PlannedStep, Request, Visit

_MAX_GRAPHS = 64
_STREAMS = 4  # visits that a GPU works at side by side


class _Whole(NamedTuple):
    """A visit that one program runs from the global weights to the sum over clients."""

    position: int
    request: Request
    client: Client
    numbers: Numbers
    steps: list[PlannedStep]


class _Kind(NamedTuple):
    """A visit's inputs for a program."""

    key: str  # equal for visits that one program can run
    inputs: Inputs
    phases: Phases


class CapturedEngine(SequentialEngine):
    """Runs a client's visit as a :class:`VisitProgram`, and keeps a program for each kind of visit.

    If the method reads nothing from single models and the client starts with the global weights, the program is the whole
    visit, and on a GPU several visits run side by side, each with its own weights and stream. Otherwise the program is the
    local steps, between the method's hooks. All batches have one shape, and short ones are padded with samples that do not
    count, unless :func:`~fl_lightning.engines.net_behaviour.can_pad` refuses: then every size has a program.

    Raises:
        ValueError: if the net draws: padded batches and compiled layers draw differently.
    """

    is_compiled = True

    def __init__(self, method: FederatedAlgorithm, context: RunContext) -> None:
        super().__init__(method, context)
        two = self.data.first_inputs(2)
        if not self.counts_dropout and draws(self.net, two):
            raise ValueError("model.net draws in training, which a compiled step would do otherwise")
        self.full_batches = can_pad(method, self.net, two)
        # Every combination of shapes, of clients with and without state and of hooks' uses of the round is a graph.
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MAX_GRAPHS)
        key = run_key(self.seed) if self.counts_dropout else None
        step = LocalStep(method, self.net, self.frozen, context.protection.estimate, dropout_key=key)
        touches = self.hooks.prepares or self.hooks.reads_models
        bounded = context.protection.bound is not None
        self._takes_whole = not (touches or bounded or self.needs.nonzeros_alone or self.needs.client_moments)
        # Without the casts between operations half precision would end further from other engines than rounding does.
        with context.precision():
            is_half = self.dtype == torch.bfloat16 or torch.is_autocast_enabled(context.device.type)
        self._local_step = compiled(step, casts=is_half)
        self._takes_any_rate = type(self.optimizer) in PROPORTIONAL and self.hooks.changes_rates
        device = context.device
        self._working = VisitMemory(self.working_state, Sums(device), Stream(device, parallel=False))
        self._lanes: dict[int, VisitMemory] = {}

    def fit_share(self, round: int, visits: dict[int, Visit], share: Share, max_steps: int | None = None) -> None:
        limit = max_steps or sys.maxsize
        num_steps = [
            min(self.hooks.num_local_steps(visit.client), visit.num_steps or limit, limit) for visit in visits.values()
        ]
        clients = [visit.client for visit in visits.values()]
        planned = self.samples.planned(clients, round, num_steps, self.full_batches) if clients else []
        whole: list[_Whole] = []
        for (position, visit), steps in zip(visits.items(), planned, strict=True):
            request = self.request(round, visit, max_steps)
            client, local = self.receive(request)
            if self._takes_whole and visit.sends and not local and not client.tasks:
                whole.append(_Whole(position, request, client, self._numbers(client, self.weight(client)), steps))
            else:
                self.book(position, self.reply(request, *self._fit_planned(self.start(client, local), steps)), share)
        if whole:
            self._fit_whole(whole, share)

    # Only the local steps, in the working copy ------------------------------------------------------------------------

    def _fit(self, client: Client, num_steps: int) -> tuple[Client, Tensor]:
        (steps,) = self.samples.planned([client.index], client.round, [num_steps], self.full_batches)
        return self._fit_planned(client, steps)

    def _fit_planned(self, client: Client, steps: list[PlannedStep]) -> tuple[Client, Tensor]:
        numbers = self._numbers(client)
        row = on_device(numbers, self.context.device, torch.float64)
        with self.drawing(client, "layers"):
            kind = self._kind(client, steps, row, whole=False)
            program = self._program(self._working, kind)
            loss = program(kind.inputs)
        client = client.having(learning_rate=numbers.learning_rate, state=program.state)
        if self.needs.client_moments:
            self.optimizer = program.optimizer
            client = client.having(moments=self._moments())
        return client, loss

    # Whole visits -----------------------------------------------------------------------------------------------------

    def _fit_whole(self, members: Sequence[_Whole], share: Share) -> None:
        rows = on_device([member.numbers for member in members], self.context.device, torch.float64)
        results = torch.zeros(len(members), 3, dtype=torch.float64, device=self.context.device)
        lanes: dict[int, VisitMemory] = {}
        used: list[Any] = []
        alike: Counter[Any] = Counter()
        for number, (position, request, client, numbers, steps) in enumerate(members):
            kind = self._kind(client, steps, rows[number], whole=True)
            used.append(kind.inputs)  # no other queue can get its memory before this one has read it
            lane = self._lane(kind, alike[kind.key], lanes)
            alike[kind.key] += 1
            with lane.stream.present(), self.drawing(client, "layers"):
                program, measured = self._program(lane, kind), results[number]
                measured.copy_(program(kind.inputs)[0])
                state = ClientState(program.state, self.kept_weights(lane.tensors))
                reply = self.row_reply(request, state, numbers.weight, measured[:1])
                share.note(position, reply, partial(self.used_model, lane.tensors, state))
        for _, lane in sorted(lanes.items()):
            lane.stream.end()
            share.reduced.take(lane.reduced)
        share.measure([member.position for member in members], results)

    def _lane(self, kind: _Kind, alike: int, begun: dict[int, VisitMemory]) -> VisitMemory:
        """The lane of a visit: that of its kind, which has its program, or a next one after others of that kind.

        Earlier rounds have no effect, so a resumed run adds up in the same order.

        Args:
            alike: visits of its kind that came before it in this round.
            begun: lanes of this round, by number; gains this one.
        """
        number = (zlib.crc32(kind.key.encode()) + alike) % _STREAMS if self.context.device.type == "cuda" else 0
        if number not in begun:
            begun[number] = self._memory_of(number)
            begun[number].reduced.clear()
            begun[number].stream.begin()
        return begun[number]

    def _memory_of(self, lane: int) -> VisitMemory:
        device = self.context.device
        if device.type != "cuda":
            return self._working
        if lane not in self._lanes:
            tensors = {name: torch.empty_like(tensor) for name, tensor in self.working_state.items()}
            self._lanes[lane] = VisitMemory(tensors, Sums(device), Stream(device, parallel=True))
        return self._lanes[lane]

    # Both -------------------------------------------------------------------------------------------------------------

    def _numbers(self, client: Client, weight: float = 0.0) -> Numbers:
        factor = self.hooks.rate_factor(client.round, client.index)
        rate = self.hooks.mean_rate(float(self._rates[0] * factor), client.num_steps)
        return Numbers(client.index, client.num_train, client.num_steps, client.round, rate, factor, weight)

    def _kind(self, client: Client, steps: list[PlannedStep], row: Tensor, whole: bool) -> _Kind:
        inputs = Inputs(row, steps, known_of(client), client.moments)
        resting = tuple(self.hooks.resting(client.index, step) for step in range(len(steps)))
        factor = self.hooks.rate_factor(client.round, client.index)
        progress = self.method.tasks.class_progress()
        task = None if progress is None else progress.task
        phases = Phases(resting, None if self._takes_any_rate else factor, whole, task)
        return _Kind(likeness(inputs, phases, self.global_state), inputs, phases)

    def _program(self, memory: VisitMemory, kind: _Kind) -> VisitProgram:
        return memory.program(kind.key, lambda: VisitProgram(self, self._local_step, memory, kind.phases, kind.inputs))
