"""The command line: bad input in one line, bundled configs by name, every subcommand."""

import functools
import json
import os
import re
import signal
import time
import warnings
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import yaml
from lightning.pytorch import Trainer
from options import NO_PICTURES

from fl_lightning.callbacks import Dashboard, RunSummary
from fl_lightning.command_line.checkpoints import LastCheckpoint
from fl_lightning.command_line.trainer_command import TrainerCommand, parse_trainer_command

CONFIGS = Path(__file__).parents[2] / "configs"
DIGITS = ["fit", "--config", "digits_tce.yaml"]
NET = ["--model.net", "MLP", "--model.net.hidden", "[8]"]
SMALL = [*DIGITS, *NET, "--data.clients_per_round", "5", *NO_PICTURES]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data.partition.alpha", "0"], "data.partition.alpha is 0.0, must be above 0"),
        (["--data.partition.alpha", "-1"], "data.partition.alpha is -1.0, must be above 0"),
        (["--data.num_clients", "2000"], "data.num_clients is 2000, must be between 1 and 1,437"),
        (
            ["--data.num_clients", "1437"],
            "data.val_fraction is 0.3, which leaves client 0 of 1 samples without a training sample",
        ),
        (["--data.val_fraction", "1.0"], "data.val_fraction is 1.0, must be at least 0 and below 1"),
        (
            ["--data.test_fraction", "0.7"],
            "data.val_fraction is 0.3 and data.test_fraction is 0.7, must be below 1 together: the rest is trained on",
        ),
        (
            ["--data.num_clients", "400", "--data.test_fraction", "0.65"],
            "data.val_fraction is 0.3 and data.test_fraction is 0.65, which leaves client 0 of 3 samples without a training",
        ),
        (
            ["--model", "FedPer", "--model.personal", "[head.*]"],
            "model.personal has 'head.*', which fits no weight of model.net: its layers are features, classifier\n",
        ),
        (["--model", "FedPer", "--model.personal", "['*']"], "model.personal is ['*'], which leaves no weight of model.net"),
        (["--model", "LGFedAvg", "--model.shared", "['*']"], "model.shared is ['*'], which leaves clients no personal weight"),
        (["--model", "FedBABU", "--model.head", "['*']"], "model.head is ['*'], which leaves no weight of model.net"),
        (["--data.clients_per_round", "0.0"], "data.clients_per_round is 0.0, must be above 0 and at most 1"),
        (["--data.clients_per_round", "1.5"], "data.clients_per_round is 1.5, must be above 0 and at most 1"),
        (["--data.clients_per_round", "21"], "data.clients_per_round is 21, must be between 1 and 20: data.num_clients is 20"),
        (["--data.source", "CIFAR11"], "data.source is 'CIFAR11'"),
        (["--data.source", "image_folder", "--data.root", "nowhere"], "data.root is nowhere"),
        (["--trainer.max_steps", "-1"], "trainer.max_steps is -1, must be at least 1"),
        (["--trainer.precision", "16-mixed"], "trainer.precision is 16-mixed"),
        (["--trainer.gradient_clip_val", "1.0"], "trainer.gradient_clip_val is 1.0"),
        (["--trainer.accumulate_grad_batches", "4"], "trainer.accumulate_grad_batches is 4"),
        (["--trainer.min_epochs", "3"], "trainer.min_epochs is 3, but a training step is a round: give min_steps"),
        (["--model.local_epochs", "2"], "model.local_steps is 3 and model.local_epochs is 2"),
        (["--model", "FedAvgg"], "did you mean FedAvg?"),
        (["--model.net", "CNN2d"], "did you mean CNN2?"),
        (["--model.net", "ResNet18"], "model.net ResNet18 needs images of at least 17x17"),
        (["--model.loss", "TCE"], "model.loss is TCE, which is TruncatedCrossEntropy here: give that name"),
        (["--model.optimizer.lrr", "1"], "model.optimizer.lrr is not an option here"),
        (["--model.mu", "0.1"], "model.mu is not an option here: it belongs to FedACG, FedNova, FedProx, FedWeIT, MOON"),
        (["--data.alpha", "1"], "data.alpha is not an option here"),
        (["--seed_everything", "true"], "seed_everything is true, must be a whole number"),
        (["--ckpt_path", "nowhere.ckpt"], "ckpt_path is nowhere.ckpt, which does not exist"),
        (["--model.optimizer.lr", "abc"], "model.optimizer.lr is abc, must be a finite number"),
        (["--data.num_clients", "many"], "data.num_clients is many, must be a whole number"),
        (["--model.engine", "fast"], "model.engine is fast, must be one of auto, tune, "),
        (["--optimizer", "SGD"], "optimizer is not an option here"),
        (["--model.local_steps", "0"], "fl-lightning: error: model.local_steps is 0, must be at least 1\n"),
        (["--trainer.max_step", "3"], "trainer.max_step is not an option here"),
        (["--callbacks.label_count.every", "3"], "callbacks.label_count.every is not an option here"),
        (["--model.optimizer.lr", "1e30", *NO_PICTURES], "no client sent a finite update in 10 rounds in a row"),
    ],
)
@pytest.mark.one_in(4)
def test_bad_input_is_one_line(main, tmp_path, arguments, message):
    """Key, value and cure on standard error, exit code not 0, no run folder left."""
    code, _, error = main(*DIGITS, *arguments)
    assert code != 0
    lines = [line for line in error.splitlines() if line.startswith("fl-lightning: error: ")]
    assert len(lines) == 1
    assert message in error
    assert "Traceback" not in error
    if "finite" not in message:
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("rounds", "code"), [(1, 0), (3, 1)])
def test_a_run_that_ends_in_lost_rounds_fails(main, tmp_path, rounds, code):
    """Fewer than the ten that stop a run; after one the model is as good as that of a run which is a round shorter."""
    wild = ["--model.optimizer.lr", "1e30", "--trainer.max_steps", str(rounds), *NO_PICTURES]
    ended, _, error = main(*DIGITS, *wild)
    assert ended == code
    line = f"fl-lightning: error: the last {rounds} rounds had no effect, so the model is that of the round"
    assert (line in error) == (code != 0)
    assert list(tmp_path.rglob("results.json"))


