"""Flower's SuperLink and four SuperNodes as processes on this machine: the weights of a simulation, bit for bit."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

pytest.importorskip("flwr", reason="the extra flower is not installed")

from loopback import Loopback, free_port, start_sites, wait_until
from pages import blocks

from fl_lightning.report.runs import read_runs
from fl_lightning.state.checkpoint import read_checkpoint

pytestmark = pytest.mark.slow
CLIENTS, PAGE = range(4), "federations.md"
METHODS = {
    "FedAvg": {},
    "SCAFFOLD": {},
    "FedProx": {"mu": 0.1, "loss": "fl_lightning.losses.TruncatedCrossEntropy"},
    "FedReg": {},
    "FedPer": {},
    "Ditto": {},
}
REAL_DATA = os.environ.get("FL_LIGHTNING_DATA")


@pytest.fixture(scope="module")
def short_folder() -> Iterator[Path]:
    """As pytest's own are too long for the path of a socket."""
    folder = Path(tempfile.mkdtemp(prefix="fed"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def loopback(short_folder) -> Iterator[Loopback]:
    link = Loopback(short_folder / "loop")
    for client in CLIENTS:
        link.node(client, short_folder / "sites" / str(client))
    yield link
    link.close()


@pytest.fixture
def sites(short_folder) -> Iterator[dict]:
    """The processes of sites by client, which end with the test."""
    processes = {}
    yield processes
    for process in processes.values():
        process.kill()
        process.join()
    shutil.rmtree(short_folder / "sites", ignore_errors=True)


@pytest.fixture
def started(sites, short_folder, run_in, tmp_path):
    """Writes the app of a config, and starts the sites of all clients, some with further options."""

    def start(config: Path, options: Mapping[int, list[str]] = {}) -> Path:
        app = tmp_path / "app"
        run_in(tmp_path, "federation", "init", str(app), "--config", str(config))
        folders = {client: short_folder / "sites" / str(client) for client in CLIENTS}
        sites.update(start_sites(app, folders, options))
        return app

    return start


def config_of(folder: Path, method: str, rounds: int = 2, forgets: int = 0, **data: Any) -> Path:
    """Rounds of all four clients; client forgetting is measured at the sites in rounds that are a multiple of ``forgets``."""
    values = {
        "model": {
            "class_path": f"fl_lightning.{method}",
            "init_args": {"net": "MLP", "local_steps": 3, "engine": "sequential", **METHODS[method]},
        },
        "data": {"source": "digits", "num_clients": 4, "clients_per_round": 4, "batch_size": 16, "val_fraction": 0.1, **data},
        "trainer": {"max_steps": rounds, "limit_val_batches": 0, "val_check_interval": 1, "accelerator": "cpu"},
        "callbacks": {"client_forgetting": {"every": forgets, "at_sites": True}, "label_counts": {"every": 0}},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Of the last checkpoint below a folder."""
    newest = max(folder.rglob("last.ckpt"), key=lambda path: path.stat().st_mtime_ns)
    return read_checkpoint(newest)["state_dict"]


def forgetting(folder: Path) -> np.ndarray:
    """Accuracy of client i's model on client k's data, (K, K), of the only round with it in the newest run below a folder."""
    newest = max(folder.rglob("record.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    ((run,), _) = read_runs([newest.parent])
    (after,) = run.log.tensors["clients/accuracy_after"].values()
    return after


@pytest.mark.parametrize("method", METHODS)
def test_weights_are_those_of_the_simulation(method, loopback, started, short_folder, run_in, tmp_path):
    config = config_of(tmp_path, method)
    loopback.begin(started(config))
    run_in(tmp_path, "fit", "--config", str(config))
    printed = loopback.finish()
    assert "Round 2/2" in printed, printed
    torch.testing.assert_close(weights(loopback.folder / "runs"), weights(tmp_path / "runs"), rtol=0, atol=0)
    kept = method in ("SCAFFOLD", "FedPer", "Ditto")
    assert any(short_folder.rglob("states/*/*.pt")) == kept


@pytest.mark.skipif(not REAL_DATA, reason="FL_LIGHTNING_DATA is unset: it names the folder of MNIST/raw")
def test_forgetting_on_mnist_is_that_of_the_simulation(loopback, started, run_in, tmp_path):
    """Two of four clients in round 2, whose models the other one evaluates: six messages."""
    data = {"source": "MNIST", "root": REAL_DATA, "cohorts": [[0, 1, 2, 3], [1, 2]]}
    config = config_of(tmp_path, "FedAvg", forgets=2, **data)
    loopback.begin(started(config))
    run_in(tmp_path, "fit", "--config", str(config))
    printed = loopback.finish()
    assert "6 messages in 1 round, K x (K + 1) for K clients" in printed, printed
    torch.testing.assert_close(weights(loopback.folder / "runs"), weights(tmp_path / "runs"), rtol=0, atol=0)
    assert (forgetting(loopback.folder / "runs") == forgetting(tmp_path / "runs")).all()


def test_a_supernode_killed_in_mid_round_comes_back(loopback, sites, started, short_folder, run_in, tmp_path):
    """That of a site which takes longer than the deadline. Rounds go on without the client, and with it once it is back."""
    rounds = 6
    loopback.begin(started(config_of(tmp_path, "FedAvg", rounds)), "deadline=30.0")
    loopback.wait_for("run", f"Round 1/{rounds}", 200)
    os.kill(sites[1].pid, signal.SIGSTOP)
    time.sleep(5)  # the round waits for this site
    loopback.kill("node1")
    os.kill(sites[1].pid, signal.SIGCONT)
    loopback.node(1, short_folder / "sites" / "1")
    printed = loopback.finish()
    found = re.findall(r"round (\d+) is without client (\d)", printed)
    away = {(int(round), int(client)) for round, client in found}
    killed = [round for round, client in away if client == 1]
    assert killed, printed
    assert max(killed) < rounds, printed
    cohorts = [[client for client in CLIENTS if (round, client) not in away] for round in range(1, rounds + 1)]
    run_in(tmp_path, "fit", "--config", str(config_of(tmp_path, "FedAvg", rounds, cohorts=cohorts)))
    torch.testing.assert_close(weights(loopback.folder / "runs"), weights(tmp_path / "runs"), rtol=0, atol=0)


def test_a_site_with_other_samples_ends_the_run(loopback, started, tmp_path):
    """Of another shape, before round 1."""
    np.savez(tmp_path / "other.npz", inputs=np.random.rand(80, 5).astype(np.float32), targets=np.arange(80) % 10)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"data": {"source": str(tmp_path / "other.npz")}}))
    printed = loopback.run(started(config_of(tmp_path, "FedAvg"), {2: ["--data", str(tmp_path / "mine.yaml")]}))
    assert "the site of client 2 has other settings than the server: shape of the samples is [5], [1, 8, 8] at" in printed
    assert "Round 1/" not in printed


def test_a_killed_server_and_a_killed_site_go_on(loopback, sites, started, short_folder, run_in, tmp_path):
    """The server's process ends after a checkpoint, a site's too; both start again, and the weights are the simulation's."""
    config, runs = config_of(tmp_path, "SCAFFOLD", rounds=4), loopback.folder / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    app = started(config)
    loopback.begin(app)
    wait_until(lambda: any(runs.rglob("last.ckpt")), "there is no checkpoint", 200)
    loopback.kill_server()
    loopback.kill("run")
    sites[1].kill()
    sites[1].join()
    (short_folder / "sites" / "1" / "site.socket").unlink()
    sites.update(start_sites(app, {1: short_folder / "sites" / "1"}, {}))
    printed = loopback.run(app, "resume=true")
    assert "Round 4/4" in printed, printed
    assert "Round 1/4" not in printed
    run_in(tmp_path, "fit", "--config", str(config))
    torch.testing.assert_close(weights(runs), weights(tmp_path / "runs"), rtol=0, atol=0)


def test_a_site_without_a_registered_key_stays_outside(short_folder):
    """Flower's own authentication, over TLS: its SuperNode ends, and the registered one is there."""
    folder = short_folder / "keys"
    folder.mkdir()
    certificate, key = folder / "server.pem", folder / "server.key"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    made += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    for client in (0, 1):
        made = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(folder / f"site_{client}")]
        subprocess.run(made, check=True)
    tls = ["--ssl-ca-certfile", certificate, "--ssl-certfile", certificate, "--ssl-keyfile", key, "--enable-supernode-auth"]
    link = Loopback(short_folder / "tls", *map(str, tls))
    try:
        link.connect(f'root-certificates = "{certificate}"')
        link.flwr("supernode", "register", str(folder / "site_0.pub"))
        for client in (0, 1):
            own = ["--root-certificates", str(certificate), "--auth-supernode-private-key", str(folder / f"site_{client}")]
            link.node(client, folder, *own)
        link.wait_for("node0", "SuperNode ID")
        link.wait_for("node1", "could not establish a connection to the SuperLink")
        assert "SuperNode ID" not in link.log("node1")
    finally:
        link.close()


def test_the_page(short_folder):
    """The commands of two sites on one machine, in bash as they are, except for the ports."""
    folder = short_folder / "page"
    folder.mkdir()
    of_page = [block.text for block in blocks(f"docs/{PAGE}")]
    shown = ("# hospitals.yaml", "[superlink]", "federation init hospitals", "flwr run hospitals --stream")
    config, flower, start, run = (next(text for text in of_page if words in text) for words in shown)
    (folder / "hospitals.yaml").write_text(config)
    for port in ("8000", "9094", "9095"):
        other = str(free_port())
        start, flower = start.replace(port, other), flower.replace(port, other)
    (folder / "config.toml").write_text(flower)
    environment = {**os.environ, "FLWR_HOME": str(folder), "FLWR_TELEMETRY_ENABLED": "0"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    log = folder / "log.txt"
    with open(log, "wb") as file:
        given = {"cwd": folder, "env": environment, "stdout": file, "stderr": file, "start_new_session": True}
        shell = subprocess.Popen(["bash", "-c", f"{start}\nwait"], **given)
    try:
        superlink = f"Uvicorn running on http://{re.search(r'127.0.0.1:[0-9]+', flower)[0]}"
        wait_until(lambda: superlink in log.read_text(), "the SuperLink does not run", 120)
        ended = subprocess.run(["bash", "-c", run], cwd=folder, env=environment, capture_output=True, timeout=300)
        assert "Round 2/2" in ended.stdout.decode() + ended.stderr.decode()
        assert weights(folder / "runs" / "federation")
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
