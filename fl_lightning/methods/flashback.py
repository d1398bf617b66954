"""Flashback: label counts decide which teacher counts for which class, at the clients and at the server.

Aljahdali, Abdelmoniem, Canini, Horváth, "Flashback: Understanding and Mitigating Forgetting in Federated Learning",
arXiv 2402.05558; Algorithm 1, equations 4 to 6.
Algorithm 1 has one rate for clients (line 10) and server (line 21), so a decay at the clients is also one at the server. We do
not have the appendix with the rates, so their defaults are assumptions.
"""

from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from fl_lightning.checks import check_choice, check_range
from fl_lightning.functional import dynamic_distillation, label_count_weights, update_global_label_counts
from fl_lightning.functional.exact_buffers import ExactBuffers
from fl_lightning.losses import CrossEntropy
from fl_lightning.module import CommonArguments, FederatedModule, Net, Update
from fl_lightning.optimizers import OptimizerBuilder, optimizer_builder
from fl_lightning.protocol import Batch, Client, DataNeeds, Needs, Upload, Weighted, predict_in_batches
from fl_lightning.run.refused_data import check_public_batches

DistillationSchedule = Literal["decayed", "constant"]


class Flashback(ExactBuffers, FederatedModule):
    """Cross entropy plus dynamic distillation: from the received model at clients, from all clients' models at the server.

    A teacher's weight for a class is its label count relative to those of the student and all teachers. The global model is
    credited with the label counts of the clients that trained it. Needs ``data.public_size``, samples with labels.

    Round:
        clients: F_k(w) + dynamic distillation from w_t
        server: mean, then dynamic distillation from all models
        more down: 4C bytes
        more up: 4C bytes once

    Args:
        gamma: share of a client's label counts that each of its visits credits the global model with, in (0, 1].
        distillation_epochs: passes over the public samples per round.
        distillation_batch_size: public samples per step.
        distillation_optimizer: builds the optimizer of these passes, a new one every round.
        distillation_schedule: ``decayed``: the rate of these passes changes from round to round as the clients' does, by
            ``learning_rate_decay`` and ``client_lr_scheduler``; ``constant``: it does not change.

    Raises:
        ValueError: if a value is out of range or there are no public samples.
    """

    needs = Needs(data=DataNeeds(public_samples=True, classes=True))

    unprotected = ("the label counts that clients send",)

    global_label_counts: Tensor  # (C,), pi
    visits: Tensor  # (N,), rounds in which each client took part

    def __init__(
        self,
        net: Net,
        gamma: float = 0.1,
        distillation_epochs: int = 1,
        distillation_batch_size: int = 50,
        distillation_optimizer: OptimizerBuilder = lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
        distillation_schedule: DistillationSchedule = "decayed",
        **common: Unpack[CommonArguments],
    ) -> None:
        super().__init__(net, **common)
        check_range("model.gamma", gamma, above=0, at_most=1)
        check_choice("model.distillation_schedule", distillation_schedule, DistillationSchedule)
        self.gamma, self.distillation_epochs, self.distillation_batch_size = gamma, distillation_epochs, distillation_batch_size
        self.distillation_optimizer = optimizer_builder("model.distillation_optimizer", distillation_optimizer)
        self.distillation_schedule = distillation_schedule
        for name in ("distillation_epochs", "distillation_batch_size"):
            check_range(f"model.{name}", getattr(self, name), at_least=1)

    def configure_model(self) -> None:
        super().configure_model()
        if self.federation is not None and (self.begins_run or not hasattr(self, "visits")):
            precision = torch.promote_types(torch.float32, torch.get_default_dtype())  # bfloat16 is exact to 256
            self.register_buffer("global_label_counts", torch.zeros(len(self.data.classes), dtype=precision))
            self.register_buffer("visits", torch.zeros(self.data.num_clients, dtype=torch.int64))

    def check_data(self) -> None:
        if not len(self.data.public):
            raise ValueError("data.public_size is 0, but Flashback distils on public samples: set some aside, 1250 of CIFAR-10")
        super().check_data()
        check_public_batches(self.net, self.data, len(self.data.public), self.distillation_batch_size)

    def broadcast(self, client: int) -> dict[str, Tensor]:
        return {"global_label_counts": self.global_label_counts}

    def client_loss(self, net: nn.Module, batch: Batch, client: Client) -> Tensor:
        logits = net(batch.inputs)
        loss = self.loss(logits, batch.targets, client.label_counts)
        teacher = client.evaluate(client.received_state, lambda received: received(batch.inputs))
        alpha = label_count_weights(client.train_label_counts, client.broadcast["global_label_counts"][None])
        return loss + dynamic_distillation(logits, teacher[None], alpha, reduction="none")

    def client_result(self, net: nn.Module, client: Client) -> Upload:
        upload = super().client_result(net, client)
        if self.visits[client.index] == 0:  # the server keeps them
            upload["label_counts"] = Weighted({"label_counts": client.train_label_counts.float()}, 1.0)
        return upload

    def probe(self, net: nn.Module, client: Client) -> dict[str, Tensor]:
        logits = predict_in_batches(net, self.data.eval_batch_size, self.data.public.inputs())
        counts = client.train_label_counts.to(self.global_label_counts)
        return {"logits": logits, "label_counts": counts, "client": torch.tensor(client.index)}

    def server_step(self, update: Update | None) -> None:
        # Of the global model that the round started from.
        self._before = predict_in_batches(self.net, self.data.eval_batch_size, self.data.public.inputs())
        super().server_step(update)

    def after_server_step(self, probes: list[dict[str, Tensor]]) -> None:
        probes = [probe for probe in probes if probe["logits"].isfinite().all()]
        if not probes:
            return
        counts = torch.stack([*(probe["label_counts"] for probe in probes), self.global_label_counts])
        teachers = torch.stack([*(probe["logits"] for probe in probes), self._before])
        # Before round 1 the global model has no counts, hence no weight as a teacher.
        self._distil(teachers, label_count_weights(self.global_label_counts, counts))
        for probe in probes:
            client = int(probe["client"])
            self.visits[client] += 1
            credited = update_global_label_counts(
                self.global_label_counts, probe["label_counts"], int(self.visits[client]), self.gamma
            )
            self.global_label_counts.copy_(credited)

    def _distil(self, teachers: Tensor, alpha: Tensor) -> None:
        """Train the global model on the public samples and on the teachers' logits for them, (K, n, C)."""
        optimizer = self.distillation_optimizer(list(self.trained_weights(self.net).values()))
        if self.distillation_schedule == "decayed":
            for group in optimizer.param_groups:
                group["lr"] *= self.client_learning_rate(self.round, client=0)  # the same for all
        self.net.train()
        for _ in range(self.distillation_epochs):
            drawn = torch.randperm(len(self.data.public)).split(self.distillation_batch_size)
            for indices, batch in zip(drawn, self.data.public.batches(drawn), strict=True):
                logits = self.net(batch.inputs)
                loss = CrossEntropy()(logits, batch.targets, self.global_label_counts).mean()
                loss = loss + dynamic_distillation(logits, teachers[:, indices.to(teachers.device)], alpha)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