def test_a_failed_start_leaves_the_users_folder(main, tmp_path):
    """An empty folder that was there before is there after; what the run made inside it is gone."""
    (tmp_path / "mine").mkdir()
    code, _, _ = main(*DIGITS, "--model.net", "ResNet18", "--trainer.default_root_dir", "mine")
    assert code != 0
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert list((tmp_path / "mine").iterdir()) == []


def test_error_of_a_real_process(command_line):
    """As a user sees it: exit code 1, one line on standard error, nothing on standard output."""
    result = command_line(*DIGITS, "--data.partition.alpha", "0")
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr.startswith("fl-lightning: error: data.partition.alpha is 0.0, must be above 0")
    assert result.stderr.count("\n") == 1


def test_traceback_on_request(command_line):
    """FL_LIGHTNING_TRACEBACK=1 shows where an error came from."""
    result = command_line(*DIGITS, "--data.partition.alpha", "0", FL_LIGHTNING_TRACEBACK="1")
    assert result.returncode == 1
    assert "Traceback (most recent call last)" in result.stderr


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("digits_tc.yaml", "did you mean digits_tce.yaml?"),
        ("digits_tce", "did you mean digits_tce.yaml?"),
        ("configs/digits_tce.yml", "did you mean digits_tce.yaml?"),
        ("nope.yaml", "fl-lightning configs lists them"),  # as near to pfedme.yaml as the ending makes it
    ],
)
def test_an_unknown_config_is_named_with_one_of_a_similar_name(main, name, cure):
    """Without one, the error names the command that lists them."""
    code, _, error = main("fit", "--config", name)
    assert code == 1
    assert f"config is {name}, neither a file here nor a bundled config: {cure}\n" in error


