"""A trained net used elsewhere: the checkpoint says how to feed it, and an exported program gives what predict gives."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from options import NO_PICTURES

from fl_lightning import FedAvg, FederatedModule, FedProx
from fl_lightning.data import FederatedDataModule, from_arrays
from fl_lightning.data.augment import Pad, RandomHorizontalFlip
from fl_lightning.data.scaling import InputRecord
from fl_lightning.export import Classifier, export
from fl_lightning.models import LeNet, ResNet9, ResNet18, TorchvisionModel

RUN = "fit --config digits_tce.yaml --model.net.hidden 16 --trainer.max_steps 4 --trainer.val_check_interval 2".split()
RUN += NO_PICTURES
PAD = ["--data.augment+=Pad", "--data.augment.padding", "2"]


@pytest.fixture(scope="module")
def trained(run_in, tmp_path_factory):
    """A short run on digits with padded images; gives the folder in which it was started."""
    return run_in(tmp_path_factory.mktemp("trained"), *RUN, *PAD)


@pytest.fixture
def digits(main, trained, tmp_path):
    """A copy of the run for the test to change; gives its folder."""
    shutil.copytree(trained / "runs", tmp_path / "runs")
    return tmp_path / "runs" / "digits_tce" / "version_0"


def test_a_checkpoint_says_how_to_feed_its_net(digits):
    """Mean and deviation of all training pixels, by hand in float64, and the classes: in checkpoints and results.json."""
    data = FederatedDataModule("digits")
    data.setup()
    pixels = data.train_set.inputs.double() / 255
    for record in (
        torch.load(digits / "checkpoints" / "best.ckpt", weights_only=True)["federated"]["inputs"],
        json.loads((digits / "results.json").read_text())["inputs"],
    ):
        assert record["classes"] == [str(digit) for digit in range(10)]
        assert (record["dtype"], record["shape"], record["net_shape"]) == ("uint8", [1, 8, 8], [1, 12, 12])
        assert record["mean"] == pytest.approx([pixels.mean().item()], abs=1e-12)
        assert record["std"] == pytest.approx([pixels.std(correction=0).item()], abs=1e-12)


PLAIN_TORCH = """
import json, sys
import torch
sys.modules["fl_lightning"] = None  # importing it is an error
extra = {"classes.json": ""}
program = torch.export.load(sys.argv[1], extra_files=extra).module()
images = torch.load(sys.argv[2])
print(json.dumps([json.loads(extra["classes.json"]), program(images).tolist(), program(images[:1]).shape]))
"""


@pytest.mark.slow
def test_an_exported_program_predicts_without_this_library(main, digits, tmp_path):
    """On raw uint8 images, in a process that cannot import us: the labels and probabilities of ``predict``."""
    code, out, error = main("export", "--ckpt_path", str(digits / "checkpoints" / "best.ckpt"))
    assert code == 0, error
    assert out.splitlines()[0] == f"Exported: {digits / 'best.pt2'}, from {digits / 'checkpoints' / 'best.ckpt'}"
    assert out.splitlines()[1] == "Inputs: uint8 (n, 1, 8, 8); outputs: probabilities of 10 classes"
    assert main("predict", "--config", str(digits / "config.yaml"), "--ckpt_path", "best")[0] == 0
    data = FederatedDataModule("digits")
    data.setup()
    torch.save(data.test_set.inputs.clone(), tmp_path / "images.pt")
    arguments = [sys.executable, "-c", PLAIN_TORCH, str(digits / "best.pt2"), str(tmp_path / "images.pt")]
    process = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr
    classes, probabilities, shape_of_one = json.loads(process.stdout)
    with open(digits / "predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(probabilities) == 360
    assert shape_of_one == [1, 10]
    for row, values in zip(rows, probabilities, strict=True):
        assert classes[max(range(10), key=values.__getitem__)] == row["prediction"]
        assert max(values) == pytest.approx(float(row["probability"]), abs=2e-6)


def test_best_is_that_of_the_newest_run(main, digits, tmp_path):
    """Without a path: the newest version in runs, or of the folder that is given; where there is none, one line."""
    older = tmp_path / "runs" / "older" / "version_0"
    shutil.copytree(digits, older)
    for path in (older / "checkpoints").iterdir():
        os.utime(path, (0, 0))
    (older / "predictions.csv").touch()  # newer than all else
    code, out, error = main("export", "--ckpt_path", "best")
    assert code == 0, error
    assert "from runs/digits_tce/version_0/checkpoints/best.ckpt" in out
    assert (digits / "best.pt2").is_file()
    code, out, error = main("export", "--ckpt_path", "last", "--run_folder", str(digits.parent))
    assert code == 0, error
    assert (digits / "last.pt2").is_file()
    code, _, error = main("export", "--run_folder", "elsewhere")
    assert code == 1
    assert error.startswith("fl-lightning: error: ckpt_path is best, but elsewhere holds no such checkpoint: ")


def test_the_page_on_trained_nets_runs(main, digits, capsys):
    """Every Python block of docs/using_a_trained_net.md, after the command that it begins with."""
    text = (Path(__file__).parent.parent / "docs" / "using_a_trained_net.md").read_text()
    command = re.search(r"```\nfl-lightning (.*?)\n```", text)[1]
    assert main(*command.split())[0] == 0
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(block, variables := {})
    method = FedAvg.load_from_checkpoint(digits / "checkpoints" / "best.ckpt")
    method.net.load_state_dict(variables["weights"])
    assert "uint8 [1, 8, 8]" in capsys.readouterr().out


def test_a_method_comes_back_without_arguments(digits):
    """The run's class with its settings and the checkpoint's weights, in evaluation mode; another class is refused."""
    path = digits / "checkpoints" / "last.ckpt"
    method = FedAvg.load_from_checkpoint(path)
    assert type(method) is FedAvg
    assert method.local_steps == 3
    assert not method.net.training
    stored = torch.load(path, weights_only=True)["state_dict"]
    assert stored.keys() == method.state_dict().keys()
    assert all(torch.equal(value, stored[name]) for name, value in method.state_dict().items())
    assert type(FederatedModule.load_from_checkpoint(path)) is FedAvg
    with pytest.raises(ValueError, match=r"last\.ckpt is a checkpoint of FedAvg, not of FedProx"):
        FedProx.load_from_checkpoint(path)


def test_a_run_in_python_comes_back_with_its_net(fit, toy_data, tmp_path):
    """Without a config the arguments say what to build; without either the missing file is named."""
    torch.manual_seed(0)
    method = FedAvg(torch.nn.Linear(4, 3, dtype=torch.float64))
    fit(method, toy_data(), 1, precision="64-true").save_checkpoint(tmp_path / "toy.ckpt")
    again = FedAvg.load_from_checkpoint(tmp_path / "toy.ckpt", map_location="cpu", net=torch.nn.Linear(4, 3))
    assert torch.equal(again.net.weight, method.net.weight)  # float64, as the run had it
    with pytest.raises(FileNotFoundError, match=r"toy\.ckpt, but there is neither"):
        FedAvg.load_from_checkpoint(tmp_path / "toy.ckpt")


def test_the_classifier_prepares_inputs_as_the_data_module_does(tmp_path):
    """Flip (none in evaluation), padding and given statistics on random colour images: equal to the plain formula."""
    images = torch.randint(256, (6, 3, 4, 4), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    mean, std = [0.4914, 0.48, 0.44], [0.2, 0.25, 0.3]
    data = from_arrays(images, torch.arange(6) % 2, [range(6)], augment=[RandomHorizontalFlip(), Pad(1)], mean=mean, std=std)
    data.setup()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 6 * 6, 2))
    classifier = Classifier(net, data.augment, data.samples.input_record)
    padded = torch.zeros(6, 3, 6, 6)
    padded[:, :, 1:-1, 1:-1] = images / 255
    prepared = (padded - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    torch.testing.assert_close(classifier(images), net(prepared).softmax(dim=-1), atol=1e-6, rtol=0)
    assert InputRecord(**data.samples.input_record._asdict()) == data.samples.input_record  # plain values all


@pytest.mark.parametrize(
    ("build", "size"),
    [
        (ResNet18, 32),
        (ResNet9, 32),
        (LeNet, 32),
        (lambda shape, classes: TorchvisionModel(shape, classes, name="mobilenet_v3_small"), 32),
    ],
    ids=["ResNet18", "ResNet9", "LeNet", "torchvision"],
)
@pytest.mark.one_in(2)
def test_every_kind_of_net_can_be_exported(tmp_path, build, size):
    """``export`` itself compares the program with the net, for one input and for two."""
    torch.manual_seed(0)
    classifier = Classifier(
        build((3, size, size), 5).eval(),
        (),
        InputRecord([3, size, size], [3, size, size], "uint8", [0.5] * 3, [0.25] * 3, list("abcde")),
    )
    export(classifier, tmp_path / "net.pt2")
    assert (tmp_path / "net.pt2").exists()


def test_what_cannot_be_exported_is_one_line(main, tmp_path):
    """A missing checkpoint, a net that decides by its inputs' values or draws numbers: no file is left, and an older one is."""
    code, _, error = main("export", "--ckpt_path", "nowhere.ckpt")
    assert code == 1
    assert error == "fl-lightning: error: ckpt_path is nowhere.ckpt, which does not exist: give a checkpoint of a run\n"

    class Moody(torch.nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs if float(inputs.sum()) > 0 else -inputs)

    classifier = Classifier(Moody(4, 2), (), InputRecord([4], [4], "float32", None, None, ["a", "b"]))
    with pytest.raises(ValueError, match=r"model\.net Moody cannot be exported by torch\.export: "):
        export(classifier, tmp_path / "net.pt2")
    assert list(tmp_path.iterdir()) == []

    class Noisy(torch.nn.Linear):
        def forward(self, inputs):
            return super().forward(inputs) + torch.rand(2)

    (tmp_path / "net.pt2").write_text("an older program")
    classifier.net = Noisy(4, 2)
    with pytest.raises(ValueError, match=r"model\.net Noisy gives other outputs once exported: "):
        export(classifier, tmp_path / "net.pt2")
    assert (tmp_path / "net.pt2").read_text() == "an older program"

    shapes = {"input_ids": [4], "attention_mask": [4]}
    texts = InputRecord(shapes, shapes, {"input_ids": "int64", "attention_mask": "int64"}, None, None, ["a", "b"])
    with pytest.raises(ValueError, match=r"takes several inputs, but a program takes one: export with --weights merged$"):
        export(Classifier(torch.nn.Linear(4, 2), (), texts), tmp_path / "texts.pt2")


def test_personal_models_are_not_exported(main, tmp_path):
    """On task streams a checkpoint has as many nets as clients."""
    code, _, error = main("fit", "--config", "digits_fedweit.yaml", *NO_PICTURES, "--trainer.max_steps", "1")
    assert code == 0, error
    (path,) = tmp_path.rglob("last.ckpt")
    code, _, error = main("export", "--ckpt_path", str(path))
    assert code == 1
    assert "the clients of FedWeIT keep separate models: a checkpoint has no single net" in error
