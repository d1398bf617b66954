"""DP-SGD at the clients: every sample's gradient clipped, noise on their sum, in every local step.

M. Abadi, A. Chu, I. Goodfellow, H. B. McMahan, I. Mironov, K. Talwar, L. Zhang: Deep Learning with Differential Privacy. CCS
2016. arXiv 1607.00133. Algorithm 1. Clipping by the two backward passes of X. Li, F. Tramèr, P. Liang, T. Hashimoto: Large
Language Models Can Be Strong Differentially Private Learners, ICLR 2022, arXiv 2110.05679, with Opacus's hooks.
"""

import copy
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.utils._pytree import tree_leaves

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.data.participation import Participation
from fl_lightning.data.present_shards import BatchSizes
from fl_lightning.functional.many_tensors import copy_all, norm_of
from fl_lightning.functional.random_streams import stream_seed
from fl_lightning.privacy.defence import Privacy, refuse_batch_norm, refuse_half_precision
from fl_lightning.protocol import Batch, Client, Gradients, Losses, NetInputs, Penalty, Protection, State

_TINY = 1e-6  # Opacus's, added to norms that are divided by
_TOLERANCE = 1e-2  # relative, of a norm in single precision
_ONE_BY_ONE = "DP-SGD clips sample by sample with hooks in the layers"
_KNOWN_LAYERS = "use Linear, Conv, GroupNorm, LayerNorm or Embedding layers"


class DPSGD(Privacy):
    """The data's part of a local gradient is ``(sum_i g_i min(1, C / ||g_i||) + N(0, sigma^2 C^2)) / batch size``.

    Norms are over all trained weights together; a penalty's gradient is added after the noise. With ``accounting`` every
    sample is in every batch by an independent draw, with probability ``batch_size`` / samples of the client, the divisor is the
    expected size, and the largest epsilon over clients is logged every round. Without it batches are shuffled, and epsilon is
    unknown.

    Args:
        accounting: whether epsilon of each client is computed.

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(
        self, noise_multiplier: float, clipping_norm: float = 1.0, accounting: bool = False, delta: float = 1e-5
    ) -> None:
        super().__init__(noise_multiplier, clipping_norm, delta)
        self.accounting = self.accounts = accounting

    def check(self, method: FederatedAlgorithm, participation: Participation, precision: str) -> None:
        refuse_batch_norm(method, "DP-SGD")
        refuse_half_precision(method, precision, "DP-SGD")
        if "mixed" in precision:
            raise ValueError(f"trainer.precision is {precision}, but DP-SGD takes norms in full precision: use 32-true")
        if self.accounting and (method.needs.data.task_streams or method.needs.data.arriving_classes):
            raise ValueError(
                "model.privacy.accounting is true, but a client's samples change with its tasks in data.tasks: set it to false"
            )
        if method.needs.other_samples:
            whose = type(method.tasks if method.tasks.needs.other_samples else method).__name__
            raise ValueError(
                f"model.privacy is DPSGD, which clips the gradient of each sample of a batch, but {whose} has other samples in "
                "a step: use another method, or LwF in model.tasks"
            )
        if method.needs.two_gradients:
            raise ValueError(
                f"model.privacy is DPSGD, which releases one noisy gradient a step, but {type(method).__name__} takes more: "
                "use UserLevelDP, or FedAvg"
            )
        for name, layer in method.net.named_modules():
            if is_parametrized(layer):
                raise ValueError(
                    f"model.net under {type(method).__name__} has the layer {name}, whose weights are made of several, which "
                    "DP-SGD cannot clip by sample: use a method that trains layers as they are, or EWC in model.tasks"
                )
        _try_layers(method.net, method.data.first_inputs(2))

    def not_covered(self, method: FederatedAlgorithm) -> tuple[str, ...]:
        return method.released_without_noise

    def protection(self, seed: int) -> Protection:
        estimate = NoisyGradient(self.noise_multiplier, self.clipping_norm, seed)
        return Protection(estimate, _ONE_BY_ONE, poisson_batches=self.accounting)

    def charges(
        self, method: FederatedAlgorithm, participation: Participation, batch_sizes: BatchSizes, clients: Iterable[int]
    ) -> dict[int, tuple[float, int]]:
        if not self.accounting:
            return {}
        return {client: (batch_sizes.sampling_rate(client), method.num_local_steps(client)) for client in clients}


@dataclass(frozen=True)
class NoisyGradient:
    """The clipped and noisy mean gradient, and the mean loss without noise; of Poisson batches by their expected size."""

    noise_multiplier: float
    clipping_norm: float
    seed: int  # of the noise

    def __call__(
        self,
        net: nn.Module,
        batch: Batch,
        client: Client,
        losses: Losses,
        penalty: Penalty | None = None,
        at: Sequence[Tensor] | None = None,
        buffers: State | None = None,
    ) -> Gradients:
        """As a :class:`~fl_lightning.protocol.client.GradientEstimator`; a batch may be empty."""
        weights = [weight for weight in net.parameters() if weight.requires_grad]
        batch_size = len(batch.targets)
        divisor = batch_size if client.expected_batch_size is None else client.expected_batch_size
        if batch_size == 0:  # many nets cannot take an empty batch
            losses, buffers = partial(weights[0].new_zeros, 0), None
        with _holding(weights, at):
            with _holding_buffers(net, buffers):
                clipped, values = clipped_sum(net, weights, lambda: batch.checked(losses()), self.clipping_norm)
            pulls = self._pulls(client, penalty)
        again = f", gradient {client.num_estimates}" if client.num_estimates > 1 else ""  # equal noise would cancel out
        seed = stream_seed(self.seed, client.round, client.index, f"noise of step {client.step}{again}")
        noise = torch.Generator(weights[0].device).manual_seed(seed)
        scale = self.noise_multiplier * self.clipping_norm
        noisy = [
            (total + scale * torch.randn(total.shape, generator=noise, dtype=total.dtype, device=total.device)) / divisor
            for total in clipped
        ]
        if pulls is not None:
            noisy = [gradient + pull for gradient, pull in zip(noisy, pulls, strict=True)]
        return noisy, values.detach().sum() / divisor

    @staticmethod
    def _pulls(client: Client, penalty: Penalty | None) -> Sequence[Tensor] | None:
        """The penalty's gradients at the weights that the net holds; None: it depends on no weight."""
        value = 0.0 if penalty is None else penalty()
        if not isinstance(value, Tensor) or not value.requires_grad:
            return None
        return client.differentiate(lambda: (value, value))[0]


