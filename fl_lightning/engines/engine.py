"""What all engines share: who fits whom, what a visit starts from and leaves behind, and the sum over processes."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.engines.local_step import Scope
from fl_lightning.engines.net_behaviour import activation_bytes, mixes_samples
from fl_lightning.engines.norms import update_norm
from fl_lightning.engines.ranks import split_by_work
from fl_lightning.engines.run_context import RunContext
from fl_lightning.exchange import (
    Client,
    ClientState,
    CohortFit,
    CohortModels,
    Gathered,
    Objective,
    Reduction,
    RoundReport,
    Upload,
    Visit,
    predict_in_batches,
)
from fl_lightning.exchange.client_state import num_bytes
from fl_lightning.exchange.cohort import Inputs
from fl_lightning.exchange.reduction import are_finite, check_weight
from fl_lightning.functional.aggregation import State
from fl_lightning.random_streams import seeded_layers
from fl_lightning.transfers import on_device, to_device


@dataclass
class Share:
    """What this process's part of a cohort adds up to; the dicts are by position in the cohort."""

    reduced: Reduction
    stats: Tensor  # one row a visit: mean loss, finite or not, bytes down, bytes up, has a state or not, counts, norm
    keep_state: Callable[[int, ClientState], None]  # what a client keeps; its tensors change afterwards
    probes: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    models: dict[int, State] | None = None  # None: nobody wants them

    def record(
        self,
        positions: Sequence[int],
        losses: Tensor,
        finite: Tensor,
        counts: Sequence[tuple[int, int, bool, bool]],
        norms: Tensor,
    ) -> None:
        """Fill the rows of some visits; ``counts`` are bytes down, bytes up, whether there is a state and a weight above 0."""
        table = [(position, *row) for position, row in zip(positions, counts, strict=True)]
        indices, rows = on_device(table, self.stats.device, self.stats.dtype).split([1, 4], dim=1)
        losses, finite, norms = (column.to(self.stats)[:, None] for column in (losses, finite, norms))
        self.stats[indices[:, 0].long()] = torch.cat([losses, finite, rows, norms], dim=1)


