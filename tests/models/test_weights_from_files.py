"""Nets by name and weights from files: what is taken, and what is refused with the cure."""

from functools import partial

import pytest
import safetensors.torch
import torch
import torchvision
from pretrained_cases import DIGITS, IMAGES, INPUTS, NO_DROPOUT, SMALL, federation, fitted
from torch import nn

from fl_lightning import FedAvg
from fl_lightning.models import MLP, LoRA, TimmModel, TransformersModel

_, timm, transformers = (pytest.importorskip(library) for library in ("peft", "timm", "transformers"))


def test_files_of_a_library_are_of_this_net(tmp_path, folders):
    """Another class layer, a layer too many, or too few: by our names."""
    config = transformers.BertConfig(vocab_size=30, max_position_embeddings=16, num_labels=3, **SMALL, **NO_DROPOUT)
    state = transformers.BertForSequenceClassification(config).state_dict()
    net = partial(TransformersModel, name=str(folders / "bert"), pretrained=False)
    for changed, message in (
        (
            {"classifier.bias": torch.zeros(5)},
            r"classifier.bias is \(5,\) there and \(3,\) here: give .* all but the class layer by",
        ),
        ({"more.weight": torch.zeros(5)}, r"features.more.weight is \(5,\) there and missing here"),
        ({"bert.embeddings.LayerNorm.bias": None}, r"features.bert.embeddings.LayerNorm.bias is missing there"),
    ):
        file = tmp_path / "net.safetensors"
        stored = {name: tensor for name, tensor in {**state, **changed}.items() if tensor is not None}
        safetensors.torch.save_file(stored, file)
        with pytest.raises(ValueError, match=message):
            fitted(FedAvg(net, initial_weights=str(file)), federation("bert"))


def test_a_folder_of_pickles_is_refused(tmp_path):
    """With what to save instead."""
    net = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=30, **SMALL))
    net.config.save_pretrained(tmp_path)
    torch.save(net.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"cannot load .*: give a folder that save_pretrained has written, .* as safetensors"):
        TransformersModel((8,), 3, str(tmp_path))


@pytest.mark.parametrize(
    ("option", "cure"), [("nonsense", "remove it"), ("hidden_droput_prob", r"did you mean hidden_dropout_prob\?")]
)
def test_options_that_a_configuration_lacks_are_refused(option, cure, folders):
    """transformers ignores them."""
    with pytest.raises(
        ValueError, match=rf"^model.net.options has '{option}', which BertConfig of .*bert does not have: {cure}$"
    ):
        TransformersModel((8,), 3, str(folders / "bert"), options={**NO_DROPOUT, option: 0.1})


def test_a_net_for_other_data_is_refused_with_the_kind_that_fits(folders):
    """A folder of ``save_pretrained`` is told to be another one's, not to be a folder of ``save_pretrained``."""
    for kind, shape, causal, message in (
        ("bert", (3, 16, 16), False, "AutoModelForImageClassification cannot load .*BertConfig.*: give a model of images"),
        ("vit", (8,), False, "AutoModelForSequenceClassification cannot load .*ViTConfig.*: give a model of texts"),
        ("vit", (8,), True, "AutoModelForCausalLM cannot load .*ViTConfig.*: give a causal language .* model.net.causal out$"),
    ):
        with pytest.raises(ValueError, match=rf"^model.net.name is .*{kind}, which {message}") as caught:
            TransformersModel(shape, 30, str(folders / kind), causal=causal)
        assert "\n" not in str(caught.value)


PLAIN = r"save a net's state_dict\(\) by itself with torch.save$"


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (nn.ReLU(), f"which is not a checkpoint .*holds code or objects.*: give one of a run, or {PLAIN}"),
        ({"model": {"w": torch.ones(2)}}, f"which no run of fl-lightning wrote .*: give a checkpoint of one, or {PLAIN}"),
        ([1], f"which no run of fl-lightning wrote .*a list.*: give a checkpoint of one, or {PLAIN}"),
        ({}, f"which no run of fl-lightning wrote .*: give a checkpoint of one, or {PLAIN}"),
        (
            {"module.classifier.bias": torch.ones(3)},
            r"which holds names that all begin with module\., .*: remove this",
        ),
    ],
)
def test_a_file_of_something_else_is_refused_with_what_to_save(stored, message, tmp_path):
    """Code in it never runs."""
    torch.save(stored, tmp_path / "net.pt")
    with pytest.raises(ValueError, match=rf"^model.initial_weights is .*net\.pt, {message}"):
        fitted(FedAvg(MLP, initial_weights=str(tmp_path / "net.pt")), federation("vit"))


def test_files_that_are_no_safetensors_are_refused(tmp_path):
    """Or only the beginning of one; the cure is of that format."""
    path = tmp_path / "net.safetensors"
    whole = safetensors.torch.save({"w": torch.ones(100)})
    for stored in (b"no", whole[:200]):
        path.write_bytes(stored)
        with pytest.raises(
            ValueError, match=r"model.initial_weights is .*net\.safetensors, .*not all of it .*safetensors.torch.sa"
        ):
            fitted(FedAvg(MLP, initial_weights=str(path)), federation("vit"))