def test_a_config_that_is_a_pipe_is_named(main, tmp_path):
    """No program would ever write to it; a bundled config of the same name does not take its place."""
    os.mkfifo(tmp_path / "digits_tce.yaml")
    code, _, error = main("fit", "--config", "digits_tce.yaml")
    assert code == 1
    assert error.strip().endswith("config is digits_tce.yaml, which is a pipe or a device: give a file")


@pytest.mark.parametrize("name", ["digits_tce.yaml", "fedreg_ct_densenet_fedavg.yaml", "flashback_femnist_500_fedavg.yaml"])
def test_printed_configs_parse_again(main, tmp_path, name):
    """--print_config gives the whole config, and that file gives the same config."""
    code, printed, _ = main("fit", f"--config={name}", "--print_config")
    assert code == 0
    (tmp_path / "again.yaml").write_text(printed)
    code, again, _ = main("fit", "--config", "again.yaml", "--print_config")
    assert code == 0
    assert yaml.safe_load(again) == yaml.safe_load(printed)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("local_steps: 3", "local_steps: three", "model.local_steps is three, must be"),
        ("TruncatedCrossEntropy", "TruncatedCrossEntrop", "did you mean TruncatedCrossEntropy?"),
        ("fl_lightning.FedAvg", "fl_lightning.FedAvgg", "model is fl_lightning.FedAvgg: "),
        ("num_clients: 20", "num_client: 20", "data.num_client is not an option here"),
        ("num_clients: 20", "num_clients:", "data.num_clients is None, must be a whole number"),
        ("alpha: 0.1", "alpha: abc", "data.partition.alpha is abc, must be"),
        ("num_clients: 20", "num_clients: [", "config is mine.yaml, which is not YAML"),
    ],
)
def test_a_mistake_in_a_config_is_one_line(main, tmp_path, old, new, message):
    """What is misspelt or of a wrong type in a file is named as on the command line."""
    text = (CONFIGS / "digits" / "digits_tce.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text.replace(old, new))
    code, _, error = main("fit", "--config", "mine.yaml")
    assert code != 0
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"", b"just words"])
def test_a_file_that_is_no_config_is_named(main, tmp_path, content):
    """Bytes, nothing, or a sentence."""
    (tmp_path / "mine.yaml").write_bytes(content)
    code, _, error = main("fit", "--config", "mine.yaml")
    assert code != 0
    assert "config is mine.yaml, which " in error
    assert error.count("\n") == 1


def test_bare_names_of_nets_are_ours(main, tmp_path):
    """torchvision has an MLP too; in a file as on the command line, a bare name means the net of this package."""
    (tmp_path / "mine.yaml").write_text("model: {class_path: FedAvg, init_args: {net: MLP}}\n")
    code, printed, error = main("fit", "--config", "mine.yaml", "--print_config")
    assert code == 0, error
    assert yaml.safe_load(printed)["model"]["init_args"]["net"]["class_path"] == "fl_lightning.models.MLP"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_does_not_look_finished(command_line, tmp_path, number):
    """SIGTERM, as a scheduler sends it, and Ctrl-C: exit codes 143 and 130, and a line that says how to go on."""
    process = command_line(*SMALL, "--trainer.max_steps", "2000", wait=False)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("runs/digits_tce/version_0/checkpoints/last.ckpt")):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 128 + number, error
    assert re.search(r"stopped after round \d+: resume with --ckpt_path last, after round \d+$", error.strip())


@pytest.mark.parametrize(
    "arguments",
    [
        "--model SCAFFOLD --model.net CNN2",
        "--config digits_tce.yaml --model SCAFFOLD",
        "--config digits_tce.yaml --model.loss CrossEntropy --model SCAFFOLD",
        "--model FedProx --model.net CNN2 --model.mu .1 --model SCAFFOLD",
        "--config cifar10_20_clients_scaffold.yaml",
        "--config digits_fedweit.yaml",
    ],
)
def test_a_method_has_defaults_of_its_own(main, arguments):
    """Not those of FedAvg, the method unless another is given: FedAvg weights clients by their samples, these do not."""
    code, printed, _ = main("fit", *arguments.split(), "--print_config")
    assert code == 0
    assert yaml.safe_load(printed)["model"]["init_args"]["server_weighting"] == "uniform"


