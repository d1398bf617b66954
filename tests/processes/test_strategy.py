"""Two processes against one, and what becomes of a run when one of them, or what it needs, is missing."""

import json
import os
import signal
import time
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from filelock import FileLock
from fork_server import CommandLine
from options import NO_PICTURES

from fl_lightning.run.trainer_settings import check_trainer
from fl_lightning.state.state_files import check_files

BASE = (
    "fit --config digits_tce.yaml --trainer.max_steps 4 --trainer.val_check_interval 2 --data.monitor_test 2 "
    "--callbacks.client_forgetting.every 0 --callbacks.per_class_accuracy.clients_every 0 "
    "--callbacks.round_forgetting.clients_every 0"
).split()
MLP = "--model.net MLP --model.net.hidden [16]".split()
RUN = [*BASE, *MLP, *NO_PICTURES]
ALL_CALLBACKS = (
    "--callbacks.client_forgetting.every 4 --callbacks.per_class_accuracy.clients_every 4 "
    "--callbacks.round_forgetting.clients_every 4 --trainer.callbacks+=LossIncrease --trainer.callbacks.every=4"
).split()
TWO = "--trainer.devices 2 --trainer.accelerator cpu".split()  # our strategy is taken where none is named


@pytest.mark.parametrize(
    ("cohort_size", "new_interpreter"),
    [
        pytest.param("5", False, id="cohort of 5"),
        pytest.param("1", True, id="cohort of 1, the second process idle, started by Lightning", marks=pytest.mark.slow),
    ],
)
def test_two_processes_give_the_model_of_one(command_line, tmp_path, read_scalars, cohort_size, new_interpreter):
    """Weights equal to float32 rounding, every scalar too, one event file, checkpoints written once."""
    run = [*RUN, *ALL_CALLBACKS, "--data.clients_per_round", cohort_size]
    folders = []
    for name, extra in (("one", []), ("two", TWO)):
        anew = new_interpreter and name == "two"
        result = command_line(*run, "--trainer.default_root_dir", name, *extra, new_interpreter=anew)
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
        trained = ["--config", "digits_tce.yaml", *MLP, "--ckpt_path", "last", "--data.eval_batch_size", "100"]
        result = command_line("predict", *trained, *extra)
        assert result.returncode == 0, result.stderr
        tables.append((folder / "predictions.csv").read_text())
    assert tables[0] == tables[1]
    assert tables[0].count("\n") == 361


SILENT = """
from fl_lightning import FedAvg
from fl_lightning.protocol import Visit


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
        run = [*RUN, "--callbacks.client_forgetting.every", "2", "--model", "silent.OddSilent"]
        result = command_line(*run, "--trainer.default_root_dir", name, *extra)
        assert result.returncode == 0, result.stderr
        states.append(torch.load(tmp_path / name / "digits_tce/version_0/checkpoints/last.ckpt", weights_only=True))
    for name, value in states[0]["state_dict"].items():
        torch.testing.assert_close(states[1]["state_dict"][name], value, atol=1e-6, rtol=1e-5)
    kept = [state["federated"]["client_states"]["states"] for state in states]
    assert kept[0]
    torch.testing.assert_close(kept[1], kept[0], atol=1e-6, rtol=1e-5)


PUTS_ANOTHER = """
import lightning.pytorch as pl
import torch
from fl_lightning.state import client_states
from fl_lightning.state.atomic_files import atomic_save

save, written = client_states.atomic_save, []


def noting(state, path, **settings):
    written.append(path)
    return save(state, path, **settings)


client_states.atomic_save = noting


class Puts(pl.Callback):
    def on_train_batch_end(self, trainer, *_):
        for path in written if trainer.global_rank == 1 else ():
            atomic_save({"odd": torch.ones(1)}, path)
        with open(f"written_by_{trainer.global_rank}.txt", "w") as file:
            file.write("\\n".join(path.name for path in written))
