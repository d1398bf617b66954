"""What is exported: the libraries of the nets read it, and a model card says what it is."""

import json
import re
from functools import partial

import pytest
import safetensors.torch
import torch
from options import NO_PICTURES
from pretrained_cases import DIGITS, IDS, INPUTS, MASK, NO_DROPOUT, SMALL, STEPS, federation, fitted, sgd

from fl_lightning import FedAvg
from fl_lightning.export.model_folder import _write_trained
from fl_lightning.models import MLP, LoRA, TransformersModel

peft, timm, transformers = (pytest.importorskip(library) for library in ("peft", "timm", "transformers"))


def exported(main, root):
    """The net of the only run below a folder, and its exports in the folders merged and separate."""
    checkpoint = next(root.rglob("last.ckpt"))
    for weights in ("merged", "separate"):
        code, _, error = main("export", "--ckpt_path", str(checkpoint), "--weights", weights, "--out", weights)
        assert code == 0, error
    method = FedAvg.load_from_checkpoint(checkpoint)
    return method.net.eval()


def test_transformers_and_peft_read_what_is_exported(main, tmp_path):
    """A file of transformers, with its own names, begins a run with LoRA; the exports compute what the run's net does."""
    config = transformers.ViTConfig(image_size=8, patch_size=4, num_channels=1, num_labels=10, **SMALL, **NO_DROPOUT)
    begun = transformers.ViTForImageClassification(config).eval()
    begun.save_pretrained(tmp_path / "vit")
    options = "--model.net transformers.vit --model.net.pretrained false --model.initial_weights vit/model.safetensors"
    adapter = "--model.adapter LoRA --model.adapter.r 2 --model.adapter.target_modules [q_proj,v_proj]"
    code, _, error = main(*f"{DIGITS} {options} {adapter}".split())
    assert code == 0, error
    net, images = exported(main, tmp_path), torch.randn(5, 1, 8, 8)
    expected = net(images)
    merged = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(merged.eval()(images).logits, expected, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(begun(images).logits, expected, atol=1e-3)
    assert torch.equal(merged.vit.layers[0].mlp.fc1.weight, begun.vit.layers[0].mlp.fc1.weight)
    adapted = peft.PeftModel.from_pretrained(begun, str(tmp_path / "separate"))
    torch.testing.assert_close(adapted.eval()(images).logits, expected, atol=1e-5, rtol=1e-4)
    assert merged.config.id2label == {digit: str(digit) for digit in range(10)}
    assert merged.config.label2id == {str(digit): digit for digit in range(10)}
    assert "| classes | 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 |" in (tmp_path / "separate" / "README.md").read_text()
    assert "`transformers.ViTForImageClassification.from_pretrained(FOLDER)`" in (tmp_path / "merged" / "README.md").read_text()
    card = (tmp_path / "separate" / "README.md").read_text()
    assert "| net | TransformersModel vit |" in card
    assert "to the initial net, vit, with `peft." in card
    assert json.loads((tmp_path / "separate" / "adapter_config.json").read_text())["base_model_name_or_path"] == "vit"
    (tmp_path / "runs").rename(tmp_path / "before")
    again = "--model.net transformers.vit --model.net.pretrained false --model.initial_weights merged/model.safetensors"
    code, _, error = main(*f"{DIGITS} {again} --model.optimizer.lr 0".split())
    assert code == 0, error
    method = FedAvg.load_from_checkpoint(next((tmp_path / "runs").rglob("last.ckpt")))
    torch.testing.assert_close(method.net.eval()(images), expected, atol=1e-5, rtol=1e-4)


def test_peft_reads_layers_that_end_with_the_name_of_a_trained_one(tmp_path):
    """DistilBERT's pre_classifier, which stays as it is: peft looks for it in the file."""
    config = transformers.DistilBertConfig(vocab_size=30, dim=16, n_layers=1, n_heads=2, hidden_dim=32, num_labels=3)
    transformers.DistilBertForSequenceClassification(config).save_pretrained(tmp_path / "net")
    begun = transformers.DistilBertForSequenceClassification.from_pretrained(tmp_path / "net").eval()
    net, adapter = TransformersModel((8,), 3, str(tmp_path / "net")), LoRA(r=2, target_modules=["q_lin", "v_lin"])
    adapter.attach(net)
    with torch.no_grad():
        for weight in (weight for name, weight in net.named_parameters() if "lora_B" in name or "classifier" in name):
            weight.normal_()
    trained = [name for name in net.whole().state_dict() if "lora_" in name or name.startswith("classifier.")]
    adapter.save(net.whole(), trained, tmp_path, str(tmp_path / "net"))
    adapted, ids = peft.PeftModel.from_pretrained(begun, str(tmp_path)).eval(), torch.arange(8)[None]
    torch.testing.assert_close(adapted(ids).logits, net.eval()(ids), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("adapter", [LoRA(r=2, target_modules=["query"]), None])
def test_trained_weights_come_with_those_that_the_pretrained_ones_lack(tmp_path, adapter):
    """The pooler of a BERT that was stored without one: transformers would draw another."""
    config = transformers.BertConfig(vocab_size=30, max_position_embeddings=16, **SMALL, **NO_DROPOUT)
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "bert")
    net = partial(TransformersModel, name=str(tmp_path / "bert"))
    method = FedAvg(net, adapter=adapter, trained=None if adapter else ["classifier.*"], local_steps=STEPS, optimizer=sgd)
    fitted(method, federation("bert"))
    _write_trained(method, tmp_path)
    begun = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "bert", num_labels=3)
    if adapter is not None:
        read = peft.PeftModel.from_pretrained(begun, str(tmp_path))
    else:
        read = TransformersModel((8,), 3, str(tmp_path / "bert"))
        read.load_state_dict(safetensors.torch.load_file(tmp_path / "trained.safetensors"), strict=False)
    found = read.eval()(input_ids=IDS, attention_mask=MASK).logits if adapter else read.eval()(INPUTS["bert"])
    torch.testing.assert_close(found, method.net.eval()(INPUTS["bert"]), atol=1e-5, rtol=1e-4)