def clipped_sum(
    net: nn.Module, weights: Sequence[Tensor], losses: Callable[[], Tensor], clipping_norm: float
) -> tuple[Sequence[Tensor], Tensor]:
    """Sum over samples of ``g_i min(1, C / (||g_i|| + 1e-6))``, Opacus's clipping, and the losses.

    The first backward pass gives the norms, the second one weights the losses by the factors.
    """
    norms, values = sample_norms(net, weights, losses)
    if len(values) == 0:
        return [torch.zeros_like(weight) for weight in weights], values
    factors = (clipping_norm / (norms + _TINY)).clamp_max(1.0)
    with _silent_hooks():
        return torch.autograd.grad((factors * values).sum(), weights, materialize_grads=True), values


def sample_norms(net: nn.Module, weights: Sequence[Tensor], losses: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """Norms of the samples' gradients, (B,), and the losses, (B,), with their graph; nothing is left on the net.

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
                    name = next(name for name, other in net.named_parameters() if other is weight)
                    raise ValueError(f"{name} is used outside the forward pass of its layer")
                weight._norm_sample = torch.zeros_like(values)  # pyright: ignore[reportAttributeAccessIssue]
        return hooks.get_norm_sample().detach(), values
    finally:
        hooks.cleanup()  # which also switches off those that the graph still holds
        for layer in net.modules():  # the hooks leave these on layers if a pass fails
            layer.__dict__.pop("activations", None)
            layer.__dict__.pop("max_batch_len", None)


@contextmanager
def _holding(weights: Sequence[Tensor], values: Sequence[Tensor] | None) -> Iterator[None]:
    """Give weights other values for a block; None: they keep theirs."""
    if not values:
        yield
        return
    before = [weight.detach().clone() for weight in weights]
    with torch.no_grad():
        copy_all(weights, values)
    try:
        yield
    finally:
        with torch.no_grad():
            copy_all(weights, before)


@contextmanager
def _holding_buffers(net: nn.Module, buffers: State | None) -> Iterator[None]:
    """Give buffers other values for a block, after which the dict has their new values; None: they keep theirs."""
    held = {name: buffer for name, buffer in net.named_buffers() if name in (buffers or {})}
    with _holding(list(held.values()), None if buffers is None else [buffers[name] for name in held]):
        yield
        if buffers is not None:
            buffers.update({name: buffer.clone() for name, buffer in held.items()})


@contextmanager
def _silent_hooks() -> Iterator[None]:
    """A backward pass without torch's warning that inputs have no gradient."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        yield


def _try_layers(net: nn.Module, inputs: NetInputs) -> None:
    """Compare Opacus's norms with those of plain gradients, on two samples, to refuse before training what it cannot handle.

    Opacus gives no error for samples that see each other, or for weights that are used again outside their layer.

    Args:
        inputs: (2, ...), two samples.
    """
    net = copy.deepcopy(net).train()
    weights = [weight for weight in net.parameters() if weight.requires_grad]
    draws = torch.Generator(tree_leaves(inputs)[0].device).manual_seed(0)
    with torch.no_grad():
        for weight in weights:  # a layer that starts at zero would hide those before it
            weight.add_(torch.randn(weight.shape, generator=draws, dtype=weight.dtype, device=weight.device), alpha=0.01)
    try:
        norms, values = sample_norms(net, weights, lambda: net(inputs).square().flatten(1).sum(dim=1))
    except Exception as error:  # whatever the layer does to Opacus
        raise ValueError(
            f"model.net has a layer that Opacus cannot take gradients of by sample ({type(error).__name__}: "
            f"{' '.join(str(error).split())}): {_KNOWN_LAYERS}"
        ) from error
    for norm, value in zip(norms, values, strict=True):
        with _silent_hooks():
            gradients = torch.autograd.grad(value, weights, retain_graph=True, materialize_grads=True)
        plain = norm_of(gradients)
        if not torch.isclose(norm, plain, rtol=_TOLERANCE):
            raise ValueError(
                f"model.net has a layer of which Opacus finds wrong gradients by sample (norm {norm:.4g}, should be "
                f"{plain:.4g}), as where samples see each other, a weight is used twice or attention has dropout: "
                f"{_KNOWN_LAYERS}"
            )
