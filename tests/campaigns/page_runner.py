"""Runs what a page shows, block after block in one folder, shortened by options that are added."""

import contextlib
import importlib.util
import io
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import yaml
from options import NO_PICTURES
from pages import ROOT, Block, blocks, commands

# Words of the pages that a reader replaces.
_PLACEHOLDERS = {
    "RUNS...": "runs",
    "METHOD": "FedWeIT",
    "LEARNER": "WeightedTransfer",
    "SEED": "1",
    "DIR": ".",
    "LOSS": "CrossEntropy",
    "FOLDER": "folder",
}
_PLACEHOLDERS_OF = {"docs/arriving_classes.md": {"METHOD": "lwf"}}
# Streams of several datasets, or of classes that the digits do not have: their settings are read, and printed.
_READ_ALONE = {"fedweit_interference.yaml"}
_OF_AN_MLP = ("digits_wsm.yaml", "digits_first_five.yaml", "digits_other_five.yaml")
# Of what a page shows more rarely than in every round.
_CADENCES = ("--callbacks.round_forgetting.clients_every", "--trainer.callbacks.every")
_EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


class PageRunner:
    """The commands and the Python of one page, in the working folder.

    Args:
        main: runs ``fl-lightning`` here; gives exit code, standard output and standard error.
        fork: runs it as a process, for what starts others or needs one of its own.
    """

    def __init__(self, page: str, main: Callable, fork: Callable) -> None:
        self._blocks = blocks(page)
        self._page, self._main, self._fork = page, main, fork
        self._measures = any(re.search("forgetting/client|client forgetting", block.text) for block in self._blocks)
        self._names: dict = {}
        self._printed = ""

    def run(self) -> None:
        """Run all blocks.

        Raises:
            AssertionError: if one fails, prints something else than the page shows, or is nothing that is known here.
        """
        kinds = {"python": self._python, "yaml": self._config, "math": self._formula, "bibtex": self._citation}
        for block in self._blocks:
            kind = kinds.get(block.language)
            if kind is None:
                assert block.language in ("", "bash", "console"), f"{block}: nothing runs {block.language}"
                kind = self._output if self._is_output(block) else self._script
                kind = self._options if block.text.startswith("--") else kind
            kind(block)

    @staticmethod
    def _is_output(block: Block) -> bool:
        if block.language or block.text.startswith("--"):
            return False
        try:
            return not commands(block.script)
        except ValueError:
            return True

    def _python(self, block: Block) -> None:
        """In one namespace, and in the file from which a command of the page takes its classes; other methods take a round."""
        used = "".join(other.text for other in self._blocks if other.language != "python")
        for module in {module for module, name in re.findall(r"\b(my_\w+)\.(\w+)", used) if f"class {name}(" in block.text}:
            with Path(f"{module}.py").open("a") as file:  # several blocks may be parts of one
                file.write(block.text)
        before = set(self._names)
        exec(compile(block.text, str(block), "exec"), self._names)
        for name in set(self._names) - before:
            if f"class {name}(FederatedModule)" in block.text and f"my_method.{name}" not in used:
                Path(f"my_{name}.py").write_text(block.text)
                self._fl_lightning(block, ["fit", "--config", "digits_tce.yaml", "--model", f"my_{name}.{name}"])

    def _config(self, block: Block) -> None:
        """A config on top of digits_tce.yaml."""
        given = yaml.safe_load(block.text)
        Path("mine.yaml").write_text(block.text)
        below = [] if "base" in given else ["--config", "digits_tce.yaml"]
        self._expect(block, ["fit", *below, "--config", "mine.yaml", "--print_config"])

    def _formula(self, block: Block) -> None:
        assert block.text.count("{") == block.text.count("}"), block
        assert not re.search(r"<\w", block.text), f"{block}: a browser takes this for a tag"

    def _citation(self, block: Block) -> None:
        """tests/test_package.py parses the one there is."""
        assert block.page == "README.md", block

    def _options(self, block: Block) -> None:
        options = shlex.split(block.text.replace("\\\n", " "))
        self._expect(block, ["fit", "--config", "digits_tce.yaml", *options, "--print_config"])

    def _script(self, block: Block) -> None:
        script = block.script
        for word, value in {**_PLACEHOLDERS, **_PLACEHOLDERS_OF.get(self._page, {})}.items():
            script = re.sub(rf"(?<![A-Z]){re.escape(word)}(?![A-Z])", value, script)
        self._printed = ""
        for program, *arguments in commands(script):
            self._others[program](self, block, arguments)
        if block.output:
            holds_output(block, block.output, self._printed)

    def _output(self, block: Block) -> None:
        holds_output(block, block.text, self._printed)

    def _fl_lightning(self, block: Block, arguments: list[str]) -> None:
        shown = bool(block.output) or any(map(self._is_output, self._blocks[self._blocks.index(block) + 1 :][:1]))
        arguments = shortened(arguments, shown, self._measures)
        self._printed += self._expect(block, arguments, fails="error: " in block.output)

    def _expect(self, block: Block, arguments: list[str], fails: bool = False) -> str:
        # W&B serves a process once: not after another test that used it.
        if {"--trainer.devices", "WandbLogger"} & set(arguments):
            ended = self._fork(*arguments)
            code, out, error = ended.returncode, ended.stdout, ended.stderr
        else:
            code, out, error = self._main(*arguments)
        if absent := re.search(r"needs the library (\w+): pip install", error):
            assert importlib.util.find_spec(absent[1]) is None, error
            return error
        assert bool(code) == fails, f"{block}: fl-lightning {' '.join(arguments)}\n{error}"
        return out + error

    def _pip(self, block: Block, arguments: list[str]) -> None:
        """The package, or the tree, with extras that it has."""
        installed = re.fullmatch(r"install (?:-e \.|fl-lightning)(?:\[([\w,]+)\])?", " ".join(arguments))
        assert installed, block
        assert set(filter(None, (installed[1] or "").split(","))) <= _EXTRAS, block

    def _program(self, block: Block, arguments: list[str]) -> None:
        """Modules and scripts of the tree."""
        if arguments[:1] == ["-m"] and arguments[1] == "studies":
            self._study(block, arguments[2:])
        elif arguments[:1] == ["-m"]:
            assert importlib.util.find_spec(arguments[1]), block
        else:
            assert (ROOT / arguments[0]).is_file(), block

    def _study(self, block: Block, arguments: list[str]) -> None:
        """What the command asks for; tests of the studies run one."""
        from studies import __main__ as studies

        with mock.patch.object(studies, "run_study", return_value=[]):
            assert studies.main(arguments) == 0, block

    def _tensorboard(self, block: Block, arguments: list[str]) -> None:
        """Of a folder that has curves."""
        option, folder = arguments
        assert option == "--logdir", block
        assert [*Path(folder).rglob("events.out.tfevents.*")], block

    def _nothing(self, block: Block, arguments: list[str]) -> None:
        pass

    _others = {
        "fl-lightning": _fl_lightning,
        "pip": _pip,
        "python": _program,
        "python3": _program,
        "pytest": _nothing,
        "tensorboard": _tensorboard,
    }


