"""FedRoD: a generic head for all clients, and a personal head of each client on top of it.

H.-Y. Chen, W.-L. Chao: On Bridging Generic and Personalized Federated Learning for Image Classification. ICLR 2022. arXiv
2107.00778. Personal heads are linear; heads that a shared network makes from class shares are not implemented. Departures: a
client starts with the initial head, whatever the round of its first visit. We did not verify the paper's settings.
"""

import copy
from typing import Any

from torch import Tensor, nn

from fl_lightning.functional import reweighted_softmax_cross_entropy
from fl_lightning.models.federated_net import global_tensors
from fl_lightning.models.network import PERSONAL_HEAD, classifier_of, expose_features, outputs_and_features
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import Batch, Client, ClientState, DataNeeds, Needs, State
from fl_lightning.run.refused_data import check_gives_outputs


class FedRoD(FederatedModule):
    """Body and generic head learn with a balanced softmax; a client's head learns what to add to their logits.

    A client predicts with ``z + phi(f(x))``, where ``z = psi(f(x))`` are the global model's logits. ``loss`` applies to the
    sum; neither the body nor the generic head gets a gradient of it.

    Round:
        clients: F_k of z weighted by the client's classes, over body and psi; F_k(z + phi) over the personal head phi
        server: mean of w^k
        a client keeps: P_head
        a client uses: the global model, and a personal head whose logits are added
        the server has: a global model

    Raises:
        ValueError: as the net is built, if its class layer is not found, not linear or frozen, or the net is a Sequential;
            before round 1, if it changes the outputs of its class layer.
    """

    needs = Needs(data=DataNeeds(classes=True))
    unprotected = ("the label counts in the loss",)

    @property
    def has_global_model(self) -> bool:
        """Whether only the personal head stays with clients."""
        return not any(self.is_personal(name) for name in global_tensors(self) if name not in self._generic)

    def adapt_net(self) -> None:
        super().adapt_net()
        name = expose_features(self.net, "but FedRoD gives clients a second one")
        classifier = classifier_of(self.net)
        if isinstance(self.net, nn.Sequential) or not isinstance(classifier, nn.Linear):
            raise ValueError(
                f"model.net is {type(self.net).__name__}, but FedRoD gives clients a second class layer: let {name} be a "
                "torch.nn.Linear, and the net no Sequential, which would call the second one too"
            )
        if not all(weight.requires_grad for weight in classifier.parameters()):
            raise ValueError(f"model.trained leaves {name} of model.net frozen, but FedRoD trains two of it: add {name}.*")
        self._generic = {f"{PERSONAL_HEAD}.{part}": f"{name}.{part}" for part, _ in classifier.named_parameters()}
        self.net.add_module(PERSONAL_HEAD, copy.deepcopy(classifier))

    def check_data(self) -> None:
        super().check_data()
        layer, user = classifier_of(self.net), "model is FedRoD, which adds up the outputs of two class layers of model.net"
        check_gives_outputs(layer, self.net, self.data.first_inputs(2), user, "use FedPer")

    def begin_with(self, stored: State) -> State:
        return {**stored, **{personal: stored[generic] for personal, generic in self._generic.items() if generic in stored}}

    def is_personal(self, name: str) -> bool:
        return super().is_personal(name) or name in self._generic

    def client_loss(self, net: Any, batch: Batch, client: Client) -> Tensor:
        logits, features = outputs_and_features(net, batch.inputs)
        generic = reweighted_softmax_cross_entropy(logits, batch.targets, client.train_label_counts, reduction="none")
        personal = getattr(net, PERSONAL_HEAD)
        return generic + self.loss(logits.detach() + personal(features.detach()), batch.targets, client.label_counts)

    def personal_model(self, shared: State, state: ClientState) -> State:
        model = {**shared, **state.weights}
        return {**model, **{generic: model[generic] + model[personal] for personal, generic in self._generic.items()}}
