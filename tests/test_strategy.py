"""Two processes against one."""

import pytest
import torch

RUN = (
    "fit --config digits_tce.yaml --model.net.hidden 32 --trainer.max_steps 4 --trainer.val_check_interval 2 "
    "--data.monitor_test 2 --callbacks.client_forgetting.every 2 --callbacks.per_class_accuracy.clients_every 2 "
    "--callbacks.round_forgetting.clients_every 2 --trainer.callbacks+=LossIncrease --trainer.callbacks.every=2"
).split()
TWO = "--trainer.strategy federated --trainer.devices 2 --trainer.accelerator cpu".split()


@pytest.fixture(scope="module", params=[5, 1], ids=["cohort of 5", "cohort of 1, one process idle"])
def cohort_size(request):
    return str(request.param)


def test_two_processes_give_the_model_of_one(command_line, tmp_path, read_scalars, cohort_size):
    """Weights equal to float32 rounding, every scalar too, one event file, checkpoints written once."""
    folders = []
    for name, extra in (("one", []), ("two", TWO)):
        result = command_line(*RUN, "--data.clients_per_round", cohort_size, "--trainer.default_root_dir", name, *extra)
        assert result.returncode == 0, result.stderr
        folders.append(tmp_path / name / "digits_tce" / "version_0")
    one, two = (torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True) for folder in folders)
    assert one["global_step"] == two["global_step"] == 4
    for name, value in one["state_dict"].items():
        torch.testing.assert_close(two["state_dict"][name], value, atol=1e-6, rtol=1e-5)
    scalars = [read_scalars(folder) for folder in folders]
    assert scalars[0].keys() == scalars[1].keys()
    for name, curve in scalars[0].items():
        assert scalars[1][name] == pytest.approx(curve, abs=1e-5), name
    for folder in folders:
        assert len(list(folder.glob("events*"))) == 1
        assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["best.ckpt", "last.ckpt"]
    assert len(list((tmp_path / "two" / "digits_tce").iterdir())) == 1


def test_predictions_of_two_processes_are_in_order(command_line, tmp_path):
    """The CSV of two processes, which take turns at the batches, is that of one."""
    assert command_line(*RUN).returncode == 0
    folder = tmp_path / "runs" / "digits_tce" / "version_0"
    tables = []
    for extra in ([], TWO):
        result = command_line(
            "predict",
            "--config",
            "digits_tce.yaml",
            "--model.net.hidden",
            "32",
            "--ckpt_path",
            "last",
            "--data.eval_batch_size",
            "100",
            *extra,
        )
        assert result.returncode == 0, result.stderr
        tables.append((folder / "predictions.csv").read_text())
    assert tables[0] == tables[1]
    assert tables[0].count("\n") == 361


SILENT = """
from fl_lightning import FedAvg
from fl_lightning.clients import Visit


class OddSilent(FedAvg):
    personal = ("classifier.*",)

    def cohort(self, round):
        return [Visit(client, sends=i % 2 == 0) for i, client in enumerate(self.data.cohort(round))]
"""


def test_processes_may_differ_in_what_their_clients_send(command_line, tmp_path):
    """Every second client silent: with two processes one of them has nothing to send; states are those of one process."""
    (tmp_path / "silent.py").write_text(SILENT)
    states = []
    for name, extra in (("one", []), ("two", TWO)):
        result = command_line(*RUN, "--model", "silent.OddSilent", "--trainer.default_root_dir", name, *extra)
        assert result.returncode == 0, result.stderr
        states.append(torch.load(tmp_path / name / "digits_tce/version_0/checkpoints/last.ckpt", weights_only=True))
    for name, value in states[0]["state_dict"].items():
        torch.testing.assert_close(states[1]["state_dict"][name], value, atol=1e-6, rtol=1e-5)
    kept = [state["federated"]["client_states"]["states"] for state in states]
    assert kept[0].keys() == kept[1].keys()
    assert kept[0]
    for client, state in kept[0].items():
        for name, value in state.items():
            torch.testing.assert_close(kept[1][client][name], value, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("first", "then"), [([], TWO), (TWO, [])], ids=["one then two", "two then one"])
def test_the_number_of_processes_may_change_on_resume(command_line, tmp_path, first, then):
    """States move to their new owners: the same heads as in a run of one process, to rounding."""
    (tmp_path / "silent.py").write_text(SILENT)
    run = [*RUN, "--model", "silent.OddSilent"]
    for name, rounds, *extra in (("whole", "8"), ("cut", "4", *first), ("cut", "8", "--ckpt_path", "last", *then)):
        result = command_line(*run, "--trainer.default_root_dir", name, "--trainer.max_steps", rounds, *extra)
        assert result.returncode == 0, result.stderr
    saved = [
        torch.load(tmp_path / name / "digits_tce/version_0/checkpoints/last.ckpt", weights_only=True)["federated"]
        for name in ("whole", "cut")
    ]
    whole, cut = (federated["client_states"]["states"] for federated in saved)
    assert whole.keys() == cut.keys()
    for client, state in whole.items():
        for name, value in state.items():
            torch.testing.assert_close(cut[client][name], value, atol=1e-6, rtol=1e-5, msg=f"{client} {name}")
