"""Many clients per step: their weights stacked, the local step under ``torch.vmap``."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.engines.cohort_share import Share
from fl_lightning.engines.engine import Engine
from fl_lightning.engines.gradients import below_the_stack, better_below_the_stack, by_transform
from fl_lightning.engines.local_step import ELEMENTWISE, LocalStep, run_key
from fl_lightning.engines.net_behaviour import activation_bytes, can_pad, counts_dropout, draws
from fl_lightning.engines.round_hooks import RoundHooks
from fl_lightning.engines.run_context import RunContext
from fl_lightning.functional.aggregation import State
from fl_lightning.functional.many_tensors import set_gradients
from fl_lightning.functional.transfers import on_device
from fl_lightning.protocol import Batch, Client, ClientState, Request, Visit
from fl_lightning.protocol.client_state import num_bytes

_CPU_STACK_BYTES = 512 << 20


@dataclass
class _Member:
    """A client that has received and prepared."""

    position: int
    request: Request
    client: Client
    rate: float  # factor on the local optimizer's rate
    start: State | None  # weights and buffers that its fit starts from; None: those of the server


class VectorizedEngine(Engine):
    """Runs clients side by side. Similar clients are stacked: same rate, same names and shapes of their facts.

    Clients with fewer local steps leave the stack when they are done. Short batches are padded with samples that do not
    count, unless the net mixes samples (BatchNorm in train mode), or has dropout where a method adds samples to a batch: then
    only clients with batches of equal sizes are stacked.

    Raises:
        ValueError: if the local optimizer cannot be stacked or the net draws.
    """

    def __init__(self, method: FederatedAlgorithm, context: RunContext) -> None:
        super().__init__(method, context)
        optimizer = method.optimizer(list(self.trained.values()))
        if type(optimizer) not in ELEMENTWISE:
            raise ValueError(
                f"model.optimizer {type(optimizer).__name__} is not known to treat every entry of a weight by itself"
            )
        if method.needs.client_moments:
            raise ValueError("clients that keep their optimizer's state cannot be stacked: set model.engine: sequential")
        two = self.data.first_inputs(2)
        with context.precision():
            counts = counts_dropout(self.net, two)
        if not counts and draws(self.net, two):
            raise ValueError("model.net draws in training, which stacked clients cannot do each for itself")
        with context.precision():
            self._pads, self._activation_bytes = can_pad(method, self.net, two), activation_bytes(self.net, two)
        differentiate = below_the_stack if better_below_the_stack(self.net) else by_transform
        key = run_key(self.seed) if counts else None
        self._local_step = LocalStep(method, self.net, self.frozen, context.protection.estimate, differentiate, key)
        # Stacked clients need not be separated for FedAvg's hooks.
        self._one_by_one = self.hooks.reads_models or self.needs.nonzeros_alone or context.protection.bound is not None
        self._memory: State = {}  # memory of the stacks, by name of the weight or buffer

    def fit_share(self, round: int, visits: dict[int, Visit], share: Share, max_steps: int | None = None) -> None:
        clients = on_device([visit.client for visit in visits.values()], self.context.device, torch.int64)
        # One look-up for all: a stack costs no operation per client.
        counts = zip(self.data.label_counts[clients].unbind(), self.data.train_label_counts[clients].unbind(), strict=True)
        pairs = zip(visits.items(), counts, strict=True)
        members = [self._member(position, self.request(round, visit, max_steps), of) for (position, visit), of in pairs]
        alike = sorted(((self._likeness(one), one) for one in members), key=lambda pair: (pair[0], -pair[1].client.num_steps))
        for _, pairs in groupby(alike, key=lambda pair: pair[0]):
            group = [member for _, member in pairs]
            capacity = self._capacity(max(member.client.num_train for member in group))
            for first in range(0, len(group), capacity):
                self._fit_stack(round, group[first : first + capacity], share)

    def _member(self, position: int, request: Request, counts: Sequence[Tensor]) -> _Member:
        """A client received and prepared."""
        client, local = self.receive(request, counts)
        start = None
        if local or self.hooks.prepares:
            client = self.start(client, local)
            start = {name: tensor.clone() for name, tensor in self.working_state.items()}
        return _Member(position, request, client, self.hooks.rate_factor(request.round, request.client), start)

    def _likeness(self, member: _Member) -> str:
        """Equal for members that can be stacked."""
        client = member.client
        known = [client.broadcast, client.carry, client.state]
        shapes = [_shapes(part) if part else () for part in known]
        batches = (client.num_train, client.num_steps) if not self._pads else ()
        phases = [self.hooks.resting(client.index, step) for step in range(client.num_steps)] if self.hooks.has_phases else ()
        sends = self._one_by_one or member.request.sends
        return repr((member.rate, member.start is None, shapes, batches, phases, sends))

    def _capacity(self, num_samples: int) -> int:
        """Clients per stack: a fixed amount of memory, so that the same run always has the same stacks."""
        batch = min(num_samples, self.data.batch_size or num_samples)
        # Weights, gradients, two moments of the optimizer and a temporary; activations and their gradients.
        each = 5 * num_bytes(self.working_state) + 2 * batch * self._activation_bytes
        device = self.context.device
        total = torch.cuda.get_device_properties(device).total_memory // 4 if device.type == "cuda" else _CPU_STACK_BYTES
        return max(total // each, 1)

    # One stack --------------------------------------------------------------------------------------------------------

    def _fit_stack(self, round: int, members: Sequence[_Member], share: Share) -> None:
        indices, max_steps = [member.client.index for member in members], members[0].request.max_steps
        steps = [min(member.client.num_steps, max_steps or member.client.num_steps) for member in members]
        stack = self._stack(members)
        num_steps = stack.facts["num_steps"]  # of all: facts shrink with the stack
        losses = torch.zeros(len(members), dtype=torch.float64, device=self.context.device)
        try:
            with sdpa_kernel(SDPBackend.MATH):  # other forms of attention vmap would run client by client
                for step, batch in enumerate(self.samples.stacked_batches(indices, round, steps)):
                    resting = self.hooks.resting(indices[0], step)
                    losses[: len(batch.targets)] += stack.step(self._local_step, batch, round, step, resting, self.hooks)
        except Exception as error:
            error.add_note(f"(round {round}, {len(members)} clients stacked: model.engine sequential tells which one)")
            raise
        losses /= num_steps if max_steps is None else num_steps.clamp(max=max_steps)
        # Tasks and moments are not part of a stack: clients with some are separated.
        if self._one_by_one or any(member.client.tasks or member.client.moments for member in members):
            for row, member in enumerate(members):
                self.load({name: tensor[row] for name, tensor in stack.tensors.items()})
                rate = self.hooks.mean_rate(stack.rates[0], member.client.num_steps)
                client = member.client.having(learning_rate=rate, state=_row(stack.state, row))
                self.book(member.position, self.reply(member.request, client, losses[row : row + 1]), share)
        else:
            self._leave_together(members, stack, losses, share)

    def _stack(self, members: Sequence[_Member]) -> "_Stack":
        """The members' weights and buffers side by side, in memory that all stacks use in turn."""
        tensors = {name: self._memory_of(name, len(members)) for name in self.working_state}
        starts = [member.start for member in members if member.start is not None]  # of all or of none: they are similar
        for name, tensor in tensors.items():
            if starts:
                torch.stack([start[name] for start in starts], out=tensor)
            else:
                tensor.copy_(self.sent_down[name].expand_as(tensor))
        weights = {name: tensors[name].detach() for name in self.trained}  # separate tensors: they shrink
        optimizer = self.method.optimizer(list(weights.values()))
        for group in optimizer.param_groups:
            group["lr"] *= members[0].rate
        facts = self._facts([member.client for member in members], optimizer.param_groups[0]["lr"])
        return _Stack(tensors, weights, optimizer, *facts)

    def _memory_of(self, name: str, size: int) -> Tensor:
        """Uninitialised memory for ``size`` copies of a weight or buffer."""
        tensor = self.sent_down[name]
        if name not in self._memory or len(self._memory[name]) < size:
            self._memory[name] = torch.empty(size, *tensor.shape, dtype=tensor.dtype, device=tensor.device)
        return self._memory[name][:size]

    def _facts(self, clients: Sequence[Client], learning_rate: float) -> tuple[dict[str, Any], dict[str, Any]]:
        """The clients' facts for hooks, stacked, and their dimension: 0 if stacked, None if all share one."""
        numbers = [[getattr(client, name) for client in clients] for name in ("index", "num_train", "num_steps")]
        indices, num_train, num_steps = on_device(numbers, self.context.device)
        facts: dict[str, Any] = {
            "index": indices,
            "num_train": num_train,
            "num_steps": num_steps,
            "learning_rate": torch.full((len(clients),), learning_rate, dtype=self.dtype, device=self.context.device),
            "label_counts": self.data.label_counts[indices],
            "train_label_counts": self.data.train_label_counts[indices],
        }
        if self.method.step_factors is not None:
            means = [self.hooks.mean_rate(learning_rate, client.num_steps) for client in clients]
            facts["learning_rate"] = on_device(means, self.context.device, self.dtype)
        if self.method.hostile is not None:
            counts = {name: facts[name] for name in ("label_counts", "train_label_counts")}
            facts |= {name: self.method.hostile.label_counts(of, indices) for name, of in counts.items()}
        dims: dict[str, Any] = dict.fromkeys(facts, 0)
        for name in ("received_state", "broadcast", "carry"):
            facts[name], dims[name] = _join([getattr(client, name) for client in clients])
        facts["state"] = tree_map(lambda *rows: torch.stack(rows), *(client.state for client in clients))
        return facts, dims

    def _leave_together(self, members: Sequence[_Member], stack: "_Stack", losses: Tensor, share: Share) -> None:
        """Book all members at once, if the method reads nothing from single models."""
        sends = members[0].request.sends
        weights = [self.weight(member.client) if sends else 0.0 for member in members]
        # A number is part of a launch; more need a copy to the device.
        of_all = weights[0] if len(weights) == 1 else on_device(weights, self.context.device, torch.float64)
        rows = self.rows(stack.tensors, stack.state, of_all, losses, sends)
        share.measure([member.position for member in members], rows.count(share.reduced))
        state = ClientState(stack.state, self.kept_weights(stack.tensors))
        for row, (member, weight, loss) in enumerate(zip(members, weights, losses.split(1), strict=True)):
            kept = _row(state, row) if state else state
            reply = self.row_reply(member.request, kept, weight, loss)
            share.note(member.position, reply, lambda row=row, kept=kept: self.used_model(_row(stack.tensors, row), kept))


