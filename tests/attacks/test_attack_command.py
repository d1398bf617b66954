"""``fl-lightning attack`` on a short run on digits: what it prints and writes, and bad input in one line."""

import json
import shutil

import pytest
import torch
import yaml
from matplotlib.image import imread
from options import NO_PICTURES

from fl_lightning.attacks import Inversion, Inverter, Observation, PixelRange, Recovered, load_run, observe, score
from fl_lightning.command_line.attack import _parser
from fl_lightning.config_files.bundled import bundled_rows
from fl_lightning.config_files.reading import config_values

SHORT_RUN = "fit --config digits_tce.yaml --model.net MLP --trainer.max_steps 2 --trainer.enable_progress_bar false".split()
QUICK = ["--iterations", "60", "--lr", "0.1", "--accelerator", "cpu"]


@pytest.fixture(scope="session")
def run_folder(run_in, tmp_path_factory):
    """The folder of two rounds of the first example, with a small net."""
    return run_in(tmp_path_factory.mktemp("attacked"), *SHORT_RUN, *NO_PICTURES) / "runs" / "digits_tce" / "version_0"


@pytest.fixture
def checkpoint(run_folder, tmp_path):
    """Its last checkpoint, in a copy of the folder that a test may change."""
    shutil.copytree(run_folder, tmp_path / "run")
    return tmp_path / "run" / "checkpoints" / "last.ckpt"


def change(checkpoint, **values):
    """Change the run's config; keys are paths with __ between the parts."""
    path = checkpoint.parent.parent / "config.yaml"
    config = yaml.safe_load(path.read_text())
    for key, value in values.items():
        *parents, last = key.split("__")
        node = config
        for parent in parents:
            node = node[parent]
        node[last] = value
    path.write_text(yaml.safe_dump(config))


@pytest.mark.slow
def test_images_are_recovered_and_shown(main, checkpoint):
    """Two clients' digits, each from one step: a table, a file and a picture next to the run."""
    code, printed, error = main(
        "attack",
        "--ckpt_path",
        str(checkpoint),
        "--config",
        "invert_dlg.yaml",
        *QUICK,
        "--iterations",
        "400",
        "--clients",
        "[0, 3]",
    )
    assert code == 0, error
    scores = json.loads((checkpoint.parent.parent / "attack" / "attack.json").read_text())
    assert scores["psnr"] > 25
    assert scores["ssim"] > 0.9
    assert scores["labels_right"] == scores["num_images"] == 2
    assert [image["client"] for image in scores["images"]] == [0, 3]
    assert scores["method"] == "FedAvg"
    assert scores["round"] == 3
    assert scores["settings"]["distance"] == "l2"
    assert scores["iterations_per_second"] > 0
    assert "Labels recovered: 2 of 2 right" in printed
    clients = [line.split(" s")[0].rsplit(", ", 1)[0] for line in printed.splitlines() if line.startswith("Client ")]
    assert clients == ["Client 0 attacked, 1 of 2", "Client 3 attacked, 2 of 2"]  # no terminal, no bar
    assert f"{scores['images'][0]['psnr']:.2f}" in printed
    assert imread(checkpoint.parent.parent / "attack" / "attack.png").ndim == 3
    assert not list((checkpoint.parent.parent / "attack").glob(".*"))


def test_public_functions_do_what_the_command_does(main, checkpoint):
    """From a checkpoint to scores in Python: those of ``attack.json``."""
    code, _, error = main("attack", "--ckpt_path", str(checkpoint), *QUICK, "--iterations", "20", "--clients", "[0, 3]")
    assert code == 0, error
    attacked = load_run(checkpoint)
    seen = observe(attacked.method, attacked.data, checkpoint, clients=[0, 3], num_images=1, accelerator="cpu")
    inverter = Inverter(seen.net, attacked.method.loss, seen.pixel_range, Inversion(iterations=20, lr=0.1))
    scores = [score(one, inverter.invert(one), seen.pixel_range, attacked.data.classes) for one in seen.observations]
    written = json.loads((checkpoint.parent.parent / "attack" / "attack.json").read_text())
    assert [vars(image) for one in scores for image in one.images] == written["images"]


