"""FedWeIT: clients build on sparse parts of each other's tasks, weighted by attention.

J. Yoon, W. Jeong, G. Lee, E. Yang, S. J. Hwang: Federated Continual Learning with Weighted Inter-client Transfer. ICML 2021.
arXiv 2003.03196. Equations 1 and 2, Algorithm 1. Where text and code differ, ``upload`` and ``retroactive`` choose; A of
earlier tasks is fixed by default, as in the code, and the mask has no l1 term, which has weight 0 in the code. The l2 penalty
has the code's factor 1/2, which equation 2 lacks.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map

from fl_lightning.checks import check_choice, check_range
from fl_lightning.methods.fedprox import FedProx
from fl_lightning.module import Net, ServerWeighting
from fl_lightning.protocol import Batch, Client, Gathered, Learner, Needs, Reduction, SparseTensor, Update, Upload, Weighted
from fl_lightning.run.arguments import ArgumentsButWeightingAndTasks
from fl_lightning.tasks.decomposition import over_outputs, part_name, threshold
from fl_lightning.tasks.knowledge import KnowledgeBase, WeightedTransfer

UploadProfile = Literal["recommended", "code", "paper"]


class FedWeIT(FedProx):
    """``theta_t = B * sigmoid(m_t) + A_t + sum_i alpha_i A_i``, A_i of other clients' tasks from the server's knowledge base.

    After every round clients send B at the outputs with the largest mask; when a task ends they send the entries of A_t above
    ``l1``. The server averages the received values of each entry of B; a client takes over the entries that are not 0. Only
    values that are not 0 are sent and counted as bytes, without their indices.

    Args:
        density: share of each layer's outputs for which B is sent, above 0 and at most 1.
        upload: the part of B that is sent: ``recommended``, as above, averaged over the clients that sent an entry; ``code``,
            with the same average, the outputs with a mask m, before the sigmoid, that fulfils
            ``|m| > sorted(|m|)[floor(density * outputs)]`` of its layer, about 1 - ``density`` of them and none of a layer with
            equal masks; ``paper``, ``B * sigmoid(m)`` at the chosen outputs, divided by the number of all clients that sent.
        share_base: whether B goes through the server at all.
        mu: strength of the pull ``mu/2 * ||B - B_t||^2`` of :class:`FedProx`, at least 0; B_t is B at the start of a local fit.
            The paper's FedWeIT has none.
        tasks: the clients' learner, :class:`WeightedTransfer` with its options; by default those of its authors' code.

    Raises:
        ValueError: if a value is out of range, ``tasks`` is another learner, or the server has an optimizer of another kind or
            a schedule.
    """

    needs = WeightedTransfer.needs | Needs(nonzeros_alone=True, nothing_replaced=True)

    tasks: WeightedTransfer

    def __init__(
        self,
        net: Net,
        density: float = 0.3,
        upload: UploadProfile = "recommended",
        share_base: bool = True,
        mu: float = 0.0,
        tasks: Learner | None = None,
        server_weighting: ServerWeighting = "uniform",
        **common: Unpack[ArgumentsButWeightingAndTasks],
    ) -> None:
        tasks = WeightedTransfer() if tasks is None else tasks
        if not isinstance(tasks, WeightedTransfer):
            raise ValueError(
                f"model.tasks is {type(tasks).__name__}, but FedWeIT learns by WeightedTransfer: use that, or another method"
            )
        super().__init__(net, mu=mu, tasks=tasks, server_weighting=server_weighting, **common)
        check_range("model.density", density, above=0, at_most=1, hint="the paper uses 0.3")
        check_choice("model.upload", upload, UploadProfile)
        if upload == "code" and density == 1:
            raise ValueError(
                f"model.density is {density}, with which model.upload code sends no output: lower it, the code uses 0.3"
            )
        self.density, self.upload, self.share_base = density, upload, share_base
        self._knowledge_before: KnowledgeBase = {}  # the present round

    def is_personal(self, name: str) -> bool:
        """All but B, where that is shared."""
        return super().is_personal(name) or not self.share_base or name not in self.tasks.names_of("base")

    def configure_model(self) -> None:
        super().configure_model()
        if "initial" not in self.server_states:
            self._keep_initial_bases()

    def _keep_initial_bases(self) -> None:
        bases = self.tasks.trained_bases(self.net).items()
        self.server_states.add("initial", {layer: base.detach().clone() for layer, base in bases})

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
        """B of the decomposed layers, where it goes through the server, by the layer's name."""
        bases = self.tasks.trained_bases(net).items()
        return {layer: base for layer, base in bases if not self.is_personal(part_name(layer, "base"))}

    # Down -----------------------------------------------------------------------------------------------------------

    def broadcast(self, client: int) -> dict[str, Any]:
        """The server's B and, when a client first receives in a task, the values of other clients' tasks."""
        bases = self.shared_bases(self.net).items()
        down = {**super().broadcast(client), "base": {layer: base.detach() for layer, base in bases}}
        if self.tasks.is_to_be_served(client):
            known = [self.tasks.knowledge_base[other][position] for other, position in self.tasks.choose(client)]
            layers = self.tasks.layers
            down["knowledge"] = {str(i): {layer: part[layer].values for layer in layers} for i, part in enumerate(known)}
        return down

    def client_loss(self, net: nn.Module, batch: Batch, client: Client) -> Tensor:
        """A, including the parts of other clients' tasks."""
        composed = self.tasks.composed(net, client.carry["foreign"])
        held: Any = partial(_outputs, net, composed) if composed else net
        return super().client_loss(held, batch, client)

    # Up -------------------------------------------------------------------------------------------------------------

    def client_result(self, net: nn.Module, client: Client) -> Upload:
        upload = super().client_result(net, client)
        whole, weight = upload["weights"].tensors, self.update_weight(client)
        upload["weights"] = Weighted({}, weight)
        if self.share_base:
            masks = self.tasks.parts(net, "mask")
            bases = {layer: whole[part_name(layer, "base")] for layer in self.shared_bases(net)}
            sent = {layer: self._sent_outputs(masks.get(layer), base) for layer, base in bases.items()}
            values = {layer: self._sent_values(base, masks.get(layer), sent[layer]) for layer, base in bases.items()}
            upload["base"] = Weighted(values, weight)
            upload["contributors"] = Weighted(sent, weight, derived=True)
        if self.tasks.num_foreign and self.tasks.clocks.positions[client.index] in client.tasks:
            adaptive = self.tasks.parts(net, "adaptive").items()
            upload["adaptive"] = Gathered({layer: threshold(tensor.detach(), self.tasks.l1) for layer, tensor in adaptive})
        return upload

    def _sent_outputs(self, mask: Tensor | None, base: Tensor) -> Tensor:
        """1 for the outputs of a layer for which B is sent, (outputs,), else 0."""
        sent = base.new_ones(len(base))
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
        self._knowledge_before = self.tasks.knowledge_base
        self.tasks.knowledge_base = {client: dict(tasks) for client, tasks in self.tasks.knowledge_base.items()}
        for client, adaptive in reduced.gathered("adaptive").items():
            sparse = {layer: SparseTensor.of(tensor) for layer, tensor in adaptive.items()}
            self.tasks.knowledge_base.setdefault(client, {})[self.tasks.clocks.positions[client]] = sparse
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

    def after_undo(self) -> None:
        super().after_undo()
        self.tasks.knowledge_base = self._knowledge_before

    def on_fit_start(self) -> None:
        before = self.began_from
        super().on_fit_start()
        if self.began_from is not before:  # with initial_weights
            self._keep_initial_bases()
        # Tensors from a checkpoint are on the CPU.
        self.tasks.knowledge_base = tree_map(lambda part: part.to(self.device), self.tasks.knowledge_base)
        self._knowledge_before = self.tasks.knowledge_base

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["federated"]["knowledge_base"] = _over_parts(self.tasks.knowledge_base, vars)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        stored = checkpoint["federated"]["knowledge_base"]
        self.tasks.knowledge_base = _over_parts(stored, lambda parts: SparseTensor(**parts))


def _over_parts(knowledge: Any, function: Callable[[Any], Any]) -> Any:
    """The results of a function for every sparse A of a knowledge base, at the same indices."""
    return {
        client: {position: {layer: function(part) for layer, part in parts.items()} for position, parts in tasks.items()}
        for client, tasks in knowledge.items()
    }


def _larger_than_share(mask: Tensor, share: float) -> Tensor:
    """``|m| > sorted(|m|)[floor(share * n)]``, (n,) bools, the sizes in ascending order: equal ones are left out together."""
    sizes = mask.abs()
    return sizes > sizes.sort().values[math.floor(share * len(sizes))]


def _outputs(net: nn.Module, tensors: dict[str, Tensor], inputs: Tensor) -> Tensor:
    """Of a net with other tensors in it; if two layers share a weight, only the given name changes."""
    return functional_call(net, tensors, (inputs,), tie_weights=False)
