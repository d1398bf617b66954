"""Adapters: small trained layers next to frozen ones."""

import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import nn

from fl_lightning.checks import check_range, check_whole, did_you_mean, first_line
from fl_lightning.checks.extras import needing_extra
from fl_lightning.functional.aggregation import State
from fl_lightning.models.network import class_layer, tied_layer


class Adapter(ABC):
    """Adds trained layers to a net and freezes all its other weights."""

    pattern: str
    """Name pattern (``fnmatch``) of the weights that it adds."""

    @abstractmethod
    def attach(self, net: nn.Module) -> None:
        """Change a net in place; the initial weights of what is added come from the global generators.

        Raises:
            ModuleNotFoundError: without the library that makes it.
            ValueError: if the net has no layer for it.
        """

    @abstractmethod
    def begin_with(self, stored: State, present: State) -> State:
        """Initial weights of a net with this adapter, by name.

        Args:
            stored: weights of the net, with or without this adapter.
            present: those that the net has now.
        """

    @abstractmethod
    def merged(self, net: nn.Module) -> nn.Module:
        """A copy of a net with this adapter, without it: it is added to the weights that it adapts."""

    @abstractmethod
    def save(self, net: nn.Module, trained: Collection[str], folder: Path, name: str | None) -> None:
        """Write what was trained in a net with this adapter, in the format of the library that makes it.

        Args:
            net: with the names of the net that is to be adapted again.
            trained: names of the weights.
            folder: there is one. Weights are in ``adapter_model.safetensors``.
            name: of the net in its library, if it has one.

        Raises:
            ValueError: if the format cannot hold them.
        """


