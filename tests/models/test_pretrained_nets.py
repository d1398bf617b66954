"""Adapters, frozen and personal weights by key, and nets of libraries in training."""

import copy
from collections import OrderedDict
from functools import partial

import pytest
import safetensors.torch
import torch
from pretrained_cases import BATCH, IDS, IMAGES, INPUTS, MASK, NO_DROPOUT, RATE, SMALL, STEPS, TARGETS, federation, fitted, sgd
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fl_lightning import FedAvg, FedPer, Trainer
from fl_lightning.callbacks import FederatedCallback
from fl_lightning.data import from_arrays
from fl_lightning.export.model_folder import _write_trained
from fl_lightning.functional import empirical_fisher
from fl_lightning.models import MLP, LoRA, TimmModel, TransformersModel
from fl_lightning.models.foreign_net import accept_foreign
from fl_lightning.models.network import find_class_layer
from fl_lightning.objectives import NextToken

_, timm, transformers = (pytest.importorskip(library) for library in ("peft", "timm", "transformers"))


class Bytes(FederatedCallback):
    """Bytes down and up of each round."""

    def __init__(self):
        self.sent = []

    def on_round_end(self, trainer, module, round, report):
        self.sent.append((report.bytes_down, report.bytes_up))


def looped(begun, data):
    """FedAvg by a plain loop on the nets of transformers themselves, from these weights; what is trained at the end."""
    data.setup()
    net = copy.deepcopy(begun)
    trained = [name for name, weight in net.named_parameters() if weight.requires_grad]
    for round in (1, 2):
        fits = []
        for client in range(2):
            copied = copy.deepcopy(net)
            weights = {name: dict(copied.named_parameters())[name] for name in trained}
            for batch in data.client_batches().batches(client, round, STEPS):
                inputs = batch.inputs if isinstance(batch.inputs, dict) else {"pixel_values": batch.inputs}
                logits = copied.classifier(type(copied.features).forward(copied.features, **inputs).logits)
                gradients = torch.autograd.grad(nn.functional.cross_entropy(logits, batch.targets), [*weights.values()])
                for weight, gradient in zip(weights.values(), gradients):
                    weight.data -= RATE * gradient
            fits.append({name: weight.detach() for name, weight in weights.items()})
        for name in trained:
            dict(net.named_parameters())[name].data = (fits[0][name] + fits[1][name]) / 2
    return {name: dict(net.named_parameters())[name] for name in trained}


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("kind", INPUTS)
def test_fine_tuning_is_that_of_a_plain_loop(kind, engine, adapted, folders):
    """A net of transformers, whole or by LoRA: the same trained weights, and the frozen ones as they began."""
    net = partial(TransformersModel, name=str(folders / kind))
    layers = {"bert": ["query", "value"], "vit": ["q_proj", "v_proj"]}[kind]
    adapter = LoRA(r=2, alpha=4, target_modules=layers) if adapted else None
    method = FedAvg(net, adapter=adapter, engine=engine, local_steps=STEPS, optimizer=sgd)
    data = federation(kind)
    data.setup()
    method.federation = data
    method.configure_model()
    begun = copy.deepcopy(method.net)
    expected = looped(begun, federation(kind))
    fitted(method, data)
    assert set(expected) == method.trained_names
    for name, weight in method.net.named_parameters():
        torch.testing.assert_close(
            weight, expected[name] if name in expected else begun.get_parameter(name), atol=1e-5, rtol=1e-4
        )


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize(("kind", "stacked"), [("bert", ["vectorized"]), ("vit", ["vectorized", "captured"])])
def test_dropout_of_a_transformer_is_the_same_under_all_engines(kind, stacked, adapted, folders):
    """Of its attention, its layers and the adapter; torch's compiler cannot trace how BERT makes its mask."""
    rates = {"attention_probs_dropout_prob": 0.3, "hidden_dropout_prob": 0.3}
    layers = {"bert": ["query", "value"], "vit": ["q_proj", "v_proj"]}[kind]
    adapter = LoRA(r=2, alpha=4, dropout=0.3, target_modules=layers) if adapted else None
    trained = {}
    for engine, on in (("sequential", False), ("sequential", True), *((engine, True) for engine in stacked)):
        net = partial(TransformersModel, name=str(folders / kind), options=rates if on else {})
        method = FedAvg(net, adapter=adapter, engine=engine, local_steps=STEPS, optimizer=sgd)
        fitted(method, federation(kind))
        trained[engine, on] = {name: method.net.get_parameter(name) for name in method.trained_names}
    expected = trained["sequential", True]
    assert any((trained["sequential", False][name] - weight).abs().max() > 1e-4 for name, weight in expected.items())
    for engine in stacked:
        for name, weight in trained[engine, True].items():
            torch.testing.assert_close(weight, expected[name], atol=1e-5, rtol=1e-4)