def test_a_config_in_the_working_folder_wins(main, tmp_path):
    """A file of a bundled name in the working folder is taken instead of ours."""
    (tmp_path / "digits_tce.yaml").write_text("data: {num_clients: 7}\n")
    code, printed, _ = main(*DIGITS, "--print_config")
    assert code == 0
    assert yaml.safe_load(printed)["data"]["num_clients"] == 7


def test_any_value_can_be_overridden(main):
    """The keys of the README, short class names included."""
    arguments = (
        "--trainer.max_steps 200 --model.net MLP --data.partition.alpha 0.5 --model.loss ReweightedSoftmax --seed_everything 5"
    )
    code, printed, _ = main("fit", "--config", "cifar10_tce.yaml", *arguments.split(), "--print_config")
    assert code == 0
    config = yaml.safe_load(printed)
    assert config["trainer"]["max_steps"] == 200
    assert config["model"]["init_args"]["net"]["class_path"] == "fl_lightning.models.MLP"
    assert config["model"]["init_args"]["loss"]["class_path"] == "fl_lightning.losses.ReweightedSoftmax"
    assert config["data"]["partition"]["init_args"]["alpha"] == 0.5
    assert config["seed_everything"] == 5


@pytest.mark.parametrize("given", [["--trainer.val_check_interval", "1:00:00:00"], ["--config", "day.yaml"]])
def test_a_day_is_not_a_number_of_rounds(tmp_path, monkeypatch, given):
    """YAML 1.1 makes 216000 of it."""
    monkeypatch.chdir(tmp_path)
    Path("day.yaml").write_text("trainer: {val_check_interval: 1:00:00:00, max_time: 1:00:00:00}")
    trainer = TrainerCommand("fit", parse_trainer_command("fit", [*SMALL[1:], *given])).trainer
    (last,) = (callback for callback in trainer.callbacks if isinstance(callback, LastCheckpoint))
    assert last.every == timedelta(days=1)
    assert trainer._val_check_time_interval == last.every.total_seconds()


def test_fit_validate_test_and_predict(main, tmp_path):
    """All four, on last, best and a file; the numbers agree with what the fit reported."""
    code, out, error = main(*DIGITS, "--trainer.max_steps", "6", "--model.optimizer.lr", "0.2")
    assert code == 0
    assert error == ""
    assert "test accuracy" in out
    assert "tensorboard --logdir runs/digits_tce/version_0" in out
    folder = tmp_path / "runs" / "digits_tce" / "version_0"
    checkpoint = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    code, out, _ = main("test", "--config", "digits_tce.yaml", "--ckpt_path", "last")
    assert code == 0
    assert f"{checkpoint['federated']['newest']['test/accuracy']:.5f}"[:-1] in out
    code, out, _ = main("validate", "--config", "digits_tce.yaml", "--ckpt_path", "best")
    assert code == 0
    assert "val/accuracy" in out
    file = str(folder / "checkpoints" / "last.ckpt")
    for nothing in (["digits_tce.yaml", "--data.val_fraction", "0"], ["digits_fedweit.yaml"]):
        code, _, error = main("validate", "--config", *nothing, "--ckpt_path", file)
        assert code == 1
        assert "so there are no validation samples for the global model: " in error
    # The run's config serves as well as ours, from anywhere.
    predict = ["predict", "--config", str(folder / "config.yaml"), "--ckpt_path", str(folder / "checkpoints" / "best.ckpt")]
    assert main(*predict)[0] == 0
    rows = (folder / "predictions.csv").read_text().splitlines()
    assert rows[0] == "index,label,prediction,probability"
    assert len(rows) == 1 + 360
    code, _, error = main(*predict, "--trainer.limit_predict_batches", "1", "--data.eval_batch_size", "100")
    assert code == 0, error
    assert len((folder / "predictions.csv").read_text().splitlines()) == 1 + 100
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert [path.name for path in (tmp_path / "runs" / "digits_tce").iterdir()] == ["version_0"]


