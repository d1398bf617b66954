"""A client's whole visit as a program on memory with fixed addresses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from fl_lightning.engines.cohort_share import Rows
from fl_lightning.engines.cuda_graph import Stream
from fl_lightning.engines.engine import Engine
from fl_lightning.engines.local_step import StepResult
from fl_lightning.engines.sums import Sums
from fl_lightning.functional.aggregation import State
from fl_lightning.functional.many_tensors import copy_all, set_gradients
from fl_lightning.protocol import Client, PlannedStep

MOST_PROGRAMS = 32  # that are kept for each queue of work


class Numbers(NamedTuple):
    """Of a visit; on the device a row of float64, which holds them exactly."""

    index: int
    num_train: int
    num_steps: int
    round: int
    learning_rate: float
    factor: float  # on the local optimizer's rate
    weight: float  # in the mean over clients


class Inputs(NamedTuple):
    """The inputs that differ from visit to visit."""

    numbers: Tensor  # (7,)
    steps: list[PlannedStep]
    known: dict[str, Any]  # the facts of a client that are tensors
    moments: dict[int, State]  # of its optimizer


def known_of(client: Client) -> dict[str, Any]:
    """The facts of a client that are tensors."""
    names = ("label_counts", "train_label_counts", "received_state", "broadcast", "carry", "state")
    return {name: getattr(client, name) for name in names}


class Phases(NamedTuple):
    """The key of a program, in addition to the shapes of its inputs."""

    resting: tuple[Sequence[str], ...]  # fixed weights, by step
    factor: float | None  # on the optimizer's rate; None: the one in the numbers, which changes from visit to visit
    whole: bool  # from the global weights to the sum over clients; else only the local steps
    task: int | None  # position among the tasks of arriving classes, as a recording repeats its classes; None: no such tasks


@dataclass
class VisitMemory:
    """Weights and buffers of one client at a time, the sums over its clients, and the queue of work."""

    tensors: State
    reduced: Sums
    stream: Stream
    programs: dict[Any, "VisitProgram"] = field(default_factory=dict[Any, "VisitProgram"])

    def program(self, key: Any, build: Callable[[], "VisitProgram"]) -> "VisitProgram":
        """The program under a key, built if missing; beyond the limit a program runs once and is not recorded.

        No program makes room: deleting a graph frees memory that others of its queue can use.
        """
        if key in self.programs:
            return self.programs[key]
        program = build()
        if len(self.programs) < MOST_PROGRAMS:
            self.programs[key] = program
        else:
            program.runs_once = True
        return program


class VisitProgram:
    """Load the global weights, take the local steps, check that all is finite, add to the sum.

    Args:
        local_step: a compiled ``LocalStep``.
        inputs: inputs of the first visit; those of others have the same structure.
    """

    def __init__(
        self, engine: Engine, local_step: Callable[..., StepResult], memory: VisitMemory, phases: Phases, inputs: Inputs
    ) -> None:
        self.engine, self.local_step, self.memory, self.phases = engine, local_step, memory, phases
        self.device = inputs.numbers.device
        self.state: dict[str, Any] = {}
        self.optimizer: torch.optim.Optimizer
        leaves, self._structure = tree_flatten(inputs)
        self._changing = changing(leaves, engine.global_state)
        self._leaves = [leaf.clone() if changes else leaf for leaf, changes in zip(leaves, self._changing, strict=True)]
        self.runs_once = False
        self._replay: Callable[[], Tensor] | None = None

    def __call__(self, inputs: Inputs) -> Tensor:
        """Run a visit; returns its mean loss, (1,), or for a whole visit the result of ``Rows.count``, (1, 3)."""
        self._feed(inputs)
        if self.device.type != "cuda" or self.runs_once:
            return self._visit()
        if self._replay is None:
            sums = self._sums()
            before = [tensor.clone() for tensor in (*self.memory.tensors.values(), *sums)]
            self._visit()  # compiles, and must not count
            after = [*self.memory.tensors.values(), *sums]
            copy_all(after, before)
            self._feed(inputs)
            self._replay = self.memory.stream.recorded(self._visit)
        return self._replay()

    def _feed(self, inputs: Inputs) -> None:
        """Copy the inputs that differ from visit to visit to the program's memory."""
        new = tree_flatten(inputs)[0]
        pairs = [pair for *pair, changes in zip(self._leaves, new, self._changing, strict=True) if changes]
        held, values = zip(*pairs, strict=True)
        copy_all(held, values)

    def _sums(self) -> list[Tensor]:
        if self.phases.whole:
            self.memory.reduced.reserve(self._rows(torch.zeros(1, device=self.device), torch.zeros(1, device=self.device)).sent)
        return self.memory.reduced.sums

    # The program; its host code is the same in all visits -----------------------------------------------------------

    def _visit(self) -> Tensor:
        numbers, steps, known, moments = tree_unflatten(self._leaves, self._structure)
        if self.phases.whole:
            held = [self.memory.tensors[name] for name in self.engine.sent_down]
            copy_all(held, list(self.engine.sent_down.values()))
        torch.clear_autocast_cache()
        loss = self._fit(Numbers(*numbers.unbind()), steps, known, moments)
        return self._rows(numbers[-1], loss).count(self.memory.reduced) if self.phases.whole else loss

    def _fit(self, numbers: Any, steps: Sequence[PlannedStep], known: dict[str, Any], moments: dict[int, State]) -> Tensor:
        engine, tensors = self.engine, self.memory.tensors
        facts = {name: getattr(numbers, name).long() for name in ("index", "num_train", "num_steps")}
        facts |= {**known, "learning_rate": numbers.learning_rate.to(engine.dtype)}
        round, self.state = numbers.round.long(), known["state"]
        weights = {name: tensors[name].detach() for name in engine.trained}
        untrained = {name: tensor for name, tensor in tensors.items() if name not in weights}
        self.optimizer = self._new_optimizer(list(weights.values()), moments)
        rates = [group["lr"] for group in self.optimizer.param_groups]
        losses = []
        for step, (planned, resting) in enumerate(zip(steps, self.phases.resting, strict=True)):
            batch = engine.samples.read(planned)
            position = torch.full((), step, dtype=torch.int64, device=self.device)  # as a number it would be another graph
            result = self.local_step(weights, untrained, batch, round, position, {**facts, "state": self.state}, resting)
            if untrained:
                copy_all(list(untrained.values()), list(result.untrained.values()))
            self.state = result.state
            set_gradients(weights, result.gradients, resting)
            engine.hooks.set_step_rate(self.optimizer, rates, step)
            self._step_optimizer(list(weights.values()), numbers.factor)
            losses.append(result.loss)
        return torch.stack(losses).double().mean(dim=0, keepdim=True)

    def _new_optimizer(self, weights: list[Tensor], moments: dict[int, State]) -> torch.optim.Optimizer:
        optimizer = self.engine.method.optimizer(weights)
        if moments:
            optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
        for group in optimizer.param_groups:
            group["lr"] *= 1.0 if self.phases.factor is None else self.phases.factor
            if "capturable" in group and self.device.type == "cuda":
                group["capturable"] = True
        return optimizer

    def _step_optimizer(self, weights: list[Tensor], factor: Tensor) -> None:
        """A step; the host does not have its rate if the factor is a number of the visit."""
        if self.phases.factor is not None:
            self.optimizer.step()
        else:
            before = [weight.clone() for weight in weights]
            self.optimizer.step()
            for weight, old in zip(weights, before, strict=True):
                weight.copy_(torch.lerp(old, weight, factor.to(weight.dtype)))
        torch.clear_autocast_cache()

    def _rows(self, weight: Tensor, loss: Tensor) -> Rows:
        """The results of the visit."""
        tensors, state = tree_map(lambda tensor: tensor[None], (self.memory.tensors, self.state))
        return self.engine.rows(tensors, state, weight, loss)


def changing(leaves: Sequence[Any], global_state: State) -> list[bool]:
    """Whether the tensors of some inputs can be others in the next visit.

    Those of the server change in place. A tensor that occurs twice is copied: torch 2.14 fails to explain why another
    structure of facts is another graph, and looks for names that are gone.
    """
    same = {id(tensor) for tensor in global_state.values()}
    changes: list[bool] = []
    for leaf in leaves:
        changes.append(isinstance(leaf, Tensor) and id(leaf) not in same)
        same.discard(id(leaf))
    return changes


def likeness(inputs: Inputs, phases: Phases, global_state: State) -> str:
    """Equal for visits that one program can run."""
    leaves, structure = tree_flatten(inputs)
    shapes = [(tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    return repr((structure, shapes, changing(leaves, global_state), phases))
