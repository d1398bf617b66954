"""The script of ``fl-lightning completion``, read by a real bash."""

import shutil
import subprocess
from pathlib import Path

import pytest

from fl_lightning.command_line import completion
from fl_lightning.command_line.subcommands import SUBCOMMANDS

_DRIVER = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _fl_lightning; printf "%s\\n" "${COMPREPLY[@]}"'


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "fl-lightning"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["fl-lightning"])
        path.write_text(completion.script(), encoding="utf-8")
    return path


@pytest.fixture
def completions(script, tmp_path):
    """What bash offers for a command line whose last word is being typed; no program is found, so none is started."""

    def complete(*words: str) -> list[str]:
        command = [shutil.which("bash"), "--norc", "-c", _DRIVER, "bash", script, "fl-lightning", *words]
        result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={"PATH": ""}, timeout=60)
        assert result.returncode == 0
        assert result.stderr == ""
        return result.stdout.split()

    return complete


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["fi"], ["figures", "fit"]),
        (["fit", "--config", "digits_t"], ["digits_tce.yaml", "digits_tuned.yaml"]),
        (["fit", "--config", "digits_tce.yaml", "--model", "FedN"], ["FedNTD", "FedNova"]),
        (["fit", "--model", "FedW"], ["FedWeIT"]),
        (["fit", "--model.net", "CNN"], ["CNN2", "CNN5", "CNN10"]),
        (["fit", "--model.loss=", "Trunc"], ["TruncatedCrossEntropy"]),
        (["fit", "--trainer.callbacks+=", "Lo"], ["LossIncrease"]),
        (["fit", "--model.optimizer", "AdamW"], ["AdamW"]),
        (["fit", "--model.server_optimizer", "FedY"], ["FedYogi"]),
        (["fit", "--data.partition", "Dirichlet"], ["Dirichlet", "DirichletByClass"]),
        (["fit", "--data.source", "CIFAR"], ["CIFAR10", "CIFAR100"]),
        (["fit", "--ckpt_path", "last"], ["last", "last_if_any"]),
        (["fit", "--model.client_state", ""], ["memory", "disk"]),
        (["fit", "--model.optio"], ["--model.option"]),
        (["fit", "--model.mu"], ["--model.mu"]),
        (["fit", "--model.net.hid"], ["--model.net.hidden"]),
        (["fit", "--model.optimizer.beta"], ["--model.optimizer.betas", "--model.optimizer.beta2_decay"]),
        (["fit", "--data.partition.al"], ["--data.partition.alpha"]),
        (["fit", "--trainer.max_s"], ["--trainer.max_steps"]),
        (["fit", "--callbacks.client_forgetting.ev"], ["--callbacks.client_forgetting.every"]),
        (["fit", "--data.see"], []),  # refused: seed_everything is the seed
        (["fit", "--model.engine", "x"], []),  # bash offers files then
        (["partition", "--ou"], ["--out"]),
        (["predict", "--ckpt"], ["--ckpt_path"]),
        (["sweep", "--see"], ["--seeds", "--seed_everything"]),
        (["report", "--"], ["--out", "--baseline", "--target", "--rounds", "--help"]),
        (["watch", "--"], ["--port", "--help"]),
        (["attack", "--iter"], ["--iterations"]),
        (["export", "--r"], ["--run_folder"]),
    ],
)
def test_what_is_offered(completions, tmp_path, words, expected):
    """Of bundled names, names of files, and options of classes that are no default."""
    (tmp_path / "digits_tuned.yaml").touch()
    (tmp_path / "digits_table.csv").touch()
    split = [part for word in words for part in ([word[:-1], "="] if word.endswith("=") else [word])]  # as bash does
    assert sorted(completions(*split)) == sorted(expected)


def test_every_subcommand_is_offered(completions):
    assert completions("") == list(SUBCOMMANDS)


def test_the_command_prints_the_script(main, script):
    code, out, error = main("completion")
    assert (code, error) == (0, "")
    assert out == script.read_text(encoding="utf-8")


def test_an_argument_is_refused_in_one_line(main):
    code, out, error = main("completion", "bash")
    assert (code, out, error.count("\n")) == (1, "", 1)
    assert error.startswith("fl-lightning: error: bash ")
