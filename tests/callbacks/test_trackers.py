"""Runs under Weights & Biases, offline, and MLflow, on this machine: figures, scalars and settings arrive."""

import importlib.util

import pytest
from options import NO_PICTURES

pytestmark = pytest.mark.slow
RUN = [
    *"fit --config digits_tce.yaml --model.net MLP --data.clients_per_round 3 --trainer.val_check_interval 1".split(),
    *NO_PICTURES,
    *"--callbacks.client_forgetting.every 2 --trainer.max_steps 2".split(),
]


def needs(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed: pip install 'fl-lightning[{library}]'")


def test_wandb_offline(main, tmp_path, monkeypatch):
    """The figure is a picture of the run's media, in whose file the tags and the settings stand."""
    needs("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    code, _, error = main(*RUN, "--trainer.logger", "WandbLogger", "--trainer.logger.offline", "true")
    assert code == 0, error
    import wandb

    wandb.teardown()  # writes all that waits
    (run,) = (tmp_path / "wandb").glob("offline-run-*")
    (picture,) = (run / "files" / "media" / "images" / "forgetting").glob("clients_*.png")
    assert picture.read_bytes()[:4] == b"\x89PNG"
    (stored,) = run.glob("run-*.wandb")
    for text in (b"test/accuracy", b"forgetting/client_mean", b"model.optimizer.lr"):
        assert text in stored.read_bytes()


def test_mlflow_in_a_local_database(main, tmp_path):
    """MLflow's client reads back every round's accuracy, the settings and the figure."""
    needs("mlflow")
    database = f"sqlite:///{tmp_path}/mlflow.db"
    code, _, error = main(*RUN, "--trainer.logger", "MLFlowLogger", "--trainer.logger.tracking_uri", database)
    assert code == 0, error
    from mlflow.tracking import MlflowClient

    client = MlflowClient(database)
    (run,) = client.search_runs([one.experiment_id for one in client.search_experiments()])
    assert [point.step for point in client.get_metric_history(run.info.run_id, "test/accuracy")] == [0, 1, 2]
    assert float(run.data.params["model.optimizer.lr"]) > 0
    sizes = {file.path: file.file_size for file in client.list_artifacts(run.info.run_id, "figures")}
    assert sizes["figures/forgetting_clients_round_2.png"] > 1000