@pytest.mark.slow
def test_the_first_run_shows_forgetting(main, tmp_path):
    """All rounds of the first config, measured in the last: clients forget visibly, and the table says so."""
    last = ["--callbacks.client_forgetting.every", "40", "--callbacks.round_forgetting.every", "40"]
    code, out, error = main(*DIGITS, *NO_PICTURES, *last)
    assert code == 0, error
    folder = tmp_path / "runs" / "digits_tce" / "version_0"
    measured = json.loads((folder / "results.json").read_text())["newest_forgetting"]
    assert measured["forgetting/client_mean"] < -0.05
    assert measured["forgetting/round"] > 0.005
    assert re.search(rf"client forgetting F_ki, last +│ {-measured['forgetting/client_mean']:.4f} ", out)
    assert "-0.0000" not in out


def test_a_runs_config_knows_its_folder(main, tmp_path):
    """fit goes on and test looks where the config lies, also from another folder. It names no checkpoint, to repeat the run."""
    assert main(*SMALL, "--trainer.max_steps", "2", "--trainer.default_root_dir", "elsewhere")[0] == 0
    folder = tmp_path / "elsewhere" / "digits_tce" / "version_0"
    arguments = ["--config", str(folder / "config.yaml"), "--ckpt_path", "last"]
    code, _, error = main("fit", *arguments, "--trainer.max_steps", "3")
    assert code == 0, error
    assert torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == 3
    assert yaml.safe_load((folder / "config.yaml").read_text())["ckpt_path"] is None
    assert main("test", *arguments)[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]


def test_a_fit_stays_in_its_working_folder(main, tmp_path, monkeypatch):
    """Once there are event files, to which TensorBoard's thread writes by a relative path at any time."""
    change, left = os.chdir, []

    def watched(folder: str) -> None:
        left.extend(tmp_path.rglob("events.out.tfevents.*"))
        change(folder)

    monkeypatch.setattr(os, "chdir", watched)
    code, _, error = main(*SMALL, "--trainer.max_steps", "1")
    assert code == 0, error
    assert left == []


def test_an_untrained_model_is_not_tested(main):
    """test without a checkpoint would show a random net."""
    code, _, error = main("test", "--config", "digits_tce.yaml")
    assert code == 1
    assert "ckpt_path is null" in error


def test_a_run_of_odd_length_is_evaluated_at_its_end(main, tmp_path, read_scalars):
    """Seven rounds validated every five: points at 0, 5 and 7, and the last checkpoint is that of round 7."""
    code, _, _ = main(*SMALL, "--trainer.max_steps", "7", "--trainer.val_check_interval", "5")
    assert code == 0
    folder = tmp_path / "runs" / "digits_tce" / "version_0"
    assert sorted(read_scalars(folder)["val/accuracy"]) == [0, 5, 7]
    assert torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == 7


@pytest.mark.parametrize("evaluated", [[], ["--trainer.limit_val_batches", "0"]])
def test_a_run_that_dies_after_its_last_round_resumes_before_it(main, tmp_path, monkeypatch, evaluated):
    """Work that follows the last round is done then; the weights are those of the first time."""
    run = [*SMALL, *evaluated, "--trainer.max_steps", "5", "--trainer.val_check_interval", "2", "--trainer.callbacks+", "CCVR"]
    weights = []

    def fails(callback, trainer, module):
        weights.extend(weight.detach().clone() for weight in module.net.parameters())
        raise RuntimeError("no more time")

    with monkeypatch.context() as patch:
        patch.setattr("fl_lightning.callbacks.CCVR.on_train_end", fails)
        assert main(*run)[0] == 1
    folder = tmp_path / "runs" / "digits_tce" / "version_0"
    checkpoints = folder / "checkpoints"
    assert torch.load(checkpoints / "last.ckpt", weights_only=True)["global_step"] == 4
    code, _, error = main(*run, "--ckpt_path", "last")
    assert code == 0, error
    assert (folder / "ccvr.pt").exists()
    assert {path.name for path in checkpoints.iterdir()} - {"best.ckpt"} == {"last.ckpt"}
    last = torch.load(checkpoints / "last.ckpt", weights_only=True)
    assert last["global_step"] == 5
    ended = [value for name, value in last["state_dict"].items() if name.startswith("net.")]
    assert all(map(torch.equal, ended, weights))