"""


def test_a_checkpoint_knows_the_states_that_another_process_wrote(command_line, tmp_path):
    """Each of the second process is put aside for a file that is whole, before the first process writes the checkpoint."""
    (tmp_path / "puts.py").write_text(PUTS_ANOTHER)
    scaffold = "--model SCAFFOLD --model.client_state disk --trainer.max_steps 1 --trainer.callbacks+=puts.Puts".split()
    result = command_line(*RUN, *scaffold, *TWO)
    assert result.returncode == 0, result.stderr
    first, second = ((tmp_path / f"written_by_{rank}.txt").read_text().split() for rank in (0, 1))
    assert first
    assert second
    folder = tmp_path / "runs" / "digits_tce" / "version_0"
    saved = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["federated"]["client_states"]
    faults = list(check_files(saved, folder / "client_states"))
    assert all("it is not the file that the run wrote" in fault for fault in faults)
    assert sorted(name for name in (*first, *second) if any(f"/{name}" in fault for fault in faults)) == sorted(second)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param([], TWO, id="one then two"),
        pytest.param(TWO, [], id="two then one", marks=pytest.mark.slow),
    ],
)
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
    torch.testing.assert_close(cut, whole, atol=1e-6, rtol=1e-5)


def test_more_processes_than_cores_are_refused(main, tmp_path):
    """One line before any process starts, and no folder."""
    devices = str(2 * os.cpu_count())
    code, _, error = main(*RUN, "--trainer.accelerator", "cpu", "--trainer.devices", devices)
    assert code == 1
    assert error.startswith(f"fl-lightning: error: trainer.devices is {devices}, but this machine has {os.cpu_count()} cores")
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_silence_of_no_length_is_refused(main):
    """The key as the user typed it."""
    strategy = ["--trainer.strategy", "FederatedStrategy", "--trainer.strategy.peer_timeout", "0"]
    code, _, error = main(*RUN, *TWO, *strategy)
    assert code == 1
    assert "trainer.strategy.peer_timeout is 0.0, must be at least 5" in error


@pytest.mark.parametrize(
    ("torchrun", "settings", "message"),
    [
        (None, {"devices": 2, "strategy": "auto"}, "trainer.strategy is DDPStrategy, under which processes share no cohort"),
        (None, {"num_nodes": 2}, "trainer.strategy is DDPStrategy"),
        ("2", {"devices": 1}, "trainer.devices is 1 and trainer.num_nodes is 1, but torchrun started 2 processes"),
        ("2", {"devices": 2, "strategy": "ddp"}, "trainer.strategy is DDPStrategy"),
    ],
)
def test_in_python_several_processes_need_our_strategy(monkeypatch, torchrun, settings, message):
    """Lightning's default would average gradients that clients keep, or fit one run a process."""
    if torchrun is not None:
        started = {"WORLD_SIZE": torchrun, "RANK": "0", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "none"}
        for name, value in started.items():
            monkeypatch.setenv(name, value)
    trainer = pl.Trainer(max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False, **settings)
    trainer.state.fn = "fit"
    with pytest.raises(ValueError, match=message):
        check_trainer(trainer)


def wait_for(path, process):
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_running(pid):
    """Where there is a /proc; what has ended and nobody has asked for does not count."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")")[-1].split()[0] != "Z"


def ends(pid):
    """Whether a process does, of which nobody waits for the end."""
    deadline = time.monotonic() + 60
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_running(pid)


BUSY = """
import os
import time
from pathlib import Path

from fl_lightning import FedAvg


class Busy(FedAvg):
    def client_loss(self, net, batch, client):
        if self.trainer.global_step == 2:
            # Whole at once, for it is read meanwhile.
            Path(f"written_{self.global_rank}").write_text(str(os.getpid()))
            os.rename(f"written_{self.global_rank}", f"pid_{self.global_rank}")
            while self.global_rank == 0:
                time.sleep(1)
        return super().client_loss(net, batch, client)
