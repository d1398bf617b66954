"""FedRoD: a generic head for all clients, and a personal one of each on top of it.

H.-Y. Chen, W.-L. Chao: On Bridging Generic and Personalized Federated Learning for Image Classification. ICLR 2022. arXiv
2107.00778. With linear personal heads; those that a shared network makes of class shares are not here. Departures: a client
that comes late begins with the initial head. The paper's settings were not verified.
"""

import copy
from typing import Any

from torch import Tensor, nn

from fl_lightning.exchange import Batch, Client, ClientState
from fl_lightning.functional import reweighted_softmax_cross_entropy
from fl_lightning.functional.aggregation import State
from fl_lightning.module import FederatedModule

_HEAD = "personal_head"


class FedRoD(FederatedModule):
    """Body and generic head learn by a balanced softmax, and a client's head what to add to their logits for its samples.

    A client predicts by ``z + phi(f(x))``, with ``z = psi(f(x))`` what the global model says. ``loss`` is the one of these
    logits; neither body nor generic head gets a gradient of it.

    Round:
        clients: F_k of z weighted by the client's classes, over body and psi; F_k(z + phi) over the personal head phi
        server: mean of w^k
        a client keeps: P_head
        a client uses: the global model, and a personal head whose logits are added
        the server has: a global model

    Raises:
        ValueError: as the net is built, if it has no ``features``, or its ``classifier`` is not a linear layer.
    """

    @property
    def has_global_model(self) -> bool:
        return True

    @property
    def released_without_noise(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*super().released_without_noise, "the label counts in the loss")))

    def adapt_net(self) -> None:
        super().adapt_net()
        classifier = getattr(self.net, "classifier", None)
        if not (hasattr(self.net, "features") and isinstance(classifier, nn.Linear)):
            raise ValueError(
                f"model.net is {type(self.net).__name__}, but FedRoD gives clients a second class layer: give it the parts "
                "features and classifier, a torch.nn.Linear"
            )
        name = next(name for name, layer in self.net.named_modules() if layer is classifier)
        inside = name.rpartition(".")[0]  # of a net with another around it, say
        self._generic, self._personal = name, f"{inside}.{_HEAD}".removeprefix(".")
        self.net.get_submodule(inside).add_module(_HEAD, copy.deepcopy(classifier))

    def is_personal(self, name: str) -> bool:
        return super().is_personal(name) or name.startswith(f"{self._personal}.")

    def client_loss(self, net: Any, batch: Batch, client: Client) -> Tensor:
        features = net.features(batch.inputs)
        logits = net.classifier(features)
        generic = reweighted_softmax_cross_entropy(logits, batch.targets, client.train_label_counts, reduction="none")
        personal = logits.detach() + net.get_submodule(self._personal)(features.detach())
        return generic + self.loss(personal, batch.targets, client.label_counts)

    def personal_model(self, shared: State, state: ClientState) -> State:
        model, head = {**shared, **state.weights}, self.net.get_submodule(self._personal)
        names = {f"{self._generic}.{part}": f"{self._personal}.{part}" for part, _ in head.named_parameters()}
        return {**model, **{generic: model[generic] + model[personal] for generic, personal in names.items()}}
