"""Flower's SuperLink and four SuperNodes as processes on this machine: the weights of a simulation, bit for bit."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

pytest.importorskip("flwr", reason="the extra flower is not installed")

from forked_apps import forked_apps
from loopback import Loopback, free_port, wait_until
from pages import blocks

import fl_lightning
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
REAL_DATA = os.environ.get("FL_LIGHTNING_DATA")  # the folder of MNIST/raw; without it, that federation has digits
# Two of four clients in round 2; each evaluates the models of both, and the global one: six messages.
MNIST_WITH_FORGETTING = {
    **({"source": "MNIST", "root": REAL_DATA} if REAL_DATA else {}),
    "cohorts": [[0, 1, 2, 3], [1, 2]],
    "forgets": 2,
}


@pytest.fixture(scope="module")
def short_folder() -> Iterator[Path]:
    """As pytest's own are too long for the path of a socket."""
    folder = Path(tempfile.mkdtemp(prefix="fed"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def apps(short_folder) -> Iterator[Path]:
    """The folder of the programs that are forked."""
    process = forked_apps(short_folder / "apps")
    yield short_folder / "apps"
    process.kill()
    process.join()


@pytest.fixture(scope="module")
def loopbacks(short_folder, apps) -> Iterator[Callable[[int], list[Loopback]]]:
    """Gives so many federations of four SuperNodes, the same ones to every test."""
    links = list[Loopback]()

    def some(number: int) -> list[Loopback]:
        new = [Loopback(short_folder / str(place), apps) for place in range(len(links), number)]
        links.extend(new)
        for link in new:
            link.wait()
            for client in CLIENTS:
                link.node(client)
        return links[:number]

    yield some
    for link in links:
        link.close()


@pytest.fixture
def started(loopbacks, run_in) -> Iterator[Callable[..., Loopback]]:
    """Writes the app of a config next to it, and starts the sites of all clients, some with further options."""
    used = list[Loopback]()

    def start(config: Path, options: Mapping[int, list[str]] = {}) -> Loopback:
        run_in(config.parent, "federation", "init", "app", "--config", str(config))
        link = loopbacks(len(used) + 1)[-1]
        used.append(link)
        link.start_sites(config.parent / "app", CLIENTS, options)
        return link

    yield start
    for link in used:
        link.end_sites()


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


def begun(link: Loopback, app: Path, *settings: str) -> None:
    """Run an app, up to the checkpoint after round 1."""
    runs = link.folder / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    link.begin(app, *settings)
    wait_until(lambda: any(runs.rglob("last.ckpt")), "there is no checkpoint", 200)


@pytest.mark.parametrize("methods", ["FedAvg SCAFFOLD", "FedProx FedReg", "FedPer Ditto"])
def test_weights_are_those_of_the_simulation(methods, started, run_in, tmp_path):
    """Two federations at once, as both mostly wait. FedAvg's is on MNIST, and measures forgetting."""
    links = {}
    for method in methods.split():
        (tmp_path / method).mkdir()
        config = config_of(tmp_path / method, method, **(MNIST_WITH_FORGETTING if method == "FedAvg" else {}))
        links[method] = started(config)
        links[method].begin(tmp_path / method / "app")
    for method, link in links.items():
        run_in(tmp_path / method, "fit", "--config", "config.yaml")
        printed = link.finish()
        assert "Round 2/2" in printed, printed
        there, here = link.folder / "runs", tmp_path / method / "runs"
        torch.testing.assert_close(
            weights(there), weights(here), rtol=0, atol=0, msg=lambda text, method=method: f"{method}: {text}"
        )
        kept = method in ("SCAFFOLD", "FedPer", "Ditto")
        assert any(link.folder.rglob("states/*/*.pt")) == kept, method
        if method == "FedAvg":
            assert "6 messages in 1 round, K x (K + 1) for K clients" in printed, printed
            assert (forgetting(there) == forgetting(here)).all()


def test_a_supernode_killed_in_mid_round_comes_back(started, run_in, tmp_path):
    """That of a site which takes longer than the deadline. Rounds go on without the client, and with it once it is back."""
    rounds = 6
    link = started(config_of(tmp_path, "FedAvg", rounds))
    begun(link, tmp_path / "app", "deadline=30.0")
    site = link.sites[1].pid
    os.kill(site, signal.SIGSTOP)
    time.sleep(5)  # the round waits for this site
    link.kill("node1")
    os.kill(site, signal.SIGCONT)
    link.node(1)
    printed = link.finish()
    found = re.findall(r"round (\d+) is without client (\d)", printed)
    away = {(int(round), int(client)) for round, client in found}
    killed = [round for round, client in away if client == 1]
    assert killed, printed
    assert max(killed) < rounds, printed
    cohorts = [[client for client in CLIENTS if (round, client) not in away] for round in range(1, rounds + 1)]
    run_in(tmp_path, "fit", "--config", str(config_of(tmp_path, "FedAvg", rounds, cohorts=cohorts)))
    torch.testing.assert_close(weights(link.folder / "runs"), weights(tmp_path / "runs"), rtol=0, atol=0)


def refused(link: Loopback, folder: Path) -> str:
    """Run the app in a folder, which is refused before round 1; returns the reason."""
    printed = link.run(folder / "app")
    assert "Round 1/" not in printed, printed
    found = re.search("the site of client 2 has other settings than the server: (.*): (give|set|install) ", printed)
    assert found, printed
    return found[1]


def test_a_site_with_other_samples_ends_the_run(started, tmp_path):
    """Of another shape."""
    np.savez(tmp_path / "other.npz", inputs=np.random.rand(80, 5).astype(np.float32), targets=np.arange(80) % 10)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"data": {"source": str(tmp_path / "other.npz")}}))
    link = started(config_of(tmp_path, "FedAvg"), {2: ["--data", str(tmp_path / "mine.yaml")]})
    assert refused(link, tmp_path).startswith("shape of the samples is [5], [1, 8, 8] at the server")