def shortened(arguments: list[str], shown: bool, measures: bool) -> list[str]:
    """A command as it stands, with options behind it: few rounds, a small net, noise for data that is not everywhere.

    Args:
        arguments: of ``fl-lightning``.
        shown: whether the page shows what it prints, which then has all of its parts.
        measures: whether the page shows client forgetting.
    """
    command, *rest = arguments
    if command == "attack":
        return [*arguments, "--iterations", "2"]
    if command not in ("fit", "sweep", "partition") or "--print_config" in arguments:
        return arguments
    config = rest[rest.index("--config") + 1]
    if config in _READ_ALONE:
        return [*arguments, "--print_config"]
    is_here = config.startswith(("digits", "mine", "text"))
    source = [] if is_here else ["--data.source", _stand_in(config)]
    source += ["--data.num_clients", "100"] if "fedreg" in config else []  # not 10,000, with a file each
    if command == "partition":
        return [*arguments, *source]
    if command == "sweep" and not shown:
        rest = [*(re.sub(r"^([\w.]+=[^,]+),.*", r"\1", word) for word in rest), "--seeds", "1"]
    continues = command == "fit" and (shown or {"--ckpt_path", "--model.initial_weights"} & {*rest})
    hidden = "[16]" if config in _OF_AN_MLP else "16"  # of an MLP, of a CNN
    net = ["--model.net.hidden", hidden] if continues else ["--model.net", "MLP", "--model.net.hidden", "[16]"]
    net = ["--model.net.width", "8"] if config.startswith("text") else net
    net = [] if {"--model.net", "mine.yaml"} & {*rest} else net
    rounds = "4" if "--ckpt_path" in rest else "12" if "1e30" in str(rest) else "3" if shown else "2" if measures else "1"
    pictures = [*NO_PICTURES, "--callbacks.client_forgetting.every", str(int(measures))]
    often = [word for key in _CADENCES if key in rest for word in (key, "1")]
    return [command, *rest, *source, *net, "--trainer.max_steps", rounds, *pictures, *often]


