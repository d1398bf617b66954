"""Any image classification model of timm."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from fl_lightning.checks import did_you_mean, first_line
from fl_lightning.checks.extras import needing_extra
from fl_lightning.models.library_net import LibraryNet
from fl_lightning.models.network import image_shape
from fl_lightning.models.torchvision_model import load_all_but_class_layer, read_state_dict


class TimmModel(LibraryNet):
    """A model of timm with a class layer for ``num_classes``; its class layer is ``classifier``, all before it ``features``.

    Needs the extra ``timm``. ``--model.net timm.NAME`` is short for it.

    Args:
        input_shape: (channels, height, width).
        num_classes: at least 1.
        name: name of the model, such as ``vit_tiny_patch16_224``, also with the tag of its weights.
        pretrained: whether to load timm's weights, from its cache or the Hugging Face hub.
        weights: local file with a state dict or safetensors of this model instead. A class layer of another size is left out.
        options: further arguments of ``timm.create_model``, such as ``img_size``.

    Raises:
        ModuleNotFoundError: without the library.
        ValueError: if the name or an option is unknown, or the weights cannot be loaded.
        FileNotFoundError: if there is no such file.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        num_classes: int,
        name: str,
        pretrained: bool = False,
        weights: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        with needing_extra("timm", "model.net TimmModel"):
            import timm
        channels = image_shape("TimmModel", input_shape, cure="choose a net that fits the data")[0]
        state = None if weights is None else read_state_dict(weights)
        try:
            net = timm.create_model(name, pretrained=pretrained, num_classes=num_classes, in_chans=channels, **(options or {}))
        except Exception as error:  # of the hub, of the unpickler, of any of timm's nets
            cure = _CURE if timm.is_model(name) else did_you_mean(name, timm.list_models(), otherwise=_CURE)
            raise ValueError(f"model.net.name is {name}, which timm cannot build ({first_line(error)}): {cure}") from error
        head = net.get_classifier()  # pyright: ignore[reportCallIssue]
        if not isinstance(head, nn.Module) or isinstance(head, nn.ModuleList):
            raise ValueError(
                f"model.net.name is {name}, with a {type(head).__name__} of class layers, must have one layer: choose "
                "another net, such as one without distillation"
            )
        layer = next(path for path, module in net.named_modules() if module is head)
        if weights is not None and state is not None:
            load_all_but_class_layer(net, state, layer, weights)
        super().__init__(net, layer, name)

    def save(self, folder: Path, classes: Sequence[str]) -> None:
        from timm.models import save_for_hf

        named = {"label_names": [*classes]} if classes else None
        save_for_hf(self.whole(), str(folder), model_config=named, safe_serialization=True)

    @property
    def reading(self) -> str:
        return 'timm.create_model("local-dir:FOLDER", pretrained=True)'


_CURE = "check it and model.net.options, or, without a network, give model.net.weights"
