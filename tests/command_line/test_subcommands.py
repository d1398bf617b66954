"""What is answered at once, and what Ctrl-C does before there is anything to save."""

import errno
import gc
import inspect
import os
import resource
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

import fl_lightning
from fl_lightning.__main__ import main as begin
from fl_lightning.command_line import cli, trainer_command
from fl_lightning.command_line.cli import SUBCOMMANDS, quick_answer
from fl_lightning.command_line.closed_output import ending_quietly
from fl_lightning.command_line.commands import COMMANDS
from fl_lightning.command_line.parsers import plain
from fl_lightning.config_files.bundled import describe_configs

_WITHOUT_TORCH = """
import sys
from fl_lightning.__main__ import main
sys.argv = ["fl-lightning", *sys.argv[1:]]
try:
    code = main()
except SystemExit as stop:  # of --help
    code = stop.code
sys.exit("torch was imported" if "torch" in sys.modules else code)
"""


@pytest.mark.parametrize(
    "arguments",
    [[], ["--help"], ["-h"], ["--version"], ["configs"], ["configs", "--help"], ["configs", "cifar10_tce_bn.yaml"]],
)
def test_what_needs_no_torch_is_answered_at_once(arguments):
    """In less than 1.5 s of processor time, start of Python included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run([sys.executable, "-c", _WITHOUT_TORCH, *arguments], capture_output=True, text=True, timeout=120)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert result.returncode == 0, result.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.5
    assert result.stdout.rstrip("\n") == quick_answer(arguments)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.one_in(3)
def test_the_help_of_a_function_is_its_docstring_and_signature(name):
    """Of each command that is a function, without torch: the first line, and every parameter."""
    arguments = [sys.executable, "-c", _WITHOUT_TORCH, name, "--help"]
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stderr) == (0, "")
    assert " ".join(result.stdout.split()).count(COMMANDS[name].__doc__.splitlines()[0]) == 1
    for parameter in inspect.signature(COMMANDS[name]).parameters.values():
        word = parameter.default is parameter.empty
        assert (parameter.name.upper() if word else f"--{parameter.name} ") in result.stdout


@pytest.mark.parametrize("arguments", [["watch"], ["report", "runs", "--rounds", "few"], ["fitt"]])
def test_a_mistake_is_said_at_once(arguments):
    result = subprocess.run([sys.executable, "-c", _WITHOUT_TORCH, *arguments], capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert result.stderr.startswith("fl-lightning: error: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "key"),
    [("report", "RUNS"), ("check", "RUN"), ("watch", "FOLDER"), ("figures", "RUN"), ("compare", "FIRST")],
)
def test_a_path_that_is_too_long_is_named_with_its_word(main, command, key):
    long = "a" * 300
    code, _, error = main(command, *[long] * (2 if command in ("figures", "compare") else 1))
    assert code == 1
    said = f"{key} is {long[:77]}..., which cannot be used (File name too long): give another path"
    assert error == f"fl-lightning: error: {said}\n"


def test_the_overview_names_every_subcommand():
    """Those of the trainer and the others; no argument at all asks for it too."""
    assert set(SUBCOMMANDS) == {*trainer_command.TRAINER_COMMANDS, *cli.COMMANDS, "attack", "bench", "sweep", "configs"}
    assert all(f"\n  {name} " in quick_answer([]) for name in SUBCOMMANDS)
    assert quick_answer([]) == quick_answer(["--help"])


def test_the_version_is_that_of_the_package():
    assert quick_answer(["--version"]) == f"fl-lightning {version('fl-lightning')}"
    assert quick_answer(["configs"]) == describe_configs()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["validat"], f"subcommand is validat, must be one of {', '.join(SUBCOMMANDS)}: did you mean validate?"),
        (["xyz", "--config", "a.yaml"], "fl-lightning --help says what each does"),
        (["--config", "a.yaml", "fit"], "--config is given where the subcommand must be"),
        (["configs", "mine"], "config is mine, neither a file here nor a bundled config: fl-lightning configs lists them"),
        (["configs", "cifar10_tce.yaml", "mine"], "configs takes one name, but cifar10_tce.yaml mine is given"),
        (["report"], "RUNS are missing: give folders of runs"),
    ],
)
def test_a_wrong_subcommand_is_one_line(main, arguments, message):
    code, out, error = main(*arguments)
    assert code == 1
    assert out == ""
    assert error.startswith("fl-lightning: error: ")
    assert message in error
    assert error.count("\n") == 1


def test_what_was_imported_is_freed_when_a_process_ends(monkeypatch):
    """What stays frozen is not, and libraries with a count of their objects say so in a hundred lines."""
    monkeypatch.setattr("sys.argv", ["fl-lightning", "fit"])
    monkeypatch.setattr(cli, "main", lambda imported: imported() or (5 if gc.get_freeze_count() else 0))
    assert begin() == 5
    assert gc.get_freeze_count() == 0


def test_ctrl_c_while_importing_is_one_line(tmp_path):
    """torch's library is being loaded, and nothing has begun."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fl_lightning", "fit", "--config", "digits_tce.yaml"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 120
    while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130
    assert error == "fl-lightning: stopped before it began\n"
    assert os.listdir(tmp_path) == []