class LoRA(Adapter):
    """Low-rank adaptation (Hu et al., ICLR 2022) by peft: a layer of weight W computes with W + (alpha / r) B A.

    Needs the extra ``transformers``.

    Args:
        r: rank, at least 1.
        alpha: factor on the update; null is ``r``, so that the update counts once.
        target_modules: ends of the names of the layers, such as ``[query, value]``, each of which fits one; ``all-linear``: all
            linear layers before the class layer; null is peft's choice, for nets of transformers that it supports. Layers in
            torch's ``MultiheadAttention`` and ``TransformerEncoderLayer`` get none: torch reads their weights past an adapter.
        dropout: probability of an adapter's input to be dropped, in [0, 1).

    Raises:
        ValueError: if a number is out of range, or a list of names is empty.
    """

    pattern = "*lora_*"

    def __init__(
        self,
        r: int = 8,
        alpha: float | None = None,
        target_modules: Sequence[str] | Literal["all-linear"] | None = None,
        dropout: float = 0.0,
    ) -> None:
        check_whole("model.adapter.r", r, at_least=1)
        check_range("model.adapter.dropout", dropout, at_least=0, below=1, hint="0 drops nothing")
        if alpha is not None:
            check_range("model.adapter.alpha", alpha, above=0)
        self.every_linear = target_modules == "all-linear"
        if isinstance(target_modules, str) and not self.every_linear:
            cure = did_you_mean(target_modules, ["all-linear"], otherwise=f"give {[target_modules]}")
            raise ValueError(f"model.adapter.target_modules is {target_modules!r}, must be a list, or all-linear: {cure}")
        if target_modules is not None and not target_modules:
            raise ValueError("model.adapter.target_modules is [], which adapts no layer: name some, or give null")
        self.r, self.alpha, self.dropout = r, alpha, dropout
        self.target_modules = None if target_modules is None or self.every_linear else list(target_modules)

    def attach(self, net: nn.Module) -> None:
        with needing_extra("transformers", "model.adapter LoRA"):
            import peft
        if adapted_layers(net):
            raise ValueError(
                f"model.net {type(net).__name__} has an adapter already, such as that of an earlier method: give a new net, or "
                "leave model.adapter out"
            )
        targets = _linear_layers(net) if self.every_linear else self.target_modules
        layers, passed = [name for name, _ in net.named_modules()], _passed_layers(net)
        for target in targets or ():
            fitting = [name for name in layers if name == target or name.endswith(f".{target}")]
            if not fitting:
                raise self._misfit(net, f"has {target!r}")
            if name := next((name for name in fitting if name in passed), None):
                raise ValueError(
                    f"model.adapter.target_modules has {target!r}, which fits {name}, but torch's {passed[name]} reads weights "
                    "past an adapter: name layers outside of it"
                )
        adapted = net
        if targets is None:  # peft's choice depends on the configuration of a net of transformers
            adapted = next((layer for layer in net.modules() if hasattr(layer, "config")), net)
        try:
            peft.inject_adapter_in_model(self._config(targets), adapted)
        except (ValueError, TypeError) as error:
            if re.search("target.modules?", str(error), re.IGNORECASE):
                raise self._misfit(net, f"is {'null' if targets is None else targets or 'all-linear'}") from error
            raise ValueError(
                f"model.adapter is {self!r}, which peft cannot add to model.net {type(net).__name__} ({first_line(error)}): "
                "change its values, or name other layers as target_modules"
            ) from error
        for name, weight in net.named_parameters():
            weight.requires_grad_("lora_" in name)

    def merged(self, net: nn.Module) -> nn.Module:
        net = copy.deepcopy(net)
        for name, layer in adapted_layers(net).items():
            layer.merge()
            net.set_submodule(name, layer.get_base_layer())
        return net

    def save(self, net: nn.Module, trained: Collection[str], folder: Path, name: str | None) -> None:
        from safetensors.torch import save_file

        state, adapted = net.state_dict(), adapted_layers(net)
        whole = sorted({name.rpartition(".")[0] for name in trained if "lora_" not in name})
        if within := next((name for name in whole if name.endswith(".base_layer")), None):
            raise ValueError(
                f"model.trained fits weights of {within}, which has an adapter, and peft's format cannot hold both: export "
                "with --weights merged"
            )
        for layer in whole:
            if tied := tied_layer(net, layer):
                raise ValueError(
                    f"model.trained fits weights of {layer}, which shares them with {tied}, and peft's format does not keep "
                    "that: export with --weights merged"
                )
        config = self._config([*adapted])
        config.modules_to_save, config.inference_mode = whole or None, True
        config.base_model_name_or_path = name
        config.save_pretrained(str(folder))
        # peft looks for every layer with a name that ends with one of these, as pre_classifier does with classifier.
        kept = {name: t for name, t in state.items() if "lora_" in name or name.rpartition(".")[0].endswith((*whole,))}
        # In memory of their own, as safetensors requires, and without the name of the adapter, as peft stores them.
        tensors = {
            "base_model.model." + re.sub(r"(lora_\w+)\.default", r"\1", name): tensor.detach().clone().contiguous()
            for name, tensor in kept.items()
        }
        save_file(tensors, folder / "adapter_model.safetensors")

    def _config(self, targets: Sequence[str] | None) -> Any:
        import peft

        return peft.LoraConfig(
            r=self.r,
            lora_alpha=self.r if self.alpha is None else self.alpha,  # pyright: ignore[reportArgumentType]  # any number
            lora_dropout=self.dropout,
            target_modules=None if targets is None else [*targets],
        )

    def __repr__(self) -> str:
        where = "all-linear" if self.every_linear else self.target_modules
        return f"LoRA(r={self.r}, alpha={self.alpha}, target_modules={where})"

    @staticmethod
    def _misfit(net: nn.Module, given: str) -> ValueError:
        kinds, passed = nn.Linear | nn.Conv2d | nn.Embedding, _passed_layers(net)
        names = [name for name, layer in net.named_modules() if isinstance(layer, kinds) and name not in passed]
        return ValueError(
            f"model.adapter.target_modules {given}, which fits no layer of model.net {type(net).__name__}: name some of "
            f"{', '.join(names[:20])}{', ...' if len(names) > 20 else ''}"
        )

    def begin_with(self, stored: State, present: State) -> State:
        if any("lora_" in name for name in stored):
            return stored
        named = {name.replace(".base_layer.", "."): name for name in present}
        # Names that are not of this net stay as they are, and are refused.
        weights = {named.get(name, name): tensor for name, tensor in stored.items()}
        return {name: tensor for name, tensor in present.items() if "lora_" in name} | weights


def adapted_layers(net: nn.Module) -> dict[str, Any]:
    """The layers of a net that have an adapter of peft, by name."""
    with needing_extra("transformers", "model.adapter LoRA"):
        from peft.tuners.tuners_utils import BaseTunerLayer
    return {name: layer for name, layer in net.named_modules() if isinstance(layer, BaseTunerLayer)}


def _linear_layers(net: nn.Module) -> list[str]:
    """Names of the linear layers before the class layer that call their adapters."""
    head, passed = class_layer(net, "which all-linear leaves out"), _passed_layers(net)
    names = [name for name, layer in net.named_modules() if isinstance(layer, nn.Linear) and name not in passed]
    return [name for name in names if name != head and not name.startswith(f"{head}.")]


def _passed_layers(net: nn.Module) -> dict[str, str]:
    """Layers that torch does not call but reads the weights of, always or in evaluation, by name: the class that reads them.

    peft adapts a whole ``MultiheadAttention``, but adds to its frozen weights and subtracts again in every pass, with rounding.
    """
    return {
        f"{name}.{inner}".strip("."): type(layer).__name__
        for name, layer in net.named_modules()
        if isinstance(layer, nn.MultiheadAttention | nn.TransformerEncoderLayer)
        for inner, _ in layer.named_modules()
    }
