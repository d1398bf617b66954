"""The common part of all engines: the distribution of clients, and the start and the results of a visit."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.checks import ArgumentError
from fl_lightning.engines.cohort_share import Outcome, Rows, Share, round_report
from fl_lightning.engines.cohort_states import CohortStates
from fl_lightning.engines.hook_mistakes import (
    changes_in_place,
    check_minimised,
    check_parts,
    check_state,
    lies_in,
    unconnected,
    weights_outside,
    without_new_attributes,
)
from fl_lightning.engines.local_step import Scope
from fl_lightning.engines.pace import paced
from fl_lightning.engines.ranks import split_by_work
from fl_lightning.engines.round_hooks import RoundHooks
from fl_lightning.engines.run_context import RunContext
from fl_lightning.engines.separate_uploads import booked
from fl_lightning.engines.sums import check_weight
from fl_lightning.engines.traffic import Traffic
from fl_lightning.engines.update_norms import update_norm, update_norms
from fl_lightning.functional.aggregation import State
from fl_lightning.functional.many_tensors import copy_all
from fl_lightning.functional.random_streams import seeded_layers
from fl_lightning.functional.stateless import tensors_of
from fl_lightning.models.federated_net import copied_net, fresh_statistics, kept_buffers
from fl_lightning.protocol import (
    Client,
    ClientState,
    CohortFit,
    CohortModels,
    Objective,
    Reply,
    Request,
    Upload,
    Visit,
    evaluate_net,
)
from fl_lightning.protocol.client_state import num_bytes


class Rehearsal(NamedTuple):
    """What the discarded visits of a rehearsal showed."""

    state_bytes: int  # the largest state that a client would keep
    outcomes: Callable[[], list[Outcome]]  # of the visits; waits for the device


class Engine(ABC):
    """Runs a cohort through a method's hooks.

    The working copy of the net, its optimizer and their memory live as long as the engine. A visit overwrites them in place,
    except for constant weights, which are those of the server from the start.

    Args:
        method: the method with the hooks; its ``net`` holds the global weights and is never changed here.
        context: the run.
    """

    def __init__(self, method: FederatedAlgorithm, context: RunContext) -> None:
        self.method, self.context, self.needs, self.data = method, context, method.needs, method.data
        self.hooks = RoundHooks(method)
        self.seed = method.seed
        poisson = context.protection.poisson_batches
        self.samples = method.data.client_batches(method.needs.sample_indices, poisson, context.batch_size)
        self.net = copied_net(method).train()
        # Both nets only ever change in place: their tensors are looked up once.
        self.global_state = tensors_of(method.net)
        self.working_state, self.sent_down = (
            {name: tensor for name, tensor in tensors.items() if name not in method.constant_names}
            for tensors in (tensors_of(self.net), self.global_state)
        )
        self.working_memory = frozenset(tensor.untyped_storage().data_ptr() for tensor in self.working_state.values())
        self.trained = {name: weight for name, weight in self.net.named_parameters() if weight.requires_grad}
        self.outside = weights_outside(method)
        # Tensors of which clients send new values.
        self.origins: dict[str, State] = dict.fromkeys(("weights", "buffers"), self.global_state)
        self._weight_names = [name for name, _ in method.net.named_parameters()]
        self._scope = Scope(self.net)
        self._reset = fresh_statistics(method) if method.batch_norm_buffers == "reset" else {}
        # Where the server's tensor replaces that of a receiving client.
        self._replaced = {name for name in self.sent_down if not (self.needs.nothing_replaced or method.is_personal(name))}
        self._shared = {name: t for name, t in self.sent_down.items() if name in self._replaced and name not in self._reset}
        buffers = dict(method.net.named_buffers())
        self._weights = {name: tensor for name, tensor in self._shared.items() if name not in buffers}
        self._buffers = {name: tensor for name, tensor in self._shared.items() if name in buffers}
        self.traffic = Traffic(self._shared, self.needs.nonzeros_alone)
        self._kept = [name for name in self.working_state if method.needs.client_weights or name not in self._replaced]
        self._states = CohortStates(context.states, context.ranks, context.device)
        if method.hostile is not None:
            method.hostile.begin(method.data.num_clients, method.seed, context.device)
        self.dtype = next(weight.dtype for weight in self.net.parameters() if weight.is_floating_point())
        sent = {"weights": method.trained_weights(self.net), "buffers": kept_buffers(method, self.net)}
        # What FedAvg's ``client_result`` sends, by name of the upload.
        self._sends = {part: [name for name in tensors if not method.is_personal(name)] for part, tensors in sent.items()}
        self._row_bytes = num_bytes([self.global_state[name] for names in self._sends.values() for name in names])

    @cached_property
    def frozen(self) -> Scope:
        """A copy of the net for ``client.evaluate``, made at the first use."""
        return Scope(copied_net(self.method).eval().requires_grad_(False))

    @abstractmethod
    def fit_share(self, round: int, visits: dict[int, Visit], share: Share, max_steps: int | None = None) -> None:
        """Fit these visits, by position in the cohort, for at most ``max_steps`` steps each; ``share`` gets the results."""

    def run(self, round: int, visits: Sequence[Visit], keep_models: bool) -> CohortFit:
        """Fit this process's share of the cohort and reduce over all processes."""
        pace = paced(self.context.devices, self.hooks, self.traffic, self._row_bytes, round, visits)
        visits, keep_models = pace.visits, keep_models and len(pace.visits) > 0
        if pace.missing:  # clients that are late are as if they had not been drawn, for the method too
            self.method.present_cohort[:] = visits
        ranks, split = self.context.ranks, _split(self.method, visits, self.context.ranks.size)
        share = Share(len(visits), self.context.device, partial(self._states.write, round), keep_models)
        self._states.fetch([[visits[position].client for position in positions] for positions in split])
        before = self._personal_models(visits, split[ranks.rank]) if keep_models and self.method.keeps_models else None
        with self.context.precision():
            self.fit_share(round, {position: visits[position] for position in split[ranks.rank]}, share)
        if ranks.size > 1:
            share.gather(ranks)
        outcomes = share.outcomes()  # the one transfer of the round
        # Under user-level privacy one client must not decide about the others' updates, each of which is bounded.
        least = 1 if self.method.aggregation is None else self.method.aggregation.least
        report = round_report(round, visits, outcomes, can_be_lost=self.context.protection.bound is None, least=least)
        report = pace.noted(report)
        self._states.send(round, keeps_any=any(outcome.has_state for outcome in outcomes))
        for client in report.nonfinite:
            share.reduced.gathered_tensors.pop(client, None)
        clients = set(report.counted)
        counted = [(visit.client, outcome) for visit, outcome in zip(visits, outcomes, strict=True) if visit.client in clients]
        kept = [client for client, outcome in counted if outcome.has_state]
        cleared = [client for client, outcome in counted if not outcome.has_state]
        finite = [position for position, outcome in enumerate(outcomes) if outcome.is_finite]
        models = None
        if share.models is not None and finite:
            after, before = _at(finite, share.models), before and _at(finite, before)
            models = self._models([visits[position] for position in finite], after, before)
        probes = [probe for position, probe in sorted(share.probes.items()) if visits[position].client in clients]
        return CohortFit(share.reduced, report, models, kept, cleared, probes)

    def rehearse(self, round: int, visits: Sequence[Visit], max_steps: int | None = None) -> Rehearsal:
        """Fit some visits and discard the results. Errors under this engine show here, before the first round.

        Raises:
            ValueError: if no client can send its weights before the deadline of ``data.devices``, or a hook changes in place
                what other clients read.
            RuntimeError: if a hook keeps a tensor of stacked clients as an attribute of the method.
        """
        if self.context.devices is not None and any(visit.sends for visit in visits):
            self.context.devices.check_upload(self._row_bytes)
        sizes = [0]
        share = Share(len(visits), self.context.device, lambda _, kept: sizes.append(kept.num_bytes()))
        for visit in visits:
            check_parts(self.method, "broadcast", self.hooks.sent_down(visit))
        before = changes_in_place(self.method)
        with self.context.precision(), without_new_attributes(self.method):
            self.fit_share(round, dict(enumerate(visits)), share, max_steps)
        for name, times in changes_in_place(self.method).items():
            if times != before.get(name, times):
                raise ArgumentError(
                    type(self.method).__name__,
                    f"changes {name} in place, which all clients read: compute a new tensor in the hook, such as x = x + 1",
                )
        return Rehearsal(max(sizes), share.outcomes)

    def fit_and_forget(self, round: int, visits: Sequence[Visit]) -> tuple[list[State], State]:
        """Fit some visits; returns the weights and buffers after each, and the server's result from them."""
        share = Share(len(visits), self.context.device, lambda *_: None, keeps_models=True)
        with self.context.precision():
            self.fit_share(round, dict(enumerate(visits)), share)
        means = (share.reduced.mean(part) for part in self.origins if part in share.reduced.names)
        return [model for _, model in sorted((share.models or {}).items())], {k: v for mean in means for k, v in mean.items()}

    # A visit --------------------------------------------------------------------------------------------------------

    def request(self, round: int, visit: Visit, max_steps: int | None = None) -> Request:
        """The request to a client, in the memory of the server.

        Raises:
            ValueError: if the client does not receive, and its method does not declare that it keeps weights.
        """
        if not visit.receives and not self.needs.client_weights:
            raise ValueError(
                f"{type(self.method).__name__}.cohort has a client that does not receive: declare needs = "
                "fl_lightning.Needs(client_weights=True)"
            )
        state = self._states.read(visit.client)

        def lacking(tensors: State) -> State:
            return tensors if visit.receives else {name: t for name, t in tensors.items() if name not in state.weights}

        return Request(
            round=round,
            client=visit.client,
            seed=self.seed,
            weights=lacking(self._weights),
            buffers=lacking(self._buffers),
            broadcast=self.hooks.sent_down(visit),
            state=state,
            receives=visit.receives,
            sends=visit.sends,
            num_steps=visit.num_steps,
            max_steps=max_steps,
        )

    def receive(self, request: Request, counts: Sequence[Tensor] | None = None) -> tuple[Client, State]:
        """A client with its facts before its fit, and by name the tensors that replace the server's at its start.

        The method's net takes over the tensors from a server in another process.

        Args:
            counts: the client's rows of the tables of label counts; None: they are looked up.
        """
        method, data, index = self.method, self.data, request.client
        state = request.state.map(lambda tensor: tensor)  # hooks change its dicts
        self.seed = request.seed
        for sent, own in ((request.weights, self._weights), (request.buffers, self._buffers)):
            if sent is not own:
                new = {name: tensor for name, tensor in sent.items() if tensor is not own[name]}
                copy_all([own[name] for name in new], list(new.values()))
        label_counts, train_label_counts = counts or (data.label_counts[index], data.train_label_counts[index])
        if method.hostile is not None:
            label_counts, train_label_counts = (
                method.hostile.label_counts(of, index) for of in (label_counts, train_label_counts)
            )
        received = dict(self.global_state)
        client = Client(
            index=index,
            round=request.round,
            num_train=data.num_train(index),
            num_steps=min(self.hooks.num_local_steps(index), request.num_steps or sys.maxsize),
            label_counts=label_counts,
            train_label_counts=train_label_counts,
            weight_names=self._weight_names,
            received_state=received,
            data=self.samples,
            differentiate=self.differentiate,
            evaluate=lambda tensors, function: self.frozen.evaluate({**received, **tensors}, function),
            apply=self.apply,
            estimate=self.context.protection.estimate,
            sends=request.sends,
            expected_batch_size=self.samples.expected_size(index),
            broadcast=request.broadcast,
            state=state.method,
            moments=state.moments,
            tasks=state.tasks,
            relabel=None if method.hostile is None else method.hostile.batch,
        )
        keeps = not request.receives
        local = {name: tensor for name, tensor in state.weights.items() if keeps or name not in self._replaced}
        return client, local | self._reset

    def used_model(self, tensors: State, state: ClientState) -> State:
        """A copy of the model that a client uses, from its net and its state."""
        method = self.method
        model = method.personal_model(tensors, state) if method.keeps_models else method.tasks.with_server_parts(tensors)
        return {name: tensor.detach().clone() for name, tensor in model.items()}

    def _personal_models(self, visits: Sequence[Visit], positions: Sequence[int]) -> dict[int, State]:
        """Personal models before their fits, by position in the cohort."""
        states = {position: self._states.read(visits[position].client) for position in positions}
        return {position: self.used_model(self.sent_down, state) for position, state in states.items()}

    def _models(self, visits: Sequence[Visit], after: dict[int, State], before: dict[int, State] | None) -> CohortModels:
        """The models of these visits, by position."""
        received = partial(evaluate_net, self.method.net)
        of_models, of_models_before = (
            None if models is None else {position: partial(_evaluate, self, model) for position, model in models.items()}
            for models in (after, before)
        )
        clients, batch_size = [visit.client for visit in visits], self.data.eval_batch_size
        return CohortModels(clients, of_models or {}, received, self.context.ranks.sum, batch_size, of_models_before)

    def start(self, client: Client, local: State) -> Client:
        """Load the client into the working copy, with ``local`` instead of the server's tensors, and let it prepare."""
        self.load({**self.sent_down, **local})
        client.received_state.update({name: self.working_state[name].clone() for name in local})
        with self.drawing(client, "client_start"):
            carry = _kept_from(self, "client_start", self.hooks.begin_visit(self.net, client))
        client.state.update(_apart(self, client.state))
        return client.having(carry=carry)

    def reply(self, request: Request, client: Client, loss: Tensor) -> Reply:
        """The reply of the client in the working copy, in its memory: upload, state and probe."""
        upload = self.upload(client)
        with self.drawing(client, "probe"):
            probe = _kept_from(self, "probe", self.hooks.probe(self.net, client))
        check_state(self.method, client.state)
        kept = ClientState(client.state, self.kept_weights(self.working_state), client.moments, client.tasks)
        state = self.hooks.kept_state(client, kept)
        sent = {name: part.tensors for name, part in upload.items() if not part.derived} if request.sends else {}
        return Reply(
            round=client.round,
            client=client.index,
            loss=loss,
            upload=upload if request.sends else {},
            weight=self.weight(client) if request.sends else 0.0,
            state=state,
            probe=probe,
            bytes_down=self.traffic.down(request),
            bytes_up=sum(self.traffic.sent(tensors) for tensors in sent.values()),
        )

    def rows(self, tensors: State, state: dict[str, Any], weights: Tensor | float, losses: Tensor, sends: bool = True) -> Rows:
        """The results of :meth:`reply` for M clients, if a method ends visits as FedAvg does.

        Args:
            tensors: weights and buffers of their nets, (M, ...) by name.
            state: ``client.state`` of each, (M, ...).
            weights: weights in the mean over clients, (M,) on the device, or one number for all.
            losses: (M,).
            sends: whether they send, all or none.
        """
        sent = {part: {name: tensors[name].detach() for name in names} for part, names in self._sends.items()} if sends else {}
        kept = ClientState(state, self.kept_weights(tensors)).tensors()
        norms = update_norms(sent, self.origins, len(losses), self.context.device)
        return Rows(kept, sent, [weights] * len(sent), losses, norms, sent.keys())

    def row_reply(self, request: Request, state: ClientState, weight: float, loss: Tensor) -> Reply:
        """A reply without the upload, which is counted as a row."""
        down, up = self.traffic.down(request), self._row_bytes if request.sends else 0
        return Reply(request.round, request.client, loss, {}, weight, state, {}, down, up)

    def book(self, position: int, reply: Reply, share: Share, model: Callable[[], State] | None = None) -> None:
        """Book a reply, wherever it was made; ``model`` gives the client's model, by default that in the working copy."""
        sent = {name: part.tensors for name, part in reply.upload.items() if not part.derived}
        norm = update_norm(sent, self.origins, self.context.device)
        model = model or partial(self.used_model, self.working_state, reply.state)
        share.book(position, booked(self.method, reply), norm, model, sent)

    def weight(self, client: Client) -> float:
        """``update_weight``, checked.

        Raises:
            ValueError: if it is not a valid weight.
        """
        weight = self.method.update_weight(client)
        check_weight(
            f"{type(self.method).__name__}.update_weight gives client {client.index} in round {client.round} the weight", weight
        )
        return weight

    def upload(self, client: Client) -> Upload:
        """The upload of the client in the working copy, bounded if privacy requires it."""
        with self.context.precision(), self.drawing(client, "client_result"):
            upload = self.hooks.end_visit(self.net, client)
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
        check_minimised(self.method, value, self.outside)
        found = torch.autograd.grad(value, list(weights.values()), allow_unused=True)
        if all(gradient is None for gradient in found):
            raise unconnected(self.method)
        pairs = zip(found, weights.values(), strict=True)
        return [torch.zeros_like(weight) if gradient is None else gradient for gradient, weight in pairs], loss.detach()

    def apply(self, gradients: Sequence[Tensor]) -> None:
        """``client.apply`` on the working copy."""
        raise RuntimeError("client.apply is only for client_step")

    def load(self, state: State) -> None:
        """Copy weights and buffers into the working copy, in place; missing names do not change."""
        if state:
            copy_all([self.working_state[name] for name in state], list(state.values()))
            # Autocast keeps half-precision copies of weights and does not notice that they changed in place.
            torch.clear_autocast_cache()

    def kept_weights(self, tensors: State) -> State:
        """The weights and buffers that stay with a client until its next visit; not copied."""
        return {name: tensors[name] for name in self._kept}

    @contextmanager
    def drawing(self, client: Client, purpose: str) -> Iterator[None]:
        """Seed the draws of a client's hook, and add the client to an error in it."""
        try:
            with seeded_layers(self.seed, client.round, client.index, purpose, self.context.device):
                yield
        except Exception as error:
            error.add_note(f"(client {client.index}, round {client.round})")
            raise


