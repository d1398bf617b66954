"""Commands that read the files of runs: the signature of each function gives the options, and its docstring the help.

torch and Lightning take seconds to import: a function imports them when it is called, so that its help needs neither.
"""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from fl_lightning.checks import check_file, check_range, counted
from fl_lightning.report.commands import compare, figures, report
from fl_lightning.report.safe_text import one_line


def export(
    *,
    ckpt_path: str = "best",
    run_folder: Path | None = None,
    out: Path | None = None,
    weights: Literal["merged", "separate"] | None = None,
) -> None:
    """Write a checkpoint's net as a program that runs without fl-lightning, or as weights with a model card.

    The preparation of its inputs is a part of the torch.export program, which needs only torch (docs/using_a_trained_net.md).

    Args:
        ckpt_path: best or last of the newest version, or a checkpoint.
        run_folder: of the versions; default: the newest in runs.
        out: the file; default: next to config.yaml, as best.pt2. With weights a folder; default: best_weights.
        weights: instead of a program write a folder with safetensors and README.md. merged: all weights, adapters added to
            those that they adapt. separate: only the trained ones.

    Raises:
        FileNotFoundError, ValueError, OSError: in one line, if it cannot be exported.
    """
    from fl_lightning.export import export, load_classifier, write_model_folder
    from fl_lightning.run.saved_run import run_config

    checkpoint = _checkpoint(ckpt_path, run_folder)
    if weights is not None:
        folder = out or run_config(checkpoint)[0] / f"{checkpoint.stem}_weights"
        print(f"Exported: {write_model_folder(checkpoint, folder, weights)}, from {checkpoint}")
        return
    classifier = load_classifier(checkpoint)
    out = out or run_config(checkpoint)[0] / f"{checkpoint.stem}.pt2"
    export(classifier, out)
    inputs = classifier.inputs
    shape = ", ".join(map(str, ["n", *inputs.shape]))
    print(f"Exported: {out}, from {checkpoint}")
    print(f"Inputs: {inputs.dtype} ({shape}); outputs: probabilities of {len(inputs.classes)} classes")


def _checkpoint(ckpt_path: str, run_folder: Path | None) -> Path:
    from fl_lightning.state.versions import KEPT, newest_checkpoint

    if ckpt_path not in KEPT:
        check_file("ckpt_path", ckpt_path, "give a checkpoint of a run")
        return Path(ckpt_path)
    if run_folder is None:
        written = Path("runs").glob("*/version_*/checkpoints/*.ckpt")  # where fit writes by default
        newest = max(written, key=lambda path: path.stat().st_mtime_ns, default=None)
        if newest is None:
            raise FileNotFoundError(
                f"ckpt_path is {ckpt_path}, but runs holds no checkpoint of a run: give run_folder, or a checkpoint"
            )
        run_folder = newest.parents[2]
    found = newest_checkpoint(run_folder, ckpt_path, ckpt_path)
    if found is None:
        raise FileNotFoundError(f"ckpt_path is {ckpt_path}, but {run_folder} holds no such checkpoint: give another run_folder")
    return found


def check(run: Path) -> None:
    """Say whether a run's checkpoints are as they were written, and whether its results and its log can be read.

    Checkpoints, and the states of clients that they name, are compared with their digests. Results, the log and the config are
    text without digests, and can have been edited. Nothing is changed.

    Args:
        run: the folder of a run or of several.

    Raises:
        FileNotFoundError: if RUN is not a folder, or contains no checkpoint.
        ValueError: with the number of faults, if files are not as they were written.

    Example:
        fl-lightning check runs/digits_tce
    """
    from fl_lightning.report.runs import read_run, reason, run_folders

    if not run.is_dir():
        raise FileNotFoundError(f"RUN is {run}, which is not a folder: give that of a run")
    folders, faults = run_folders([run])
    for version in folders:
        try:
            faults += read_run(version).log.remarks
        except (ValueError, OSError, RecursionError) as error:
            faults.append(f"{version}: {reason(error)}")
    checkpoints = sorted(run.rglob("*.ckpt"))
    for path in checkpoints:
        faults += _check_states(path)
    for fault in faults:
        print(one_line(fault))
    if faults:
        raise ValueError(
            f"RUN is {run}, which is not as it was written ({counted(len(faults), 'fault')} above): put its files back from "
            "a copy, or resume from an intact checkpoint"
        )
    if not checkpoints:
        raise FileNotFoundError(f"RUN is {run}, which holds no checkpoint: give the folder of a run that wrote one")