def test_libraries_nets_on_the_command_line(main, folders):
    """``timm.NAME`` and ``transformers.NAME`` are the classes with that name."""
    few = "fit --config digits_wsm.yaml --trainer.max_steps 1 --trainer.logger false --trainer.enable_checkpointing false"
    few += " --data.augment+ ToRGB --model.local_epochs null --model.local_steps 1"
    code, out, error = main(*few.split(), "--model.net", "timm.test_resnet", "--model.trained", "[classifier.*]")
    assert (code, error) == (0, "")
    code, out, error = main(*few.split(), f"--model.net=transformers.{folders / 'vit'}", "--print_config")
    assert code == 0
    assert f"name: {folders / 'vit'}" in out
    code, out, error = main(*few.split(), "--model.net", "timm.no_such_net")
    assert code != 0
    assert "model.net.name is no_such_net, which timm cannot build" in error
    with pytest.raises(
        ValueError, match=r"^model.net.name is test_resnt, which timm cannot build .*: did you mean test_resnet\?"
    ):
        TimmModel((3, 16, 16), 3, "test_resnt")
    for net in ("TransformersModel", "TimmModel"):
        code, _, error = main(*few.split(), "--model.net", net)
        assert (code, error.count("\n")) == (1, 1)
        assert f"model.net is {net}, which needs a name: give model.net.name" in error


def test_a_net_of_torchvision_by_name_takes_a_file(main, tmp_path):
    """``torchvision.models.NAME`` has the arguments of ``TorchvisionModel``: at rate 0 the run ends with the file's weights."""
    begun = torchvision.models.squeezenet1_1(num_classes=10)
    torch.save(begun.state_dict(), tmp_path / "net.pth")
    net = "--data.augment+ Resize --data.augment.size 32 --data.augment+ ToRGB --model.net torchvision.models.squeezenet1_1"
    few = "--model.optimizer.lr 0 --model.local_epochs null --model.local_steps 1 --data.clients_per_round 1"
    code, _, error = main(*f"{DIGITS} {few} {net} --model.net.weights net.pth".split())
    assert code == 0, error
    method = FedAvg.load_from_checkpoint(next(tmp_path.rglob("last.ckpt")))
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(method.net.eval()(images), begun.eval()(images))
    code, _, error = main(*f"{DIGITS} --model.net torchvision.models.squeezenet --model.net.weights net.pth".split())
    assert (code, error.count("\n")) == (1, 1)
    assert "model.net.name is 'squeezenet', no classification model of torchvision: did you mean squeezenet1_" in error


def test_weights_of_another_net_are_never_left_out(tmp_path, folders):
    """Neither behind an adapter nor by transformers: only the class layer and a pooler may begin anew."""
    weights = {f"other.{name}": tensor for name, tensor in MLP((3, 16, 16), 3).state_dict().items()}
    torch.save(weights, tmp_path / "w.pt")
    adapted = FedAvg(MLP, adapter=LoRA(target_modules=["features.1"]), initial_weights=str(tmp_path / "w.pt"))
    with pytest.raises(ValueError, match=r"model.initial_weights is .*w\.pt, which holds another net: classifier.bias is"):
        fitted(adapted, federation("vit"))
    for options in ({"image_size": 8}, {"hidden_size": 32}, {"num_hidden_layers": 2}):
        with pytest.raises(ValueError, match=r"model.net.name is .*vit, whose weights lack .*: check model.net.options"):
            TransformersModel((3, 16, 16), 3, str(folders / "vit"), options=options)


def test_half_precision_on_disk_is_trained_in_float32(tmp_path, folders):
    """All of the net, the class layer too; a net given in float16 is refused."""
    config = transformers.ViTConfig(image_size=16, patch_size=8, **SMALL, **NO_DROPOUT)
    transformers.ViTForImageClassification(config).half().save_pretrained(tmp_path)
    net = TransformersModel((3, 16, 16), 2, str(tmp_path))
    assert {weight.dtype for weight in net.parameters()} == {torch.float32}
    assert net(IMAGES[:2]).shape == (2, 2)
    with pytest.raises(ValueError, match="model.net has weights in float16"):
        fitted(FedAvg(net.half()), federation("vit"))


@pytest.mark.parametrize("form", ["torch", "safetensors"])
def test_a_run_begins_with_plain_weights(form, tmp_path, folders):
    """A state dict, in either form, without an adapter; a net with LoRA begins with the same function."""
    torch.manual_seed(5)
    net = TransformersModel((8,), 3, str(folders / "bert"))
    path = str(tmp_path / f"net.{'pt' if form == 'torch' else 'safetensors'}")
    if form == "torch":
        torch.save(net.state_dict(), path)
    else:
        from safetensors.torch import save_file

        save_file(net.state_dict(), path)
    method = FedAvg(
        partial(TransformersModel, name=str(folders / "bert"), pretrained=False),
        adapter=LoRA(r=2),
        initial_weights=path,
        local_steps=1,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
    )
    fitted(method, federation("bert"), rounds=1)
    assert method.began_from == {"file": path, "round": None}
    inputs = INPUTS["bert"]
    torch.testing.assert_close(method.net.eval()(inputs), net.eval()(inputs))
    with pytest.raises(ValueError, match=r"model.initial_weights is .*net\..*, which holds another net: .* give weights"):
        fitted(FedAvg(MLP, initial_weights=path), federation("vit"))
