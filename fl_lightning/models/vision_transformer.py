"""The vision transformer ViT-B/32, which FedReg fine-tunes on CIFAR-100 at 384 pixels.

Dosovitskiy et al., "An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale", ICLR 2021, from torchvision.
Google's weights were trained with the tanh approximation of GELU; torchvision's net computes GELU itself, as other ports do.
FedReg's code starts the class layer at ones; zeros give the same softmax, at every step.
"""

import math
import zipfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.models import VisionTransformer
from torchvision.models.vision_transformer import interpolate_embeddings

from fl_lightning.checks import check_file
from fl_lightning.models.network import Network, check_colour
from fl_lightning.models.torchvision_model import load_all_but_class_layer, read_state_dict

_CURE = "give Google's ViT-B_32.npz"


class ViTB32(Network):
    """ViT-B/32 for square colour images; 87,605,092 parameters for 384x384 and 100 classes.

    Patches of 32x32 to 768, class token, learned positions; 12 blocks of attention with 12 heads and a hidden layer of 3072;
    LayerNorm; linear to classes, zero at first.

    Args:
        input_shape: (3, side, side), side a multiple of 32.
        num_classes: at least 1.
        weights: local file: torchvision's ``vit_b_32`` state dict, or Google's ``ViT-B_32.npz``. Positions are interpolated to
            the data's image size, a class layer of another size is left out. By default, random weights.

    Raises:
        ValueError: if the images do not fit, or the file contains the weights of another net.
        FileNotFoundError: if there is no such file.
    """

    _patch, _num_layers, _num_heads, _width, _hidden = 32, 12, 12, 768, 3072

    def __init__(self, input_shape: Sequence[int], num_classes: int, weights: str | None = None) -> None:
        super().__init__()
        shape, name = tuple(input_shape), type(self).__name__
        check_colour(name, shape)
        if shape[1] != shape[2] or shape[1] % self._patch:
            raise ValueError(
                f"model.net {name} needs square images with sides a multiple of {self._patch}, the data gives shape {shape}: "
                "add fl_lightning.data.Resize and CenterCrop to data.augment"
            )
        net = VisionTransformer(
            image_size=shape[1],
            patch_size=self._patch,
            num_layers=self._num_layers,
            num_heads=self._num_heads,
            hidden_dim=self._width,
            mlp_dim=self._hidden,
            num_classes=num_classes,
        )
        if weights is not None:
            state = self._read_numpy(weights) if weights.endswith(".npz") else read_state_dict(weights)
            self._check_positions(state, weights)
            state = interpolate_embeddings(net.image_size, self._patch, OrderedDict(state))
            load_all_but_class_layer(net, state, "heads.head", weights)
        self.classifier = net.heads.get_submodule("head")
        net.add_module("heads", nn.Identity())
        self.features = net

    def _check_positions(self, state: Mapping[str, Tensor], file: str) -> None:
        """Raise an error with the file's name, which ``interpolate_embeddings`` would not give."""
        positions = state.get("encoder.pos_embedding", torch.empty(0))
        patches = positions.shape[1] - 1 if positions.ndim == 3 and len(positions) == 1 else 0
        if patches < 1 or math.isqrt(patches) ** 2 != patches:
            raise ValueError(
                f"model.net.weights is {file}, where encoder.pos_embedding is {tuple(positions.shape)} and must be "
                f"(1, 1 + n * n, {self._width}): give weights of ViT-B/32"
            )

    def _read_numpy(self, file: str) -> dict[str, Tensor]:
        """Google's names and layouts turned into torchvision's."""
        arrays, width = _Arrays(file), self._width
        state = {
            "class_token": arrays.take("cls", 1, 1, width),
            "conv_proj.weight": arrays.take("embedding/kernel", self._patch, self._patch, 3, width).permute(3, 2, 0, 1),
            "conv_proj.bias": arrays.take("embedding/bias", width),
            "encoder.pos_embedding": arrays.take("Transformer/posembed_input/pos_embedding", 1, None, width),
            "encoder.ln.weight": arrays.take("Transformer/encoder_norm/scale", width),
            "encoder.ln.bias": arrays.take("Transformer/encoder_norm/bias", width),
        }
        for layer in range(self._num_layers):
            block = self._read_block(arrays, f"Transformer/encoderblock_{layer}")
            state |= {f"encoder.layers.encoder_layer_{layer}.{name}": value for name, value in block.items()}
        # After a pre_logits layer, which files of the pre-training have, the class layer expects other inputs.
        if "head/kernel" in arrays.left and "pre_logits/kernel" not in arrays.left:
            state["heads.head.weight"] = arrays.take("head/kernel", width, None).T
            state["heads.head.bias"] = arrays.take("head/bias", None)
        if unknown := [name for name in arrays.left if not name.startswith(("head/", "pre_logits/"))]:
            raise ValueError(f"model.net.weights is {file}, where {unknown[0]} is unknown: {_CURE}")
        return state

    def _read_block(self, arrays: "_Arrays", block: str) -> dict[str, Tensor]:
        width, hidden, heads = self._width, self._hidden, self._num_heads
        attention, mlp = f"{block}/MultiHeadDotProductAttention_1", f"{block}/MlpBlock_3"
        per_head = (heads, width // heads)
        inward = ("query", "key", "value")  # stacked in this order in torch
        kernels = [arrays.take(f"{attention}/{part}/kernel", width, *per_head).flatten(1).T for part in inward]
        biases = [arrays.take(f"{attention}/{part}/bias", *per_head).flatten() for part in inward]
        return {
            "ln_1.weight": arrays.take(f"{block}/LayerNorm_0/scale", width),
            "ln_1.bias": arrays.take(f"{block}/LayerNorm_0/bias", width),
            "self_attention.in_proj_weight": torch.cat(kernels),
            "self_attention.in_proj_bias": torch.cat(biases),
            "self_attention.out_proj.weight": arrays.take(f"{attention}/out/kernel", *per_head, width).flatten(0, 1).T,
            "self_attention.out_proj.bias": arrays.take(f"{attention}/out/bias", width),
            "ln_2.weight": arrays.take(f"{block}/LayerNorm_2/scale", width),
            "ln_2.bias": arrays.take(f"{block}/LayerNorm_2/bias", width),
            "mlp.0.weight": arrays.take(f"{mlp}/Dense_0/kernel", width, hidden).T,
            "mlp.0.bias": arrays.take(f"{mlp}/Dense_0/bias", hidden),
            "mlp.3.weight": arrays.take(f"{mlp}/Dense_1/kernel", hidden, width).T,
            "mlp.3.bias": arrays.take(f"{mlp}/Dense_1/bias", width),
        }


class _Arrays:
    """The arrays of an .npz file, each taken once."""

    def __init__(self, file: str) -> None:
        check_file("model.net.weights", file, "give a local file")
        try:
            with np.load(file) as arrays:
                self.left = dict(arrays)
        except (ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"model.net.weights is {file}, which numpy cannot read: {_CURE}") from error
        self.file = file

    def take(self, name: str, *shape: int | None) -> Tensor:
        """The array of that name and shape; None is any length."""
        if name not in self.left:
            raise ValueError(f"model.net.weights is {self.file}, where {name} is missing: {_CURE}")
        array = self.left.pop(name)
        if array.ndim != len(shape) or any(must not in (None, size) for size, must in zip(array.shape, shape, strict=True)):
            raise ValueError(f"model.net.weights is {self.file}, where {name} is {array.shape} and must be {shape}: {_CURE}")
        return torch.from_numpy(array)