def test_several_images_and_restarts(main, checkpoint, tmp_path):
    """Four images of one step, two restarts, known labels, into a folder of the user's; a second time gives the same."""
    images = []
    for out in ("one", "two"):
        arguments = ["--num_images", "4", "--restarts", "2", "--labels", "known", "--out", out, "--seed", "3"]
        code, _, error = main("attack", "--ckpt_path", str(checkpoint), *QUICK, *arguments)
        assert code == 0, error
        scores = json.loads((tmp_path / out / "attack.json").read_text())
        assert len(scores["images"]) == 4
        assert len(scores["objectives"]["0"]) == 2
        images.append(scores["images"])
    assert images[0] == images[1]


def test_dp_sgd_hides_the_image(main, checkpoint):
    """The same run with DP-SGD at sigma 1: below 12 dB."""
    privacy = {"class_path": "fl_lightning.privacy.DPSGD", "init_args": {"noise_multiplier": 1.0, "clipping_norm": 1.0}}
    change(checkpoint, model__init_args__privacy=privacy)
    code, _, error = main(
        "attack", "--ckpt_path", str(checkpoint), "--distance", "l2", "--tv", "0", *QUICK, "--iterations", "400"
    )
    assert code == 0, error
    assert json.loads((checkpoint.parent.parent / "attack" / "attack.json").read_text())["psnr"] < 12


def test_a_checkpoint_next_to_a_copy_of_the_config(main, checkpoint, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    for file in (checkpoint, checkpoint.parent.parent / "config.yaml"):
        shutil.copy(file, tmp_path / "elsewhere")
    code, _, error = main("attack", "--ckpt_path", "elsewhere/last.ckpt", *QUICK)
    assert code == 0, error
    assert (tmp_path / "elsewhere" / "attack" / "attack.png").exists()


def test_originals_and_guesses_are_paired():
    """Whatever order they come in: of three images, recovered in another order with a pixel wrong by .5, PSNR by hand.

    One of 64 pixels: MSE .25 / 64, PSNR 10 log10(256) = 24.08 dB.
    """
    originals = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    originals[:, :, 0, 0] = 0.25
    guesses = originals[[2, 0, 1]].clone()
    guesses[:, :, 0, 0] = 0.75
    seen = Observation(4, {}, torch.ones(2), originals, torch.tensor([0, 0, 1]))
    recovered = Recovered(guesses, torch.tensor([0, 1, 1]), [0.0])
    unit = PixelRange(torch.zeros(1, 1, 8, 8), torch.ones(1, 1, 8, 8))
    scores = score(seen, recovered, unit, ["cat", "dog"])
    assert [image.psnr for image in scores.images] == pytest.approx([24.0824] * 3, abs=1e-3)
    assert [image.label for image in scores.images] == ["cat", "cat", "dog"]
    assert all(0 < image.ssim < 1 for image in scores.images)
    assert scores.num_labels_right == 2
    torch.testing.assert_close(scores.pairs[:, 1, :, 1:], originals[:, :, 1:])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ckpt_path", "nowhere.ckpt"], "ckpt_path is nowhere.ckpt, which does not exist: give a checkpoint, such as runs/"),
        (["--ckpt_path", None, "--num_images", "0"], "num_images is 0, must be at least 1"),
        (["--ckpt_path", None, "--num_images", "1000"], "num_images is 1000, but client 0 has "),
        (["--ckpt_path", None, "--clients", "[20]"], "clients has 20, must be between 0 and 19"),
        (["--ckpt_path", None, "--clients", "[]"], "clients is empty"),
        (["--ckpt_path", None, "--iterations", "0"], "iterations is 0, must be at least 1"),
        (["--ckpt_path", None, "--restarts", "-1"], "restarts is -1, must be at least 1"),
        (["--ckpt_path", None, "--tv", "-0.1"], "tv is -0.1, must be at least 0"),
        (["--ckpt_path", None, "--distance", "l1"], "distance is l1, must be l2 or cosine"),
        (["--ckpt_path", None, "--iterations", "many"], "iterations is many, must be a whole number"),
        (["--ckpt_path", None, "--iteration", "3"], "iteration is not an option here"),
        (["--ckpt_path", None, "--config", "invert_dgl.yaml"], "config is invert_dgl.yaml, neither a file here nor a bundled"),
        ([], "ckpt_path is missing: give a checkpoint, such as runs/"),
    ],
)
@pytest.mark.one_in(3)
def test_bad_input_is_one_line(main, checkpoint, arguments, message):
    """Value and cure on standard error, exit code 1, nothing written."""
    code, _, error = main("attack", *(str(checkpoint) if argument is None else argument for argument in arguments))
    assert code == 1
    assert message in error
    assert error.startswith("fl-lightning: error: ")
    assert error.count("\n") == 1
    assert not (checkpoint.parent.parent / "attack").exists()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"data__tasks": {"class_path": "fl_lightning.tasks.TaskStream"}}, "data.tasks of the run is set"),
        (
            {"model__init_args__optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.01}}},
            "model.optimizer of the run is Adam",
        ),
        ({"data__source": "nonsense"}, "data.source is 'nonsense'"),
    ],
)
def test_runs_that_cannot_be_attacked(main, checkpoint, values, message):
    change(checkpoint, **values)
    code, _, error = main("attack", "--ckpt_path", str(checkpoint), *QUICK)
    assert code == 1
    assert message in error
    assert error.count("\n") == 1


