"""DP-SGD at the clients: every sample's gradient clipped, noise on their sum, in every local step.

M. Abadi, A. Chu, I. Goodfellow, H. B. McMahan, I. Mironov, K. Talwar, L. Zhang: Deep Learning with Differential Privacy. CCS
2016. arXiv 1607.00133. Algorithm 1. Clipping by the two backward passes of X. Li, F. Tramèr, P. Liang, T. Hashimoto: Large
Language Models Can Be Strong Differentially Private Learners, ICLR 2022, arXiv 2110.05679, with Opacus's hooks.
"""

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from fl_lightning.privacy.base import Privacy, refuse_batch_norm
from fl_lightning.streams import stream_seed

if TYPE_CHECKING:
    from fl_lightning.clients import Client
    from fl_lightning.module import FederatedModule

_TINY = 1e-6  # Opacus's, beside norms that are divided by
_TOLERANCE = 1e-2  # relative, of a norm in single precision
_KNOWN_LAYERS = "use Linear, Conv, GroupNorm, LayerNorm or Embedding layers"


class DPSGD(Privacy):
    """The data's part of a local gradient is ``(sum_i g_i min(1, C / ||g_i||) + N(0, sigma^2 C^2)) / batch size``.

    Norms are over all trained weights together; a penalty's gradient is added after the noise. With ``accounting`` every
    sample is in every batch by a coin of its own, with probability ``batch_size`` / samples of the client, the divisor is the
    expected size, and the largest epsilon over clients is logged every round. Without, batches are shuffled ones and nothing
    is said of epsilon.

    Args:
        accounting: keep epsilon for each client.

    Raises:
        ValueError: if a value is out of range.
    """

    clips_samples = True

    def __init__(
        self, noise_multiplier: float, clipping_norm: float = 1.0, accounting: bool = False, delta: float = 1e-5
    ) -> None:
        super().__init__(noise_multiplier, clipping_norm, delta)
        self.accounting = self.poisson_batches = accounting

    def check(self, method: "FederatedModule") -> None:
        refuse_batch_norm(method.net, "DP-SGD")
        precision = method.trainer.precision
        if "mixed" in precision or precision in ("bf16-true", "16-true"):
            raise ValueError(f"trainer.precision is {precision}, but DP-SGD takes norms in full precision: use 32-true")
        if self.accounting and method.data.tasks is not None:
            raise ValueError(
                "model.privacy.accounting is true, but a client's samples change with its tasks in data.tasks: set it to false"
            )
        for name, layer in method.net.named_modules():
            if is_parametrized(layer):
                raise ValueError(
                    f"model.net under {type(method).__name__} has the layer {name}, whose weights are made of several, which "
                    "DP-SGD cannot clip by sample: use a method that trains layers as they are, such as FedAvgOnTasks"
                )
        _try_layers(method)

    def not_covered(self, method: "FederatedModule") -> tuple[str, ...]:
        return method.beside_gradients

    def loss_gradients(
        self,
        method: "FederatedModule",
        net: nn.Module,
        losses: Callable[[], Tensor],
        batch_size: int,
        client: "Client",
        at: Sequence[Tensor] | None,
    ) -> tuple[list[Tensor], Tensor]:
        """Clipped and noisy mean gradient by the weights that are trained, and the mean loss without noise.

        Args:
            losses: of ``net``, one value a sample, (batch_size,).
            batch_size: may be 0.
            at: values of the weights to take them at, in order; None: the net's own.
        """
        weights = list(method.trained_weights(net).values())
        purpose = f"noise of step {client.step}"
        noise = torch.Generator(method.device).manual_seed(stream_seed(method.seed, client.round, client.index, purpose))
        divisor = batch_size
        if method.data.poisson_batches:
            divisor = method.data.sampling_rate(client.index) * client.num_train
        if batch_size == 0:  # many nets cannot take none
            losses, at = partial(weights[0].new_zeros, 0), None
        with _holding(weights, at):
            clipped, values = clipped_sum(net, weights, losses, self.clipping_norm)
        scale = self.noise_multiplier * self.clipping_norm
        noisy = [
            (total + scale * torch.randn(total.shape, generator=noise, dtype=total.dtype, device=total.device)) / divisor
            for total in clipped
        ]
        return noisy, values.detach().sum() / divisor

    def charges(self, method: "FederatedModule", clients: Iterable[int]) -> dict[int, tuple[float, int]]:
        if not self.accounting:
            return {}
        return {client: (method.data.sampling_rate(client), method.num_local_steps(client)) for client in clients}


