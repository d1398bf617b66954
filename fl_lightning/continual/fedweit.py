"""FedWeIT: clients build on sparse parts of each other's tasks, weighted by attention.

J. Yoon, W. Jeong, G. Lee, E. Yang, S. J. Hwang: Federated Continual Learning with Weighted Inter-client Transfer. ICML 2021.
arXiv 2003.03196. Equations 1 and 2, Algorithm 1. Where text and code differ, ``upload`` and ``retroactive`` choose; A of
earlier tasks is fixed by default, as in the code, and the mask has no l1 term, whose weight in the code is 0.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.checks import check_choice, check_range
from fl_lightning.continual.apd import APD, AdaptiveStart
from fl_lightning.continual.decomposition import decompose, over_outputs, part_name, threshold
from fl_lightning.continual.learner import T
from fl_lightning.exchange import (
    Client,
    ClientState,
    Gathered,
    Reduction,
    SparseTensor,
    Upload,
    Weighted,
)
from fl_lightning.functional.aggregation import State
from fl_lightning.functional.stateless import call_holding
from fl_lightning.module import FederatedModule, Net, Update
from fl_lightning.random_streams import numpy_stream

UploadProfile = Literal["recommended", "code", "paper"]
Knowledge = Literal["last", "all"]
KnowledgeBase = dict[int, dict[int, dict[str, SparseTensor]]]  # client -> position of its task -> layer -> A


class FedWeIT(APD):
    """``theta_t = B * sigmoid(m_t) + A_t + sum_i alpha_i A_i``, A_i of other clients' tasks from the server's knowledge base.

    Clients send B, at those outputs where the mask is largest, after every round, and A_t, without what is not above ``l1``,
    when a task ends. The server averages what it got of each entry of B; a client takes over what is not 0. Only what is not 0
    is sent, and counted as bytes: values without their indices.

    Args:
        l1, l2, decay, retroactive, adaptive_start: of :class:`APD`.
        density: share of each layer's outputs whose B is sent, above 0 and at most 1.
        upload: what is sent of B: ``recommended``, as above, averaged over those who sent an entry; ``code``, averaged
            likewise, the outputs whose mask m, before the sigmoid, fulfils ``|m| > sorted(|m|)[floor(density * outputs)]`` of
            its layer, about 1 - ``density`` of them and none of a layer with equal masks; ``paper``, ``B * sigmoid(m)`` at
            the chosen outputs, divided by the number of all who sent.
        knowledge: which tasks of other clients a client gets when a task begins: the ``last`` of each, or ``all``, of which as
            many are drawn as ``num_foreign`` says.
        num_foreign: tasks at most; by default as many as other clients can be in a cohort. 0 for none.
        share_base: whether B goes through the server at all.
        mask: whether B is masked; if not, all of it is sent.
        adaptive: whether there is A at all.
        penalize_mask: whether ``l1 * |sigmoid(m_t)|`` is part of the loss, as equation 2 has it.

    Raises:
        ValueError: if a value is out of range, or the server has an optimizer of another kind or a schedule.
    """

    learns_alone = False
    needs = replace(APD.needs, nonzeros_alone=True)

    served: Tensor
    """(N,): the task for which each client got, when it first received in it, what others know; -1 for none."""

    def __init__(
        self,
        net: Net,
        l1: float = 1e-3,
        l2: float = 100.0,
        decay: float = 1e-4,
        retroactive: bool = False,
        adaptive_start: AdaptiveStart = "initial",
        density: float = 0.3,
        upload: UploadProfile = "recommended",
        knowledge: Knowledge = "last",
        num_foreign: int | None = None,
        share_base: bool = True,
        mask: bool = True,
        adaptive: bool = True,
        penalize_mask: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(net, l1, l2, decay, retroactive, adaptive_start, **common)
        check_range("model.density", density, above=0, at_most=1, hint="the paper uses 0.3")
        check_choice("model.upload", upload, UploadProfile)
        if upload == "code" and density == 1:
            raise ValueError(
                f"model.density is {density}, with which model.upload code sends no output: lower it, the code uses 0.3"
            )
        check_choice("model.knowledge", knowledge, Knowledge)
        if num_foreign is not None:
            check_range("model.num_foreign", num_foreign, at_least=0, hint="0 leaves other clients' tasks alone")
        self.density, self.upload, self.knowledge, self.num_foreign = density, upload, knowledge, num_foreign
        self.share_base, self.mask, self.adaptive, self.penalize_mask = share_base, mask, adaptive, penalize_mask
        self.knowledge_base: KnowledgeBase = {}
        self._knowledge_before = self.knowledge_base  # the present round

    @classmethod
    def obstacle_to(cls, federation: type[FederatedModule]) -> str | None:
        if (why := super().obstacle_to(federation)) is not None:
            return why
        if federation.aggregate is not FederatedAlgorithm.aggregate and not federation.leaves_mean:
            return (
                "works at the server with clients' whole weights, of which those of FedWeIT send a part: use one that declares "
                "leaves_mean, such as SCAFFOLD"
            )
        if federation.client_step is not FederatedAlgorithm.client_step:
            return (
                "overrides client_step, in which a net of FedWeIT lacks what it takes of other clients' tasks: use one that "
                "does not, such as FedProx"
            )
        if federation.client_gradients is not FederatedAlgorithm.client_gradients and not federation.adds_to_gradients:
            return (
                "overrides client_gradients, in which a net of FedWeIT lacks what it takes of other clients' tasks: use one "
                "that declares adds_to_gradients, such as SCAFFOLD"
            )
        return None

    def adapt_net(self) -> None:
        if self.num_foreign is None:
            self.num_foreign = min(self.data.participation.largest, self.data.num_clients - 1)
        if not self.adaptive:
            self.num_foreign = 0
        self.layers = decompose(
            self.net, mask=self.mask, adaptive=self.adaptive, num_earlier=self.num_earlier, num_foreign=self.num_foreign
        )

    def is_personal(self, name: str) -> bool:
        """All but B, where that is shared."""
        return super().is_personal(name) or not self.share_base or name not in self.names_of("base")

    def is_replaced(self, name: str) -> bool:
        """None: the server's B, of which there may be parts alone, is worked into the client's."""
        return False

    @property
    def num_earlier(self) -> int:
        return super().num_earlier if self.adaptive else 0

    def configure_model(self) -> None:
        super().configure_model()
        if not hasattr(self, "served"):
            self.register_buffer("served", torch.full((self.data.num_clients,), -1))
            bases = self.trained_bases(self.net).items()
            self.add_server_state("initial", {layer: base.detach().clone() for layer, base in bases})

    def check_data(self) -> None:
        super().check_data()
        weights = [*self.trained_weights(self.net).values()]
        server, plain = self.server_optimizer(weights), torch.optim.SGD(weights, lr=1.0)
        if self.lr_scheduler is not None:
            found = f"model.lr_scheduler is {type(self.lr_scheduler(server)).__name__}"
        elif type(server) is not type(plain) or server.defaults != plain.defaults:
            found = f"model.server_optimizer is {type(server).__name__} with other settings than the default's"
        else:
            return
        raise ValueError(f"{found}, but FedWeIT's server replaces B, in which 0 stands for what was not sent: leave it out")

    def shared_bases(self, net: nn.Module) -> dict[str, Tensor]:
        """B of the decomposed layers whose B goes through the server, by the layer's name."""
        bases = self.trained_bases(net).items()
        return {layer: base for layer, base in bases if not self.is_personal(part_name(layer, "base"))}

    def attention_tensors(self) -> dict[str, str]:
        return {layer: part_name(layer, "attention") for layer in self.layers}

    # Down -----------------------------------------------------------------------------------------------------------

    def broadcast(self, client: int) -> dict[str, Any]:
        """The server's B and, when a client first receives in a task, the values of what it gets of others."""
        bases = self.shared_bases(self.net).items()
        down = {**super().broadcast(client), "base": {layer: base.detach() for layer, base in bases}}
        if self._is_to_be_served(client):
            known = [self.knowledge_base[other][position] for other, position in self._choose(client)]
            down["knowledge"] = {str(i): {layer: part[layer].values for layer in self.layers} for i, part in enumerate(known)}
        return down

    def _is_to_be_served(self, client: int) -> bool:
        return self._served[client] != self.positions[client]

    def _choose(self, client: int) -> list[tuple[int, int]]:
        """Clients and positions of the tasks that a client gets if it is served now."""
        known = {other: sorted(tasks) for other, tasks in sorted(self.knowledge_base.items()) if other != client}
        chosen = [(other, position) for other, tasks in known.items() for position in tasks]
        if self.knowledge == "last":
            chosen = [(other, tasks[-1]) for other, tasks in known.items()]
        most = self.num_foreign or 0
        if len(chosen) <= most:
            return chosen
        rng = numpy_stream(self.seed, self.positions[client], client, "knowledge")
        return [chosen[index] for index in sorted(rng.choice(len(chosen), most, replace=False))]

    # A visit --------------------------------------------------------------------------------------------------------

    def begin_task(self, net: nn.Module, client: Client, position: int) -> None:
        if "position" not in client.state:  # its first visit: the server's B may lack what nobody sent
            bases = self.parts(net, "base")
            for layer, initial in self.server_state("initial").items():
                bases[layer].detach().copy_(initial)
        super().begin_task(net, client, position)
        self._take_knowledge(net, client, [])

    def begin_visit(self, net: nn.Module, client: Client) -> dict[str, Any]:
        carry, bases = super().begin_visit(net, client), self.parts(net, "base")
        for layer, received in client.broadcast.get("base", {}).items():
            base = bases[layer].detach()
            base.copy_(torch.where(received != 0, received, base))
        if client.broadcast and self._is_to_be_served(client.index):
            self._take_knowledge(net, client, self._choose(client.index))
        known = client.state["known"].tolist()
        carry["foreign"] = {layer: self._foreign(known, layer) for layer in self.parts(net, "attention") if known}
        shared = {part_name(layer, "base"): base for layer, base in self.shared_bases(net).items()}
        client.count_as_received(shared | self._composed(net, carry["foreign"]), net)
        return carry

    def _take_knowledge(self, net: nn.Module, client: Client, known: list[tuple[int, int]]) -> None:
        """Build on these clients' tasks, by their positions, each as much as the other."""
        client.state["known"] = torch.tensor(known, dtype=torch.int64, device=client.label_counts.device).reshape(-1, 2)
        for attention in self.parts(net, "attention").values() if known else ():
            attention.detach().fill_(1 / len(known))

    def _foreign(self, known: list[list[int]], layer: str) -> State:
        """A of some tasks in one list: positions in the flattened weight, values, and which of the tasks each is of."""
        parts = [self.knowledge_base[client][position] for client, position in known]
        positions = [part[layer].positions for part in parts]
        owners = [torch.full((len(some),), index, device=some.device) for index, some in enumerate(positions)]
        values = torch.cat([part[layer].values for part in parts])
        return {"positions": torch.cat(positions), "values": values, "owners": torch.cat(owners)}

    def _composed(self, net: nn.Module, foreign: dict[str, State]) -> State:
        """``A_t + sum_i alpha_i A_i`` of the layers with other clients' tasks, by the name of A_t."""
        adaptives, attention = self.parts(net, "adaptive"), self.parts(net, "attention")
        return {
            part_name(layer, "adaptive"): _add_foreign(adaptives[layer], attention[layer], tasks)
            for layer, tasks in foreign.items()
        }

    def as_used(self, net: nn.Module, client: Client, hook: Callable[[], T]) -> T:
        """With what is taken of other clients' tasks in A, which a hook that asks for the loss does not add again."""
        carry = client.carry
        if not carry["foreign"]:
            return hook()
        client.carry_along({**carry, "foreign": {}})
        try:
            return call_holding(net, self._composed(net, carry["foreign"]), hook)
        finally:
            client.carry_along(carry)

    def client_penalty(self, net: nn.Module, client: Client) -> Tensor | float:
        masks = self.parts(net, "mask").values() if self.penalize_mask else ()
        return super().client_penalty(net, client) + self.l1 * sum(mask.sigmoid().sum() for mask in masks)

    def end_task(self, net: nn.Module, client: Client, position: int) -> None:
        super().end_task(net, client, position)
        client.tasks[position] = replace(client.tasks[position], known=client.state["known"])

    def task_weights(self, net: nn.Module, client: Client, position: int) -> State:
        weights = super().task_weights(net, client, position)
        is_present = position == self.positions[client.index]
        of_task = client.state["known"] if is_present else client.tasks[position].known
        known = [] if of_task is None else of_task.tolist()
        for layer in self.parts(net, "attention") if known else ():
            adaptive, attention = (part_name(layer, part) for part in ("adaptive", "attention"))
            weights[adaptive] = _add_foreign(weights[adaptive], weights[attention], self._foreign(known, layer))
        return weights

    def _tasks_at_server(self, client: Client) -> dict[int, dict[str, SparseTensor]]:
        """What the knowledge base has of a client, by position, unless the client goes on changing it."""
        return {} if self.retroactive else self.knowledge_base.get(client.index, {})

    def learned_adaptive(self, client: Client, layer: str, position: int, like: Tensor) -> Tensor:
        at_server = self._tasks_at_server(client)
        if position in at_server:
            return at_server[position][layer].dense(like.shape)
        return super().learned_adaptive(client, layer, position, like)

    def kept_state(self, client: Client, state: ClientState) -> ClientState:
        """Without the client's A that the knowledge base has: one copy does for both."""
        state, at_server = super().kept_state(client, state), self._tasks_at_server(client)
        tasks = {
            position: replace(task, sparse={}) if position in at_server else task for position, task in state.tasks.items()
        }
        return replace(state, tasks=tasks)

    def num_values(self, net: nn.Module, client: Client) -> int:
        elsewhere = [
            len(parts[layer].values)
            for position, parts in self._tasks_at_server(client).items()
            for layer in self.layers
            if layer not in client.tasks[position].sparse
        ]
        return super().num_values(net, client) + sum(elsewhere)

    # Up -------------------------------------------------------------------------------------------------------------

    def client_result(self, net: nn.Module, client: Client) -> Upload:
        upload = super().client_result(net, client)
        whole, weight = upload["weights"].tensors, self.update_weight(client)
        # Of parts of the weights the server tells nothing.
        upload = {name: sent._replace(derived=False) if isinstance(sent, Weighted) else sent for name, sent in upload.items()}
        upload["weights"] = Weighted({}, weight)
        if self.share_base:
            masks = self.parts(net, "mask")
            bases = {layer: whole[part_name(layer, "base")] for layer in self.shared_bases(net)}
            sent = {layer: self._sent_outputs(masks.get(layer), base) for layer, base in bases.items()}
            values = {layer: self._sent_values(base, masks.get(layer), sent[layer]) for layer, base in bases.items()}
            upload["base"] = Weighted(values, weight)
            upload["contributors"] = Weighted(sent, weight, derived=True)
        if self.num_foreign and self.positions[client.index] in client.tasks:
            adaptive = self.parts(net, "adaptive").items()
            upload["adaptive"] = Gathered({layer: threshold(tensor.detach(), self.l1) for layer, tensor in adaptive})
        return upload

    def _sent_outputs(self, mask: Tensor | None, base: Tensor) -> Tensor:
        """1 for the outputs of a layer whose B is sent, (outputs,), else 0."""
        sent = torch.ones_like(base[(slice(None), *[0] * (base.ndim - 1))].detach())
        if mask is None:
            return sent
        if self.upload == "code":
            return _larger_than_share(mask.detach(), self.density).to(sent)
        chosen = mask.detach().topk(max(round(self.density * len(mask)), 1)).indices
        return torch.zeros_like(sent).index_fill(0, chosen, 1.0)

    def _sent_values(self, base: Tensor, mask: Tensor | None, sent: Tensor) -> Tensor:
        if self.upload == "paper" and mask is not None:
            sent = sent * mask.detach().sigmoid()
        return base.detach() * over_outputs(sent, base)

    def aggregate(self, reduced: Reduction) -> Update:
        self._knowledge_before = self.knowledge_base
        self.knowledge_base = {client: dict(tasks) for client, tasks in self.knowledge_base.items()}
        for client, adaptive in reduced.gathered("adaptive").items():
            sparse = {layer: SparseTensor.of(tensor) for layer, tensor in adaptive.items()}
            self.knowledge_base.setdefault(client, {})[self.positions[client]] = sparse
        update = super().aggregate(reduced)
        if not self.share_base:
            return update
        mean, contributors = reduced.mean("base"), reduced.mean("contributors")
        for layer, base in self.shared_bases(self.net).items():
            share = torch.ones_like(contributors[layer]) if self.upload == "paper" else contributors[layer]
            merged = mean[layer] / over_outputs(share.masked_fill(share == 0, 1.0), base)
            gradient = torch.empty_like(base).copy_(base.detach().double() - merged)
            update.pseudo_gradient[part_name(layer, "base")] = gradient
        return update

    def after_server_step(self, probes: list[State]) -> None:
        received = {visit.client for visit in self.present_cohort if visit.receives}
        for client in (int(probe["client"]) for probe in probes):
            if client in received:
                self.served[client] = self.positions[client]
        super().after_server_step(probes)

    def after_undo(self) -> None:
        super().after_undo()
        self.knowledge_base = self._knowledge_before

    def read_clocks(self) -> None:
        super().read_clocks()
        self._served = self.served.tolist()

    def on_fit_start(self) -> None:
        super().on_fit_start()  # what a checkpoint held lies on the CPU
        self.knowledge_base = tree_map(lambda part: part.to(self.device), self.knowledge_base)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["federated"]["knowledge_base"] = _over_parts(self.knowledge_base, vars)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        stored = checkpoint["federated"]["knowledge_base"]
        self.knowledge_base = _over_parts(stored, lambda parts: SparseTensor(**parts))


def _over_parts(knowledge: Any, function: Callable[[Any], Any]) -> Any:
    """What a function gives of every sparse A of a knowledge base, at the same indices."""
    return {
        client: {position: {layer: function(part) for layer, part in parts.items()} for position, parts in tasks.items()}
        for client, tasks in knowledge.items()
    }


def _larger_than_share(mask: Tensor, share: float) -> Tensor:
    """``|m| > sorted(|m|)[floor(share * n)]``, (n,) bools, the sizes in ascending order: equal ones are left out together."""
    sizes = mask.abs()
    return sizes > sizes.sort().values[math.floor(share * len(sizes))]


def _add_foreign(adaptive: Tensor, attention: Tensor, foreign: State) -> Tensor:
    """``A + sum_i attention_i A_i`` with what :meth:`FedWeIT._foreign` made."""
    weighted = foreign["values"] * attention[foreign["owners"]]
    return adaptive.reshape(-1).index_add(0, foreign["positions"], weighted).reshape(adaptive.shape)
