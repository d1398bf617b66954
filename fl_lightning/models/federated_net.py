"""FederatedNet: a federation's net, with the sets of its trained and shared weights."""

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatch, fnmatchcase
from functools import partial
from glob import escape
from types import MethodType
from typing import Any, Literal, Self

import torch
from torch import nn

from fl_lightning.checks import ArgumentError, check_choice, check_list, check_patterns, did_you_mean, first_line
from fl_lightning.functional.aggregation import State
from fl_lightning.functional.random_streams import seeded_layers
from fl_lightning.models import Adapter, Network, TorchvisionModel
from fl_lightning.models.foreign_net import accept_foreign
from fl_lightning.models.network import class_layer, find_class_layer, of_class_layer, tied_layer

# (input_shape, num_classes) -> net, or a net. Ours come first: a bare name means ours even if other libraries have one too.
Net = Callable[[tuple[int, ...], int], Network] | Callable[[tuple[int, ...], int], nn.Module] | nn.Module
BatchNormBuffers = Literal["averaged", "local", "reset"]
_INITIAL = "initial"  # kind of the server's state


class NamedTensors(nn.Module):
    """Tensors by the names of a net's weights, as buffers of the same names.

    Args:
        tensors: by name; not copied.
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


class UnbuiltNet(nn.Module):
    """Placeholder for a net until the data for which it is built are known.

    Args:
        build: makes the net from ``(input_shape, num_classes)``.
    """

    def __init__(self, build: Callable[[Any, int], nn.Module]) -> None:
        super().__init__()
        of_torchvision = inspect.isfunction(build) and build.__module__.startswith("torchvision.models.")
        # torchvision's functions take no shape.
        self._build = partial(TorchvisionModel, name=build.__name__) if of_torchvision else build

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            raise AttributeError(
                f"model.net has no {name} yet, as it is built from the data: use it in configure_model, after "
                "super().configure_model()"
            ) from error

    def built(self, input_shape: Any, num_classes: int, seed: int) -> nn.Module:
        """The net, with initial weights from the seed.

        Raises:
            ValueError: if it cannot be built for these.
        """
        with seeded_layers(seed, -1, -1, "initial weights", torch.get_default_device()):
            try:
                return self._build(input_shape, num_classes)
            except (RuntimeError, TypeError, KeyError, OverflowError) as error:
                takes = ": a net class takes (input_shape, num_classes)" if "positional argument" in str(error) else ""
                reason = f"{first_line(error)}{takes}"
                if not all(isinstance(side, int) for side in input_shape):
                    reason = f"the data gives several tensors a sample, choose a net that takes them ({reason})"
                raise ValueError(f"model.net cannot be built for inputs of shape {input_shape}: {reason}") from error


class ServerStates(nn.ModuleDict):
    """State of a server, by kind and by the names of weights: buffers of its method, which checkpoints contain."""

    def add(self, kind: str, tensors: State) -> None:
        """Keep tensors by name, not copied, of a kind such as ``variate``."""
        self[kind] = NamedTensors(tensors)

    def tensors(self, kind: str) -> State:
        """The tensors given to :meth:`add`, by the weights' names; change them in place.

        Raises:
            ArgumentError: if none of this kind were added.
        """
        if kind not in self:
            cure = did_you_mean(kind, list(self), otherwise="name it in server_zeros, or add it in configure_model")
            raise ArgumentError("self.server_states", f"has no {kind!r}: {cure}")
        return dict(self[kind].named_buffers())


class FederatedNet(nn.Module):
    """A net with trained and frozen weights, and with shared and personal ones.

    Args:
        net: the network, or a function that builds it from ``(input_shape, num_classes)``.
        batch_norm_buffers: how BatchNorm running statistics are handled, as in
            :class:`fl_lightning.algorithm.FederatedAlgorithm`: where ``local``, they are personal.
        seed: of initial weights.
        adapter, trained, personal, class_layer: as in :class:`fl_lightning.algorithm.LocalTraining`.

    Raises:
        TypeError: if ``net`` is neither a net nor builds one.
        ValueError: if a value is out of range.
    """

    personal: Sequence[str] = ()
    """Name patterns (``fnmatch``) of weights and buffers that stay with the client and are neither sent nor averaged."""

    given: dict[str, Any]
    """What the class was called with, by argument."""

    def __new__(cls, *arguments: Any, **keywords: Any) -> Self:
        federated = super().__new__(cls)
        names = [*inspect.signature(cls.__init__).parameters][1:]
        federated.__dict__["given"] = {**dict(zip(names, arguments, strict=False)), **keywords}  # Module has no __init__ yet
        return federated

    def __init__(
        self,
        net: Net,
        batch_norm_buffers: BatchNormBuffers,
        seed: int,
        adapter: Adapter | None,
        trained: Sequence[str] | None,
        personal: Sequence[str] | None,
        class_layer: str | None,
    ) -> None:
        super().__init__()
        if hasattr(net, "class_path"):  # of a config, which the parser leaves as it is where an argument has no type
            raise TypeError(f"{type(self).__name__} has a net without a type: annotate it in __init__, net: fl_lightning.Net")
        if not callable(net):
            raise TypeError(
                f"model.net is {net!r}, must be a net or build one, as fl_lightning.models.CNN2 does: in Python give the "
                f"object, in {type(self).__name__} annotate the argument as fl_lightning.Net"
            )
        self.net = net if isinstance(net, nn.Module) else UnbuiltNet(net)
        check_choice("model.batch_norm_buffers", batch_norm_buffers, BatchNormBuffers)
        self.batch_norm_buffers, self.seed = batch_norm_buffers, seed
        for key, patterns in (("trained", trained), ("personal", personal)):
            check_list(f"model.{key}", patterns)
        if adapter is not None and not isinstance(adapter, Adapter):
            raise TypeError(f"model.adapter is {adapter!r}, must be an adapter, such as fl_lightning.models.LoRA()")
        self.adapter, self.trained, self.class_layer = adapter, trained, class_layer
        if personal is not None:
            self.personal = tuple(personal)
        self.server_states = ServerStates()
        self.trained_names: frozenset[str] = frozenset()
        # Of weights that are never trained, of the running statistics of their layers, and of tables of whole numbers that
        # the net does not save, such as positions of tokens: the same at the server and all clients, they are neither sent
        # nor stored.
        self.constant_names: frozenset[str] = frozenset()
        self._local_statistics: frozenset[str] = frozenset()

    def make_net(self, input_shape: Any, num_classes: int) -> None:
        """Build the net, if it was not given, with initial weights from the seed.

        Raises:
            ValueError: if it cannot be built for these.
        """
        if isinstance(self.net, UnbuiltNet):
            self.net = self.net.built(input_shape, num_classes, self.seed)

    def settle_net(self, is_drawn_anew: Callable[[str], bool]) -> None:
        """Remember which weights are trained and which statistics are personal, once the net is as it will be.

        Args:
            is_drawn_anew: whether a weight, by name, changes even if it is not trained.
        """
        self.personal = of_class_layer(self.net, self.personal)
        # In a local step under some engines the net holds plain tensors, without the information whether they are trained.
        self.trained_names = frozenset(name for name, weight in self.net.named_parameters() if weight.requires_grad)
        frozen = (name for name, _ in self.net.named_parameters() if name not in self.trained_names)
        self.constant_names = frozenset(name for name in frozen if not is_drawn_anew(name))
        saved = self.net.state_dict().keys()
        buffers = (
            name
            for name, table in self.net.named_buffers()
            if name not in saved and table.ndim > 0 and not table.is_floating_point()
        )
        self.constant_names |= {*buffers, *_hold_statistics(self.net, self.constant_names)}
        self._local_statistics = frozenset(fresh_statistics(self) if self.batch_norm_buffers == "local" else ())

    def trained_weights(self, net: nn.Module) -> State:
        """The net's weights that require a gradient, by name, in the order of the gradients of ``client.differentiate``."""
        return {name: weight for name, weight in net.named_parameters() if name in self.trained_names}

    def is_personal(self, name: str) -> bool:
        """Whether a weight or buffer stays with its client."""
        return name in self._local_statistics or any(fnmatch(name, pattern) for pattern in self.personal)

    @property
    def has_global_model(self) -> bool:
        """Whether the server's net is a model that can be used: no part of it stays with clients."""
        return not any(map(self.is_personal, global_tensors(self)))

    @property
    def initial_model(self) -> State:
        """Trained weights and buffers that the run began with, by name; for methods that declare ``Needs(initial_model=True)``.

        The server stores them and clients draw them from the seed, so they do not count as bytes. Shares memory.
        """
        # Only clients ever change personal tensors.
        personal = {name: tensor for name, tensor in global_tensors(self).items() if self.is_personal(name)}
        return personal | self.server_states.tensors(_INITIAL)