"""


GONE = {signal.SIGKILL: "has ended without a word", signal.SIGSTOP: "has given no sign of life"}
PATIENT = ["--trainer.strategy", "FederatedStrategy", "--trainer.strategy.peer_timeout", "5"]


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, *(pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGTERM, signal.SIGSTOP))]
)
def test_a_run_of_two_processes_ends_with_the_first_that_does(command_line, tmp_path, number):
    """One is killed or frozen while the other is at a client that takes for ever, or the run is told to stop: one line, nobody
    stays.

    In that visit there is no exchange which could break.
    """
    (tmp_path / "busy.py").write_text(BUSY)
    process = command_line(*RUN, *TWO, *PATIENT, "--model", "busy.Busy", wait=False)
    for rank in (0, 1):
        wait_for(tmp_path / f"pid_{rank}", process)
    time.sleep(0.2)
    other = int((tmp_path / "pid_1").read_text())
    os.kill(process.pid if number == signal.SIGTERM else other, number)
    _, error = process.communicate(timeout=60)
    if number != signal.SIGTERM:
        assert process.returncode == 1
        assert error.startswith(f"fl-lightning: error: rank 1 {GONE[number]}")
        assert "trainer.strategy.peer_timeout is 5 s" in error
    else:
        assert process.returncode == 128 + signal.SIGTERM
        assert error == "fl-lightning: stopped after round 2: resume with --ckpt_path last, after round 2\n"
    assert error.count("\n") == 1
    assert ends(other)


def test_a_client_that_hangs_does_not_keep_a_run(command_line, tmp_path):
    """SIGTERM to a run of one process, whose handler would wait for the end of the round: it ends within seconds."""
    (tmp_path / "busy.py").write_text(BUSY.replace("step == 2", "step == 3"))
    process = command_line(*RUN, "--model", "busy.Busy", wait=False)
    wait_for(tmp_path / "pid_0", process)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM
    assert error == "fl-lightning: stopped after round 3: resume with --ckpt_path last, after round 2\n"


EARLY = """
import os
import time
from pathlib import Path

from fl_lightning import FedAvg

rank = os.environ.get("LOCAL_RANK", "0")
Path("written_" + rank).write_text(str(os.getpid()))
os.rename("written_" + rank, "pid_" + rank)


class Early(FedAvg):
    def configure_callbacks(self):
        if "LOCAL_RANK" in os.environ and os.environ["LOCAL_RANK"] == "0":
            while not Path("pid_1").exists():
                time.sleep(0.1)
            raise ValueError("model.early is true")
        return super().configure_callbacks()
"""


@pytest.mark.slow
def test_a_failure_before_they_join_leaves_no_process(command_line, tmp_path):
    """Rank 0 fails once it has started the other, which would wait for it."""
    (tmp_path / "early.py").write_text(EARLY)
    result = command_line(*RUN, *TWO, "--model", "early.Early")
    assert (result.returncode, result.stderr) == (1, "fl-lightning: error: model.early is true (early.py, line 18)\n")
    assert ends(int((tmp_path / "pid_1").read_text()))


def set_by_torchrun(rank: int, num_nodes: int, port: int) -> dict[str, str]:
    """What torchrun tells each of two processes, on as many nodes or on one."""
    per_node = 2 // num_nodes
    everything = {
        **{"RANK": rank, "LOCAL_RANK": rank % per_node, "GROUP_RANK": rank // per_node},
        **{"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": per_node, "GROUP_WORLD_SIZE": num_nodes},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
        **{"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_USE_AGENT_STORE": True},
    }
    return {name: str(value) for name, value in everything.items()}


@pytest.fixture
def two_nodes(tmp_path, tmp_path_factory):
    """Run ``fl-lightning`` on two nodes, which are folders of this machine, as torchrun would, whose store stands here.

    Gives return codes and errors.
    """

    def run(*arguments: str) -> list[tuple[int, str]]:
        store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        output = tmp_path_factory.mktemp("output")
        processes = []
        for rank in (0, 1):
            folder = tmp_path / f"node_{rank}"
            folder.mkdir(exist_ok=True)
            environment = {**os.environ, **set_by_torchrun(rank, 2, store.port)}
            processes.append(CommandLine(arguments, folder, output / f"of_{rank}", environment))
        errors = [process.communicate(timeout=240)[1] for process in processes]
        return [(process.returncode, error) for process, error in zip(processes, errors)]

    return run


def test_two_nodes_go_on_from_a_checkpoint_that_one_has(main, two_nodes, tmp_path, monkeypatch):
    """Only the first node has the run's folder: it reads, and tells the other. Where it has none either, both say so."""
    short = [*RUN, "--trainer.accelerator", "cpu", "--ckpt_path"]
    for code, error in two_nodes(*short, "last"):
        assert code == 1
        assert "ckpt_path is last, but runs/digits_tce holds no such checkpoint" in error

    monkeypatch.chdir(tmp_path / "node_0")
    assert main(*RUN, "--trainer.max_steps", "2")[0] == 0
    for code, error in two_nodes(*short, "last"):
        assert code == 0, error
    checkpoint = tmp_path / "node_0/runs/digits_tce/version_0/checkpoints/last.ckpt"
    assert torch.load(checkpoint, weights_only=True)["global_step"] == 4
    assert not (tmp_path / "node_1" / "runs").exists()


