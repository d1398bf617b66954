"""Probe: the base of callbacks that put the same test samples to the models of a round."""

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from fl_lightning.callbacks.federated_callback import FederatedCallback
from fl_lightning.checks import check_range
from fl_lightning.models.network import classifier_of
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import NetInputs, overridden


class Probe(FederatedCallback):
    """A callback with a fixed set of test samples, spread evenly over the test set.

    Args:
        every, rounds: rounds in which it measures.
        samples: how many; all if there are fewer.

    Raises:
        ValueError: if ``samples`` is below 2; before the fit, if there are no test samples, the net does not fit, or
            clients keep models of their own and are compared with the global one.
    """

    def __init__(self, every: int = 10, rounds: list[int] | None = None, samples: int = 256) -> None:
        super().__init__(every, rounds)
        check_range(f"{self.key}.samples", samples, at_least=2)
        self.samples = samples

    def on_fit_start(self, trainer: Trainer, module: FederatedModule) -> None:
        if not module.data.evaluation.has_test:
            of_tasks = module.needs.data.task_streams
            why = "clients that learn tasks have test samples of their own" if of_tasks else "data.source has none"
            raise ValueError(
                f"callback {type(self).__name__} measures models on test samples, and {why}: "
                f"{'' if of_tasks else 'give it a test set, or '}leave the callback out"
            )
        if module.keeps_models and overridden(self, FederatedCallback.on_cohort_fit_end):
            raise ValueError(
                f"callback {type(self).__name__} compares clients' models with the global one, from which clients of "
                f"{type(module).__name__} do not start: leave the callback out"
            )

    def probe_samples(self, module: FederatedModule) -> tuple[NetInputs, Tensor]:
        """Inputs (S, ...) as the net takes them, and targets (S,), the same at every call."""
        evaluation = module.data.evaluation
        count = len(evaluation.samples.test.targets)
        indices = torch.arange(0, count * self.samples, count).div(self.samples, rounding_mode="floor").unique()
        inputs, targets = evaluation.samples_at(indices, "test")
        return tree_map(lambda *parts: torch.cat(parts), *inputs.split(module.data.eval_batch_size)), targets


class HeadProbe(Probe):
    """A probe of the last linear layer, the head, which has a row for each class, by the classes that clients hold."""

    needs_classes = True

    def reads_clients(self, module: FederatedModule) -> bool:
        return self.chooses

    def on_fit_start(self, trainer: Trainer, module: FederatedModule) -> None:
        super().on_fit_start(trainer, module)
        layers = _linear_layers(module.net)
        if not layers or layers[-1].out_features != len(module.data.classes):
            raise ValueError(
                f"callback {type(self).__name__} needs a net whose last linear layer has a row for each class, but model.net "
                f"is {type(module.net).__name__}: use a bundled net, or leave the callback out"
            )


def head_of(net: nn.Module) -> nn.Linear:
    """The last linear layer of a net for which :class:`HeadProbe` found one."""
    return _linear_layers(net)[-1]


def _linear_layers(net: nn.Module) -> list[nn.Linear]:
    return [layer for layer in classifier_of(net).modules() if isinstance(layer, nn.Linear)]
