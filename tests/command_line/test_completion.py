"""The script of ``fl-lightning completion``, read by a real bash."""

import shutil
import subprocess
from pathlib import Path

import pytest

from fl_lightning.command_line import completion
from fl_lightning.command_line.cli import SUBCOMMANDS

_DRIVER = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _fl_lightning; printf "%s\\n" "${COMPREPLY[@]}"'


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "fl-lightning"
    path.write_text(completion.script(SUBCOMMANDS), encoding="utf-8")
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
        (["fit", "--model.optimizer", "AdamW"], ["AdamW"]),
        (["fit", "--model.server_optimizer", "FedY"], ["FedYogi"]),
        (["fit", "--data.partition", "Dirichlet"], ["Dirichlet", "DirichletByClass"]),
        (["fit", "--data.partition.al"], ["--data.partition.alpha"]),
        (["fit", "--trainer.max_s"], ["--trainer.max_steps"]),
        (["fit", "--callbacks.client_forgetting.ev"], ["--callbacks.client_forgetting.every"]),
        (["fit", "--model.engine", "x"], []),  # bash offers files then
        (["predict", "--ckpt"], ["--ckpt_path"]),
    ],
)
def test_what_is_offered(completions, tmp_path, words, expected):
    """Of bundled names, names of files, classes by their short names, and options."""
    (tmp_path / "digits_tuned.yaml").touch()
    (tmp_path / "digits_table.csv").touch()
    assert sorted(completions(*words)) == sorted(expected)


def test_every_subcommand_is_offered(completions):
    assert completions("") == list(SUBCOMMANDS)


def test_the_command_prints_the_script(main, script):
    code, out, error = main("completion")
    assert (code, error) == (0, "")
    assert out == script.read_text(encoding="utf-8")


def test_an_argument_is_refused_in_one_line(main):
    code, out, error = main("completion", "bash")
    assert (code, out, error.count("\n")) == (1, "", 1)
    assert error.startswith("fl-lightning: error: ")
    assert "bash" in error
