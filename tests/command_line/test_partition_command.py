"""``fl-lightning partition``: what it writes and prints, that a run from its file is the same run, and what it refuses."""

import json

import pytest
import torch
import yaml
from options import NO_PICTURES
from PIL import Image

from fl_lightning.data import Dirichlet, FederatedDataModule, Fixed
from fl_lightning.report.partition import report_partition

DIGITS = ["--config", "digits_tce.yaml"]
FIXED = ["--data.partition", "Fixed", "--data.partition.clients", "partition.json"]


def test_it_writes_a_file_and_a_picture_and_prints_statistics(main, tmp_path):
    """Nothing else: no run folder. 20 clients of 1437 // 20 = 71 samples are 1,420 of 1,437."""
    code, out, error = main("partition", *DIGITS)
    assert (code, error) == (0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["partition.json", "partition.png"]
    assert len(json.loads((tmp_path / "partition.json").read_text())["clients"]) == 20
    assert "Dirichlet(alpha=0.1), seed 0" in out
    assert "1,420 of 1,437" in out
    assert "71, 71, 71" in out
    assert "Partition: partition.json\nPicture: partition.png\n" in out
    assert "--data.partition Fixed --data.partition.clients partition.json --data.num_clients 20" in out


@pytest.mark.parametrize("val_fraction", [0.0, 0.1])
def test_a_run_from_the_file_has_the_same_shards(tmp_path, val_fraction):
    """The same seed splits training from validation alike; another seed does not, but has the same clients."""

    def shards(partition, seed):
        data = FederatedDataModule("digits", num_clients=20, val_fraction=val_fraction, partition=partition, seed=seed)
        data.setup()
        return data.shards

    drawn = FederatedDataModule("digits", num_clients=20, val_fraction=val_fraction, partition=Dirichlet(0.1), seed=5)
    report_partition(drawn, tmp_path / "partition.json")
    fixed = Fixed(str(tmp_path / "partition.json"))
    first, again, other = shards(Dirichlet(0.1), 5), shards(fixed, 5), shards(fixed, 6)
    for name in ("train", "train_start", "validation", "validation_start", "label_counts"):
        assert torch.equal(getattr(first, name), getattr(again, name)), name
    assert torch.equal(first.label_counts, other.label_counts)
    assert not torch.equal(first.train, other.train)


def test_a_fit_from_the_file_gives_the_same_weights(main, tmp_path):
    """Two rounds with the partition drawn and read, the latter written from the config that the first run left."""
    fit = ["fit", *DIGITS, "--trainer.max_steps", "2", "--seed_everything", "4", "--model.net", "MLP", *NO_PICTURES]
    assert main(*fit)[0] == 0
    code, _, error = main("partition", "--config", str(tmp_path / "runs" / "digits_tce" / "version_0" / "config.yaml"))
    assert code == 0, error
    code, _, error = main(*fit, *FIXED)
    assert code == 0, error
    runs = [tmp_path / "runs" / "digits_tce" / f"version_{version}" for version in (0, 1)]
    assert yaml.safe_load((runs[1] / "config.yaml").read_text())["data"]["partition"]["class_path"].endswith("Fixed")
    weights = [torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"] for run in runs]
    assert weights[0].keys() == weights[1].keys()
    for name, value in weights[0].items():
        assert torch.equal(value, weights[1][name]), name


def test_it_needs_no_config_and_no_net(main, tmp_path):
    """Data alone; --out names the file, folders are made, what lies there is replaced."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine.json").write_text("old")
    for out in ("here/mine.json", "there/mine.json"):
        code, printed, error = main("partition", "--data.num_clients", "17", "--data.partition", "IID", "--out", out)
        assert code == 0, error
        assert f"Partition: {out}" in printed
        assert len(json.loads((tmp_path / out).read_text())["clients"]) == 17
        assert (tmp_path / out).with_suffix(".png").exists()


def test_a_net_that_does_not_fit_is_not_built(main):
    """ResNet18 does not take images of 8x8, which fit would say."""
    code, _, error = main("partition", *DIGITS, "--model.net", "ResNet18", "--trainer.accelerator", "gpu")
    assert code == 0, error


def test_many_clients_are_drawn_too(main, tmp_path):
    """A heatmap of 700 clients: a picture of some size."""
    code, _, error = main("partition", "--data.num_clients", "700", "--data.val_fraction", "0")
    assert code == 0, error
    with Image.open(tmp_path / "partition.png") as picture:
        assert min(picture.size) > 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "partition.png"], "out is partition.png, must end in .json"),
        (["--out", ""], "must end in .json"),
        (["--data.partition.alpha", "0"], "data.partition.alpha is 0.0, must be above 0"),
        (["--data.partition", "Natural"], "data.partition is Natural, but data.source has no natural clients"),
        (["--data.partition", "Naturl"], "did you mean Natural?"),
        (["--data.partition", "Classes", "--data.partition.classes_per_client", "11"], "must be between 1 and 10: so many"),
        (["--data.num_clients", "2000"], "data.num_clients is 2000, must be between 1 and 1,437"),
        ([*FIXED], "data.partition.clients is partition.json, which does not exist"),
        (["--data.num_client", "3"], "data.num_client is not an option here"),
        (
            ["--data.partition", "DirichletByClass", "--data.partition.min_size", "0", "--data.partition.alpha", "0.01"],
            "data.partition gives client 3 no sample: lower data.num_clients or choose another",
        ),
        (["--ckpt_path", "last"], "ckpt_path is last, but a partition needs no checkpoint: leave it out"),
        (["--seed_everything", "true"], "seed_everything is true, must be a whole number"),
    ],
)
@pytest.mark.one_in(3)
def test_bad_input_is_one_line(main, tmp_path, arguments, message):
    """Key, value and cure on standard error, exit code not 0, no file left."""
    code, _, error = main("partition", *DIGITS, *arguments)
    assert code != 0
    assert error.startswith("fl-lightning: error: ")
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_for_other_data_is_refused_by_fit(main):
    """Another number of clients, and a file that was made for one sample less."""
    assert main("partition", *DIGITS)[0] == 0
    code, _, error = main("fit", *DIGITS, *FIXED, "--data.num_clients", "19")
    assert code == 1
    assert "data.num_clients is 19, data.partition Fixed lists 20 clients: make them equal" in error
    with open("partition.json", encoding="utf-8") as file:
        text = file.read()
    with open("partition.json", "w", encoding="utf-8") as file:
        file.write(text.replace('"samples": 1437', '"samples": 1436'))
    code, _, error = main("fit", *DIGITS, *FIXED)
    assert code == 1
    assert "partition.json, made for 1436 training samples, data.source has 1437" in error
    assert error.count("\n") == 1


def test_a_folder_that_cannot_be_written_is_named(main, tmp_path):
    """A file where a folder should be."""
    (tmp_path / "taken").write_text("")
    code, _, error = main("partition", *DIGITS, "--out", "taken/partition.json")
    assert code == 1
    assert "taken/partition.json could not be written" in error
    assert error.count("\n") == 1


def test_a_real_process(command_line, tmp_path):
    """As a user types it: nothing on standard error."""
    result = command_line("partition", *DIGITS)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert (tmp_path / "partition.json").exists()
    assert (tmp_path / "partition.png").exists()