def test_ctrl_c_before_the_first_round_leaves_nothing(main, tmp_path, monkeypatch):
    """While the data is loaded or the net is built: exit code 130, one line, no folder."""

    def interrupt(*arguments, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer_command.TrainerCommand, "_fit_callbacks", interrupt)  # the run's folder is made by then
    code, _, error = main("fit", "--config", "digits_tce.yaml")
    assert code == 130
    assert error == "fl-lightning: stopped\n"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "arguments", [["fit", "--help"], ["fit", "--model.help", "FedReg"], ["partition", "--help"], ["attack", "--help"]]
)
def test_help_is_plain_text(main, arguments):
    """Docstrings are written for Sphinx; a terminal shows no roles and no double backquotes."""
    code, out, _ = main(*arguments)
    assert code in (0, None)
    assert "usage: " in out or "Help for" in out
    assert "``" not in out
    assert ":class:" not in out
    assert ":func:" not in out


@pytest.mark.parametrize(
    ("marked", "bare"),
    [
        ("a :class:`~fl_lightning.FedAvg` with ``alpha = 0.1``", "a fl_lightning.FedAvg with alpha = 0.1"),
        ("see `the paper <https://arxiv.org>`_ and :paramref:`~a.B.c`", "see the paper and a.B.c"),
        (":py:func:`a.b` of `x`", "a.b of x"),
    ],
)
def test_markup_is_left_out(marked, bare):
    assert plain(marked) == bare


def test_names_are_imported_where_they_are_used():
    """``fl_lightning.X`` works for all that is offered, and ``dir`` shows it."""
    for name in fl_lightning.__all__:
        assert getattr(fl_lightning, name) is not None
        assert name in dir(fl_lightning)
    with pytest.raises(AttributeError):
        fl_lightning.FedAvgg  # noqa: B018


@pytest.mark.parametrize("arguments", [["configs"], ["--help"]])
def test_output_that_nobody_reads_ends_quietly(arguments):
    """As a process that SIGPIPE ends: exit code 128 + 13, and no word."""
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        [sys.executable, "-m", "fl_lightning", *arguments], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=120
    )
    os.close(writer)
    assert (result.returncode, result.stderr) == (141, "")


def test_output_that_cannot_be_written_is_one_line():
    """On a full disk the overview is an error."""
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "fl_lightning", "--help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120
        )
    assert result.returncode == 1
    assert result.stderr.startswith("fl-lightning: error: the standard output could not be written (No space left on device)")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EACCES, "Permission denied", "a/b"), "[Errno 13] Permission denied: 'a/b'"),
        (OSError(errno.ENOSPC, "No space left on device", "a/b"), "[Errno 28] No space left on device: 'a/b'"),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), "[Errno 104] Connection reset by peer"),
        (TimeoutError("the store did not answer"), "the store did not answer"),
        (
            OSError(errno.EIO, "Input/output error"),
            "the standard output could not be written (Input/output error): write elsewhere",
        ),
    ],
)
def test_an_error_that_gets_out_is_the_outputs_where_it_names_no_other(monkeypatch, capfd, error, said):
    monkeypatch.setattr(os, "dup2", lambda *_: None)

    def command():
        raise error

    assert ending_quietly(command) == 1
    assert capfd.readouterr().err == f"fl-lightning: error: {said}\n"


def test_a_traceback_on_request_keeps_its_cause(main, monkeypatch):
    """It passed for a standard output that cannot be written."""
    monkeypatch.setenv("FL_LIGHTNING_TRACEBACK", "1")
    code, _, error = main("fit", "--config", "a" * 300)
    assert code == 1
    assert error.splitlines()[-1].startswith("OSError: [Errno 36] File name too long")


def test_a_working_folder_that_is_gone_is_one_line(main, monkeypatch):
    monkeypatch.setattr(cli.os, "getcwd", lambda: os.stat("gone"))
    code, _, error = main("fit")
    assert (code, error.count("\n")) == (1, 1)
    assert "gone cannot be used (No such file or directory)" in error


def test_a_command_whose_output_is_closed_ends_quietly(main, monkeypatch):
    """A broken pipe of the output is no error of the command; any other is."""
    monkeypatch.setattr(trainer_command, "run", lambda *_: (_ for _ in ()).throw(BrokenPipeError("a worker is gone")))
    assert main("fit")[::2] == (1, "fl-lightning: error: a worker is gone\n")
    monkeypatch.setattr(cli, "is_closed", lambda: True)
    with pytest.raises(BrokenPipeError):
        main("fit")


def test_the_help_says_what_weights_only_may_be(main):
    """Lightning's says that false runs what a checkpoint holds, which is refused here."""
    code, out, _ = main("fit", "--help")
    assert code == 0
    assert "use weights_only=False" not in " ".join(out.split())
    assert "a checkpoint holds only data" in " ".join(out.split())
