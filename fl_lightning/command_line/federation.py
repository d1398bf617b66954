"""``fl-lightning federation``: the folder that a real federation runs, and the process of a site."""

from pathlib import Path
from typing import Any

import torch

from fl_lightning import __version__
from fl_lightning.checks import check_file, check_range
from fl_lightning.checks.extras import needing_extra
from fl_lightning.command_line.trainer_command import parse_trainer_command, trainer_parser
from fl_lightning.config_files.reading import config_values
from fl_lightning.data import FederatedDataModule
from fl_lightning.module import FederatedModule
from fl_lightning.run.saved_run import build_run
from fl_lightning.sites.own_samples import own_data
from fl_lightning.state.atomic_files import atomic_write
from fl_lightning.state.strict_yaml import load_yaml

CONFIG = "federation.yaml"
"""Name of the config in the folder of a federation's app."""
_APP = "federated"  # the package in that folder
_FILES = {
    "pyproject.toml": f"""\
[project]
name = "{_APP}"
version = "1.0.0"
description = "A federation of fl-lightning"
license = "Apache-2.0"
requires-python = ">=3.11"
dependencies = ["fl-lightning[flower]=={__version__}"]

[tool.flwr.app]
publisher = "fl-lightning"
fab-include = ["{_APP}/*.py", "{_APP}/*.yaml"]

[tool.flwr.app.components]
serverapp = "{_APP}.server:app"
clientapp = "{_APP}.client:app"

[tool.flwr.app.config]
deadline = 600.0  # seconds in which a round waits for replies
resume = false    # whether the run resumes from its last checkpoint
""",
    f"{_APP}/__init__.py": '"""A federation of fl-lightning."""\n',
    f"{_APP}/server.py": f'''\
"""The server: fits the config."""

from pathlib import Path

from fl_lightning.command_line.server_app import server_app

app = server_app(Path(__file__).parent / "{CONFIG}")
''',
    f"{_APP}/client.py": '''\
"""A site: brings messages to its process."""

from fl_lightning.sites import client_app

app = client_app.app
''',
}


def write_app(folder: Path, config: str) -> None:
    """Write the folder that ``flwr run`` starts, with a config in full.

    Args:
        folder: it must not exist, or be empty.
        config: a file, or the name of a bundled config.

    Raises:
        FileExistsError: if there is something in the folder.
        ValueError, FileNotFoundError: if the config cannot be parsed.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"FOLDER is {folder}, which is not empty: give a new one")
    text = _whole(["--config", config])
    for name, content in {**_FILES, f"{_APP}/{CONFIG}": f"# fl-lightning {__version__}\n{text}"}.items():
        with atomic_write(folder / name) as path:
            path.write_text(content, encoding="utf-8")
    print(f"{folder} is ready for flwr run; its config is {folder / _APP / CONFIG}")


def run_site(app: Path, folder: Path, client: int, data: str | None) -> None:
    """Serve a client until stopped.

    Args:
        app: folder of :func:`write_app`, a copy of the server's.
        folder: folder of the site, for the client's states and the socket.
        client: index of the client, from 0.
        data: a config with only ``data``, and in ``data.source`` only this client's samples; None: those that the app's config
            gives it.

    Raises:
        ValueError: if the client does not exist, its data does not fit, or ``data`` has other keys.
        FileNotFoundError: if the app or ``data`` does not exist.
    """
    with needing_extra("flower", "fl-lightning federation site"):
        from fl_lightning.sites.site import Site, serve

    check_file("FOLDER", app / _APP / CONFIG, cure="give the folder of fl-lightning federation init")
    for key in () if data is None else config_values(data):
        if key != "data":
            raise ValueError(f"--data is {data}, which sets {key}: remove it, as a site can only set data")
    given = ["--config", str(app / _APP / CONFIG), *([] if data is None else ["--config", data])]
    config: dict[str, Any] = load_yaml(_whole(given))
    run = build_run(config, FederatedModule, FederatedDataModule if data is None else own_data(client))
    check_range("--client", client, at_least=0, below=run.data.num_clients)
    site = Site(run.model, run.data, client, folder, _device(config["trainer"]["accelerator"]))
    print(f"Site of client {client}: {run.data.num_train(client)} training samples, folder {folder}", flush=True)
    serve(site, folder)


def _whole(options: list[str]) -> str:
    """The config of a command line in full, as a run stores it."""
    config = parse_trainer_command("fit", options)
    return trainer_parser("fit").dump(config, format="yaml", skip_unset=False, skip_validation=True)


def _device(accelerator: str) -> torch.device:
    on_gpu = accelerator in ("gpu", "cuda") or (accelerator == "auto" and torch.cuda.is_available())
    return torch.device("cuda" if on_gpu else "cpu")