def keep_initial_model(method: FederatedNet, anew: bool) -> None:
    """Make ``initial_model`` the present global model.

    Args:
        anew: whether it replaces one that is kept already.
    """
    if anew or _INITIAL not in method.server_states:
        tensors = global_tensors(method).items()
        method.server_states.add(_INITIAL, {name: t.clone() for name, t in tensors if not method.is_personal(name)})


def freeze_net(method: FederatedNet) -> None:
    """Find the parts of a method's built net, add the adapter to it, and leave trained what ``trained`` names.

    By default, with an adapter, these are its layers and the class layer, if that shares no weight with another layer.

    Raises:
        ValueError: if the net has complex tensors, a pattern fits no weight, all weights are trained or none of the adapter's,
            an adapter fits no layer, or the class layer has no known name.
    """
    net, trained = method.net, method.trained
    for name, tensor in (*net.named_parameters(), *net.named_buffers()):
        if tensor.dtype.is_complex:
            raise ValueError(f"model.net has {name} of type {tensor.dtype}, must be real: store torch.view_as_real of it")
    if not isinstance(net, Network):
        accept_foreign(net)  # before other hooks, which then see logits
    find_class_layer(net, method.class_layer)
    if trained is not None and not trained:
        raise ValueError("model.trained is [], which trains no weight: name some, or give null for all")
    if method.adapter is not None:
        method.adapter.attach(net)
        if trained is None:
            head = class_layer(net, "which model.adapter would freeze")
            too = () if tied_layer(net, head) else (f"{head}.",)  # an embedding is most of a small language model
            named = net.named_parameters()
            trained = [escape(name) for name, weight in named if weight.requires_grad or name.startswith(too)]
    if trained is not None:
        patterns = of_class_layer(net, trained)
        weights = dict(net.named_parameters())
        check_patterns("model.trained", patterns, weights)
        fitting = {name for name in weights if any(fnmatchcase(name, pattern) for pattern in patterns)}
        if fitting == weights.keys():
            raise ValueError(f"model.trained is {[*trained]}, which fits all weights of model.net: leave it out, or name some")
        if method.adapter is not None and not any(fnmatchcase(name, method.adapter.pattern) for name in fitting):
            raise ValueError(
                f"model.trained is {[*trained]}, which leaves model.adapter {method.adapter} untrained: add "
                f"'{method.adapter.pattern}', or leave model.trained out"
            )
        for name, weight in weights.items():
            weight.requires_grad_(name in fitting)


