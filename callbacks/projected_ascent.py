"""ProjectedAscent: a client erases itself from the final net by gradient ascent near the other clients' mean.

A. Halimi, S. Kadhe, A. Rawat, N. Baracaldo: Federated Unlearning: How to Efficiently Erase a Client in FL? ICML workshop 2022.
arXiv 2207.05521. The first of its two parts; the second, rounds without the client, is a run that begins with the result.
Departures: the mean of the other clients' last models is over those of the last round, with the weights of
``model.server_weighting`` whatever the method's ``update_weight`` is, where the paper has all N clients with equal ones; in a
last round without the client it is the global model, in one with no other client what it received. Momentum and the bound on
the gradient are those of the authors' code, which stops by the distance from the client's last model; we stop by accuracy, as
the paper does.
"""

import copy

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping, Timer
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

from fl_lightning.callbacks.federated_callback import FederatedCallback, write_net
from fl_lightning.callbacks.unlearning import check_forgotten
from fl_lightning.checks import check_range
from fl_lightning.functional.random_streams import seeded_layers
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import CohortModels, predict_in_batches
from fl_lightning.run.trainer_settings import callbacks_of

_MOMENTUM, _LARGEST_NORM = 0.9, 5.0


class ProjectedAscent(FederatedCallback):
    """After the last round: ``w <- P(w + rate * grad F_i(w))`` from ``w_ref``, the mean of the other clients' models.

    P projects onto the ball of a radius around ``w_ref``. It ends when the accuracy on the client's validation samples is
    below ``until``, or after ``epochs`` passes over its training samples. The run keeps its weights. The net is :attr:`erased`
    and, where the run has a folder, ``erased.pt`` in it, with which rounds without the client begin:
    ``model.initial_weights``. ``ascent/accuracy`` is the accuracy on the client's validation samples at the end,
    ``ascent/distance`` the distance from ``w_ref``, ``ascent/steps`` the number of steps.

    Args:
        client: its index.
        radius: delta, above 0, in units of the weights. The authors' code takes the root of a third of the mean squared
            distance of ``w_ref`` from ten random nets.
        epochs: at most so many passes, at least 1.
        until: tau, in [0, 1).
        learning_rate: eta_u, above 0.

    Raises:
        ValueError: if a value is out of range; as a fit starts, if there is no such client or no other, no global model or no
            validation samples, clients use models of their own, the run has a defence, or something may end it before its last
            round.
    """

    needs_classes = True
    cure_at_sites = "leave it out"

    def __init__(self, client: int, radius: float, epochs: int = 5, until: float = 0.1, learning_rate: float = 0.01) -> None:
        super().__init__(every=0)
        check_range("ProjectedAscent.radius", radius, above=0)
        check_range("ProjectedAscent.epochs", epochs, at_least=1)
        check_range("ProjectedAscent.until", until, at_least=0, below=1)
        check_range("ProjectedAscent.learning_rate", learning_rate, above=0)
        self.client, self.radius, self.epochs, self.until = client, radius, epochs, until
        self.learning_rate = learning_rate
        self.erased: nn.Module | None = None
        self._others: Tensor | None = None  # w_ref, if the client is in the last round
        self._last_round = 0

    def reads_clients(self, module: FederatedModule) -> bool:
        return True

    def on_fit_start(self, trainer: Trainer, module: FederatedModule) -> None:
        check_forgotten(self, self.client, module)
        if not module.data.has_validation:
            raise ValueError("callback ProjectedAscent stops by validation samples: set data.val_fraction above 0")
        if module.keeps_models:
            raise ValueError(
                "callback ProjectedAscent begins from the models that clients send, and clients of "
                f"{type(module).__name__} use models of their own: leave it out"
            )
        if module.privacy is not None:
            raise ValueError(
                f"callback ProjectedAscent: model.privacy is {module.privacy!r}, and the ascent adds no noise: leave it out"
            )
        early = [type(one).__name__ for one in callbacks_of(trainer) if isinstance(one, EarlyStopping | Timer)]
        if early:
            raise ValueError(
                f"callback ProjectedAscent begins from the models of round {trainer.max_steps}, before which {early[0]} can "
                "end the run: leave that out, and trainer.max_time"
            )
        self._last_round, self._others = trainer.max_steps, None

    def wants_models(self, round: int) -> bool:
        return round == self._last_round

    def on_cohort_fit_end(self, trainer: Trainer, module: FederatedModule, round: int, models: CohortModels) -> None:
        others = [position for position, client in enumerate(models.clients) if client != self.client]
        if len(others) == len(models.clients):
            return
        if not others:
            self._others = models.evaluate_received(lambda net: _flat(module, net))
            return
        by_samples = module.server_weighting == "n_weighted"
        counts = [float(module.data.num_train(models.clients[position])) if by_samples else 1.0 for position in others]
        vectors = models.evaluate(lambda net: _flat(module, net))[others]
        weights = vectors.new_tensor(counts, dtype=torch.float64)  # in which autocast leaves the product as it is
        self._others = ((weights / weights.sum()) @ vectors.double()).to(vectors.dtype)

    def on_train_end(self, trainer: Trainer, module: FederatedModule) -> None:
        net = self.erased = copy.deepcopy(module.net)
        reference = _flat(module, net) if self._others is None else self._others
        steps, accuracy = self._ascend(trainer, module, net, reference)
        distance = (_flat(module, net) - reference).norm()
        scalars = {"accuracy": accuracy, "distance": distance, "steps": steps}
        module.log_round({f"ascent/{name}": value for name, value in scalars.items()}, trainer.global_step)
        write_net(trainer, module, net, "erased.pt")

    def _ascend(self, trainer: Trainer, module: FederatedModule, net: nn.Module, reference: Tensor) -> tuple[float, Tensor]:
        """Move the net from the reference; gives the number of steps, and the accuracy after the last one."""
        weights = [weight.requires_grad_(True) for weight in module.trained_weights(net).values()]
        optimizer = torch.optim.SGD(weights, lr=self.learning_rate, momentum=_MOMENTUM, maximize=True)
        inputs, targets, _ = module.data.evaluation.validation_samples([self.client])
        counts, score = module.data.label_counts[self.client], module.data.objective.score
        vector_to_parameters(reference.clone(), weights)  # the weights become views of it
        steps = 0
        for epoch in range(1, self.epochs + 1):
            for batch in module.data.client_batches().epoch(self.client, epoch, "projected ascent"):
                optimizer.zero_grad()
                with torch.enable_grad(), seeded_layers(module.seed, epoch, self.client, f"ascent {steps}", reference.device):
                    batch.mean(module.loss(net.train()(batch.inputs), batch.targets, counts)).backward()
                clip_grad_norm_(weights, _LARGEST_NORM)
                optimizer.step()
                moved = parameters_to_vector(weights).detach() - reference
                vector_to_parameters(reference + moved * (self.radius / moved.norm()).clamp_max(1), weights)
                steps += 1
                with trainer.precision_plugin.val_step_context():
                    accuracy = score(predict_in_batches(net, module.data.eval_batch_size, inputs), targets)
                if accuracy < self.until:
                    return steps, accuracy
        return steps, accuracy


def _flat(module: FederatedModule, net: nn.Module) -> Tensor:
    """The trained weights of a net as one vector."""
    return torch.cat([weight.detach().flatten() for weight in module.trained_weights(net).values()])
