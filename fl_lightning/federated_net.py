"""FederatedNet: a federation's net, which of its weights are trained and shared, and what the server keeps by their names."""

import copy
import inspect
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from functools import cached_property, partial
from typing import Literal

import torch
from torch import nn

from fl_lightning.checks import check_choice, check_patterns
from fl_lightning.functional.aggregation import State
from fl_lightning.models import Network, TorchvisionModel
from fl_lightning.random_streams import seeded_layers

# (input_shape, num_classes) -> net, or a net. Ours come first: a bare name means ours where other libraries have one too.
Net = Callable[[tuple[int, ...], int], Network] | Callable[[tuple[int, ...], int], nn.Module] | nn.Module
BatchNormBuffers = Literal["averaged", "local", "reset"]
INITIAL_MODEL = "initial"  # kind of the server's state


class NamedTensors(nn.Module):
    """Tensors by the names of a net's weights, as buffers of the same names.

    Args:
        tensors: by name; taken as they are, not copied.
    """

    def __init__(self, tensors: State) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            *path, leaf = name.split(".")
            owner: nn.Module = self
            for part in path:
                if part not in owner._modules:
                    owner.add_module(part, nn.Module())
                owner = owner.get_submodule(part)
            owner.register_buffer(leaf, tensor)


class FederatedNet(nn.Module):
    """A net of which some weights are trained and some are not, and some are shared and some stay with their clients.

    Args:
        net: the network, or what builds it from ``(input_shape, num_classes)``.
        batch_norm_buffers: what becomes of running statistics of BatchNorm, as in
            :class:`fl_lightning.algorithm.FederatedAlgorithm`: where ``local``, they are personal.
        seed: of initial weights.

    Raises:
        TypeError: if ``net`` is neither a net nor builds one.
        ValueError: if a value is out of range.
    """

    personal: Sequence[str] = ()
    """Name patterns (``fnmatch``) of weights and buffers that stay with the client and are neither sent nor averaged."""

    def __init__(self, net: Net, batch_norm_buffers: BatchNormBuffers, seed: int) -> None:
        super().__init__()
        if isinstance(net, nn.Module):
            self.net = net
        elif callable(net):
            self._build_net = net
        else:
            raise TypeError(
                f"model.net is {net!r}, must be a net or build one, as fl_lightning.models.CNN2 does: in Python give the "
                f"object, in {type(self).__name__} annotate the argument as fl_lightning.Net"
            )
        check_choice("model.batch_norm_buffers", batch_norm_buffers, BatchNormBuffers)
        self.batch_norm_buffers, self.seed = batch_norm_buffers, seed
        self.server_states = nn.ModuleDict()  # of NamedTensors

    def make_net(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        """Build the net, with initial weights from the seed.

        Raises:
            ValueError: if it cannot be built for these.
        """
        build = self._build_net
        if inspect.isfunction(build) and build.__module__.startswith("torchvision.models."):
            build = partial(TorchvisionModel, name=build.__name__)  # torchvision's functions take no shape
        with seeded_layers(self.seed, -1, -1, "initial weights", torch.get_default_device()):
            try:
                self.net = build(input_shape, num_classes)
            except (RuntimeError, TypeError, OverflowError) as error:
                reason = (str(error) or type(error).__name__).splitlines()[0]
                raise ValueError(f"model.net cannot be built for inputs of shape {tuple(input_shape)}: {reason}") from error

    def _note_trained_weights(self) -> None:
        """Remember which weights are trained, once the net is as it will be."""
        # In a local step under some engines the net holds plain tensors, which do not say whether they are trained.
        self._trained_names = frozenset(name for name, weight in self.net.named_parameters() if weight.requires_grad)
        self._frozen_names = frozenset(name for name, _ in self.net.named_parameters()) - self._trained_names

    def _check_personal(self) -> None:
        held = [name for name, _ in (*self.net.named_parameters(), *self.net.named_buffers())]
        check_patterns("model.personal", self.personal, held)
        if all(map(self.is_personal, self._model())):
            raise ValueError(
                f"model.personal is {list(self.personal)}, which leaves no weight of model.net to share: use "
                "fl_lightning.LocalOnly to train every client alone"
            )

    # Whose a weight is ---------------------------------------------------------------------------------------------

    def trained_weights(self, net: nn.Module) -> State:
        """The net's weights that require a gradient, by name, in the order of what ``client.differentiate`` gives."""
        return {name: weight for name, weight in net.named_parameters() if name in self._trained_names}

    def is_personal(self, name: str) -> bool:
        """Whether a weight or buffer stays with its client."""
        if self.batch_norm_buffers == "local" and name in self.initial_statistics:
            return True
        return any(fnmatch(name, pattern) for pattern in self.personal)

    def is_replaced(self, name: str) -> bool:
        """Whether the server's tensor takes the place of a client's that receives: of all that is not personal."""
        return not self.is_personal(name)

    def is_constant(self, name: str) -> bool:
        """Whether a weight is never trained, hence the same at the server and all clients: it neither travels nor is kept."""
        return name in self._frozen_names

    @cached_property
    def initial_statistics(self) -> State:
        """Running statistics of BatchNorm as a fresh layer has them, by name."""
        fresh: State = {}
        for name, layer in self.net.named_modules():
            if isinstance(layer, nn.modules.batchnorm._NormBase) and layer.track_running_stats:
                layer = copy.deepcopy(layer)
                layer.reset_running_stats()
                fresh |= dict(layer.named_buffers(prefix=name))
        return fresh

    def fine_tunes(self, name: str) -> bool:
        """Whether a client that fine-tunes a model trains this weight."""
        return name in self._trained_names

    @property
    def has_global_model(self) -> bool:
        """Whether the server's net is a model that can be used: no part of it stays with clients."""
        return not any(self.is_personal(name) for name in self._model())

    def _model(self) -> State:
        """The global model's trained weights and its buffers, by name; shares memory."""
        tensors = {**self.trained_weights(self.net), **dict(self.net.named_buffers())}
        return {name: tensor.detach() for name, tensor in tensors.items()}

    # What the server keeps -----------------------------------------------------------------------------------------

    def add_server_state(self, kind: str, tensors: State | None = None) -> None:
        """Keep tensors at the server, by the names of weights: buffers, in checkpoints too.

        Args:
            kind: what they are, such as ``variate``.
            tensors: None: zeros for each weight that is trained and not personal.
        """
        if tensors is None:
            shared = {name: weight for name, weight in self.trained_weights(self.net).items() if not self.is_personal(name)}
            tensors = {name: torch.zeros_like(weight, requires_grad=False) for name, weight in shared.items()}
        self.server_states[kind] = NamedTensors(tensors)

    def server_state(self, kind: str) -> State:
        """What :meth:`add_server_state` made, by the weights' names; to be changed in place."""
        return dict(self.server_states[kind].named_buffers())

    def keep_initial_model(self) -> None:
        """Have ``initial_model`` be the present global model."""
        shared = {name: tensor for name, tensor in self._model().items() if not self.is_personal(name)}
        self.add_server_state(INITIAL_MODEL, {name: tensor.clone() for name, tensor in shared.items()})

    @property
    def initial_model(self) -> State:
        """Trained weights and buffers that the run began with, by name; for methods that declare ``Needs(initial_model=True)``.

        The server has had them since, and clients draw them from the seed: they are not counted as bytes. Shares memory.
        """
        # Nobody but clients ever changes what is personal.
        return {name: t for name, t in self._model().items() if self.is_personal(name)} | self.server_state(INITIAL_MODEL)