def _kept_from(engine: Engine, hook: str, tensors: dict[str, Any]) -> dict[str, Any]:
    """What a hook returned, checked, with copies of tensors of the working copy."""
    check_parts(engine.method, hook, tensors)
    return _apart(engine, tensors)


def _apart(engine: Engine, tensors: dict[str, Any]) -> dict[str, Any]:
    """Tensors by name, with copies of those that share memory with the working copy, which changes."""
    if not tensors:
        return tensors
    return tree_map(lambda part: part.detach().clone() if lies_in(part, engine.working_memory) else part, tensors)


def _split(method: FederatedAlgorithm, visits: Sequence[Visit], size: int) -> list[list[int]]:
    """Positions in the cohort for each process."""
    if size == 1:
        return [list(range(len(visits)))]
    return split_by_work([method.expected_work(visit.client) for visit in visits], size)


def _at(positions: Sequence[int], models: dict[int, State]) -> dict[int, State]:
    """The models at these positions, as far as they are here, numbered anew."""
    return {new: models[old] for new, old in enumerate(positions) if old in models}


def _evaluate(engine: Engine, model: State, function: Callable[[Any], Tensor]) -> Tensor:
    """The result of a function of an engine's working copy, with a client's model in it."""
    engine.load(model)
    return evaluate_net(engine.net, function)