class _Stack:
    """Clients in the middle of their fits; those with the most local steps come first.

    Args:
        tensors: weights and buffers of all of them, (M, ...) by name; changed in place.
        weights: trained weights of the clients with steps left; share the memory of ``tensors``.
        optimizer: steps ``weights``.
        facts: facts for the hooks, for all of them.
        dims: which of the facts are stacked.
    """

    def __init__(
        self,
        tensors: State,
        weights: State,
        optimizer: torch.optim.Optimizer,
        facts: dict[str, Any],
        dims: dict[str, Any],
    ) -> None:
        self.tensors, self.weights, self.optimizer = tensors, weights, optimizer
        self.state = facts.pop("state")
        self.facts, self.dims, self.rates = facts, dims, [group["lr"] for group in optimizer.param_groups]
        self._untrained = [name for name in tensors if name not in weights]
        self._active = len(next(iter(tensors.values())))

    def step(
        self, local_step: LocalStep, batch: Batch, round: int, step: int, resting: Sequence[str], hooks: RoundHooks
    ) -> Tensor:
        """One local step of the first ``len(batch.targets)`` clients; returns their losses."""
        if len(batch.targets) < self._active:
            self._shrink(len(batch.targets))
        active = self._active
        untrained = {name: self.tensors[name][:active] for name in self._untrained}
        facts = {**self.facts, "state": tree_map(lambda tensor: tensor[:active], self.state)}
        dims = {**self.dims, "state": tree_map(lambda _: 0, self.state)}
        batch_dims = Batch._make(None if part is None else 0 for part in batch)
        one_step = partial(local_step, resting=resting)
        stacked_step = torch.vmap(one_step, in_dims=(0, 0, batch_dims, None, None, dims), randomness="error")
        with torch.no_grad():
            result = stacked_step(self.weights, untrained, batch, round, step, facts)
            for name, tensor in result.untrained.items():
                untrained[name].copy_(tensor)
        self.state = _renewed(result.state, self.state, active)
        set_gradients(self.weights, result.gradients, resting)
        hooks.set_step_rate(self.optimizer, self.rates, step)
        self.optimizer.step()
        return result.loss

    def _shrink(self, active: int) -> None:
        """Continue with the first ``active`` clients; the others keep their values in ``tensors``."""
        for weight in self.weights.values():
            weight.grad = None
            for name, moment in self.optimizer.state[weight].items():
                if isinstance(moment, Tensor) and moment.shape == weight.shape:
                    self.optimizer.state[weight][name] = moment[:active]
            weight.data = weight.data[:active]
        self.facts = tree_map(lambda fact, dim: fact if dim is None else fact[:active], self.facts, self.dims)
        self._active = active