def test_a_layer_that_the_pretrained_weights_lack_cannot_have_an_adapter_in_a_file_of_its_own(tmp_path):
    config = transformers.BertConfig(vocab_size=30, max_position_embeddings=16, **SMALL, **NO_DROPOUT)
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "bert")
    net = partial(TransformersModel, name=str(tmp_path / "bert"))
    method = FedAvg(net, adapter=LoRA(r=2, target_modules="all-linear"), local_steps=1)
    fitted(method, federation("bert"), rounds=1)
    with pytest.raises(ValueError, match=r"^model.adapter adapts features.bert.pooler.dense, which .* --weights merged$"):
        _write_trained(method, tmp_path)


def test_timm_reads_what_is_exported(main, tmp_path):
    """From a file of timm, and back as a folder that names the architecture."""
    begun = timm.create_model("test_resnet", num_classes=10)
    torch.save(begun.state_dict(), tmp_path / "timm.pt")
    options = (
        "--data.augment+ ToRGB --model.net timm.test_resnet --model.initial_weights timm.pt --model.trained [classifier.*]"
    )
    code, _, error = main(*f"{DIGITS} {options}".split())
    assert code == 0, error
    net, images = exported(main, tmp_path), torch.randn(5, 3, 8, 8)
    merged = timm.create_model(f"local-dir:{tmp_path / 'merged'}", pretrained=True).eval()
    assert torch.equal(merged(images), net(images))
    assert "| net | TimmModel test_resnet |" in (tmp_path / "merged" / "README.md").read_text()
    assert merged.pretrained_cfg["label_names"] == [str(digit) for digit in range(10)]
    assert torch.equal(merged.layer1[0].conv1.weight, begun.layer1[0].conv1.weight)
    assert not torch.equal(merged.fc.weight, begun.fc.weight)


@pytest.mark.parametrize("adapted", [True, False])
def test_weights_are_exported_with_a_model_card(adapted, main, tmp_path):
    """Merged, a net without the adapter gives the same logits: W + (alpha / r) B A by hand; separate, what was trained."""
    adapter = "--model.adapter LoRA --model.adapter.r 2 --model.adapter.alpha 6 --model.adapter.target_modules [features.1]"
    given = adapter if adapted else "--model.trained [classifier.*]"
    code, _, error = main(*f"fit --config digits_wsm.yaml --trainer.max_steps 2 {given}".split(), *NO_PICTURES)
    assert code == 0, error
    checkpoint = next(tmp_path.rglob("last.ckpt"))
    for weights in ("merged", "separate"):
        code, out, error = main("export", "--ckpt_path", str(checkpoint), "--weights", weights, "--out", weights)
        assert code == 0, error
        assert f"{weights}/" in out
    other = "adapter_model.safetensors" if adapted else "trained.safetensors"
    code, _, error = main(*f"export --ckpt_path {checkpoint} --weights merged --out separate".split())
    assert code == 1
    assert f"separate has {other}, of another --weights than merged: give another folder with --out" in error
    state = {
        name.removeprefix("net."): value
        for name, value in torch.load(checkpoint, weights_only=True)["state_dict"].items()
        if name.startswith("net.")
    }
    merged, separate = (
        safetensors.torch.load_file(tmp_path / path)
        for path in ("merged/model.safetensors", f"separate/{'adapter_model' if adapted else 'trained'}.safetensors")
    )
    lora = {name: value for name, value in state.items() if "lora_" in name}
    named = {f"base_model.model.{name.replace('.default', '')}" for name in [*lora, "classifier.weight", "classifier.bias"]}
    assert separate.keys() == (named if adapted else {"classifier.weight", "classifier.bias"})
    assert merged.keys() == dict(MLP((1, 8, 8), 10).named_parameters()).keys()
    if adapted:
        a, b = (next(value for name, value in lora.items() if f"lora_{kind}" in name) for kind in "AB")
        assert b.abs().max() > 0
        expected = state["features.1.base_layer.weight"] + 3 * b @ a
        torch.testing.assert_close(merged["features.1.weight"], expected)
    else:
        assert torch.equal(merged["features.1.weight"], state["features.1.weight"])
    card = (tmp_path / "separate" / "README.md").read_text()
    assert "| net | MLP |" in card
    assert "| method | FedAvg, ReweightedSoftmax |" in card
    assert f"| trained | {sum(value.numel() for value in separate.values()):,} of " in card
    assert "| test accuracy | 0." in card
    assert ("LoRA(r=2, alpha=6" in card) == adapted


