"""An ablation of FedDF (docs/results/flashback.md): ``--model mean_of_probabilities.MeanOfProbabilities``, from this folder."""

import torch
from torch import Tensor

from fl_lightning import FedDF


class MeanOfProbabilities(FedDF):
    """FedDF whose student learns the teachers' mean probabilities in place of the softmax of their mean logits."""

    def after_server_step(self, probes: list[dict[str, Tensor]]) -> None:
        finite = [probe["logits"].double() for probe in probes if probe["logits"].isfinite().all()]
        if finite:
            mean = torch.stack([logits.softmax(dim=-1) for logits in finite]).mean(dim=0)
            probes = [{"logits": mean.clamp_min(1e-30).log().to(probes[0]["logits"].dtype)}]  # the softmax is the mean again
        super().after_server_step(probes)