def _check_states(path: Path) -> list[str]:
    """Faults of a checkpoint and of the states that it names; a line is printed for one without faults."""
    from fl_lightning.state.checkpoint import read_checkpoint
    from fl_lightning.state.state_files import check_files, states_folder

    try:
        checkpoint = read_checkpoint(path, "a checkpoint")
    except (OSError, ValueError) as error:
        return [str(error)]
    saved = checkpoint["federated"]["client_states"]
    faults = [f"{path}: {fault}" for fault in check_files(saved, states_folder(saved, path))]
    if not faults:
        states = len(saved.get("index", ()))
        print(f"{path}: round {checkpoint['global_step']}, {f'{states} states of clients, ' * (states > 0)}as written")
    return faults


def watch(folder: Path, *, port: int = 8642) -> None:
    """Serve a page of running and finished runs to a browser of this machine.

    On the loopback address, at an address with a token: curves, heatmaps over rounds, time left. It only reads
    files, so you can stop and start it at any time.

    Args:
        folder: that of a run, or of many.
        port: of the page; 0 is any that is free.

    Raises:
        FileNotFoundError: if the folder does not exist.
        ValueError: if the port cannot be taken.

    Example:
        fl-lightning watch runs
    """
    from fl_lightning.watch.server import LOOPBACK, LiveServer
    from fl_lightning.watch.watched_runs import WatchedRuns

    if not folder.is_dir():
        raise FileNotFoundError(f"FOLDER is {folder}, which is not a folder: give that of a run, or of many, such as runs")
    check_range("--port", port, at_least=0, at_most=65535, hint="0 is any that is free")
    try:
        server = LiveServer(WatchedRuns(folder), port)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES):
            raise
        why = "is in use" if error.errno == errno.EADDRINUSE else "is not open to you"
        raise ValueError(f"--port is {port}, which {why} on {LOOPBACK}: give another, or 0 for any that is free") from error
    with server:
        print(f"Page of the runs in {folder}: {server.address} (Ctrl-C ends the page, and no run)", flush=True)
        server.serve_forever()


def federation(
    action: str,
    folder: Path,
    *,
    config: str | None = None,
    client: int | None = None,
    site: Path | None = None,
    data: str | None = None,
) -> None:
    """Prepare a federation of real sites with Flower, or run the process of a site (docs/federations.md).

    init writes the app that flwr run starts, with a config in full. site serves a client with its own samples until it is
    stopped: Flower's SuperNode at the site brings it the server's messages.

    Args:
        action: init or site.
        folder: folder of the app.
        config: of init, a YAML file or the name of a bundled config.
        client: of site, the index of its client, from 0.
        site: of site, folder for the client's states and the socket; default: site_CLIENT.
        data: of site, a config with only the section data, and in data.source only this client's samples; default: the samples
            that the app's config gives the client.

    Raises:
        ValueError, FileNotFoundError, FileExistsError: in one line, if one of them does not fit.

    Example:
        fl-lightning federation init hospitals --config digits_tce.yaml
    """
    from fl_lightning.command_line.federation import run_site, write_app

    options = {"init": {"--config": config}, "site": {"--client": client, "--site": site, "--data": data}}
    if action not in options:
        raise ValueError(f"ACTION is {action}, must be init or site")
    for option, value in options["site" if action == "init" else "init"].items():
        if value is not None:
            raise ValueError(f"{option} is {value}, which federation {action} does not take: leave it out")
    needed = "--config" if action == "init" else "--client"
    if options[action][needed] is None:
        raise ValueError(f"{needed} is missing: federation {action} needs it")
    if config is not None and action == "init":
        write_app(folder, config)
    elif client is not None:
        run_site(folder, site or Path(f"site_{client}"), client, data)


def completion() -> None:
    """Print a script that completes command lines in bash and zsh.

    It holds the subcommands, bundled configs and options of this version of fl-lightning.
    """
    from fl_lightning.command_line.completion import script

    print(script(SUBCOMMANDS), end="")


def _few_words(command: Callable[..., None]) -> str:
    line = str(command.__doc__).partition(".\n")[0]
    return line[0].lower() + line[1:]


COMMANDS = {command.__name__: command for command in (export, check, report, figures, compare, watch, federation, completion)}
SUBCOMMANDS = {
    "fit": "train a federation",
    "validate": "evaluate a checkpoint on the clients' validation parts",
    "test": "evaluate a checkpoint on the test set",
    "predict": "write a checkpoint's predictions on the test set to a file",
    "partition": "write, draw and measure who would hold which samples, without training",
    "sweep": "train every combination of values and seeds",
    "bench": "compare a method with others on a fixed federation",
    "attack": "recover images of clients from the updates that they send",
    **{name: _few_words(command) for name, command in COMMANDS.items()},
    "configs": "list the bundled configs, or print one",
}
"""The purpose of each, in a few words."""