def test_states_on_disk_need_a_folder_that_all_nodes_see(two_nodes, tmp_path):
    """Said by both before the first round; no folder is left."""
    for code, error in two_nodes(*RUN, "--trainer.accelerator", "cpu", "--model", "SCAFFOLD", "--model.client_state", "disk"):
        assert code == 1
        assert "model.client_state is disk, but not every process sees what rank 0 writes to " in error
        assert f"{tmp_path}/node_0/runs/digits_tce/version_0/client_states: set trainer.default_root_dir" in error
    assert list(tmp_path.rglob("version_0")) == []


MORTAL = """
import json
import os
import signal
from pathlib import Path

from fl_lightning import FedAvg

if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    Path("given_" + os.environ["RANK"]).write_text(json.dumps(dict(os.environ)))


class Mortal(FedAvg):
    def cohort(self, round):
        if round == 3 and self.global_rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().cohort(round)
"""


@pytest.mark.slow
def test_torchrun_restarts_from_the_last_checkpoint(tmp_path, tmp_path_factory):
    """One command for the first start and the second: killed in round 3, they go on from round 2, in the same folder.

    What torchrun tells them is what other tests do in its place.
    """
    (tmp_path / "mortal.py").write_text(MORTAL)
    torchrun = "--standalone --nproc-per-node 2 --max-restarts 1".split()
    run = [*RUN, "--model", "mortal.Mortal", "--trainer.accelerator", "cpu", "--ckpt_path", "last_if_any"]
    process = CommandLine(run, tmp_path, tmp_path_factory.mktemp("output") / "of", os.environ, torchrun)
    output, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
    assert "rank 1 has ended without a word" in error
    assert "none in runs/digits_tce, a new run begins" in output
    assert "The fit continues after round 2" in output
    checkpoint = tmp_path / "runs/digits_tce/version_0/checkpoints/last.ckpt"
    assert torch.load(checkpoint, weights_only=True)["global_step"] == 4
    assert len(list((tmp_path / "runs" / "digits_tce").glob("version_*"))) == 1
    for rank in (0, 1):
        given = json.loads((tmp_path / f"given_{rank}").read_text())
        expected = set_by_torchrun(rank, 1, given["MASTER_PORT"])
        of_this_run = {name: given[name] for name in ("MASTER_ADDR", "TORCHELASTIC_RUN_ID")}
        assert given.items() >= {**expected, **of_this_run}.items()


FROZEN = """
from torch import nn


class Frozen(nn.Sequential):
    def __init__(self, input_shape, num_classes):
        body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU()).requires_grad_(False)
        super().__init__(body, nn.Linear(32, num_classes))
"""


def test_a_frozen_body_on_two_processes(command_line, tmp_path):
    """Its bits are those of one process, it is not sent, and the weights behind it are those of one process to rounding."""
    (tmp_path / "frozen.py").write_text(FROZEN)
    found = {}
    for name, extra in (("one", []), ("two", TWO)):
        result = command_line(*BASE, *NO_PICTURES, "--model.net", "frozen.Frozen", "--trainer.default_root_dir", name, *extra)
        assert result.returncode == 0, result.stderr
        folder = tmp_path / name / "digits_tce" / "version_0"
        weights = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
        found[name] = weights, json.loads((folder / "results.json").read_text())
    (one, results), (two, results_of_two) = found.values()
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, atol=0 if name.startswith("net.0") else 1e-6, rtol=0)
    # 330 float32 values up and as many down: 4 rounds of the cohort.
    clients = results["bytes_up"] // (4 * 330)
    assert results["bytes_up"] == results_of_two["bytes_up"] == 4 * 330 * clients == results["bytes_down"]


def test_a_folder_that_is_written_to_is_no_place_for_two_processes(command_line, tmp_path):
    """The lock of another fit ends both with one line."""
    assert command_line(*RUN).returncode == 0
    folder = tmp_path / "runs" / "digits_tce" / "version_0"
    with FileLock(folder / ".lock"):
        result = command_line(*RUN, *TWO, "--trainer.max_steps", "6", "--ckpt_path", "last")
    assert result.returncode == 1
    assert f"{folder} is being written by another fit" in result.stderr
    assert result.stderr.count("\n") == 1
