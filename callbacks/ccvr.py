"""CCVR: the classifier of the final net is calibrated with features drawn from a Gaussian for each class.

M. Luo, F. Chen, D. Hu, Y. Zhang, J. Liang, J. Feng: No Fear of Heterogeneity: Classifier Calibration for Federated Learning
with Non-IID Data. NeurIPS 2021. arXiv 2106.05001. Equations 3 and 4. Departures: every class has the same number of virtual
features; a class with a single sample has its feature, without a covariance. The optimizer is that of the public code
smduan/Fed-CCVR, which never empties a client's list of features, so that a class's moments there include the classes before it.
"""

import copy

import torch
import torch.nn.functional as F
from lightning.pytorch import Trainer
from torch import Tensor, nn

from fl_lightning.callbacks.federated_callback import write_net
from fl_lightning.callbacks.probe import HeadProbe, head_of
from fl_lightning.callbacks.round_forgetting import RoundForgetting
from fl_lightning.checks import check_range
from fl_lightning.evaluation.reference_sets import check_global_model, evaluated_weights
from fl_lightning.functional import forgetting_from_best
from fl_lightning.functional.class_gaussians import ClassMoments, class_moments, draw_features, pooled_moments
from fl_lightning.functional.random_streams import torch_stream
from fl_lightning.models.network import inputs_of
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import evaluate_net, predict_in_batches
from fl_lightning.protocol.client_state import num_bytes
from fl_lightning.run.refused_data import check_gives_outputs
from fl_lightning.run.trainer_settings import callbacks_of

_BATCH, _MOMENTUM = 64, 0.9


class CCVR(HeadProbe):
    """Test accuracy with a last layer that is trained, after the last round, on features drawn from the classes' Gaussians.

    Every client sends the count, the mean and the covariance of its training samples' features for each class that it holds.
    The server pools them, draws features from ``N(mu_c, Sigma_c)`` and trains the last linear layer on them by cross entropy,
    from its final weights. ``ccvr/accuracy`` is the test accuracy of this net, ``ccvr/accuracy_before`` that of the run's;
    ``ccvr/from_best`` and ``ccvr/from_best_before`` are F of both, against the best evaluations before the last round, where
    :class:`RoundForgetting` has some. ``ccvr/bytes_up`` are the moments of all clients, with the symmetric covariance once,
    in float32; ``ccvr/bytes_down`` the net that each client needs for them. Neither is part of ``communication/...``.

    The run keeps its weights. The calibrated net is :attr:`calibrated` and, where the run has a folder, ``ccvr.pt`` in it,
    which ``model.initial_weights`` takes.

    Args:
        features: virtual features of a class, M_c, at least 1.
        epochs: passes over them, at least 1.
        learning_rate: of SGD with momentum 0.9, above 0.

    Raises:
        ValueError: if a value is out of range; before the fit, if there is no global model or no test set, the last layer is
            not linear, the run has a defence, or tasks arrive.
    """

    cure_at_sites = "leave it out"

    def __init__(self, features: int = 500, epochs: int = 10, learning_rate: float = 0.01) -> None:
        super().__init__(every=0)
        check_range("CCVR.features", features, at_least=1)
        check_range("CCVR.epochs", epochs, at_least=1)
        check_range("CCVR.learning_rate", learning_rate, above=0)
        self.features, self.epochs, self.learning_rate = features, epochs, learning_rate
        self.calibrated: nn.Module | None = None

    def reads_clients(self, module: FederatedModule) -> bool:
        return True

    def on_fit_start(self, trainer: Trainer, module: FederatedModule) -> None:
        super().on_fit_start(trainer, module)
        check_global_model("CCVR", module)
        why = None
        if module.privacy is not None:
            why = f"model.privacy is {module.privacy!r}, which adds no noise to means and covariances"
        elif module.data.tasks is not None:
            why = f"data.tasks is {module.data.tasks!r}, after which clients hold only samples of the last task"
        if why is not None:
            raise ValueError(f"callback CCVR: {why}: leave the callback out")

    def on_train_start(self, trainer: Trainer, module: FederatedModule) -> None:
        inputs, _ = self.probe_samples(module)
        user = "callback CCVR trains the last linear layer of model.net"
        with trainer.precision_plugin.val_step_context():
            check_gives_outputs(head_of(module.net), module.net, inputs, user, "leave the callback out")

    def on_train_end(self, trainer: Trainer, module: FederatedModule) -> None:
        with evaluated_weights(trainer, module):
            self._measure(trainer, module)

    def _measure(self, trainer: Trainer, module: FederatedModule) -> None:
        with trainer.precision_plugin.val_step_context():
            parts = [_moments(module, client) for client in range(module.data.num_clients)]
        net = self.calibrated = self._calibrated(module, pooled_moments(parts))
        sent = {**module.trained_weights(module.net), **dict(module.net.named_buffers())}
        scalars = {
            "ccvr/bytes_up": float(sum(map(_bytes_sent, parts))),
            "ccvr/bytes_down": float(len(parts) * num_bytes(sent)),
        }
        for ending, one in (("_before", module.net), ("", net)):
            with trainer.precision_plugin.val_step_context():
                scores = _scores(trainer, module, one)
            scalars |= {f"ccvr/{name}{ending}": score for name, score in scores.items()}
        module.log_round(scalars, trainer.global_step)
        write_net(trainer, module, net, "ccvr.pt")

    def _calibrated(self, module: FederatedModule, moments: ClassMoments) -> nn.Module:
        """A copy of the net with a last layer that is trained on virtual features."""
        generator = torch_stream(module.seed, -1, -1, "CCVR")
        net = copy.deepcopy(module.net)
        head = copy.deepcopy(head_of(net)).float().requires_grad_(True)
        features, targets = (drawn.to(head.weight.device) for drawn in draw_features(moments, self.features, generator))
        features = features.float()
        optimizer = torch.optim.SGD(head.parameters(), lr=self.learning_rate, momentum=_MOMENTUM)
        with torch.enable_grad():
            for _ in range(self.epochs):
                for rows in torch.randperm(len(targets), generator=generator).to(targets.device).split(_BATCH):
                    optimizer.zero_grad()
                    F.cross_entropy(head(features[rows]), targets[rows]).backward()
                    optimizer.step()
        head_of(net).load_state_dict(head.state_dict())
        return net