def test_a_users_callback_replaces_ours(main, tmp_path, read_scalars):
    """A callback under trainer.callbacks takes the place of the one that the command line brings; it logs the last round too.

    A ModelCheckpoint does not: a run resumes from ours.
    """
    callbacks = [f"--trainer.callbacks+={name}" for name in ("ModelCheckpoint", "fl_lightning.callbacks.Communication")]
    code, _, error = main(*SMALL, "--trainer.max_steps", "3", *callbacks, "--trainer.callbacks.every", "2")
    assert code == 0, error
    folder = tmp_path / "runs" / "digits_tce" / "version_0"
    assert sorted(read_scalars(folder)["communication/up"]) == [2, 3]
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["best.ckpt", "epoch=0-step=3.ckpt", "last.ckpt"]


def test_a_users_summary_comes_after_the_dashboard(main, monkeypatch):
    """Whose last readings stand in the event files before results.json says that the record is complete."""
    called = []
    fit = functools.wraps(Trainer.fit)(lambda self, *_, **__: called.extend(map(type, self.callbacks)))
    monkeypatch.setattr(Trainer, "fit", fit)
    code, _, error = main(*DIGITS, "--trainer.max_steps", "2", "--trainer.callbacks+=RunSummary")
    assert code == 0, error
    assert called.count(RunSummary) == called.count(Dashboard) == 1
    assert called.index(RunSummary) > called.index(Dashboard)


def test_another_strategy_for_several_processes_is_refused_before_they_start(main, monkeypatch, tmp_path):
    fit = functools.wraps(Trainer.fit)(lambda *_, **__: pytest.fail("it was launched"))
    monkeypatch.setattr(Trainer, "fit", fit)
    code, _, error = main(*DIGITS, "--trainer.strategy", "ddp", "--trainer.devices", "2", "--trainer.accelerator", "cpu")
    assert code == 1
    assert "trainer.strategy is DDPStrategy, under which processes share no cohort: set" in error
    assert not (tmp_path / "runs").exists()


def test_what_a_config_sets_for_a_class_that_is_replaced_is_named(command_line):
    """Each option in a line of its own, without a file and a line of code; Lightning has a format of its own for warnings."""
    replaced = ["--model", "SCAFFOLD", "--model.net", "MLP", "--data.num_clients", "0"]
    result = command_line("fit", "--config", "cifar10_20_clients_fedprox.yaml", *replaced)
    config = "in cifar10_20_clients_fedprox.yaml, but"
    warned = [
        f"fl-lightning: warning: model.net.norm is mix {config} MLP has no such option: it is left out",
        f"fl-lightning: warning: model.mu is 1.1 {config} SCAFFOLD has no such option: it is left out",
    ]
    assert result.returncode == 1
    assert result.stderr.splitlines()[:-1] == warned


def test_a_combined_config_says_nothing_of_the_options_that_stay(main):
    """Each method takes the net, the loss and the optimizer of another one's config."""
    with warnings.catch_warnings(record=True) as warned:
        main("fit", "--config", "digits_tce.yaml", "--model", "FedProx", "--data.num_clients", "0")
    assert not warned


def test_help_lists_the_subcommands(command_line):
    """In a new interpreter, as installed."""
    result = command_line("--help", new_interpreter=True)
    assert result.returncode == 0
    for name in ("fit", "validate", "test", "predict", "partition"):
        assert name in result.stdout


