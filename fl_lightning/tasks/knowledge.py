"""WeightedTransfer: the learner of FedWeIT's clients, a decomposition with parts of other clients' tasks.

J. Yoon, W. Jeong, G. Lee, E. Yang, S. J. Hwang: Federated Continual Learning with Weighted Inter-client Transfer. ICML 2021.
arXiv 2003.03196. Equations 1 and 2.
"""

from dataclasses import replace
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn

from fl_lightning.checks import check_choice, check_whole
from fl_lightning.functional.random_streams import numpy_stream
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import Client, ClientState, SparseTensor, State
from fl_lightning.tasks.apd import APD, AdaptiveStart
from fl_lightning.tasks.decomposition import part_name
from fl_lightning.tasks.learner import TaskArguments

Knowledge = Literal["last", "all"]
KnowledgeBase = dict[int, dict[int, dict[str, SparseTensor]]]  # client -> position of its task -> layer -> A


class WeightedTransfer(APD):
    """``theta_t = B * sigmoid(m_t) + A_t + sum_i alpha_i A_i``, A_i of other clients' tasks; a part of FedWeIT.

    Args:
        l1, l2, decay, retroactive, adaptive_start: of :class:`APD`.
        knowledge: which tasks of other clients a client gets when a task begins: the ``last`` of each, or ``all``, from which
            ``num_foreign`` are drawn.
        num_foreign: maximum number of tasks, 0 for none; by default the largest size of a cohort, but at most the number of
            other clients.
        mask: whether B is masked; if not, all of it is sent.
        adaptive: whether there is A at all.
        penalize_mask: whether ``l1 * |sigmoid(m_t)|`` is part of the loss, as in equation 2.
        pace: arguments of :class:`TaskLearner`.

    Raises:
        ValueError: if a value is out of range.
    """

    served: Tensor
    """(N,): the task at which each client last got other clients' tasks, at its first receipt in it; -1 for none."""

    shares_weights = False  # B can stay with the client: tasks are shared

    def __init__(
        self,
        l1: float = 1e-3,
        l2: float = 100.0,
        decay: float = 1e-4,
        retroactive: bool = False,
        adaptive_start: AdaptiveStart = "initial",
        knowledge: Knowledge = "last",
        num_foreign: int | None = None,
        mask: bool = True,
        adaptive: bool = True,
        penalize_mask: bool = False,
        **pace: Unpack[TaskArguments],
    ) -> None:
        super().__init__(l1, l2, decay, retroactive, adaptive_start, **pace)
        check_choice("model.tasks.knowledge", knowledge, Knowledge)
        if num_foreign is not None:
            check_whole("model.tasks.num_foreign", num_foreign, at_least=0, hint="0 uses no tasks of other clients")
        self.knowledge, self.num_foreign = knowledge, num_foreign
        self.mask, self.adaptive, self.penalize_mask = mask, adaptive, penalize_mask
        self.knowledge_base: KnowledgeBase = {}

    def obstacle_to(self, method: FederatedModule) -> str | None:
        return None if method.needs.nonzeros_alone else "gathers no knowledge at the server: use FedWeIT, or APD in its place"

    def attention_tensors(self) -> dict[str, str]:
        return {layer: part_name(layer, "attention") for layer in self.layers}

    def pieces(self) -> dict[str, Any]:
        if self.num_foreign is None:
            self.num_foreign = min(self.data.participation.largest, self.data.num_clients - 1)
        if not self.adaptive:
            self.num_foreign = 0
        own = {"mask": self.mask, "adaptive": self.adaptive, "num_foreign": self.num_foreign}
        return {**super().pieces(), **own}

    @property
    def num_earlier(self) -> int:
        return super().num_earlier if self.adaptive else 0

    def begin_run(self) -> None:
        super().begin_run()
        self.register_buffer("served", torch.full((self.data.num_clients,), -1))

    def follow_buffers(self) -> None:
        super().follow_buffers()
        self._served = self.served.tolist()

    # Who builds on what ---------------------------------------------------------------------------------------------

    def is_to_be_served(self, client: int) -> bool:
        """Whether a receiving client gets other clients' tasks now, because it has not received any in its task."""
        return self._served[client] != self.clocks.positions[client]

    def choose(self, client: int) -> list[tuple[int, int]]:
        """Clients and positions of the tasks that a client gets if it is served now."""
        known = {other: sorted(tasks) for other, tasks in sorted(self.knowledge_base.items()) if other != client}
        chosen = [(other, position) for other, tasks in known.items() for position in tasks]
        if self.knowledge == "last":
            chosen = [(other, tasks[-1]) for other, tasks in known.items()]
        most = self.num_foreign or 0
        if len(chosen) <= most:
            return chosen
        rng = numpy_stream(self.method.seed, self.clocks.positions[client], client, "knowledge")
        return [chosen[index] for index in sorted(rng.choice(len(chosen), most, replace=False))]

    def _take_knowledge(self, net: nn.Module, client: Client, known: list[tuple[int, int]]) -> None:
        """Build on these clients' tasks, by their positions, each as much as the other."""
        pairs = torch.tensor(known, dtype=torch.int64, device=client.label_counts.device).reshape(-1, 2)
        self.state_of(client)["known"] = pairs
        for attention in self.parts(net, "attention").values() if known else ():
            attention.detach().fill_(1 / len(known))

    # A visit --------------------------------------------------------------------------------------------------------

    def begin_task(self, net: nn.Module, client: Client, position: int) -> None:
        if "position" not in self.state_of(client):  # its first visit: the server's B can lack entries that no client sent
            bases = self.parts(net, "base")
            for layer, initial in self.method.server_states.tensors("initial").items():
                bases[layer].detach().copy_(initial)
        super().begin_task(net, client, position)
        self._take_knowledge(net, client, [])

    def begin_visit(self, net: nn.Module, client: Client) -> dict[str, Any]:
        carry, bases = super().begin_visit(net, client), self.parts(net, "base")
        for layer, received in client.broadcast.get("base", {}).items():
            base = bases[layer].detach()
            base.copy_(torch.where(received != 0, received, base))
            # The mixture counts as received, for hooks that compare the net with it, such as a pull.
            client.received_state[part_name(layer, "base")] = base.clone()
        if client.broadcast and self.is_to_be_served(client.index):
            self._take_knowledge(net, client, self.choose(client.index))
        known = self.state_of(client)["known"].tolist()
        return {**carry, "foreign": {layer: self._foreign(known, layer) for layer in self.parts(net, "attention") if known}}

    def _foreign(self, known: list[list[int]], layer: str) -> State:
        """A of some tasks in one list: positions in the flattened weight, values, and the task of each."""
        parts = [self.knowledge_base[client][position] for client, position in known]
        positions = [part[layer].positions for part in parts]
        owners = [torch.full((len(some),), index, device=some.device) for index, some in enumerate(positions)]
        values = torch.cat([part[layer].values for part in parts])
        return {"positions": torch.cat(positions), "values": values, "owners": torch.cat(owners)}

    def composed(self, net: nn.Module, foreign: dict[str, State]) -> State:
        """``A_t + sum_i alpha_i A_i`` of the layers with other clients' tasks, by the name of A_t."""
        adaptives, attention = self.parts(net, "adaptive"), self.parts(net, "attention")
        return {
            part_name(layer, "adaptive"): _add_foreign(adaptives[layer], attention[layer], tasks)
            for layer, tasks in foreign.items()
        }

    def client_penalty(self, net: nn.Module, client: Client) -> Tensor | float:
        masks = self.parts(net, "mask").values() if self.penalize_mask else ()
        return super().client_penalty(net, client) + self.l1 * sum(mask.sigmoid().sum() for mask in masks)

    def end_task(self, net: nn.Module, client: Client, position: int) -> None:
        super().end_task(net, client, position)
        client.tasks[position] = replace(client.tasks[position], known=self.state_of(client)["known"])

    def task_weights(self, net: nn.Module, client: Client, position: int) -> State:
        weights = super().task_weights(net, client, position)
        is_present = position == self.clocks.positions[client.index]
        of_task = self.state_of(client)["known"] if is_present else client.tasks[position].known
        known = [] if of_task is None else of_task.tolist()
        for layer in self.parts(net, "attention") if known else ():
            adaptive, attention = (part_name(layer, part) for part in ("adaptive", "attention"))
            weights[adaptive] = _add_foreign(weights[adaptive], weights[attention], self._foreign(known, layer))
        return weights

    # What the server keeps for a client -----------------------------------------------------------------------------

    def _tasks_at_server(self, client: Client) -> dict[int, dict[str, SparseTensor]]:
        """A client's tasks in the knowledge base, by position, unless the client continues to change them."""
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
            if position in client.tasks  # a rehearsal on several processes is without the clients' states
            for layer in self.layers
            if layer not in client.tasks[position].sparse
        ]
        return super().num_values(net, client) + sum(elsewhere)

    def end_round(self, probes: list[State]) -> None:
        received = {visit.client for visit in self.method.present_cohort if visit.receives}
        for client in (int(probe["client"]) for probe in probes):
            if client in received:
                self.served[client] = self.clocks.positions[client]
        super().end_round(probes)


def _add_foreign(adaptive: Tensor, attention: Tensor, foreign: State) -> Tensor:
    """``A + sum_i attention_i A_i`` with the result of :meth:`WeightedTransfer._foreign`."""
    weighted = foreign["values"] * attention[foreign["owners"]]
    return adaptive.reshape(-1).index_add(0, foreign["positions"], weighted).reshape(adaptive.shape)