def texts():
    """Tokens with the next ones as targets."""
    objective = NextToken(num_tokens=30)
    return from_arrays(IDS[:40, :-1], IDS[:40, 1:], [range(20), range(20, 40)], batch_size=BATCH, objective=objective)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_a_causal_model_learns_as_by_its_own_loss(engine, folders):
    """Against transformers' model with its own loss, ``labels``, in float64; its class layer is its embedding too."""
    net = transformers.GPT2LMHeadModel.from_pretrained(folders / "gpt").double()
    data = texts()
    data.setup()
    for round in (1, 2):
        fits = []
        for client in range(2):
            copied = copy.deepcopy(net)
            for batch in data.client_batches().batches(client, round, STEPS):
                whole = torch.cat([batch.inputs, batch.targets[:, -1:]], dim=1)
                gradients = torch.autograd.grad(copied(input_ids=whole, labels=whole).loss, [*copied.parameters()])
                for weight, gradient in zip(copied.parameters(), gradients):
                    weight.data -= RATE * gradient
            fits.append(copied)
        for weight, *both in zip(net.parameters(), *(fit.parameters() for fit in fits)):
            weight.data = (both[0] + both[1]) / 2
    method = FedAvg(
        partial(TransformersModel, name=str(folders / "gpt"), causal=True), engine=engine, local_steps=STEPS, optimizer=sgd
    )
    fitted(method, texts())
    assert method.net.classifier.weight is method.net.features.get_input_embeddings().weight
    held = {name.removeprefix("features."): weight for name, weight in method.net.state_dict().items()}
    for name, weight in net.named_parameters():
        torch.testing.assert_close(held[name].double(), weight.detach(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("by_name", [True, False])
def test_an_embedding_that_is_the_class_layer_too_stays_frozen(by_name, folders, tmp_path):
    """By name and as an object, LoRA trains only its layers; peft's format refuses the embedding, if it is trained."""
    net = partial(TransformersModel, name=str(folders / "gpt"), causal=True)
    head = "classifier.*" if by_name else "transformer.wte.weight"
    for trained in (None, ["*lora_*", head]):
        built = net if by_name else transformers.GPT2LMHeadModel.from_pretrained(folders / "gpt")
        method = FedAvg(built, adapter=LoRA(r=2), trained=trained, local_steps=1)
        fitted(method, texts(), rounds=1)
        assert all("lora_" in name for name in method.trained_names) == (trained is None)
    whole, names = method.net, method.trained_names
    if by_name:
        whole, names = method.net.whole(), {method.net.library_name(name) for name in names}
    with pytest.raises(ValueError, match=r"^model.trained fits weights of .*, which shares them with .*: export with"):
        method.adapter.save(whole, names, tmp_path, None)


def test_what_is_exported_as_trained_has_no_frozen_weight_by_its_second_name(folders, tmp_path):
    """The embedding is a weight of two layers."""
    net = transformers.GPT2LMHeadModel.from_pretrained(folders / "gpt")
    method = FedAvg(net, trained=["transformer.ln_f.*"], local_steps=1)
    fitted(method, texts(), rounds=1)
    _write_trained(method, tmp_path)
    assert safetensors.torch.load_file(tmp_path / "trained.safetensors").keys() == method.trained_names


@pytest.mark.parametrize("kind", ["RecurrentGemma", "Mamba"])
def test_a_language_model_that_is_more_than_its_two_parts_is_refused(kind, tmp_path):
    """One caps its logits, which are small at first, and one looks at the weight of its class layer."""
    sizes = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 1}
    if kind == "RecurrentGemma":
        sizes |= {"intermediate_size": 32, "num_attention_heads": 2, "lru_width": 16, "block_types": ("attention",)}
    getattr(transformers, f"{kind}Config")(**sizes).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"^model.net.name is .*lm_head, or caps its logits after it: give the built net in P"):
        TransformersModel((7,), 30, str(tmp_path), pretrained=False, causal=True)


