"""A new run that begins with another's weights."""

import json

import pytest
import torch
import yaml
from options import NO_PICTURES

from fl_lightning import SCAFFOLD, FedAvg, FederatedDataModule, Trainer
from fl_lightning.models import MLP
from fl_lightning.tasks import ClassLearner, ClassStream

RUN = "fit --config digits_tce.yaml --model.net MLP --model.net.hidden [8] --trainer.val_check_interval 2".split()
RUN += ["--data.monitor_test", "2"]
RUN = [*RUN, *NO_PICTURES, "--trainer.max_steps"]


def test_a_warm_start_is_a_new_run_from_old_weights(main, tmp_path, read_scalars):
    """Round 0 is the old run's last evaluation; other settings are welcome; config, results and table say where it began."""
    assert main(*RUN, "4")[0] == 0
    runs = tmp_path / "runs" / "digits_tce"
    path = "runs/digits_tce/version_0/checkpoints/last.ckpt"
    code, out, error = main(*RUN, "2", "--model.optimizer.lr", "0.5", "--model.initial_weights", path)
    assert code == 0, error
    old, new = (read_scalars(runs / f"version_{number}")["test/accuracy"] for number in (0, 1))
    assert new[0] == old[4] != old[0]
    assert sorted(new) == [0, 2]
    assert yaml.safe_load((runs / "version_1" / "config.yaml").read_text())["model"]["init_args"]["initial_weights"] == path
    assert json.loads((runs / "version_1" / "results.json").read_text())["initial_weights"] == {"file": path, "round": 4}
    assert json.loads((runs / "version_0" / "results.json").read_text())["initial_weights"] is None
    assert "after its round 4" in out
    # It goes on as any run does, and needs the file no more.
    (tmp_path / path).rename(tmp_path / "gone.ckpt")
    more = [*RUN, "4", "--model.optimizer.lr", "0.5", "--model.initial_weights", path, "--ckpt_path", "last"]
    assert main(*more)[0] == 0
    assert json.loads((runs / "version_1" / "results.json").read_text())["initial_weights"] == {"file": path, "round": 4}


def test_weights_and_buffers_and_nothing_else_are_taken(fit, toy_data, tmp_path):
    """Of SCAFFOLD the net, not its variates, and of the server's optimizer no momentum."""

    def net() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.BatchNorm1d(4, dtype=torch.float64), torch.nn.Linear(4, 3, dtype=torch.float64))

    def server(parameters):
        return torch.optim.SGD(parameters, lr=1.0, momentum=0.9)

    old = SCAFFOLD(net(), server_optimizer=server)
    fit(old, toy_data(), 2, precision="64-true").save_checkpoint(tmp_path / "old.ckpt")
    given = net()
    given.load_state_dict(old.net.state_dict())
    expected, actual = FedAvg(given, server_optimizer=server), FedAvg(net(), server_optimizer=server)
    actual = FedAvg(net(), server_optimizer=server, initial_weights=str(tmp_path / "old.ckpt"))
    for method in (expected, actual):
        fit(method, toy_data(), 2, precision="64-true")
    for name, value in expected.net.state_dict().items():
        assert torch.equal(value, actual.net.state_dict()[name]), name
    assert actual.began_from == {"file": str(tmp_path / "old.ckpt"), "round": 2}


def test_weights_in_torchs_older_format_are_a_beginning(tmp_path, fit, toy_data):
    given, net = torch.nn.Linear(4, 3).double(), torch.nn.Linear(4, 3).double()
    torch.save(given.state_dict(), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    start = FedAvg(net, initial_weights=str(tmp_path / "old.pt"), local_steps=1)
    expected = FedAvg(given, local_steps=1)
    for method in (start, expected):
        fit(method, toy_data(), 1)
    assert torch.equal(start.net.weight, expected.net.weight)


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("nowhere.ckpt", "", "model.initial_weights is nowhere.ckpt, which does not exist"),
        ("garbage.ckpt", "", "model.initial_weights is garbage.ckpt, which is not a checkpoint"),
        ("nothing.pt", "", "model.initial_weights is nothing.pt, which "),
        (None, "--model.net.hidden [16]", "last.ckpt, which holds another net: "),
    ],
)
def test_what_is_no_beginning_is_refused_in_one_line(main, tmp_path, path, options, message):
    """And leaves no folder of the run behind."""
    (tmp_path / "garbage.ckpt").write_bytes(b"garbage")
    torch.save({}, tmp_path / "nothing.pt")
    if path is None:
        assert main(*RUN, "1")[0] == 0
        path = "runs/digits_tce/version_0/checkpoints/last.ckpt"
    before = sorted(tmp_path.rglob("*"))
    code, _, error = main(*RUN, "2", *options.split(), "--model.initial_weights", path)
    assert code == 1
    assert message in error
    assert error.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_net_of_arriving_classes_needs_tasks(tmp_path):
    """Its class layer is in the order in which classes arrived, so by name another net would take it over wrongly."""
    quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    settings = {"num_clients": 4, "clients_per_round": 2}
    trainer = Trainer(max_steps=1, **quiet)
    arriving = FederatedDataModule("digits", tasks=ClassStream(num_tasks=2), **settings)
    trainer.fit(FedAvg(MLP, local_steps=1, tasks=ClassLearner()), datamodule=arriving)
    trainer.save_checkpoint(tmp_path / "old.ckpt")
    method = FedAvg(MLP, local_steps=1, initial_weights=str(tmp_path / "old.ckpt"))
    with pytest.raises(ValueError, match=r"old.ckpt, which holds a net of arriving classes with a class layer in"):
        Trainer(max_steps=1, **quiet).fit(method, datamodule=FederatedDataModule("digits", **settings))