def _join(parts: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The clients' tensors by name, stacked unless all have the very same one, and the dimension of each: None if so."""
    joined: dict[str, Any] = {}
    dims: dict[str, Any] = {}
    for name, first in parts[0].items():
        values = [part[name] for part in parts]
        if isinstance(first, dict):
            joined[name], dims[name] = _join(values)
        elif all(value is first for value in values):
            joined[name], dims[name] = first, None
        else:
            joined[name], dims[name] = torch.stack(values), 0
    return joined, dims


def _shapes(tensors: dict[str, Any]) -> list[tuple[str, Any]]:
    """Names, shapes and types, in the order of names."""
    return [
        (name, _shapes(part) if isinstance(part, dict) else (tuple(part.shape), str(part.dtype)))
        for name, part in sorted(tensors.items())
    ]


def _row(stacked: Any, row: int) -> Any:
    """One client's part of stacked tensors."""
    return tree_map(lambda tensor: tensor[row], stacked)


def _renewed(new: dict[str, Any], old: dict[str, Any], active: int) -> dict[str, Any]:
    """States of all clients after a step of the first ``active``."""
    renewed: dict[str, Any] = {}
    for name, part in new.items():
        if isinstance(part, dict):
            renewed[name] = _renewed(part, old.get(name, {}), active)
        else:
            renewed[name] = torch.cat([part, old[name][active:]]) if name in old else part
    return renewed