def clipped_sum(
    net: nn.Module, weights: Sequence[Tensor], losses: Callable[[], Tensor], clipping_norm: float
) -> tuple[Sequence[Tensor], Tensor]:
    """Sum over samples of ``g_i min(1, C / (||g_i|| + 1e-6))``, Opacus's clipping, and the losses.

    The first backward pass gives the norms, the second one weights the losses by the factors.

    Raises:
        ValueError: of :func:`sample_norms`.
    """
    norms, values = sample_norms(net, weights, losses)
    if len(values) == 0:
        return [torch.zeros_like(weight) for weight in weights], values
    factors = (clipping_norm / (norms + _TINY)).clamp_max(1.0)
    with _silent_hooks():
        return torch.autograd.grad((factors * values).sum(), weights, materialize_grads=True), values


def sample_norms(net: nn.Module, weights: Sequence[Tensor], losses: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """Norms of the samples' gradients, (B,), and the losses, (B,), whose graph is kept; nothing stays on the net.

    Opacus's hooks find the norms in one backward pass. A weight that no loss depends on counts as 0.

    Raises:
        ValueError: if a weight is used outside its layer, where the hooks do not see it.
    """
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleHooksFastGradientClipping

    hooks = GradSampleHooksFastGradientClipping(net, loss_reduction="sum")
    try:
        values = losses()
        if len(values) == 0:
            return values.detach(), values
        with _silent_hooks():
            gradients = torch.autograd.grad(values.sum(), weights, retain_graph=True, allow_unused=True)
        for weight, gradient in zip(weights, gradients, strict=True):
            if not hasattr(weight, "_norm_sample"):
                if gradient is not None:
                    name = next(name for name, own in net.named_parameters() if own is weight)
                    raise ValueError(f"{name} is used outside the forward pass of its layer")
                weight._norm_sample = torch.zeros_like(values)
        return hooks.get_norm_sample().detach(), values
    finally:
        hooks.cleanup()  # and switches off those that the graph still holds
        for layer in net.modules():  # what the hooks leave on layers where a pass stopped half-way
            layer.__dict__.pop("activations", None)
            layer.__dict__.pop("max_batch_len", None)


@contextmanager
def _holding(weights: Sequence[Tensor], values: Sequence[Tensor] | None) -> Iterator[None]:
    """Let weights have other values for a block; None: their own."""
    if values is None:
        yield
        return
    own = [weight.detach().clone() for weight in weights]
    with torch.no_grad():
        torch._foreach_copy_(weights, list(values))
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(weights, own)


@contextmanager
def _silent_hooks() -> Iterator[None]:
    """A backward pass in which torch need not warn that inputs have no gradient."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        yield


def _try_layers(method: "FederatedModule") -> None:
    """Compare Opacus's norms with those of plain gradients, on two samples: what it cannot handle is refused before training.

    It would be silent about samples that see each other, and about weights that are used a second time outside their layer.
    """
    net = copy.deepcopy(method.net).train()
    weights = [weight for weight in net.parameters() if weight.requires_grad]
    draws = torch.Generator(method.device).manual_seed(0)
    with torch.no_grad():
        for weight in weights:  # a layer that starts at zero would hide those before it
            weight.add_(torch.randn(weight.shape, generator=draws, dtype=weight.dtype, device=weight.device), alpha=0.01)
    try:
        norms, values = sample_norms(net, weights, lambda: net(method.data.first_inputs(2)).square().sum(dim=1))
    except Exception as error:  # whatever the layer does to Opacus
        raise ValueError(
            f"model.net has a layer that Opacus cannot take gradients of by sample ({type(error).__name__}: "
            f"{' '.join(str(error).split())}): {_KNOWN_LAYERS}"
        ) from error
    for norm, value in zip(norms, values, strict=True):
        with _silent_hooks():
            gradients = torch.autograd.grad(value, weights, retain_graph=True, materialize_grads=True)
        plain = torch.stack([gradient.norm() for gradient in gradients]).norm()
        if not torch.isclose(norm, plain, rtol=_TOLERANCE):
            raise ValueError(
                f"model.net has a layer of which Opacus finds wrong gradients by sample (norm {norm:.4g}, should be "
                f"{plain:.4g}), as where samples see each other, a weight is used in two places or attention has dropout: "
                f"{_KNOWN_LAYERS}"
            )