OTHER_SETTINGS = [
    (
        {"model": {"class_path": "SCAFFOLD", "init_args": {"net": "CNN2", "local_steps": 3}}},
        ["model is SCAFFOLD, FedAvg at the server", "model.net is CNN2, MLP at the server"],
    ),
    (
        {"data": {"batch_size": 8, "mean": [0.5], "std": [0.25]}},
        ["data.mean is [0.5]", "data.std is [0.25]", "data.batch_size is 8, 16 at the server"],
    ),
]


@pytest.mark.parametrize(("other", "reasons"), OTHER_SETTINGS, ids=["method and net", "batch size and scaling"])
def test_a_site_with_other_settings_ends_the_run(other, reasons, started, run_in, tmp_path):
    """As it has the folder of another federation."""
    link = started(config := config_of(tmp_path, "FedAvg"))
    link.end_site(2)
    values = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump({part: values[part] | other.get(part, {}) for part in values}))
    run_in(tmp_path, "federation", "init", "other", "--config", str(config))
    link.start_sites(tmp_path / "other", [2])
    found = refused(link, tmp_path)
    for reason in reasons:
        assert reason in found


def test_a_site_of_another_version_ends_the_run(started, tmp_path):
    """A new interpreter with a copy of the package of an older version."""
    link = started(config_of(tmp_path, "FedAvg"))
    link.end_site(2)
    package = shutil.copytree(Path(fl_lightning.__file__).parent, tmp_path / "fl_lightning")
    text = (package / "__init__.py").read_text()
    (package / "__init__.py").write_text(text.replace(f'"{fl_lightning.__version__}"', '"0.0.9"'))
    program = "env", f"PYTHONPATH={tmp_path}", sys.executable, "-m", "fl_lightning"
    link.start("site", *program, "federation", "site", str(tmp_path / "app"), "--client", "2", "--site", str(link.site(2)))
    link.wait_for("site", "Site of client 2")
    reason = refused(link, tmp_path)
    link.kill("site")
    assert reason == f"the version of fl-lightning is 0.0.9, {fl_lightning.__version__} at the server"


def test_a_killed_server_and_a_killed_site_go_on(started, run_in, tmp_path):
    """The server's process ends after a checkpoint, a site's too; both start again, and the weights are the simulation's."""
    link = started(config := config_of(tmp_path, "SCAFFOLD", rounds=4))
    runs, app = link.folder / "runs", tmp_path / "app"
    begun(link, app)
    link.kill_server()
    link.kill("run")
    link.end_site(1)
    link.start_sites(app, [1])
    printed = link.run(app, "resume=true")
    assert "Round 4/4" in printed, printed
    assert "Round 1/4" not in printed
    run_in(tmp_path, "fit", "--config", str(config))
    torch.testing.assert_close(weights(runs), weights(tmp_path / "runs"), rtol=0, atol=0)


def test_a_site_without_a_registered_key_stays_outside(short_folder, apps):
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
    link = Loopback(short_folder / "tls", apps, *map(str, tls))
    try:
        link.wait()
        link.connect(f'root-certificates = "{certificate}"')
        link.flwr("supernode", "register", str(folder / "site_0.pub"))
        for client in (0, 1):
            own = ["--root-certificates", str(certificate), "--auth-supernode-private-key", str(folder / f"site_{client}")]
            link.node(client, *own)
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
    parts = ("# hospitals.yaml", "[superlink.trial]", "federation init hospitals", "flwr run hospitals trial --stream")
    config, flower, start, run = (next(text for text in of_page if words in text) for words in parts)
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
        wait_until(lambda: superlink in log.read_text(), "the SuperLink does not run", 300)
        for _ in range(3):  # Flower's command does not repeat a request that a busy machine fails to answer
            ended = subprocess.run(["bash", "-c", run], cwd=folder, env=environment, capture_output=True, timeout=300)
            shown = ended.stdout.decode() + ended.stderr.decode()
            if "SuperLink is unavailable" not in " ".join(shown.split()):
                break
        assert "Round 2/2" in shown, shown + log.read_text()
        assert weights(folder / "runs" / "federation")
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
