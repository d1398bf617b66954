"""FeatureDrift: how far a local fit moves the features of each class."""

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn

from fl_lightning.callbacks.class_names import class_names, num_seen
from fl_lightning.callbacks.federated_callback import log_figure, log_tensors
from fl_lightning.callbacks.figures import client_class_change
from fl_lightning.callbacks.probe import HeadProbe, head_of
from fl_lightning.models.network import inputs_of
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import CohortModels


class FeatureDrift(HeadProbe):
    """The distance that the mean feature of a class moves in a local fit, over the norm of the global model's mean feature.

    Features are the inputs of the head. In the chosen rounds each class's mean over the probe's samples of that class is
    compared between the global model and each client's. ``drift/held`` and ``drift/absent`` are the means over pairs of a
    client and a class that it holds, or lacks. ``drift/classes`` is the picture, ``drift/class`` (K, C) its numbers with
    ``drift/cohort`` (K,) and ``drift/holds`` (K, C), 1 where the client holds the class. A class without samples in
    the probe is NaN.
    """

    def on_cohort_fit_end(self, trainer: Trainer, module: FederatedModule, round: int, models: CohortModels) -> None:
        inputs, targets = self.probe_samples(module)
        members = torch.nn.functional.one_hot(targets, len(module.data.classes))  # (S, C)

        def class_means(net: nn.Module) -> Tensor:
            features = inputs_of(head_of(net), net, inputs).flatten(1).double()
            return (members.T.to(features.dtype) @ features) / members.sum(dim=0)[:, None]

        before, after = models.evaluate_received(class_means), models.evaluate(class_means)  # (C, d), (K, C, d)
        drift = (after - before).norm(dim=-1) / before.norm(dim=-1)
        holds = module.data.label_counts[models.clients] > 0
        has_samples = members.sum(dim=0) > 0
        has_samples[num_seen(module) :] = False  # of classes that have not arrived
        scalars = {"held": holds & has_samples, "absent": ~holds & has_samples}
        module.log_round({f"drift/{name}": drift[mask].mean() for name, mask in scalars.items()}, round)
        log_tensors(trainer, {"drift/class": drift, "drift/cohort": torch.tensor(models.clients), "drift/holds": holds}, round)
        title = f"Distance that the mean feature of each class moves in round {round}, over its norm"
        figure = client_class_change(drift, holds, models.clients, class_names(module), title)
        log_figure(trainer, "drift/classes", figure, round)
