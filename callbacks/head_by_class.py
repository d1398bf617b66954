"""HeadByClass: what a local fit does to the classes that a client holds, and to those that it lacks, in the last layer."""

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn

from fl_lightning.callbacks.class_names import class_names, num_seen
from fl_lightning.callbacks.federated_callback import log_figure, log_tensors
from fl_lightning.callbacks.figures import client_class_change
from fl_lightning.callbacks.probe import HeadProbe, head_of
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import CohortModels

_KINDS = ("norm", "bias", "logit")


class HeadByClass(HeadProbe):
    """Norm and bias of the head's row of each class, and the class's mean logit over the probe's samples.

    In the chosen rounds the models of the cohort are compared with the global model that they started from. The scalars
    ``head/norm_held``, ``head/bias_held`` and ``head/logit_held`` are the mean change by the local fit over pairs of a client
    and a class that it holds; ``head/norm_absent`` and so on are over classes that it lacks, of those that have arrived.
    ``head/norm_spread`` is the largest norm of the global model's rows over the smallest. ``head/norms`` is the picture of the
    changes of norms by client and class, in units of the global model's norms.

    Its numbers are the tensors ``head/norm``, ``head/bias`` and ``head/logit`` (1 + K, C), the global model's first,
    ``head/cohort`` (K,) and ``head/holds`` (K, C), 1 where the client holds the class. It costs a pass over the
    probe's samples for each client.
    """

    def on_cohort_fit_end(self, trainer: Trainer, module: FederatedModule, round: int, models: CohortModels) -> None:
        inputs, _ = self.probe_samples(module)

        def measure(net: nn.Module) -> Tensor:
            head = head_of(net)
            bias = head.weight.new_zeros(len(head.weight)) if head.bias is None else head.bias
            return torch.stack([head.weight.norm(dim=1), bias, net(inputs).mean(dim=0)])

        before, after = models.evaluate_received(measure), models.evaluate(measure)  # (3, C), (K, 3, C)
        holds = module.data.label_counts[models.clients] > 0
        changes = after - before
        seen = slice(num_seen(module))  # the logits of the other classes are minus infinity
        scalars = {"head/norm_spread": before[0, seen].max() / before[0, seen].min()}
        for position, kind in enumerate(_KINDS):
            of_seen = changes[:, position, seen]
            scalars[f"head/{kind}_held"] = of_seen[holds[:, seen]].mean()
            scalars[f"head/{kind}_absent"] = of_seen[~holds[:, seen]].mean()
        module.log_round(scalars, round)
        together = torch.cat([before[None], after])
        tensors = {f"head/{kind}": together[:, position] for position, kind in enumerate(_KINDS)}
        log_tensors(trainer, {**tensors, "head/cohort": torch.tensor(models.clients), "head/holds": holds}, round)
        title = f"Change of the norm of each class's row in round {round}, over the global model's norm"
        figure = client_class_change(changes[:, 0] / before[0], holds, models.clients, class_names(module), title)
        log_figure(trainer, "head/norms", figure, round)