class Engine(ABC):
    """Runs a cohort through a method's hooks.

    The working copy of the net, its optimizer and their memory live as long as the engine; a visit overwrites them in place,
    but for the weights that are constant, which are those of the server from the start.

    Args:
        method: whose hooks are called; its ``net`` holds the global weights and is never changed here.
        context: the run.
    """

    def __init__(self, method: FederatedAlgorithm, context: RunContext) -> None:
        self.method, self.context, self.needs, self.data = method, context, method.needs, method.data
        self.seed = method.seed if context.seed is None else context.seed
        poisson = context.protection.poisson_batches
        self.samples = method.data.client_batches(method.needs.sample_indices, poisson, context.batch_size)
        self.net = copy.deepcopy(method.net).train()
        # Both nets only ever change in place: their tensors are looked up once.
        self._global_state = _tensors(method.net)
        self.working_state, self.sent_down = (
            {name: tensor for name, tensor in tensors.items() if not method.is_constant(name)}
            for tensors in (_tensors(self.net), self._global_state)
        )
        self.trained = {name: weight for name, weight in self.net.named_parameters() if weight.requires_grad}
        # Of what clients send new values of.
        self.origins: dict[str, State] = dict.fromkeys(("weights", "buffers"), self._global_state)
        self._global_weights = tuple(weight.detach() for weight in method.net.parameters())
        self._scope = Scope(self.net)
        self._reset = method.initial_statistics if method.batch_norm_buffers == "reset" else {}
        stays = [name for name in self.sent_down if method.is_personal(name) or name in self._reset]
        self._shared = {name: tensor for name, tensor in self.sent_down.items() if name not in stays}
        self._download = num_bytes(self._shared)
        self._kept = [name for name in self.working_state if method.needs.client_weights or method.is_personal(name)]
        self._states: dict[int, ClientState] = {}  # of this process's clients in this round, where their owners sent them
        self.dtype = next(weight.dtype for weight in self._global_weights if weight.is_floating_point())

    @cached_property
    def mixes_samples(self) -> bool:
        """Whether the samples of a batch influence each other in training, as with BatchNorm."""
        return mixes_samples(self.net, self._two_samples())

    @cached_property
    def activation_bytes(self) -> int:
        """Bytes a sample that a step keeps for its backward pass."""
        return activation_bytes(self.net, self._two_samples())

    @cached_property
    def frozen(self) -> Scope:
        """A copy of the net for ``client.evaluate``, made where it is asked for."""
        return Scope(copy.deepcopy(self.method.net).eval().requires_grad_(False))

    def _two_samples(self) -> Tensor:
        return self.data.first_inputs(2)

    @abstractmethod
    def fit_share(self, round: int, visits: dict[int, Visit], share: Share, max_steps: int | None = None) -> None:
        """Fit these visits, by position in the cohort, and put what they leave behind into ``share``.

        Args:
            max_steps: at most so many local steps of each; None: all.
        """

    def run(self, round: int, visits: Sequence[Visit], keep_models: bool) -> CohortFit:
        """Fit this process's share of the cohort and reduce over all processes."""
        ranks, states = self.context.ranks, {}
        keep_state = partial(self._hold_state, states) if self._moves_states else partial(self._write_state, round, visits)
        share = Share(Reduction(self.context.device), self._no_stats(visits), keep_state, models={} if keep_models else None)
        split = self._split(visits)
        if self._moves_states:
            self._fetch_states(visits, split)
        before = self._personal_models(visits, split[ranks.rank]) if keep_models and self.method.keeps_models else None
        self.fit_share(round, {position: visits[position] for position in split[ranks.rank]}, share)
        if ranks.size > 1:
            self._gather(share)
        rows = share.stats.tolist()  # the one transfer of the round
        report = _report(round, visits, rows)
        if self._moves_states:
            self._send_states(round, visits, states, keeps_any=any(row[4] for row in rows))
        finite = [(visit.client, row[4]) for visit, row in zip(visits, rows, strict=True) if row[1]]
        for client in report.nonfinite:
            share.reduced.gathered_tensors.pop(client, None)
        kept, cleared = ([client for client, has_state in finite if has_state == wanted] for wanted in (True, False))
        models = self._models(visits, share.models, before) if share.models is not None else None
        probes = [probe for position, probe in sorted(share.probes.items()) if rows[position][1]]
        return CohortFit(share.reduced, report, models, kept, cleared, probes)

    def rehearse(self, round: int, visits: Sequence[Visit], max_steps: int | None = None) -> int:
        """Fit some visits and forget it; returns the largest state that a client would keep, in bytes.

        What cannot work under this engine shows here, before the first round.
        """
        sizes = [0]
        share = Share(Reduction(self.context.device), self._no_stats(visits), lambda _, kept: sizes.append(kept.num_bytes()))
        with self.context.precision():
            self.fit_share(round, dict(enumerate(visits)), share, max_steps)
        return max(sizes)

    # A visit --------------------------------------------------------------------------------------------------------

    def receive(self, round: int, visit: Visit, label_counts: Tensor, train_label_counts: Tensor) -> tuple[Client, State]:
        """A client with what it knows before its fit, and by name what it starts from in place of the server's tensors."""
        method, data = self.method, self.data
        if not visit.receives and not self.needs.client_weights:
            raise ValueError(
                f"{type(method).__name__}.cohort has a client that does not receive: declare needs = "
                "fl_lightning.Needs(client_weights=True)"
            )
        state = self._state_of(visit.client)
        num_steps = method.num_local_steps(visit.client)
        client = Client(
            index=visit.client,
            round=round,
            num_train=data.num_train(visit.client),
            num_steps=num_steps,
            label_counts=label_counts,
            train_label_counts=train_label_counts,
            received=self._global_weights,
            received_state=self._global_state,
            data=self.samples,
            differentiate=self.differentiate,
            evaluate=self.evaluate,
            apply=self.apply,
            estimate=self.context.protection.estimate,
            sends=visit.sends,
            expected_batch_size=self.samples.expected_size(visit.client),
            broadcast=method.broadcast(visit.client) if visit.receives else {},
            state=state.method,
            moments=state.moments,
            tasks=state.tasks,
        )
        local = {name: tensor for name, tensor in state.weights.items() if not visit.receives or method.is_personal(name)}
        return client, local | self._reset

    def _state_of(self, client: int) -> ClientState:
        stored = self._states.get(client, ClientState()) if self._moves_states else self.context.states.read(client)
        return stored.map(lambda tensor: to_device(tensor, self.context.device))

    def used_model(self, tensors: State, state: ClientState) -> State:
        """A copy of the model that a client uses, from what its net holds and what it keeps."""
        model = self.method.personal_model(tensors, state) if self.method.keeps_models else tensors
        return {name: tensor.detach().clone() for name, tensor in model.items()}

    def _personal_models(self, visits: Sequence[Visit], positions: Sequence[int]) -> dict[int, State]:
        """Personal models before their fits, by position in the cohort."""
        states = {position: self._state_of(visits[position].client) for position in positions}
        return {position: self.used_model(self.sent_down, state) for position, state in states.items()}

    def start(self, client: Client, local: State) -> None:
        """Bring the working copy to the client, whose ``local`` tensors replace the server's, and let it prepare."""
        self.load({**self.sent_down, **local})
        if local:
            client.received_state = self._global_state | {name: tensor.clone() for name, tensor in self.working_state.items()}
            client.received = tuple(client.received_state[name] for name, _ in self.net.named_parameters())
        with self.drawing(client, "client_start"):
            client.carry = self.method.client_start(self.net, client)

    def leave(self, client: Client, visit: Visit, position: int, loss: Tensor, share: Share) -> None:
        """What the client in the working copy leaves behind: what it sends, what it keeps, and what is read off its model.

        Args:
            loss: (1,), mean over its local steps.
        """
        upload = self.upload(client)
        with self.drawing(client, "probe"):
            probe = self.method.probe(self.net, client)
        if probe:
            share.probes[position] = probe
        kept = ClientState(client.state, self.kept_weights(self.working_state), client.moments, client.tasks)
        state = self.method.kept_state(client, kept)
        finite = are_finite([tensor[None] for tensor in state.tensors()], 1, self.context.device)
        weight = self.weight(client) if visit.sends else 0.0
        if state:
            share.keep_state(position, state)
        norm, sent = torch.zeros(1, device=self.context.device), {}
        if visit.sends:
            finite = share.reduced.add(upload, finite[0])
            sent = {name: part.tensors for name, part in upload.items() if not part.derived}
            norm = update_norm(sent, self.origins, self.context.device)
            gathered = {name: part.tensors for name, part in upload.items() if isinstance(part, Gathered)}
            if gathered:
                share.reduced.keep(client.index, gathered)
        up = sum(self.bytes_sent(tensors) for tensors in sent.values())
        share.record([position], loss, finite, [(self.bytes_down(visit, client), up, bool(state), weight > 0)], norm)
        if share.models is not None:
            share.models[position] = self.used_model(self.working_state, state)

    def weight(self, client: Client) -> float:
        """``update_weight``, checked.

        Raises:
            ValueError: if it is no weight.
        """
        weight = self.method.update_weight(client)
        check_weight(
            f"{type(self.method).__name__}.update_weight gives client {client.index} in round {client.round} the weight", weight
        )
        return weight

    def upload(self, client: Client) -> Upload:
        """What the client in the working copy sends, bounded where privacy asks for it."""
        with self.drawing(client, "client_result"):
            upload = self.method.client_result(self.net, client)
        return upload if self.context.protection.bound is None else self.context.protection.bound(upload, client.received_state)

    def differentiate(
        self, objective: Objective, at: Sequence[Tensor] | None = None, buffers: State | None = None
    ) -> tuple[Sequence[Tensor], Tensor]:
        """``client.differentiate`` on the working copy."""
        if at is None and buffers is None:
            weights = self.trained
            value, loss = objective()
        else:
            at = list(self.trained.values()) if at is None else at
            weights = {name: weight.detach().requires_grad_() for name, weight in zip(self.trained, at, strict=True)}
            held = {name: buffer.clone() for name, buffer in (buffers or {}).items()}
            (value, loss), after = self._scope.call({**weights, **held}, tuple(held), objective)
            if buffers is not None:
                buffers.update(after)
        return torch.autograd.grad(value, list(weights.values()), materialize_grads=True), loss.detach()

    def evaluate(self, tensors: State, function: Callable[[nn.Module], Tensor]) -> Tensor:
        """``client.evaluate`` on a copy of the net."""
        return self.frozen.evaluate(tensors, function)

    def apply(self, gradients: Sequence[Tensor]) -> None:
        """``client.apply`` on the working copy."""
        raise RuntimeError("client.apply is for client_step alone")

    def load(self, state: State) -> None:
        """Copy weights and buffers into the working copy, in place; names that are missing stay as they are."""
        if state:
            held = [self.working_state[name] for name in state]
            torch._foreach_copy_(held, list(state.values()))  # pyright: ignore[reportPrivateImportUsage]
            # Autocast keeps half-precision copies of weights and does not notice that they changed in place.
            torch.clear_autocast_cache()

    def kept_weights(self, tensors: State) -> State:
        """What of a client's weights and buffers stays with it until its next visit; not copied."""
        return {name: tensors[name] for name in self._kept}

    def bytes_down(self, visit: Visit, client: Client) -> int:
        """What a visit sends down: the weights that are shared and the broadcast; 0 where the client receives nothing."""
        if not visit.receives:
            return 0
        weights = self.bytes_sent(self._shared) if self.needs.nonzeros_alone else self._download
        return weights + self.bytes_sent(client.broadcast)

    def bytes_sent(self, tensors: dict[str, Any]) -> int:
        """What some tensors, by name or by group and name, take when sent: all their values, or those that are not 0."""
        if self.needs.nonzeros_alone:
            return sum(int(tensor.count_nonzero()) * tensor.element_size() for tensor in tree_leaves(tensors))
        return num_bytes(tensors)

    @contextmanager
    def drawing(self, client: Client, purpose: str) -> Iterator[None]:
        """Seed what a client's hook draws, and let an error in it say whose it was."""
        try:
            with seeded_layers(self.seed, client.round, client.index, purpose, self.context.device):
                yield
        except Exception as error:
            error.add_note(f"(client {client.index}, round {client.round})")
            raise

    # Between processes ----------------------------------------------------------------------------------------------

    def _split(self, visits: Sequence[Visit]) -> list[list[int]]:
        """Positions in the cohort for each process."""
        size = self.context.ranks.size
        if size == 1:
            return [list(range(len(visits)))]
        return split_by_work([self.method.expected_work(visit.client) for visit in visits], size)

    @property
    def _moves_states(self) -> bool:
        """Whether states lie with their owner, process ``client % processes``, and not where everyone reads them."""
        return self.context.ranks.size > 1 and not self.context.states.shared

    def _write_state(self, round: int, visits: Sequence[Visit], position: int, state: ClientState) -> None:
        self.context.states.write(visits[position].client, round, state)

    def _hold_state(self, states: dict[int, ClientState], position: int, state: ClientState) -> None:
        states[position] = state.map(lambda tensor: tensor.detach().to("cpu", copy=True))

    def _fetch_states(self, visits: Sequence[Visit], split: Sequence[Sequence[int]]) -> None:
        """Bring the states of this process's clients here from their owners."""
        ranks, states = self.context.ranks, self.context.states
        clients = [[visits[position].client for position in positions] for positions in split]
        outgoing = [{client: states.read(client) for client in part if client % len(split) == ranks.rank} for part in clients]
        self._states = ranks.exchange(outgoing)

    def _send_states(self, round: int, visits: Sequence[Visit], states: dict[int, ClientState], keeps_any: bool) -> None:
        """Send the states that this process made to their owners, who write them."""
        self._states = {}
        if not keeps_any:
            return
        outgoing: list[dict[int, ClientState]] = [{} for _ in range(self.context.ranks.size)]
        for position, state in states.items():
            client = visits[position].client
            outgoing[client % len(outgoing)][client] = state
        for client, state in self.context.ranks.exchange(outgoing).items():
            self.context.states.write(client, round, state)

    def _gather(self, share: Share) -> None:
        """Every process gets all probes, and the sums over all processes."""
        here = (share.reduced.layouts, share.probes, share.reduced.gathered_tensors)
        for layouts, probes, gathered in self.context.ranks.gather(tree_map_only(Tensor, Tensor.cpu, here)):
            share.reduced.reserve(layouts)
            for mine, theirs in ((share.probes, probes), (share.reduced.gathered_tensors, gathered)):
                mine.update(tree_map_only(Tensor, lambda tensor: tensor.to(self.context.device), theirs))
        share.stats = share.reduced.sum_over_ranks(share.stats, self.context.ranks.sum)

    # After the fit --------------------------------------------------------------------------------------------------

    def _no_stats(self, visits: Sequence[Visit]) -> Tensor:
        return torch.zeros(len(visits), 7, dtype=torch.float64, device=self.context.device)

    def _models(self, visits: Sequence[Visit], kept: dict[int, State], before: dict[int, State] | None) -> CohortModels:
        predict_after, predict_before = (
            None if models is None else {position: partial(self._predict, state) for position, state in models.items()}
            for models in (kept, before)
        )
        predict_received = partial(predict_in_batches, self.method.net, self.data.eval_batch_size)
        clients = [visit.client for visit in visits]
        return CohortModels(clients, predict_after or {}, predict_received, self.context.ranks.sum, predict_before)

    def _predict(self, state: State, inputs: Inputs) -> Tensor:
        self.load(state)
        return predict_in_batches(self.net, self.data.eval_batch_size, inputs)