@pytest.mark.parametrize("kind", ["bert", "gpt"])
def test_fisher_information_is_that_of_single_samples(kind):
    """Of a net that asks for values of the padding mask, and of one that looks for the last token."""
    torch.manual_seed(2)
    if kind == "bert":
        config = transformers.BertConfig(vocab_size=30, max_position_embeddings=16, num_labels=3, **SMALL, **NO_DROPOUT)
        net = transformers.BertForSequenceClassification(config)
    else:
        sizes = {"vocab_size": 30, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2, "num_labels": 3}
        net = transformers.GPT2ForSequenceClassification(transformers.GPT2Config(pad_token_id=0, **sizes)).eval()
    net, inputs = net.double(), {name: part[:6] for name, part in INPUTS["bert"].items()}
    expected = {name: torch.zeros_like(weight) for name, weight in net.named_parameters()}
    for row, target in enumerate(TARGETS[:6]):
        logits = net.eval()(**{name: part[row : row + 1] for name, part in inputs.items()}).logits
        gradients = torch.autograd.grad(nn.functional.cross_entropy(logits[0], target), [*net.parameters()])
        for square, gradient in zip(expected.values(), gradients):
            square += gradient.square() / 6
    accept_foreign(net)
    loss = nn.CrossEntropyLoss(reduction="none")
    torch.testing.assert_close(empirical_fisher(net, loss, [(inputs, TARGETS[:6])]), expected)


@pytest.mark.parametrize("masked", [True, False])
def test_a_net_that_looks_at_values_is_refused_in_our_words(masked):
    """GPT-2 looks for the last token that is not padding: torch's paragraph about vmap names no cure."""
    sizes = {"vocab_size": 30, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2, "num_labels": 3}
    net = transformers.GPT2ForSequenceClassification(transformers.GPT2Config(pad_token_id=0, **sizes))
    inputs = INPUTS["bert"] if masked else {"input_ids": IDS}
    data = from_arrays(inputs, TARGETS, [range(30), range(30, 60)], batch_size=BATCH)
    line = "the net or the method decides by the value of a tensor, of which stacked clients have several"
    with pytest.raises(ValueError, match=rf"model.engine is vectorized, .* \({line}\): set model.engine to sequential$"):
        fitted(FedAvg(net, engine="vectorized", local_steps=1), data)


def test_a_net_for_one_text_at_a_time_is_refused_with_the_option_that_is_missing(folders):
    """transformers finds the end of a text by the number of the padding token; with it the net trains."""
    net, data = partial(TransformersModel, name=str(folders / "gpt")), federation("bert")
    with pytest.raises(
        ValueError, match=r"no padding token is defined.*: give .*'s pad_token_id, as in model.net.options \{pad"
    ):
        fitted(FedAvg(net), data)
    fitted(FedAvg(partial(net, options={"pad_token_id": 0}), engine="sequential", local_steps=1), data, 1)


def test_causal_models_need_the_tokens_of_the_data(folders):
    """Another tokenizer is refused; a net that begins anew gets an embedding for the data."""
    with pytest.raises(ValueError, match="which has 30 tokens, but the data has 50: set num_tokens of NextToken"):
        TransformersModel((7,), 50, str(folders / "gpt"), causal=True)
    net = TransformersModel((7,), 50, str(folders / "gpt"), pretrained=False, causal=True)
    assert net(IDS[:4, :-1]).shape == (4, 7, 50)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (
            "bert",
            {},
            r"^model.net takes at most 16 tokens a sample, the data gives 20: shorten the texts, or choose a net with",
        ),
        ("gpt", {"causal": True}, r"^model.net takes at most 16 tokens a sample, the data gives 20: shorten"),
        (
            "gpt",
            {},
            r"^model.net.causal is false, with which .* a classifier, but data.source has NextToken.*: set it to true$",
        ),
    ],
)
def test_texts_that_a_net_cannot_take_are_refused_in_our_words(kind, settings, message, folders):
    """Too long for its positions, and the next tokens of a classifier; token ids are not told to be floats."""
    ids = IDS.repeat(1, 3)[:, :21]
    if kind == "gpt":
        data = from_arrays(ids[:, :-1], ids[:, 1:], [range(60)], objective=NextToken(num_tokens=30))
    else:
        data = from_arrays(ids[:, :-1], TARGETS, [range(60)])
    with pytest.raises(ValueError, match=message):
        fitted(FedAvg(partial(TransformersModel, name=str(folders / kind), **settings)), data)


