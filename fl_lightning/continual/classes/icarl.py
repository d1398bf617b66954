"""ICaRL: distillation, herded memories at the clients, and at the server a classifier by the nearest mean of a class.

S.-A. Rebuffi, A. Kolesnikov, G. Sperl, C. H. Lampert: iCaRL: Incremental Classifier and Representation Learning. CVPR 2017.
arXiv 1611.07725. Departures: softmax and distillation in the place of binary cross entropies, as in PyCIL's and TARGET's code;
each client has its memory; the means are those under the model that clients receive in a task's last round.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl_lightning.continual.classes.lwf import FedLwF
from fl_lightning.continual.classes.replay import Replay
from fl_lightning.exchange import Client, Reduction, Update, Upload, Weighted, predict_in_batches
from fl_lightning.exchange.cohort import Inputs
from fl_lightning.module import Net


class ICaRL(FedLwF, Replay):
    """Replay by herding, with distillation on all samples of a step.

    The global net is judged as any other. In addition, in a task's last round each client sends for every class in its memory
    the sum of features, scaled to length 1, and their number; :meth:`nearest_mean_logits` are by the means of these.

    Args:
        memory: samples that each client remembers, at least 0.
        distillation: weight of the distillation, at least 0.

    Raises:
        ValueError: if a value is out of range, or the net has no features.
    """

    def __init__(self, net: Net, memory: int = 100, distillation: float = 1.0, **common: Any) -> None:
        super().__init__(net, distillation=distillation, memory=memory, selection="herding", **common)

    @property
    def released_without_noise(self) -> tuple[str, ...]:
        return (*super().released_without_noise, "the class means")

    def configure_model(self) -> None:
        super().configure_model()
        if "class_means" not in self.server_states:
            head: Any = self.net.get_submodule("classifier")
            self.add_server_state("class_means", {"mean": torch.zeros_like(head.weight, requires_grad=False)})

    def client_result(self, net: nn.Module, client: Client) -> Upload:
        upload = super().client_result(net, client)
        if self.is_last_round and "memory" in client.state:
            upload["class_sums"] = Weighted(self._class_sums(client), 1.0)
        return upload

    def _class_sums(self, client: Client) -> dict[str, Tensor]:
        """Of a client's memory, (C, d) sums and (C,) counts."""
        indices = client.state["memory"]
        features = F.normalize(self.features(client, indices), dim=1)
        label = self.data.samples.targets("train", indices)
        sums = features.new_zeros(len(self.data.classes), features.shape[1]).index_add_(0, label, features)
        return {"sum": sums, "count": label.bincount(minlength=len(sums)).to(sums)}

    def aggregate(self, reduced: Reduction) -> Update:
        if "class_sums" in reduced.layouts:
            sent, mean = reduced.mean("class_sums"), self.server_state("class_means")["mean"]
            is_held = sent["count"] > 0
            mean[is_held] = F.normalize(sent["sum"][is_held] / sent["count"][is_held, None], dim=1).to(mean)
        return super().aggregate(reduced)

    def nearest_mean_logits(self, inputs: Inputs) -> Tensor:
        """(n, C), less the distance of a sample's features, scaled to length 1, to each class mean; minus infinity without."""
        features = predict_in_batches(self.net.get_submodule("features"), self.data.eval_batch_size, inputs)
        mean = self.server_state("class_means")["mean"]
        return (-torch.cdist(F.normalize(features, dim=1), mean)).masked_fill((mean == 0).all(dim=1), float("-inf"))