def set_gradients(weights: Mapping[str, Tensor], gradients: Sequence[Tensor], resting: Collection[str] = ()) -> None:
    """Hand gradients to an optimizer, in the memory format of their weights: fused optimizers rely on it unchecked.

    Weights that rest get none: a gradient of zeros would still move them by momentum and weight decay.
    """
    for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
        if name in resting:
            weight.grad = None
        else:
            weight.grad = gradient if gradient.stride() == weight.stride() else torch.empty_like(weight).copy_(gradient)


def _tensors(net: nn.Module) -> State:
    """All weights and buffers, those that a state dict leaves out too; shares memory with the net."""
    return {name: tensor.detach() for name, tensor in (*net.named_parameters(), *net.named_buffers())}


def _report(round: int, visits: Sequence[Visit], rows: Sequence[Sequence[float]]) -> RoundReport:
    clients = [visit.client for visit in visits]
    nonfinite = [visit.client for visit, row in zip(visits, rows, strict=True) if row[1] == 0]
    return RoundReport(
        round=round,
        clients=clients,
        losses=[row[0] for row in rows],
        num_updates=sum(visit.sends and row[1] == row[5] == 1 for visit, row in zip(visits, rows, strict=True)),
        nonfinite=nonfinite,
        bytes_down=int(sum(row[2] for row in rows)),
        bytes_up=int(sum(row[3] for row in rows)),
        norms=[row[6] for row in rows],
    )