def test_ids_beyond_the_positions_of_any_net_are_not_told_to_be_floats():
    """A table of another library, of which no configuration tells the size."""

    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions, self.head = nn.Embedding(30, 4), nn.Embedding(5, 4), nn.Linear(4, 3)

        def forward(self, ids):
            return self.head((self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))).mean(dim=1))

    with pytest.raises(ValueError, match=r"IndexError.*: choose one that fits the data, with embeddings for all tokens"):
        fitted(FedAvg(Positions()), from_arrays(IDS, TARGETS, [range(60)]))


def test_what_is_frozen_does_not_travel_and_is_in_memory_once(folders):
    """Down and up go adapters and the class layer alone; the working copy shares the frozen weights."""
    net = partial(TransformersModel, name=str(folders / "bert"))
    method = FedAvg(net, adapter=LoRA(r=2), engine="sequential", local_steps=1)
    watched = Bytes()
    fitted(method, federation("bert"), 1, watched)
    sent = 4 * sum(weight.numel() for weight in method.net.parameters() if weight.requires_grad)
    for name, weight in method.engine.net.named_parameters():
        same = weight.data_ptr() == method.net.get_parameter(name).data_ptr()
        assert same == (name not in method.trained_names)
    assert watched.sent == [(2 * sent, 2 * sent)]
    assert sent < 0.2 * 4 * sum(weight.numel() for weight in method.net.parameters())


def test_a_frozen_layer_runs_once_over_the_samples_of_a_stack():
    """Under vectorized: one product for both clients, where the adapter's have one a client."""

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            if operator in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default):
                products.append([tuple(factor.shape) for factor in args])
            return operator(*args, **(kwargs or {}))

    products: list[list[tuple[int, ...]]] = []
    net = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 3))
    method = FedAvg(net, adapter=LoRA(r=2, target_modules=["0"]), class_layer="2", engine="vectorized", local_steps=1)
    data = from_arrays(torch.randn(20, 6), torch.arange(20) % 3, [range(10), range(10, 20)], batch_size=4)
    with Products():
        fitted(method, data, 1)
    frozen, adapter = [(8, 6), (6, 7)], [(2, 4, 6), (2, 6, 2)]
    assert products.count(frozen) == products.count(adapter) == 2  # the trial before the fit, and its step
    assert [(4, 6), (6, 7)] not in products


def test_trained_names_freeze_all_else(folders):
    """``classifier.*`` is a linear probe; a pattern that fits nothing is refused."""
    net = partial(TransformersModel, name=str(folders / "vit"))
    method = FedAvg(net, trained=["classifier.*"], local_steps=1)
    fitted(method, federation("vit"), rounds=1)
    assert method.trained_names == {"classifier.weight", "classifier.bias"}
    with pytest.raises(ValueError, match=r"model.trained has 'head.\*', which fits no weight of model.net"):
        fitted(FedAvg(net, trained=["head.*"]), federation("vit"))


def test_personal_is_a_key_of_every_method():
    """FedAvg with a personal class layer is FedPer."""
    nets = [FedPer(MLP, local_steps=2), FedAvg(MLP, personal=["classifier.*"], local_steps=2)]
    for method in nets:
        fitted(method, from_arrays(IMAGES[:40], TARGETS[:40], [range(20), range(20, 40)], batch_size=BATCH))
    for one, other in zip(*(method.net.parameters() for method in nets)):
        assert torch.equal(one, other)