def test_a_rule_for_several_clients_does_not_matter(main, checkpoint):
    """The attack is on single clients, before Krum sees five."""
    krum = {"class_path": "fl_lightning.robustness.Krum", "init_args": {"hostile": 1}}
    change(checkpoint, model__init_args__aggregation=krum, data__clients_per_round=5)
    code, _, error = main("attack", "--ckpt_path", str(checkpoint), *QUICK)
    assert (code, error) == (0, "")


def test_a_checkpoint_without_its_config(main, checkpoint):
    """Where it was looked for, and what to do."""
    (checkpoint.parent.parent / "config.yaml").unlink()
    code, _, error = main("attack", "--ckpt_path", str(checkpoint))
    assert code == 1
    assert f"there is neither {checkpoint.parent / 'config.yaml'} nor {checkpoint.parent.parent / 'config.yaml'}" in error
    assert "copy config.yaml there from the folder of the run" in error


def test_a_file_that_is_no_checkpoint(main, checkpoint):
    checkpoint.write_text("no checkpoint")
    code, _, error = main("attack", "--ckpt_path", str(checkpoint))
    assert code == 1
    assert "which is not a checkpoint that can be read" in error


@pytest.mark.parametrize("name", [name for name in bundled_rows() if name.startswith("invert_")])
def test_bundled_attacks_are_what_the_command_takes(name, tmp_path):
    """Each has its paper; its values make settings."""
    assert "arXiv" in bundled_rows()[name].table
    (tmp_path / name).write_text(yaml.safe_dump(config_values(name)))
    config = _parser().parse_args(["--config", str(tmp_path / name)])
    settings = {key: config[key] for key in config_values(name)}
    assert Inversion(**settings).iterations >= 24_000


def test_help(main):
    code, printed, _ = main("attack", "--help")
    assert code == 0
    assert "--distance" in printed
    assert "invert_geiping.yaml" in printed


def test_clients_that_send_nothing_are_left_out(main, tmp_path, monkeypatch):
    """Under TCE the gradient of a client with a single class is 0; others are attacked next to it, but not it alone."""
    monkeypatch.chdir(tmp_path)
    code, _, error = main(*SHORT_RUN, "--data.partition.alpha", "0.03")
    assert code == 0, error
    run = tmp_path / "runs" / "digits_tce" / "version_0"
    data = load_run(run / "checkpoints" / "last.ckpt").data
    data.setup()
    num_classes = (data.label_counts > 0).sum(dim=1).tolist()
    silent, other = num_classes.index(1), num_classes.index(2)
    command = ("attack", "--ckpt_path", str(run / "checkpoints" / "last.ckpt"), *QUICK, "--iterations", "1", "--clients")
    code, printed, error = main(*command, str([silent, other]))
    assert code == 0, error
    assert f"Nothing to attack: the update of clients {silent} is 0." in printed
    scores = json.loads((run / "attack" / "attack.json").read_text())
    assert scores["silent"] == [silent]
    assert [image["client"] for image in scores["images"]] == [other]
    code, _, error = main(*command, str([silent]))
    assert code != 0
    assert f"clients is {[silent]}, all with an update of 0" in error
    assert error.strip().count("\n") == 0
