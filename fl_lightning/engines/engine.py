"""What all engines share: who fits whom, and what a visit starts from and leaves behind."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.engines.cohort_share import Share, round_report
from fl_lightning.engines.cohort_states import CohortStates
from fl_lightning.engines.local_step import Scope
from fl_lightning.engines.net_behaviour import activation_bytes, mixes_samples
from fl_lightning.engines.ranks import split_by_work
from fl_lightning.engines.run_context import RunContext
from fl_lightning.engines.update_norms import update_norm
from fl_lightning.exchange import (
    Client,
    ClientState,
    CohortFit,
    CohortModels,
    Gathered,
    Objective,
    Upload,
    Visit,
    predict_in_batches,
)
from fl_lightning.exchange.client_state import num_bytes
from fl_lightning.exchange.cohort import Inputs
from fl_lightning.exchange.reduction import are_finite, check_weight
from fl_lightning.functional.aggregation import State
from fl_lightning.functional.many_tensors import copy_all, lie_alike
from fl_lightning.random_streams import seeded_layers


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
        stays = [name for name in self.sent_down if not method.is_replaced(name) or name in self._reset]
        self._shared = {name: tensor for name, tensor in self.sent_down.items() if name not in stays}
        self._download = num_bytes(self._shared)
        self._kept = [name for name in self.working_state if method.needs.client_weights or not method.is_replaced(name)]
        self._states = CohortStates(context.states, context.ranks, context.device)
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
        ranks, split = self.context.ranks, self._split(visits)
        share = Share(len(visits), self.context.device, partial(self._states.write, round), keep_models)
        self._states.fetch([[visits[position].client for position in positions] for positions in split])
        before = self._personal_models(visits, split[ranks.rank]) if keep_models and self.method.keeps_models else None
        with self.context.precision():
            self.fit_share(round, {position: visits[position] for position in split[ranks.rank]}, share)
        if ranks.size > 1:
            share.gather(ranks)
        outcomes = share.outcomes()  # the one transfer of the round
        report = round_report(round, visits, outcomes)
        self._states.send(round, keeps_any=any(outcome.has_state for outcome in outcomes))
        for client in report.nonfinite:
            share.reduced.gathered_tensors.pop(client, None)
        finite = [(visit.client, outcome) for visit, outcome in zip(visits, outcomes, strict=True) if outcome.is_finite]
        kept = [client for client, outcome in finite if outcome.has_state]
        cleared = [client for client, outcome in finite if not outcome.has_state]
        models = self._models(visits, share.models, before) if share.models is not None else None
        probes = [probe for position, probe in sorted(share.probes.items()) if outcomes[position].is_finite]
        return CohortFit(share.reduced, report, models, kept, cleared, probes)

    def rehearse(self, round: int, visits: Sequence[Visit], max_steps: int | None = None) -> int:
        """Fit some visits and forget it; returns the largest state that a client would keep, in bytes.

        What cannot work under this engine shows here, before the first round.
        """
        sizes = [0]
        share = Share(len(visits), self.context.device, lambda _, kept: sizes.append(kept.num_bytes()))
        with self.context.precision():
            self.fit_share(round, dict(enumerate(visits)), share, max_steps)
        return max(sizes)

    def fit_and_forget(self, round: int, visits: Sequence[Visit]) -> tuple[list[State], State]:
        """Fit some visits; returns the weights and buffers that each leaves behind, and what the server would make of them."""
        share = Share(len(visits), self.context.device, lambda *_: None, keeps_models=True)
        with self.context.precision():
            self.fit_share(round, dict(enumerate(visits)), share)
        means = (share.reduced.mean(part) for part in self.origins if part in share.reduced.layouts)
        return [model for _, model in sorted((share.models or {}).items())], {k: v for mean in means for k, v in mean.items()}

    # A visit --------------------------------------------------------------------------------------------------------

    def receive(self, round: int, visit: Visit, label_counts: Tensor, train_label_counts: Tensor) -> tuple[Client, State]:
        """A client with what it knows before its fit, and by name what it starts from in place of the server's tensors."""
        method, data = self.method, self.data
        if not visit.receives and not self.needs.client_weights:
            raise ValueError(
                f"{type(method).__name__}.cohort has a client that does not receive: declare needs = "
                "fl_lightning.Needs(client_weights=True)"
            )
        state = self._states.read(visit.client)
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
        local = {name: tensor for name, tensor in state.weights.items() if not (visit.receives and method.is_replaced(name))}
        return client, local | self._reset

    def used_model(self, tensors: State, state: ClientState) -> State:
        """A copy of the model that a client uses, from what its net holds and what it keeps."""
        model = self.method.personal_model(tensors, state) if self.method.keeps_models else tensors
        return {name: tensor.detach().clone() for name, tensor in model.items()}

    def _personal_models(self, visits: Sequence[Visit], positions: Sequence[int]) -> dict[int, State]:
        """Personal models before their fits, by position in the cohort."""
        states = {position: self._states.read(visits[position].client) for position in positions}
        return {position: self.used_model(self.sent_down, state) for position, state in states.items()}

    def start(self, client: Client, local: State) -> None:
        """Bring the working copy to the client, whose ``local`` tensors replace the server's, and let it prepare."""
        self.load({**self.sent_down, **local})
        if local:
            client.count_as_received(self.working_state, self.net)
        with self.drawing(client, "client_start"):
            client.carry_along(self.method.client_start(self.net, client))

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
            share.keep_state(client.index, state)
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
        with self.context.precision(), self.drawing(client, "client_result"):
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
            copy_all([self.working_state[name] for name in state], list(state.values()))
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

    def _split(self, visits: Sequence[Visit]) -> list[list[int]]:
        """Positions in the cohort for each process."""
        size = self.context.ranks.size
        if size == 1:
            return [list(range(len(visits)))]
        return split_by_work([self.method.expected_work(visit.client) for visit in visits], size)

    # After the fit --------------------------------------------------------------------------------------------------

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
            weight.grad = gradient if lie_alike(gradient, weight) else torch.empty_like(weight).copy_(gradient)


def _tensors(net: nn.Module) -> State:
    """All weights and buffers, those that a state dict leaves out too; shares memory with the net."""
    return {name: tensor.detach() for name, tensor in (*net.named_parameters(), *net.named_buffers())}