def test_personal_weights_that_are_frozen_are_refused():
    """All clients have the same; a pattern that also fits a trained weight stays."""
    data = from_arrays(IMAGES[:40], TARGETS[:40], [range(20), range(20, 40)], batch_size=BATCH)
    frozen = FedAvg(MLP, trained=["classifier.*"], personal=["features.*"])
    with pytest.raises(
        ValueError, match=r"^model.personal has 'features.\*', which fits only frozen weights .*: leave it out, or"
    ):
        fitted(frozen, data)
    method = FedAvg(MLP, trained=["classifier.*"], personal=["*bias"], local_steps=1)
    fitted(method, data, rounds=1)
    assert [name for name in method.trained_names if method.is_personal(name)] == ["classifier.bias"]


def test_a_timm_net_computes_what_timm_computes(tmp_path):
    """The class layer is ``classifier``; weights come from a file."""
    torch.manual_seed(2)
    whole = timm.create_model("resnet10t", num_classes=3)
    torch.save(whole.state_dict(), tmp_path / "weights.pth")
    net = TimmModel((3, 32, 32), 3, "resnet10t", weights=str(tmp_path / "weights.pth")).eval()
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(net(images), whole.eval()(images))
    assert isinstance(net.classifier, nn.Linear)
    torch.save({f"module.{name}": tensor for name, tensor in whole.state_dict().items()}, tmp_path / "wrapped.pth")
    with pytest.raises(ValueError, match=r"model.net.weights is .*wrapped.pth, which holds names that all begin with module\."):
        TimmModel((3, 32, 32), 3, "resnet10t", weights=str(tmp_path / "wrapped.pth"))
    other = TimmModel((3, 32, 32), 5, "resnet10t", weights=str(tmp_path / "weights.pth"))
    assert torch.equal(other.features.conv1[0].weight, whole.conv1[0].weight)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(TimmModel, (3, 32, 32), 3, "resnet10x"), "model.net.name is resnet10x, which timm cannot build"),
        (partial(TimmModel, (5,), 3, "resnet10t"), "model.net TimmModel needs images, the data gives shape"),
        (partial(TimmModel, (3, 32, 32), 3, "resnet10t", weights="no.pth"), "model.net.weights is no.pth"),
        (
            partial(TransformersModel, (8,), 3, "./nowhere"),
            "model.net.name is ./nowhere, which .* cannot load .*: check the name",
        ),
        (
            partial(TimmModel, (3, 64, 64), 3, "deit_tiny_distilled_patch16_224", options={"img_size": 64}),
            "model.net.name is deit_tiny_.*, with a tuple of class layers, must have one layer: choose another net, such as",
        ),
        (
            partial(TimmModel, (3, 240, 240), 3, "crossvit_tiny_240"),
            "model.net.name is crossvit_tiny_240, with a ModuleList of class layers, must have one layer",
        ),
        (partial(LoRA, r=0), "model.adapter.r is 0, must be at least 1"),
        (partial(LoRA, r=1.5), "model.adapter.r is 1.5, must be a whole number$"),
        (partial(LoRA, r="8"), "model.adapter.r is '8', must be a whole number$"),
        (partial(LoRA, alpha="8"), "model.adapter.alpha is '8', must be a number above 0$"),
        (partial(LoRA, dropout="0.1"), "model.adapter.dropout is '0.1', must be a number at least 0 and below 1"),
        (partial(LoRA, target_modules=[]), r"model.adapter.target_modules is \[\]"),
        (partial(LoRA, dropout=1.0), "model.adapter.dropout is 1.0"),
    ],
)
def test_wrong_names_and_numbers_are_refused(make, message):
    """In one line."""
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_adapters_need_layers_that_are_there(folders):
    """The line names layers of the net."""
    net = partial(TransformersModel, name=str(folders / "bert"))
    with pytest.raises(ValueError, match=r"target_modules has 'valeu', which fits no layer .* features.bert.embeddings"):
        fitted(FedAvg(net, adapter=LoRA(target_modules=["query", "valeu"])), federation("bert"))
    with pytest.raises(ValueError, match="target_modules is null, which fits no layer of model.net MLP"):
        fitted(FedAvg(MLP, adapter=LoRA()), federation("vit"))
    with pytest.raises(ValueError, match=r"target_modules is \['LayerNorm'\], which fits no layer of model.net Tran"):
        fitted(FedAvg(net, adapter=LoRA(target_modules=["LayerNorm"])), federation("bert"))


