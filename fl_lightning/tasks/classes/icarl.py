"""ICaRL: distillation, herded memories at the clients, and at the server a classifier by the nearest mean of a class.

S.-A. Rebuffi, A. Kolesnikov, G. Sperl, C. H. Lampert: iCaRL: Incremental Classifier and Representation Learning. CVPR 2017.
arXiv 1611.07725. Departures: softmax and distillation instead of binary cross entropies, as in PyCIL's and TARGET's code. Each
client has its own memory. The mean of a class is that of the clients' memories, under the model that they received, in the last
round with a client that remembers the class.
"""

from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl_lightning.models.network import classifier_of, features_of
from fl_lightning.protocol import Client, Inputs, Reduction, Upload, Weighted, evaluate_net
from fl_lightning.tasks.classes.learner import ClassArguments
from fl_lightning.tasks.classes.lwf import LwF
from fl_lightning.tasks.classes.replay import Replay


class ICaRL(LwF, Replay):
    """Replay by herding, with distillation on all samples of a step.

    The global net is evaluated as usual. In addition each client that remembers samples sends, for every class in its memory,
    the sum of features, scaled to length 1, and their number. The server keeps the newest mean of each class for
    :meth:`nearest_mean_logits`.

    Args:
        memory: samples that each client remembers, at least 0.
        distillation: weight of the distillation, at least 0.

    Raises:
        ValueError: if a value is out of range, or the net has no features.
    """

    unprotected = ("the class means",)

    def __init__(self, memory: int = 100, distillation: float = 1.0, **common: Unpack[ClassArguments]) -> None:
        # Two arguments of Replay, which is later in the line of classes than the one that pyright looks at.
        super().__init__(distillation=distillation, memory=memory, selection="herding", **common)  # pyright: ignore[reportCallIssue]

    def begin_run(self) -> None:
        super().begin_run()
        head: Any = classifier_of(self.method.net)
        self.method.server_states.add("class_means", {"mean": torch.zeros_like(head.weight, requires_grad=False)})

    def upload(self, net: nn.Module, client: Client) -> Upload:
        """Sums (C, d) and counts (C,) of the client's memory."""
        if "memory" not in self.state_of(client):
            return {}
        indices = self.state_of(client)["memory"]
        features = F.normalize(self.features(client, indices), dim=1)
        label = self.data.samples.targets("train", indices)
        sums = features.new_zeros(len(self.data.classes), features.shape[1]).index_add_(0, label, features)
        return {"class_sums": Weighted({"sum": sums, "count": label.bincount(minlength=len(sums)).to(sums)}, 1.0)}

    def receive(self, reduced: Reduction) -> None:
        if "class_sums" in reduced.names:
            sent, mean = reduced.mean("class_sums"), self.method.server_states.tensors("class_means")["mean"]
            is_held = sent["count"] > 0
            mean[is_held] = F.normalize(sent["sum"][is_held] / sent["count"][is_held, None], dim=1).to(mean)

    def nearest_mean_logits(self, inputs: Inputs) -> Tensor:
        """Minus the distance of a sample's features, scaled to length 1, to each class mean, (n, C).

        Minus infinity for classes without a mean, and for those not seen yet, even if some clients have met their samples.
        """
        parts = inputs.split(self.data.eval_batch_size)
        features = evaluate_net(self.method.net, lambda net: torch.cat([features_of(net, part) for part in parts]))
        mean = self.method.server_states.tensors("class_means")["mean"]
        left_out = (mean == 0).all(dim=1)
        left_out[self.arrived.num_seen :] = True
        return (-torch.cdist(F.normalize(features, dim=1), mean)).masked_fill(left_out, float("-inf"))
