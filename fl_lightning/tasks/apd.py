"""APD: weights that consist of a masked part shared by all tasks and a sparse part for each task.

J. Yoon, S. Kim, E. Yang, S. J. Hwang: Scalable and Order-robust Continual Learning with Additive Parameter Decomposition.
ICLR 2020. arXiv 1902.09432. Equation 3. Departures: no hierarchical consolidation, which the FedWeIT paper does not mention;
masks of earlier tasks are fixed, where the authors' code trains them with A; the l2 term has the factor 1/2 of their code.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn

from fl_lightning.checks import check_choice, check_range
from fl_lightning.models.network import class_layer
from fl_lightning.protocol import Client, ClientState, SparseTensor, State
from fl_lightning.tasks.decomposition import decompose, over_outputs, part_name, threshold
from fl_lightning.tasks.learner import TaskArguments, TaskLearner

AdaptiveStart = Literal["base", "initial"]


class APD(TaskLearner):
    """``theta_t = B * sigmoid(m_t) + A_t`` for every linear and convolutional layer, biases and class layer for each task.

    Clients minimise at task t::

        loss + l1 * sum_{j<=t} |A_j| + l2/2 * sum_{j<t} ||theta_j - theta_j as task t begins||^2
             + decay/2 * (||A_t||^2 + ||m_t||^2)

    and in the first task ``decay/2 * ||B||^2`` too. As a task begins, ``theta_j`` has the B that the client received then; with
    :class:`WeightedTransfer` it has the client's own B, before it takes over received values.
    Evaluation, and the stored task, leave out the entries of A_t that are not above ``l1`` in size.

    Args:
        l1: lambda_1, at least 0.
        l2: lambda_2, at least 0.
        decay: weight decay of the trained parts, at least 0.
        retroactive: whether A_j of earlier tasks continue to be trained, as in the paper, or are fixed. If trained, a client
            stores each in full, which takes as much memory as a net; if fixed, only the values that are not 0.
        adaptive_start: start of A in a new task: ``base``, at B, as in APD's code; ``initial``, at a third of the initial
            weights, as in FedWeIT's code, from where l1 leaves fewer values in the same number of steps.
        pace: arguments of :class:`TaskLearner`.

    Raises:
        ValueError: if a value is out of range.
    """

    layers: list[str]
    """Names of the decomposed layers."""

    def __init__(
        self,
        l1: float = 6e-4,
        l2: float = 100.0,
        decay: float = 1e-4,
        retroactive: bool = True,
        adaptive_start: AdaptiveStart = "base",
        **pace: Unpack[TaskArguments],
    ) -> None:
        super().__init__(**pace)
        for name, value in (("l1", l1), ("l2", l2), ("decay", decay)):
            check_range(f"model.tasks.{name}", value, at_least=0, hint="0 leaves the term out")
        check_choice("model.tasks.adaptive_start", adaptive_start, AdaptiveStart)
        self.l1, self.l2, self.decay = l1, l2, decay
        self.retroactive, self.adaptive_start = retroactive, adaptive_start

    def adapt_net(self, net: nn.Module) -> None:
        super().adapt_net(net)
        self.layers = decompose(net, leave=class_layer(net, "which is not decomposed"), **self.pieces())

    def pieces(self) -> dict[str, Any]:
        """The parts of a decomposed weight, as arguments of :class:`Decomposition`."""
        return {"num_earlier": self.num_earlier}

    def is_per_task(self, name: str) -> bool:
        """All but B and A of earlier tasks, including parts that are not decomposed, such as norms with running statistics."""
        return super().is_per_task(name) or name not in self._names_of_all_tasks

    def is_drawn_anew(self, name: str) -> bool:
        return super().is_drawn_anew(name) or name in self.names_of("mask")

    def is_personal(self, name: str) -> bool:
        return super().is_personal(name) or name in self.names_of("earlier")

    @cached_property
    def _names_of_all_tasks(self) -> set[str]:
        return self.names_of("base") | self.names_of("earlier")

    def names_of(self, part: str) -> set[str]:
        """Names of the weights that are this part of a decomposed layer."""
        return {part_name(layer, part) for layer in self.layers}

    @property
    def num_earlier(self) -> int:
        """Earlier tasks with A that continue to be trained."""
        return self.data.streams.num_tasks - 1 if self.retroactive else 0

    def parts(self, net: nn.Module, part: str) -> dict[str, Tensor]:
        """``base``, ``mask``, ``adaptive``, ... of every decomposed layer, by the layer's name; empty where there is none."""
        weights = dict(net.named_parameters())
        names = {layer: part_name(layer, part) for layer in self.layers}
        return {layer: weights[name] for layer, name in names.items() if name in weights}

    def trained_bases(self, net: nn.Module) -> dict[str, Tensor]:
        """B of the decomposed layers, where it is trained, by the layer's name."""
        bases = self.parts(net, "base").items()
        return {layer: base for layer, base in bases if part_name(layer, "base") not in self.method.constant_names}

    # Tasks ----------------------------------------------------------------------------------------------------------

    def begin_task(self, net: nn.Module, client: Client, position: int) -> None:
        super().begin_task(net, client, position)
        if self.adaptive_start == "base":
            base = self.parts(net, "base")
            for layer, adaptive in self.parts(net, "adaptive").items():
                adaptive.detach().copy_(base[layer].detach())
        if position > 0:
            bases = self.trained_bases(net).items()
            self.state_of(client)["base"] = {layer: base.detach().clone() for layer, base in bases}
            earlier = self.parts(net, "earlier").items()
            self.state_of(client)["earlier"] = {layer: tensor.detach()[:position].clone() for layer, tensor in earlier}

    def end_task(self, net: nn.Module, client: Client, position: int) -> None:
        super().end_task(net, client, position)
        earlier, task = self.parts(net, "earlier"), client.tasks[position]
        for layer, adaptive in self.parts(net, "adaptive").items():
            del task.tensors[part_name(layer, "adaptive")]
            if layer in earlier and position < len(earlier[layer]):
                earlier[layer].detach()[position] = adaptive.detach()
            else:
                task.sparse[layer] = SparseTensor.of(threshold(adaptive.detach(), self.l1))

    def task_weights(self, net: nn.Module, client: Client, position: int) -> State:
        weights = super().task_weights(net, client, position)
        earlier = self.parts(net, "earlier")
        for layer, adaptive in self.parts(net, "adaptive").items():
            name = part_name(layer, "adaptive")
            if position == self.clocks.positions[client.index]:
                weights[name] = threshold(adaptive.detach(), self.l1)
            elif layer in earlier:
                weights[name] = threshold(earlier[layer].detach()[position], self.l1)
            else:
                weights[name] = self.learned_adaptive(client, layer, position, adaptive)
        return weights

    def learned_adaptive(self, client: Client, layer: str, position: int, like: Tensor) -> Tensor:
        """A of a task that a client has learned, in the shape of ``like``."""
        return client.tasks[position].sparse[layer].dense(like.shape)

    def kept_state(self, client: Client, state: ClientState) -> ClientState:
        """The state at the end of a task, without tensors for training only: A in full, and the weights at its start."""
        state = super().kept_state(client, state)
        if self.clocks.positions[client.index] not in client.tasks:
            return state
        full = self.names_of("adaptive")
        ours = {name: part for name, part in state.method["tasks"].items() if name not in ("base", "earlier")}
        return replace(
            state,
            method={**state.method, "tasks": ours},
            weights={name: tensor for name, tensor in state.weights.items() if name not in full},
        )

    def num_values(self, net: nn.Module, client: Client) -> int:
        earlier = self.parts(net, "earlier").values()
        values = super().num_values(net, client) - sum(tensor.numel() for tensor in earlier)
        return values + sum(int(threshold(tensor.detach(), self.l1).count_nonzero()) for tensor in earlier)

    # Local steps ----------------------------------------------------------------------------------------------------

    def begin_visit(self, net: nn.Module, client: Client) -> dict[str, Any]:
        carry = super().begin_visit(net, client)
        if self.clocks.positions[client.index] > 0:
            bases = self.parts(net, "base").items()
            carry["masks"] = {layer: self._earlier_masks(client, layer, base) for layer, base in bases}
            carry |= {name: self.state_of(client)[name] for name in ("base", "earlier")}
        return carry

    def _earlier_masks(self, client: Client, layer: str, base: Tensor) -> Tensor:
        """``sigmoid(m_j)`` of the tasks before the present one, (t, outputs); 0 for those that were never learned."""
        masks = base.new_zeros(self.clocks.positions[client.index], len(base))
        for position in range(len(masks)):
            if position in client.tasks:
                kept = client.tasks[position].tensors.get(part_name(layer, "mask"))
                masks[position] = 1.0 if kept is None else kept.sigmoid()
        return masks

    def client_penalty(self, net: nn.Module, client: Client) -> Tensor | float:
        bases, adaptives = self.parts(net, "base"), self.parts(net, "adaptive")
        masks = client.carry.get("masks", {})  # none in the first task
        # Those of future tasks are 0 and stay 0: they are left out, on average half of them.
        earlier = {layer: tensor[: len(masks[layer])] for layer, tensor in self.parts(net, "earlier").items() if masks}
        terms = [self.l1 * adaptive.abs().sum() for adaptive in (*adaptives.values(), *earlier.values())]
        learned = [*adaptives.values(), *self.parts(net, "mask").values()]
        if masks:
            terms += [self.l2 / 2 * self._drift(client.carry, layer, base, earlier) for layer, base in bases.items()]
        else:
            learned += bases.values()
        return sum(terms) + self.decay / 2 * sum(weight.square().sum() for weight in learned)

    def _drift(self, carry: dict[str, State], layer: str, base: Tensor, earlier: dict[str, Tensor]) -> Tensor:
        """``sum_{j<t} ||theta_j - theta_j as the task begins||^2`` of a layer."""
        # A base that is not trained has not moved.
        change, masks = base - carry["base"].get(layer, base), carry["masks"][layer]
        if layer not in earlier:  # the masks' squares add up, however many tasks there are
            return (over_outputs(masks.square().sum(dim=0), change) * change.square()).sum()
        masks = masks.reshape(*masks.shape, *[1] * (change.ndim - 1))
        return (torch.addcmul(earlier[layer], masks, change) - carry["earlier"][layer]).square().sum()