def test_before_the_end_of_a_stream_a_model_card_names_the_classes_learned(main, tmp_path):
    """Only the run's net gives minus infinity for the others: in the file their rows are 0."""
    code, _, error = main(*"fit --config digits_classes.yaml --trainer.max_steps 7".split(), *NO_PICTURES)
    assert code == 0, error
    checkpoint = next(tmp_path.rglob("last.ckpt"))
    assert main("export", "--ckpt_path", str(checkpoint), "--weights", "merged", "--out", "out")[0] == 0
    rows = dict(re.findall(r"^\| (classes.*?) \| (.*) \|$", (tmp_path / "out" / "README.md").read_text(), re.MULTILINE))
    weight = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")["classifier.weight"]
    learned = rows["classes"].split(", ")[: int(weight.abs().sum(dim=1).count_nonzero())]
    assert 0 < len(learned) < 10
    assert rows["classes learned"].startswith(f"{len(learned)} of 10: {', '.join(learned)}; ")


def test_before_the_end_of_a_run_a_model_card_names_what_it_began_from(main, tmp_path):
    """From the checkpoint: a killed run has no results."""
    torch.save(MLP((1, 8, 8), 10).state_dict(), tmp_path / "weights.pt")
    fit = "fit --config digits_wsm.yaml --trainer.max_steps 1 --model.initial_weights weights.pt"
    code, _, error = main(*fit.split(), *NO_PICTURES)
    assert code == 0, error
    next(tmp_path.rglob("results.json")).unlink()
    assert main("export", "--ckpt_path", str(next(tmp_path.rglob("last.ckpt"))), "--weights", "merged", "--out", "out")[0] == 0
    assert "| began from | weights.pt |" in (tmp_path / "out" / "README.md").read_text()


def test_a_model_card_has_the_accuracy_of_its_round(main, tmp_path):
    """Of each checkpoint of a run, not that of the last round, and the forgetting that was measured in it."""
    every = "--trainer.max_steps 3 --trainer.val_check_interval 1 --data.monitor_test 1 --model.optimizer.lr 0.5"
    code, _, error = main(*f"fit --config digits_wsm.yaml {every}".split())
    assert code == 0, error
    record = next(tmp_path.rglob("record.jsonl"))
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    measured = {}
    for line in lines:
        measured.setdefault(line.get("round"), {}).update(line.get("scalars", {}))
    checkpoints = [*tmp_path.rglob("*.ckpt")]
    rounds = set()
    for number, checkpoint in enumerate(checkpoints):
        round = torch.load(checkpoint, weights_only=True)["global_step"]
        rounds.add(round)
        assert main("export", "--ckpt_path", str(checkpoint), "--weights", "merged", "--out", f"out{number}")[0] == 0
        card = (tmp_path / f"out{number}" / "README.md").read_text()
        assert f"| weights of round | {round} |" in card
        assert f"| test accuracy | {measured[round]['test/accuracy']:.4f} |" in card
        assert f"| client forgetting F_ki | {-measured[round]['forgetting/client_mean']:z.4f}, positive is forgetting |" in card
        assert ("| round forgetting F_t |" in card) == ("forgetting/round" in measured[round])
    assert 3 in rounds
    with record.open("a", encoding="utf-8") as file:  # read as far as it is whole
        file.write("damaged\n")
    assert main("export", "--ckpt_path", str(checkpoints[0]), "--weights", "merged", "--out", "again")[0] == 0
    assert (tmp_path / "again" / "README.md").read_text() == (tmp_path / "out0" / "README.md").read_text()


def test_a_model_card_of_personal_models_has_the_accuracy_of_the_global_net(main, tmp_path):
    """Which is what the folder contains."""
    fit = "fit --config digits_tce.yaml --model Ditto --model.net MLP --trainer.max_steps 2 --data.test_fraction 0.2"
    code, _, error = main(*fit.split(), *NO_PICTURES)
    assert code == 0, error
    scalars = {}
    for line in map(json.loads, next(tmp_path.rglob("record.jsonl")).read_text().splitlines()):
        scalars |= line.get("scalars", {}) if line.get("round") == 2 else {}
    assert scalars["test/global_accuracy"] != scalars["test/accuracy"]
    assert main("export", "--ckpt_path", str(next(tmp_path.rglob("last.ckpt"))), "--weights", "merged", "--out", "out")[0] == 0
    card = (tmp_path / "out" / "README.md").read_text()
    for part in ("test", "val"):
        assert f"| {part} accuracy | {scalars[f'{part}/global_accuracy']:.4f} |" in card
