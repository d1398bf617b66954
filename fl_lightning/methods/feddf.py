"""FedDF: the server distils the ensemble of its clients' models into the mean of their weights.

T. Lin, L. Kong, S. U. Stich, M. Jaggi: Ensemble Distillation for Robust Model Fusion in Federated Learning. NeurIPS 2020.
arXiv 2006.07242. Algorithm 1 for clients of one architecture. Departure: the paper stops early with a validation set; here the
distillation loss on a held-out tenth of the public samples decides.
"""

import copy
from collections.abc import Iterator
from typing import Unpack

import torch
from torch import Tensor, nn

from fl_lightning.checks import check_range
from fl_lightning.functional import ensemble_distillation
from fl_lightning.module import CommonArguments, FederatedModule, Net
from fl_lightning.protocol import Batch, Client, DataNeeds, Needs, predict_in_batches
from fl_lightning.run.refused_data import check_public_batches


class FedDF(FederatedModule):
    """After the mean, Adam steps on ``KL(softmax(mean_k z_k / T) || softmax(z / T))`` over public samples without labels.

    Needs ``data.public_size``.

    Round:
        clients: F_k(w)
        server: mean, then distillation from all models on public samples

    Args:
        distillation_steps: maximum number of steps; the rate falls along a cosine over them.
        distillation_rate: learning rate of Adam.
        distillation_batch_size: public samples per step.
        distillation_patience: steps without a lower loss on the held-out tenth after which it stops; the best weights are kept.
        temperature: T, above 0.

    Raises:
        ValueError: if a value is out of range or there are no public samples.
    """

    needs = Needs(data=DataNeeds(public_samples=True, classes=True))

    _CHECK_EVERY = 100  # steps
    _LARGEST_NORM = 5.0  # of a gradient

    def __init__(
        self,
        net: Net,
        distillation_steps: int = 10_000,
        distillation_rate: float = 1e-3,
        distillation_batch_size: int = 128,
        distillation_patience: int = 1_000,
        temperature: float = 1.0,
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(net, **common)
        self.distillation_steps, self.distillation_rate = distillation_steps, distillation_rate
        self.distillation_batch_size, self.distillation_patience = distillation_batch_size, distillation_patience
        self.temperature = temperature
        for name in ("distillation_steps", "distillation_rate", "distillation_batch_size", "distillation_patience"):
            check_range(f"model.{name}", getattr(self, name), above=0)
        check_range("model.temperature", temperature, above=0, hint="the paper uses 1")

    def check_data(self) -> None:
        if len(self.data.public) < 10:
            raise ValueError(
                f"data.public_size is {len(self.data.public)}, but FedDF distils on public samples and holds a tenth of them "
                "out: set aside at least 10, such as 1250 of CIFAR-10"
            )
        super().check_data()
        count = len(self.data.public)
        check_public_batches(self.net, self.data, count - count // 10, self.distillation_batch_size)

    def probe(self, net: nn.Module, client: Client) -> dict[str, Tensor]:
        return {"logits": predict_in_batches(net, self.data.eval_batch_size, self.data.public.inputs())}

    def after_server_step(self, probes: list[dict[str, Tensor]]) -> None:
        teachers = [probe["logits"] for probe in probes if probe["logits"].isfinite().all()]
        if not teachers:
            return
        logits = torch.stack(teachers).mean(dim=0, keepdim=True)
        order = torch.randperm(len(self.data.public))
        held_out, trained_on = order.tensor_split([len(order) // 10])
        # Read once: where samples are streamed, one pass over them breaks off the one before.
        (held_out_batch,) = self.data.public.batches([held_out])
        held_out_logits = logits[:, held_out.to(logits.device)]
        best, best_weights, last_gain = self._loss_of(held_out_batch, held_out_logits), copy.deepcopy(self.net.state_dict()), 0
        optimizer = torch.optim.Adam(self.trained_weights(self.net).values(), self.distillation_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.distillation_steps)
        self.net.train()
        for step, (indices, batch) in enumerate(self._batches(trained_on), start=1):
            optimizer.zero_grad()
            ensemble_distillation(self.net(batch.inputs), logits[:, indices], self.temperature).backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), self._LARGEST_NORM)
            optimizer.step()
            schedule.step()
            if step % self._CHECK_EVERY == 0 or step == self.distillation_steps:
                loss = self._loss_of(held_out_batch, held_out_logits)
                if loss < best:
                    best, best_weights, last_gain = loss, copy.deepcopy(self.net.state_dict()), step
                if step - last_gain >= self.distillation_patience:
                    break
        self.net.load_state_dict(best_weights)

    def _batches(self, indices: Tensor) -> Iterator[tuple[Tensor, Batch]]:
        """Epoch after epoch, as many batches as there are steps, each with its samples' positions among the public ones."""
        drawn: list[Tensor] = []
        while len(drawn) < self.distillation_steps:
            drawn += indices[torch.randperm(len(indices))].split(self.distillation_batch_size)
        drawn = drawn[: self.distillation_steps]
        yield from zip(drawn, self.data.public.batches(drawn), strict=True)

    def _loss_of(self, batch: Batch, teachers: Tensor) -> float:
        """Distillation loss on a batch, in evaluation mode."""
        logits = predict_in_batches(self.net, self.data.eval_batch_size, batch.inputs)
        return float(ensemble_distillation(logits, teachers, self.temperature))
