"""Libraries of extras: what needs one that is missing says so in one line."""

import sys
from types import ModuleType

import pytest

FIT = ["fit", "--config", "digits_tce.yaml", "--trainer.max_steps", "1"]
NOISE = ["--model.privacy.noise_multiplier", "1"]
NEEDS = [
    ("optuna", "sweep", "fl-lightning sweep", ["sweep", "--config", "digits_tce.yaml", "--set", "model.optimizer.lr=0.1"]),
    ("opacus", "privacy", "model.privacy DPSGD", [*FIT, "--model.privacy", "DPSGD", *NOISE]),
    ("opacus", "privacy", "model.privacy UserLevelDP", [*FIT, "--model.privacy", "UserLevelDP", *NOISE]),
    ("wandb", "wandb", "trainer.logger WandbLogger", [*FIT, "--trainer.logger", "WandbLogger"]),
    ("mlflow", "mlflow", "trainer.logger MLFlowLogger", [*FIT, "--trainer.logger", "MLFlowLogger"]),
    ("datasets", "huggingface", "data.source HuggingFace", [*FIT, "--data.source", "HuggingFace", "--data.source.name", "x"]),
    ("flwr.app", "flower", "fl-lightning federation site", ["federation", "site", "app", "--client", "0"]),
]


@pytest.mark.parametrize(("library", "extra", "what", "command"), NEEDS)
@pytest.mark.one_in(3)
def test_a_missing_library_is_one_line_with_the_command(main, tmp_path, monkeypatch, library, extra, what, command):
    monkeypatch.setitem(sys.modules, library, None)  # Python's word for a library that cannot be imported
    # Which an earlier test has imported.
    for module in ("sweep.study", "sweep.entered_sweep", "command_line.sweep", "sites.site"):
        monkeypatch.delitem(sys.modules, f"fl_lightning.{module}", raising=False)
    code, _, error = main(*command)
    assert code == 1
    needed = f"{what} needs the library {library.partition('.')[0]}: pip install 'fl-lightning[{extra}]'"
    assert error == f"fl-lightning: error: {needed}\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("address", [None, "file:./mlruns", "mlruns"])
def test_a_folder_is_no_place_for_mlflow(main, tmp_path, monkeypatch, address):
    """Newer releases refuse one in a paragraph; the key and a database that works are named before anything is made."""
    monkeypatch.setitem(sys.modules, "mlflow", ModuleType("mlflow"))
    given = ["--trainer.logger.tracking_uri", address] if address else []
    code, _, error = main(*FIT, "--trainer.logger", "MLFlowLogger", *given)
    given = f"{address}, which is a folder" if address else "not set, which means a folder"
    said = f"trainer.logger.tracking_uri is {given}, but MLflow needs a database or a server"
    assert (code, error) == (1, f"fl-lightning: error: {said}: set it to one, such as sqlite:///mlflow.db\n")
    assert not list(tmp_path.iterdir())
