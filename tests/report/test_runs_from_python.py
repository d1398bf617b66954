"""Runs without a config: reports compare them by the settings that their fits wrote."""

import json

import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn

from fl_lightning import FedAvg, FederatedDataModule, FedProx, Trainer
from fl_lightning.data import Arrays, Dirichlet, from_arrays
from fl_lightning.losses import ReweightedSoftmax
from fl_lightning.report.data_frame import load_runs
from fl_lightning.report.groups import group_runs
from fl_lightning.report.runs import read_runs
from fl_lightning.watch.watched_runs import WatchedRuns


def sgd(rate):
    return lambda weights: torch.optim.SGD(weights, lr=rate)


def net(hidden=4, function=nn.ReLU):
    return nn.Sequential(nn.Linear(4, hidden), function(), nn.Linear(hidden, 3))


def data(clients=((0, 1, 2), (3, 4, 5)), **settings):
    return from_arrays(*samples(), clients, clients_per_round=2, **settings)


def drawn(alpha, seed=0):
    """Clients whose samples the seed draws."""
    settings = {"num_clients": 4, "clients_per_round": 2, "batch_size": 5, "seed": seed}
    return FederatedDataModule(Arrays(*samples()), partition=Dirichlet(alpha), **settings)


def samples():
    draw = torch.Generator().manual_seed(7)
    return torch.randn(60, 4, generator=draw), torch.randint(3, (60,), generator=draw)


@pytest.fixture
def groups(tmp_path):
    """Fits each of some methods, and groups their runs."""

    def build(*runs):
        for method, federation in runs:
            loggers = [TensorBoardLogger(tmp_path, "runs")]
            trainer = Trainer(max_steps=2, accelerator="cpu", logger=loggers, enable_progress_bar=False)
            trainer.fit(method, datamodule=federation)
        found, remarks = read_runs([tmp_path])
        assert remarks == []
        assert len(found) == len(runs)
        assert all(run.finished for run in found)
        return group_runs(found)

    return build


def test_seeds_of_one_method_are_a_group(groups):
    """Whether the seed draws who holds what, or the holders are given."""
    runs = [(FedAvg(net(), seed=seed), drawn(0.5, seed)) for seed in range(3)]
    runs += [(FedAvg(net(), loss=ReweightedSoftmax(), seed=seed), data(seed=seed, val_fraction=0.3)) for seed in range(2)]
    found, remarks = groups(*runs)
    assert remarks == []
    assert sorted(group.seeds for group in found) == [(0, 1), (0, 1, 2)]


DIFFERENT = {
    "losses": (
        [(FedAvg(net()), data()), (FedAvg(net(), loss=ReweightedSoftmax()), data())],
        ["FedAvg, CrossEntropy", "FedAvg, ReweightedSoftmax"],
    ),
    "methods": (
        [(FedAvg(net()), data()), (FedProx(net(), mu=0.5), data())],
        ["FedAvg, CrossEntropy", "FedProx, CrossEntropy"],
    ),
    "rates": (
        [(FedAvg(net(), optimizer=sgd(rate)), data()) for rate in (0.03, 0.1)],
        ["FedAvg, CrossEntropy, lr 0.03", "FedAvg, CrossEntropy, lr 0.1"],
    ),
    "widths": (
        [(FedAvg(net(hidden)), data()) for hidden in (4, 5)],
        ["FedAvg, CrossEntropy, parameters 35", "FedAvg, CrossEntropy, parameters 43"],
    ),
    "federations": (
        [(FedAvg(net()), drawn(alpha)) for alpha in (0.1, 1.0)],
        ["FedAvg, CrossEntropy, alpha 0.1", "FedAvg, CrossEntropy, alpha 1"],
    ),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_differs_is_in_the_labels(groups, case):
    runs, labels = DIFFERENT[case]
    found, remarks = groups(*runs)
    assert [group.label for group in found] == labels
    assert remarks == []


def test_what_no_option_shows_sets_runs_apart(groups):
    """Activations, the clients' given samples, and a class of the same name."""

    class Mine(FedAvg):
        """Not that of the package."""

    name, Mine.__qualname__ = Mine.__qualname__, "FedAvg"
    shuffled = data(((0, 3, 6, 9), (1, 4, 5)))
    try:
        found, _ = groups(
            (FedAvg(net()), data()),
            (FedAvg(net(function=nn.Tanh)), data()),
            (FedAvg(net()), shuffled),
            (Mine(net()), data()),
        )
    finally:
        Mine.__qualname__ = name  # later tests know the package's FedAvg alone
    assert len(found) == 4


def test_the_settings_are_those_of_a_config(groups, tmp_path):
    """Under its keys, without what only one seed has; a learner that does nothing is none."""
    method = FedAvg(net(), optimizer=sgd(0.3), local_steps=3, seed=5)
    ((group,), _) = groups((method, data(seed=5)))
    stored = json.loads(next(tmp_path.rglob("settings.json")).read_text())
    chosen = {
        "seed_everything": 5,
        "trainer.max_steps": 2,
        "model.optimizer": "SGD",
        "model.optimizer.lr": 0.3,
        "model.local_steps": 3,
        "model.tasks": None,
        "data.num_clients": 2,
        "data.source": "Arrays",
    }
    assert stored | chosen == stored
    assert not {"model.seed", "data.seed"} & stored.keys()
    assert group.label == "FedAvg, CrossEntropy"


def test_the_live_page_and_data_frames_have_them(groups, tmp_path):
    groups((FedAvg(net()), data()))
    watched = WatchedRuns(tmp_path)
    watched.refresh()
    (shown,) = watched.overview()["runs"]
    assert (shown["label"], shown["state"]) == ("FedAvg, CrossEntropy, seed 0", "finished")
    frame = load_runs(tmp_path)
    assert set(frame["model"]) == {"fl_lightning.methods.fedavg.FedAvg"}
    assert set(frame["model.optimizer.lr"]) == {0.1}


def test_a_run_with_a_config_has_no_other_settings(main, tmp_path):
    options = ["--trainer.max_steps", "1", "--trainer.accelerator", "cpu", "--trainer.default_root_dir", str(tmp_path)]
    main("fit", "--config", "digits_wsm.yaml", *options)
    assert [path.parent.name for path in tmp_path.rglob("config.yaml")] == ["version_0"]
    assert not [*tmp_path.rglob("settings.json")]