def kept_buffers(method: FederatedNet, net: nn.Module) -> State:
    """The buffers of a net of a method by name, without those that are constant."""
    return {name: buffer for name, buffer in net.named_buffers() if name not in method.constant_names}


def copied_net(method: FederatedNet, changes: Sequence[str] = ()) -> nn.Module:
    """A copy of a method's net, which shares the weights that are constant: in memory they are there once.

    Args:
        changes: name patterns (``fnmatch``) of constant weights that the copy's user changes, and that are copied too.
    """
    held = dict((*method.net.named_parameters(), *method.net.named_buffers()))
    shared = [name for name in method.constant_names if not any(fnmatch(name, pattern) for pattern in changes)]
    return copy.deepcopy(method.net, {id(held[name]): held[name] for name in shared})


def global_tensors(method: FederatedNet) -> State:
    """The trained weights and the buffers of a method's net, by name; shares memory."""
    tensors = {**method.trained_weights(method.net), **kept_buffers(method, method.net)}
    return {name: tensor.detach() for name, tensor in tensors.items()}


def shared_zeros(method: FederatedNet) -> State:
    """A zero for each weight of a method's net that is trained and not personal, by name: the initial state of a server."""
    weights = method.trained_weights(method.net).items()
    return {name: torch.zeros_like(weight, requires_grad=False) for name, weight in weights if not method.is_personal(name)}


def fresh_statistics(method: FederatedNet) -> State:
    """Running statistics of BatchNorm as a fresh layer has them, by name; without those of frozen layers."""
    fresh: State = {}
    for name, layer in _tracking(method.net):
        layer = copy.deepcopy(layer)
        layer.reset_running_stats()
        fresh |= dict(layer.named_buffers(prefix=name))
    return {name: buffer for name, buffer in fresh.items() if name not in method.constant_names}


def _hold_statistics(net: nn.Module, constant: frozenset[str]) -> Iterator[str]:
    """Keep norms of frozen layers in evaluation mode; yields the names of their running statistics."""
    for name, layer in _tracking(net):
        layer.__dict__.pop("train", None)
        if constant.issuperset(_weights_at(net, name)):
            # A bound method follows its layer into deep copies.
            layer.__dict__["train"] = MethodType(_stay_in_evaluation, layer)
            layer.eval()
            yield from (buffer for buffer, _ in layer.named_buffers(prefix=name))


def _weights_at(net: nn.Module, name: str) -> list[str]:
    """Names of a layer's weights, or, of one that has none, of the nearest module around it that has some."""
    weights = [weight for weight, _ in net.get_submodule(name).named_parameters(prefix=name)]
    return weights if weights or not name else _weights_at(net, name.rpartition(".")[0])


def _stay_in_evaluation(layer: nn.Module, mode: bool = True) -> nn.Module:
    layer.training = False
    return layer


def _tracking(net: nn.Module) -> Iterator[tuple[str, nn.modules.batchnorm._NormBase]]:
    """The layers of a net that have running statistics, by name."""
    for name, layer in net.named_modules():
        if isinstance(layer, nn.modules.batchnorm._NormBase) and layer.track_running_stats:
            yield name, layer