def test_an_option_with_an_enumeration_as_its_default_is_saved(main):
    """The interval of Lightning's Timer, as text that the saved config gives again."""
    timer = ["--trainer.callbacks+", "Timer", "--trainer.callbacks.duration", "00:01:00:00"]
    assert main(*SMALL, "--trainer.max_steps", "1", *timer)[0] == 0
    saved = Path("runs/digits_tce/version_0/config.yaml")
    (options,) = [one["init_args"] for one in yaml.safe_load(saved.read_text())["trainer"]["callbacks"]]
    assert options["interval"] == "step"
    assert main("fit", "--config", str(saved))[0] == 0


@pytest.mark.parametrize("command", ["validate", "test", "predict"])
def test_an_evaluation_needs_the_config_of_its_run(main, command):
    code, _, error = main(command, "--ckpt_path", "best")
    assert code == 1
    assert error.endswith("model.net is missing: give --config RUN/config.yaml, the config of the run of the checkpoint\n")


@pytest.mark.parametrize("options", [(), ("--data.source", "digits"), ("--model", "FedProx")])
def test_fit_needs_a_net(main, options):
    """In one line that says what is missing and how to give it."""
    code, _, error = main("fit", *options)
    assert code != 0
    assert error == "fl-lightning: error: model.net is missing: give it, or a config, such as --config digits_tce.yaml\n"


def test_missing_arguments_of_a_class_are_named(main):
    """In one line, each with its key."""
    code, _, error = main("fit", "--model.net", "MLP", "--data.partition", "Fixed")
    assert code != 0
    assert error == "fl-lightning: error: data.partition.clients is missing: give it\n"


def test_a_file_that_is_no_checkpoint_is_named(main, tmp_path):
    """Garbage instead of a checkpoint: the file's name in one line, in a folder near the root or not."""
    (tmp_path / "bad.ckpt").write_bytes(b"garbage")
    code, _, error = main(*DIGITS, "--ckpt_path", str(tmp_path / "bad.ckpt"))
    assert code != 0
    assert "bad.ckpt, which is not a checkpoint that can be read" in error
    assert error.count("\n") == 1


def test_two_runs_at_once_do_not_meet(command_line, tmp_path):
    """Started together, each gets another folder and ends well."""
    run = [*SMALL, "--trainer.max_steps", "3"]
    both = [command_line(*run, wait=False) for _ in range(2)]
    for process in both:
        _, error = process.communicate(timeout=240)
        assert process.returncode == 0, error
    versions = sorted((tmp_path / "runs" / "digits_tce").iterdir())
    assert [path.name for path in versions] == ["version_0", "version_1"]
    for version in versions:
        assert (version / "results.json").exists()
        assert (version / "checkpoints" / "last.ckpt").exists()


@pytest.mark.parametrize("logger", [["false"], ["CSVLogger", "--trainer.logger.save_dir", "csv"]])
def test_other_loggers(main, tmp_path, logger):
    """None or another of Lightning's, twice: checkpoints lie in the run's folder, and last finds them."""
    for _ in range(2):
        code, _, error = main(*SMALL, "--trainer.max_steps", "2", "--trainer.logger", *logger)
        assert code == 0, error
    code, _, error = main("test", "--config", "digits_tce.yaml", *NET, "--ckpt_path", "last")
    assert code == 0, error
    for name in ("checkpoints/last.ckpt", "results.json", "config.yaml"):
        assert (tmp_path / "runs" / "digits_tce" / "version_1" / name).exists(), name


def test_a_try_leaves_no_version(main, tmp_path):
    """``fast_dev_run`` writes no checkpoint, and is nothing that a later run could go on from."""
    code, _, error = main("fit", "--config", "digits_tce.yaml", "--model.net", "MLP", "--trainer.fast_dev_run", "true")
    assert code == 0, error
    assert list(tmp_path.rglob("version_*")) == []
