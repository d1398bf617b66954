"""Any sequence or image classification model of Hugging Face's transformers, and any causal language model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fl_lightning.checks import did_you_mean, first_line
from fl_lightning.checks.extras import needing_extra
from fl_lightning.functional.aggregation import State
from fl_lightning.models.foreign_net import accept_foreign
from fl_lightning.models.library_net import LibraryNet

_BESIDE_HEAD = ("pooler", "pre_classifier")  # layers that a net without a class layer may lack as well
# Names of the class layer in nets of transformers.
_HEADS = ("classifier", "score", "classification_head", "lm_head", "embed_out")

_FITTING = {  # by kind, what to do about a model of another kind
    "AutoModelForCausalLM": "give a causal language model, such as gpt2, or leave model.net.causal out",
    "AutoModelForImageClassification": "give a model of images, such as google/vit-base-patch16-224, as the data has images",
    "AutoModelForSequenceClassification": "give a model of texts, such as google-bert/bert-base-uncased, or data of images",
}


class TransformersModel(LibraryNet):
    """A classification model of transformers with a class layer for ``num_classes``, or a causal language model.

    Its class layer is ``classifier``, everything before it ``features``. Inputs are images, token ids (B, L), or a dict of the
    model's arguments. Needs the extra ``transformers``; ``--model.net transformers.NAME`` is short for it.

    Args:
        input_shape: (channels, height, width) of images, (L,) of token ids, or a dict of shapes by argument.
        num_classes: at least 1; of a language model V, the number of tokens.
        name: of a model on the Hugging Face hub, such as ``google/bert_uncased_L-2_H-128_A-2``, or a local folder with
            ``config.json`` and, as ``save_pretrained`` writes them, weights as safetensors.
        pretrained: whether to load its weights. A class layer of another size, and a pooler that is missing, begin anew.
        options: values of the model's configuration, such as ``{hidden_dropout_prob: 0.0}``.
        causal: whether it is a causal language model, for :class:`fl_lightning.objectives.NextToken`: it returns (B, T, V)
            logits.

    Raises:
        ModuleNotFoundError: without the library.
        ValueError: if the model cannot be loaded or lacks an option, weights of other layers are missing, it has no class layer
            of a known name, it has another number of tokens than the data, or a language model cannot be taken apart before its
            class layer.
    """

    def __init__(
        self,
        input_shape: Any,
        num_classes: int,
        name: str,
        pretrained: bool = True,
        options: dict[str, Any] | None = None,
        causal: bool = False,
    ) -> None:
        with needing_extra("transformers", "model.net TransformersModel"):
            import transformers
        of_images = "pixel_values" in input_shape if isinstance(input_shape, dict) else len(input_shape) == 3
        if causal:
            kind, settings = "AutoModelForCausalLM", {"use_cache": False, **({} if pretrained else {"vocab_size": num_classes})}
        else:
            kind = "AutoModelForImageClassification" if of_images else "AutoModelForSequenceClassification"
            settings = {"num_labels": num_classes}
        auto, settings = getattr(transformers, kind), {**settings, **(options or {})}
        config: Any  # its class is known at run time
        with _loading(name, kind):
            config, ignored = transformers.AutoConfig.from_pretrained(name, **settings, return_unused_kwargs=True)
        if unknown := next((option for option in options or () if option in ignored), None):
            raise ValueError(
                f"model.net.options has {unknown!r}, which {type(config).__name__} of {name} does not have: "
                f"{did_you_mean(unknown, config.to_dict(), otherwise='remove it')}"
            )
        with _loading(name, kind):
            if pretrained:
                # Only safetensors: a pickle can run code.
                net, loaded = auto.from_pretrained(
                    name, config=config, ignore_mismatched_sizes=True, use_safetensors=True, output_loading_info=True
                )
            else:
                net, loaded = auto.from_config(config), {}
        head = next((attribute for attribute in _HEADS if isinstance(getattr(net, attribute, None), nn.Module)), None)
        if head is None:
            raise ValueError(
                f"model.net.name is {name}, whose {type(net).__name__} has none of the class layers {', '.join(_HEADS)}: give "
                "the built net in Python"
            )
        new = [*loaded.get("missing_keys", ()), *(key for key, *_ in loaded.get("mismatched_keys", ()))]
        if strange := sorted(key for key in new if not {head, *_BESIDE_HEAD} & {*key.split(".")}):
            raise ValueError(
                f"model.net.name is {name}, whose weights lack {strange[0]} in the shape of {type(net).__name__}: check "
                "model.net.options, or set model.net.pretrained to false"
            )
        if causal and (tokens := net.get_input_embeddings().num_embeddings) != num_classes:
            raise ValueError(
                f"model.net.name is {name}, which has {tokens} tokens, but the data has {num_classes}: set num_tokens of "
                "NextToken, and use the tokenizer of the net"
            )
        net = net.float()  # some are stored in half precision, in which clients do not train
        logits = _large_logits(net, head) if causal else None
        super().__init__(net, head, name)
        if logits is not None and not self._gives(logits):
            raise ValueError(
                f"model.net.name is {name}, which reads the weights of its class layer {head}, or caps its logits after it: "
                "give the built net in Python"
            )
        self.causal = causal
        self.drawn = frozenset(filter(lambda name: name.startswith("features."), map(self._our_name, new)))
        accept_foreign(net)

    def _gives(self, logits: Tensor) -> bool:
        """Whether the two parts give the logits that the net gave."""
        try:
            found = self.classifier(_large_logits(self.features, self._head))
        except AttributeError:  # of a weight that the layer in place of the head lacks
            return False
        return bool((found - logits).abs().max() <= 1e-3 * logits.abs().max())

    def _read(self, stored: State) -> State:
        import transformers.utils.logging

        # Files may have names that transformers changes as it loads them.
        with _quiet(transformers.utils.logging):
            net, told = type(self.features).from_pretrained(
                None, config=self.features.config, state_dict=stored, ignore_mismatched_sizes=True, output_loading_info=True
            )
        state = {name: tensor for name, tensor in net.float().state_dict().items() if name not in told["missing_keys"]}
        # Refused by the caller, for their names and shapes.
        others = {name: torch.empty(shape) for name, shape, _ in told["mismatched_keys"]}
        return {**state, **others, **{name: stored[name] for name in told["unexpected_keys"] if name in stored}}

    def save(self, folder: Path, classes: Sequence[str]) -> None:
        import transformers.utils.logging

        net: Any = self.whole()
        if classes:  # else it keeps those of the net that training began with
            net.config.id2label = dict(enumerate(classes))
            net.config.label2id = {name: number for number, name in enumerate(classes)}
        with _quiet(transformers.utils.logging):
            net.save_pretrained(folder)

    @property
    def reading(self) -> str:
        return f"transformers.{type(self.features).__name__}.from_pretrained(FOLDER)"


@torch.no_grad()
def _large_logits(net: nn.Module, head: str) -> Tensor:
    """Logits of two tokens, with a class layer that gets its inputs times 1000: what caps logits changes these."""
    hook = net.get_submodule(head).register_forward_pre_hook(lambda layer, arguments: (1e3 * arguments[0],))
    ids, was_training = torch.arange(2, device=next(net.parameters()).device)[None], net.training
    try:
        return net.eval()(ids).logits
    finally:
        hook.remove()
        net.train(was_training)


@contextmanager
def _loading(name: str, kind: str) -> Iterator[None]:
    """One line, with the cure, for any error of transformers in the block."""
    import transformers.utils.logging

    try:
        with _quiet(transformers.utils.logging):
            yield
    except Exception as error:  # of the hub, of the configuration, of any of its nets
        cure = "check the name and model.net.options, or, without a network, give a local folder"
        if str(error).startswith("Unrecognized configuration class"):
            cure = _FITTING[kind]
        elif Path(name).is_dir():
            cure = "give a folder that save_pretrained has written, with config.json and weights as safetensors"
        raise ValueError(f"model.net.name is {name}, which {kind} cannot load ({first_line(error)}): {cure}") from error


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """Without the bars and tables with which transformers tells that a class layer begins anew."""
    level, shows_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shows_bars:
            logging.enable_progress_bar()