def test_a_net_with_an_adapter_gets_no_other_one():
    """It would go on from the weights of the method before, with two adapters in each layer."""
    method = FedAvg(MLP, adapter=LoRA(target_modules=["features.1"]), local_steps=1)
    fitted(method, federation("vit"))
    with pytest.raises(ValueError, match=r"^model.net MLP has an adapter already, .*: give a new net, or leave"):
        fitted(FedAvg(method.net, adapter=LoRA(target_modules=["features.1"])), federation("vit"))


def test_other_errors_of_peft_are_passed_on():
    """A rank that the groups of a convolution do not divide: the layer is there."""
    net = nn.Sequential(nn.Conv2d(3, 6, 3, groups=3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
    method = FedAvg(net, adapter=LoRA(r=2, target_modules=["0"]), class_layer="3")
    with pytest.raises(
        ValueError, match=r"^model.adapter is LoRA\(r=2.*, which peft cannot add to model.net Seq.*rank.*: change"
    ):
        fitted(method, federation("vit"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trained": []}, r"model.trained is \[\], which trains no weight: name some"),
        ({"trained": ["*"]}, r"model.trained is \['\*'\], which fits all weights of model.net: leave it out"),
        ({"trained": ["features.*", "classifier.*"]}, r"model.trained is \[.*\], which fits all weights"),
        (
            {"adapter": LoRA(target_modules=["features.1"]), "trained": ["classifier.*"]},
            r"model.trained is \['classifier.\*'\], which leaves model.adapter LoRA.* untrained: add '\*lora_\*', or leave",
        ),
        ({"adapter": LoRA(target_modules=["features.1"]), "trained": ["*"]}, r"model.trained is .*, which fits all weights"),
    ],
)
def test_what_trains_all_or_not_the_adapter_is_refused(settings, message):
    """In one line with the key, the value and the cure."""
    with pytest.raises(ValueError, match=message) as caught:
        fitted(FedAvg(MLP, **settings), federation("vit"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("buffers", ["averaged", "local", "reset"])
@pytest.mark.parametrize(
    ("engine", "affine"), [("sequential", True), ("sequential", False), ("vectorized", True), ("captured", True)]
)
def test_batch_norm_of_a_frozen_body_neither_moves_nor_travels(engine, affine, buffers):
    """A class layer learns as a linear model on the features of the net in evaluation mode does; only it is sent."""
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=affine), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    body[1].running_mean.normal_(generator=torch.Generator().manual_seed(3))
    net = nn.Sequential(OrderedDict([("body", body), ("fc", nn.Linear(4, 3))])).double()
    begun = copy.deepcopy(net)
    head, features = copy.deepcopy(net.fc), begun.body.eval()(IMAGES[:40].double()).detach()
    data = from_arrays(IMAGES[:40].double(), TARGETS[:40], [range(20), range(20, 40)], batch_size=None)
    for _ in range(2):
        fits = []
        for rows in (slice(20), slice(20, 40)):
            fit = copy.deepcopy(head)
            for _ in range(STEPS):
                loss = nn.functional.cross_entropy(fit(features[rows]), TARGETS[:40][rows])
                for weight, gradient in zip(fit.parameters(), torch.autograd.grad(loss, [*fit.parameters()])):
                    weight.data -= RATE * gradient
            fits.append(fit)
        for weight, *both in zip(head.parameters(), *(fit.parameters() for fit in fits)):
            weight.data = (both[0] + both[1]) / 2
    settings = {"local_steps": STEPS, "optimizer": sgd, "batch_norm_buffers": buffers}
    method, watched = FedAvg(net, trained=["fc.*"], engine=engine, **settings), Bytes()
    trainer = Trainer(
        max_steps=2, accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[watched], precision="64-true"
    )
    trainer.fit(method, datamodule=data)
    torch.testing.assert_close(method.net.fc.state_dict(), head.state_dict())
    for name, buffer in begun.named_buffers():
        assert torch.equal(method.net.get_buffer(name), buffer)
    assert watched.sent == [(2 * 15 * 8, 2 * 15 * 8)] * 2
    assert method.has_global_model


def test_batch_norm_trains_again_in_another_method():
    """A net that one method has frozen is whole in the next one."""
    net = nn.Sequential(OrderedDict([("body", nn.BatchNorm2d(3)), ("flat", nn.Flatten()), ("fc", nn.Linear(3 * 256, 3))]))
    data = partial(from_arrays, IMAGES[:40], TARGETS[:40], [range(20), range(20, 40)], batch_size=BATCH)
    fitted(FedAvg(net, trained=["fc.*"], local_steps=1), data(), rounds=1)
    assert torch.equal(net.body.running_mean, torch.zeros(3))
    fitted(FedAvg(net.requires_grad_(True), local_steps=1), data(), rounds=1)
    assert not torch.equal(net.body.running_mean, torch.zeros(3))


def test_inputs_that_a_net_would_ignore_are_refused(folders):
    """A misspelt name, a mask of other ids, and numbers that its embeddings lack, before round 1."""
    net = partial(TransformersModel, name=str(folders / "bert"))
    for inputs, message in (
        (
            {"input_ids": IDS, "attn_mask": MASK},
            "data.source gives 'attn_mask', which model.net BertFor.* does not take",
        ),
        (
            {"input_ids": IDS, "labels": TARGETS},
            "gives 'labels' among the inputs, .* its own loss: give them as targets only",
        ),
        ({"input_ids": IDS.float()}, "cannot take inputs .*: give token ids as whole numbers$"),
        (
            {"input_ids": IDS, "token_type_ids": MASK + 1},
            "data.source has 2 in 'token_type_ids', which is beyond the embeddings",
        ),
        ({"input_ids": IDS, "attention_mask": MASK[:, :5]}, r"input_ids of shape \(8,\) and attention_mask of \(5,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            fitted(FedAvg(net), from_arrays(inputs, TARGETS, [range(60)]))


@pytest.mark.parametrize("head", ["head", "fc", "score"])
def test_the_class_layer_is_found_by_its_name(head):
    """With an adapter it is trained too; where its name is not known the key is named."""

    def net(name):
        return nn.Sequential(OrderedDict([("body", nn.Linear(4, 4)), (name, nn.Linear(4, 3))]))

    data = from_arrays(torch.randn(12, 4), torch.arange(12) % 3, [range(12)])
    method = FedAvg(net(head), adapter=LoRA(target_modules=["body"]), local_steps=1)
    fitted(method, data, rounds=1)
    assert {f"{head}.weight", f"{head}.bias"} < method.trained_names
    with pytest.raises(ValueError, match="class layer of none of the names .*: set model.class_layer"):
        fitted(FedAvg(net("last"), adapter=LoRA(target_modules=["body"])), data)


def test_a_text_is_no_list():
    """It would be a list of its letters; sets and dicts have no order, and other things than texts are no patterns."""
    for make, said in (
        (partial(FedAvg, MLP, trained="head.*"), r"trained is 'head.\*', must be a list: give \['head.\*'\]$"),
        (partial(FedAvg, MLP, personal="head.*"), r"personal is 'head.\*', must be a list: give \['head.\*'\]$"),
        (partial(FedAvg, MLP, trained={"head.*": 1}), r"trained is \{'head.\*': 1\}, must be a list: give \['head.\*'\]$"),
        (partial(FedAvg, MLP, trained={"head.*"}), r"trained is \{'head.\*'\}, must be a list: give \['head.\*'\]$"),
        (partial(LoRA, target_modules="q"), r"target_modules is 'q', must be a list, or all-linear: give \['q'\]$"),
        (partial(LoRA, target_modules="all_linear"), r"must be a list, or all-linear: did you mean all-linear\?$"),
        (lambda: fitted(FedAvg(MLP, trained=[1]), federation("vit")), "model.trained has 1, must be patterns of names: give"),
    ):
        with pytest.raises(ValueError, match=said):
            make()


def test_all_linear_layers_but_the_class_layer_get_adapters(folders):
    """As many as the net has before ``classifier``; without a known class layer the key is named."""
    method = FedAvg(partial(TransformersModel, name=str(folders / "bert")), adapter=LoRA(r=2, target_modules="all-linear"))
    fitted(method, federation("bert"), rounds=1)
    plain = transformers.BertModel.from_pretrained(folders / "bert")
    linear = [name for name, layer in plain.named_modules() if isinstance(layer, nn.Linear)]
    adapted = {name.partition(".lora_")[0] for name in method.trained_names if "lora_" in name}
    assert len(linear) == len(adapted) == 7
    assert {name for name in method.trained_names if "lora_" not in name} == {"classifier.weight", "classifier.bias"}
    net = nn.Sequential(OrderedDict([("body", nn.Linear(4, 4)), ("last", nn.Linear(4, 3))]))
    data = from_arrays(torch.randn(12, 4), torch.arange(12) % 3, [range(12)])
    with pytest.raises(
        ValueError, match="class layer of none of the names .* which all-linear leaves out: set model.class_layer"
    ):
        fitted(FedAvg(net, adapter=LoRA(target_modules="all-linear"), trained=["*lora_*", "last.*"]), data)


class Attentive(nn.Module):
    """Torch's attention, by itself and in its layer of a transformer, beside linear layers."""

    def __init__(self):
        super().__init__()
        self.attention, self.layer = nn.MultiheadAttention(4, 2), nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.body, self.classifier = nn.Linear(4, 4), nn.Linear(4, 3)


@pytest.mark.parametrize("target", ["attention", "out_proj", "self_attn", "layer", "linear2"])
def test_layers_that_torch_does_not_call_get_no_adapter(target):
    """It reads their weights past an adapter: no gradient, or evaluation without it; all-linear leaves them out."""
    with pytest.raises(ValueError, match=rf"target_modules has '{target}', which fits .*{target}, but torch's .* outside of"):
        LoRA(r=2, target_modules=[target]).attach(Attentive())
    net = Attentive()
    find_class_layer(net, "classifier")
    LoRA(r=2, target_modules="all-linear").attach(net)
    assert {name.partition(".lora_")[0] for name, _ in net.named_parameters() if "lora_" in name} == {"body"}


@pytest.mark.parametrize("read", [True, False])
def test_a_weight_that_a_net_reads_past_its_adapter_is_refused(read):
    """As attention in Swin of torchvision does; a layer that is not used at all is no fault."""

    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.other, self.classifier = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, inputs):
            return self.classifier(nn.functional.linear(self.body(inputs), self.other.weight) if read else self.body(inputs))

    method = FedAvg(Reads(), adapter=LoRA(r=2, target_modules="all-linear"), engine="sequential", local_steps=1)
    data = from_arrays(torch.randn(12, 4), torch.arange(12) % 3, [range(12)])
    if not read:
        fitted(method, data, 1)
        return
    with pytest.raises(ValueError, match=r"^model.adapter adapts other, but model.net reads its weight past the adapter: name"):
        fitted(method, data, 1)


def test_images_of_another_size_are_refused_in_our_words(folders):
    """The line names both sizes and what changes them."""
    data = from_arrays(torch.zeros(6, 3, 8, 8), torch.arange(6) % 3, [range(6)])
    with pytest.raises(
        ValueError, match=r"^model\.net takes images of 16x16, the data gives 8x8: add .*Resize to data\.augment"
    ):
        fitted(FedAvg(partial(TransformersModel, name=str(folders / "vit"))), data)


@pytest.mark.parametrize(("key", "given"), [("adapter", "LoRA"), ("tasks", "EWC")])
def test_a_name_in_python_is_refused(key, given):
    """One line with the key."""
    with pytest.raises(TypeError, match=rf"^model\.{key} is '{given}', must be a.*{given}\(\)$"):
        FedAvg(MLP, **{key: given})


def test_a_checkpoint_of_an_adapter_with_another_scale_is_refused(tmp_path):
    """Names and shapes are the same; the scale, alpha / r, is in no weight."""

    def method(alpha):
        return {"net": MLP, "adapter": LoRA(r=2, alpha=alpha, target_modules=["features.1"])}

    data = from_arrays(torch.randn(20, 6), torch.arange(20) % 3, [range(10), range(10, 20)], batch_size=4)
    fitted(FedAvg(**method(4)), data, 1).save_checkpoint(tmp_path / "run.ckpt")
    FedAvg.load_from_checkpoint(tmp_path / "run.ckpt", **method(4))
    said = "ckpt_path is of a run with another adapter: model.adapter.alpha is 16, 4 in the run: use that run's"
    with pytest.raises(ValueError, match=said):
        FedAvg.load_from_checkpoint(tmp_path / "run.ckpt", **method(16))
