"""RepresentationSimilarity: how much of each layer a local fit changes, and the rounds since the last measurement."""

import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn

from fl_lightning.callbacks.federated_callback import log_figure, log_tensors
from fl_lightning.callbacks.figures import similarity_by_layer
from fl_lightning.callbacks.probe import Probe
from fl_lightning.functional.similarity import centred_gram, gram_cka
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import CohortModels


class RepresentationSimilarity(Probe):
    """Linear CKA between the global model and each client's after its fit, layer by layer.

    In the chosen rounds the outputs of all layers with a weight of two or more dimensions are compared on the probe's samples
    (:func:`fl_lightning.functional.linear_cka`; Kornblith et al., ICML 2019). 1 is the same up to rotation, scale and shift.
    ``cka/<layer>`` is the mean over the cohort, ``cka/clients`` the picture; its numbers are the tensors ``cka/clients``
    (K, layers), in the net's order, and ``cka/cohort`` (K,). ``cka_rounds/<layer>`` compares the global model with that of the
    last measured round. For this, checkpoints contain the samples' inner products, (layers, S, S).
    """

    kept = ("_last",)
    _last: Tensor | None = None  # of the global model in the last measured round

    def on_cohort_fit_end(self, trainer: Trainer, module: FederatedModule, round: int, models: CohortModels) -> None:
        inputs, _ = self.probe_samples(module)
        names: list[str] = []

        def grams(net: nn.Module) -> Tensor:
            outputs = outputs_by_layer(net, inputs)
            names[:] = outputs
            return torch.stack([centred_gram(output) for output in outputs.values()])

        received = models.evaluate_received(grams)  # (layers, S, S)
        similarity = models.evaluate(lambda net: _by_layer(received, grams(net)))
        module.log_round({f"cka/{name}": similarity[:, i].mean() for i, name in enumerate(names)}, round)
        if self._last is not None:
            since = _by_layer(self._last.to(received), received)
            module.log_round({f"cka_rounds/{name}": since[i] for i, name in enumerate(names)}, round)
        self._last = received
        log_tensors(trainer, {"cka/clients": similarity, "cka/cohort": torch.tensor(models.clients)}, round)
        log_figure(trainer, "cka/clients", similarity_by_layer(similarity, models.clients, names, round), round)


def _by_layer(first: Tensor, second: Tensor) -> Tensor:
    """CKA (layers,) from inner products (layers, S, S)."""
    return torch.stack([gram_cka(*pair) for pair in zip(first, second, strict=True)])


def outputs_by_layer(net: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    """Outputs (S, ...) of the layers with a weight of two or more dimensions, in the net's order, or of a net of one layer.

    Of a layer that is used several times, the last. A layer is left out if it gives no tensor, or if another uses its weights
    without calling it, as attention does.
    """
    layers = {
        name: layer
        for name, layer in net.named_modules()
        if name and any(weight.ndim > 1 for weight in layer.parameters(recurse=False))
    }
    layers = layers or {type(net).__name__: net}
    outputs: dict[str, Tensor] = {}

    def keep(name: str):
        return lambda _, arguments, output: outputs.__setitem__(name, output)

    hooks = [layer.register_forward_hook(keep(name)) for name, layer in layers.items()]
    try:
        net(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: outputs[name] for name in layers if isinstance(outputs.get(name), Tensor)}