def _moments(module: FederatedModule, client: int) -> ClassMoments:
    """The moments of a client's training samples, batch by batch."""
    num_classes = len(module.data.classes)

    def of_batches(net: nn.Module) -> ClassMoments:
        batches = module.data.client_batches().client_samples(client)
        return pooled_moments(
            class_moments(inputs_of(head_of(net), net, one.inputs), one.targets, num_classes) for one in batches
        )

    return evaluate_net(module.net, of_batches)


def _bytes_sent(moments: ClassMoments) -> int:
    """Of the classes that a client holds, in float32, a covariance without what is symmetric."""
    width = moments.means.shape[1]
    held, several = int((moments.counts > 0).sum()), int((moments.counts > 1).sum())
    return 4 * (held * (1 + width) + several * width * (width + 1) // 2)


def _scores(trainer: Trainer, module: FederatedModule, net: nn.Module) -> dict[str, Tensor]:
    """Test accuracy, and F against the best evaluations before the last round, if the run evaluates the test set."""
    evaluation, objective, num_classes = module.data.evaluation, module.data.objective, len(module.data.classes)
    targets = evaluation.test_targets()
    logits = predict_in_batches(net, module.data.eval_batch_size, evaluation.test_inputs())
    found = [one.best_before(trainer.global_step) for one in callbacks_of(trainer) if isinstance(one, RoundForgetting)]
    best = [one for one in found if one is not None]
    by_class = objective.score_by_unit(logits, targets, num_classes).cpu()
    drops = {"from_best": forgetting_from_best(torch.stack([best[0], by_class]))} if best else {}
    return {"accuracy": objective.score(logits, targets), **drops}