def _stand_in(config: str) -> str:
    """A file of noise with the shape of a config's images and ten classes, or those that its tasks name."""
    shape = (3, 32, 32) if "cifar" in config or "overlapped" in config else (1, 28, 28)
    size = 2000 if "tasks" in config or "overlapped" in config else 500
    classes = np.arange(10)
    if "overlapped" in config:  # tasks are superclasses of CIFAR-100
        table = ROOT / "fl_lightning" / "data" / "cifar100_superclasses.csv"
        classes = np.array([line.split(",")[0] for line in table.read_text().splitlines()[1:]])
    path, generator = Path(f"noise_{shape[0]}_{size}_{len(classes)}.npz"), np.random.default_rng(0)
    if not path.exists():
        inputs, targets = generator.integers(0, 256, (size, *shape), "uint8"), classes[np.arange(size) % len(classes)]
        np.savez(path, inputs=inputs[100:], targets=targets[100:], test_inputs=inputs[:100], test_targets=targets[:100])
    return str(path)


def holds_output(block: Block, shown: str, printed: str) -> None:
    """Each line that a page shows was printed, in this order, rows of a table without others between them.

    Numbers and widths may differ: lines are compared without.

    Raises:
        AssertionError: with the first line that was not.
    """
    text, position, in_table, above = _shape(printed), 0, False, ""
    for line in shown.splitlines():
        shape = _shape(line)
        if not shape or line == "..." or (shape == above and not in_table):
            in_table = False
            continue
        found = text.find(shape, position)
        is_row = shape[0] in "│├┃┡└"
        assert found >= 0, f"{block}: not printed: {line}\n{printed}"
        assert not (is_row and in_table) or found - position <= 1, f"{block}: something stands above: {line}\n{printed}"
        above, position, in_table = shape, found + len(shape), shape[0] in "│├┃┡┌┏"


def _shape(text: str) -> str:
    text = re.sub(r"version_\d+", "version_0", re.sub(r"[─━]+", "─", text)).replace("s/round", "rounds/s")
    text = re.sub(r"(?<![\w.])[-+]?\d[\d.,:]*(e-?\d+)?(?!\w)", "0", text)
    text = re.sub(r"0( ?,? 0)+", "0", text)
    return " ".join(re.sub(r" - (?=[│┃])", " 0 ", text).split())


class RunHere:
    """A run of a sweep in this process, with what the sweep's worker asks of a ``subprocess.Popen``: it has ended at once."""

    pid = -1

    def __init__(self, command: list[str], *, stdout: io.BufferedWriter, **of_process: object) -> None:
        from fl_lightning.command_line import cli

        folder = Path(stdout.name).parent
        self.returncode = 0
        for results in folder.parent.glob("seed_*/*/version_0/results.json"):  # another seed says the same of the command
            shutil.copytree(results.parents[1], folder / results.parents[1].name, dirs_exist_ok=True)
            return
        arguments, before = command[command.index("fit") :], sys.argv
        with open(stdout.name, "a") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            sys.argv = ["fl-lightning", *arguments]
            try:
                self.returncode = cli.main(arguments)
            except SystemExit as stop:
                self.returncode = stop.code
            finally:
                sys.argv = before

    def poll(self) -> int:
        return self.returncode or 0


RUNS_HERE = SimpleNamespace(Popen=RunHere, PIPE=None, STDOUT=None)
