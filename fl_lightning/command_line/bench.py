"""``fl-lightning bench forgetbench``: a method on a fixed federation, and the table of results files."""

import hashlib
import inspect
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from fl_lightning import __version__
from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.bench.entrants import check_entrant
from fl_lightning.bench.federation import Federation, check_options, data_digests, digest_of, federation, federations
from fl_lightning.bench.results_file import Cell, CellRun, read_cell, write_cell
from fl_lightning.bench.table import table
from fl_lightning.checks import check_range
from fl_lightning.command_line.sweep import run_sweep
from fl_lightning.command_line.trainer_command import parse_trainer_command, trainer_parser
from fl_lightning.config_files.reading import options_of
from fl_lightning.report.runs import read_run
from fl_lightning.run.provenance import commit
from fl_lightning.state.checkpoint import read_checkpoint, weights_of_net
from fl_lightning.sweep.points import Run, parse_seeds
from fl_lightning.sweep.run_folder import RunFolder
from fl_lightning.sweep.run_scalars import PROCESSOR_SECONDS, run_scalars
from fl_lightning.sweep.settings import OptionParser, parse_settings
from fl_lightning.sweep.study import SweepStudy

_NAME = "forgetbench"
_EXAMPLE = """example:
  fl-lightning bench forgetbench --method my_method.MyMethod --model.mu 0.1
  fl-lightning bench forgetbench --table forgetbench/*.json

Other options, such as those of the method, its loss and its rates, go to each fl-lightning fit. Run the same command again to
resume. docs/forgetbench.md describes the federations and the protocol."""


@dataclass(frozen=True)
class _Command:
    """A method on a federation, as it was typed."""

    federation: Federation
    method: str
    options: list[str]  # for each fit
    seeds: list[int]
    jobs: int
    out: Path

    @property
    def name(self) -> str:
        """Of the results file and of the folder of the runs."""
        free = self.options_for(model=True)
        words = re.sub(r"[^\w.=]+", "_", " ".join([self.method, *free]))
        return f"{self.federation.name}-{words}"[:100] + (f"-{digest_of(free)[:8]}" if free else "")

    def options_for(self, model: bool) -> list[str]:
        """Options of the method, its loss and its rates, or the others: where the data is, and the device of runs."""
        pairs = [(key, value) for key, value in options_of(self.options) if key.startswith("model.") == model]
        return [word for key, value in pairs for word in (f"--{key}", *([] if value is None else [value]))]


def run(arguments: Sequence[str]) -> None:
    """Run a cell and write its results file, or print the table of results files.

    Raises:
        ValueError, FileNotFoundError: in one line, if the command, the data or a results file is not as it must be.
        SystemExit: with 130 or 143 after Ctrl-C or SIGTERM.
    """
    parser = _parser()
    given, options = parser.parse_known_args(arguments)
    if given.bench != _NAME:
        raise ValueError(f"BENCH is {given.bench}, must be {_NAME}: docs/forgetbench.md describes it")
    if (given.method is None) == (given.table is None):
        raise ValueError("give either --method CLASS, to run a cell, or --table FILES, for the table of results files")
    if given.table is not None:
        of_cell = ("federation", "seeds", "jobs", "out")
        options += [f"--{name}" for name in of_cell if getattr(given, name) != parser.get_default(name)]
        if options:
            raise ValueError(f"{options[0]} does not combine with --table: leave it out")
        print(table([read_cell(path) for path in given.table]))
        return
    check_range("--jobs", given.jobs, at_least=1)
    check_options(options)
    of = federation(given.federation)
    seeds = list(of.seeds) if given.seeds is None else parse_seeds(given.seeds)
    if strange := [seed for seed in seeds if seed not in of.seeds]:
        raise ValueError(f"--seeds has {strange[0]}, but {of.name} has the seeds {', '.join(map(str, of.seeds))}: give some")
    command = _Command(of, given.method, options, seeds, given.jobs, given.out)
    cell, path = _run_cell(command), given.out / f"{command.name}.json"
    write_cell(cell, path)
    print(table([cell]))
    print(f"Results file: {path}")


def _run_cell(command: _Command) -> Cell:
    digests = _checked_data(command)
    of, out = command.federation, command.out / "runs"
    weights = _pretrained(command, out / f"{of.name}-pretrained") if of.pretrained else None
    begin = [] if weights is None else ["--model.initial_weights", str(weights)]
    method = ["--model", command.method, *command.options, *begin]
    # Runs of another version of the user's file stay, in their own folder.
    own = "." in command.method and not command.method.startswith("fl_lightning.")
    folder = out / (f"{command.name}-{_code(command.method)[:8]}" if own else command.name)
    _check_code(folder, Path(of.config).stem, command.seeds)
    folders, seconds = _swept(of.config, method, command.seeds, command.jobs, folder)
    runs = {}
    for seed, folder in folders.items():
        spent = {} if (of_run := seconds[seed]) is None else {PROCESSOR_SECONDS: of_run}
        runs[seed] = CellRun(*digests[seed], run_scalars(read_run(folder)) | spent)
    return Cell(
        federation=of.name,
        method=command.method,
        options=command.options_for(model=True),
        version=__version__,
        commit=commit() or "",
        code=_code(str(read_run(folders[command.seeds[0]]).config["model"])),
        initial_weights="" if weights is None else _weights_digest(weights),
        runs=runs,
    )


def _check_code(runs: Path, config: str, seeds: Sequence[int]) -> None:
    """Refuse finished runs of other code: the cell's version, commit and digests are those of the present code."""
    now = __version__, commit()
    for run in filter(None, (RunFolder(runs / Run({}, seed).name, config).finished() for seed in seeds)):
        results = json.loads((run / "results.json").read_text(encoding="utf-8"))
        if (made_by := (results["version"], results["commit"])) != now:
            raise ValueError(f"--out has {run}, made by {_said(*made_by)}, but this is {_said(*now)}: give another --out")


def _said(version: str, of: str | None) -> str:
    return f"fl-lightning {version}, commit {of or 'unknown'}"


def _checked_data(command: _Command) -> dict[int, tuple[str, str]]:
    """Digests of each seed's data, before anything runs; the method is checked with the first."""
    of, digests = command.federation, {}
    for seed in command.seeds:
        options = ["--config", of.config, "--model", command.method, *command.options, "--seed_everything", str(seed)]
        config = parse_trainer_command("fit", options)
        del config["trainer"]
        if digests:
            del config["model"]
        built = trainer_parser("fit").instantiate(config)
        if not digests:
            check_entrant(built.model, built.data, of)
        built.data.setup()
        digests[seed] = data_digests(built.data)
        if digests[seed][0] != of.partitions.get(seed):
            raise ValueError(
                f"data.root has other samples than those of {of.name}, by their labels and seed {seed}: docs/forgetbench.md "
                f"describes the folder (digest {digests[seed][0]})"
            )
        if "model" in built:
            # That of a module refuses what acts only in the fit of a trainer, which a run is.
            FederatedAlgorithm.join(built.model, built.data)
    return digests


def _pretrained(command: _Command, out: Path) -> Path:
    """The checkpoint that all runs begin with; it is trained once for all methods."""
    folders, _ = _swept(command.federation.pretrained, command.options_for(model=False), [0], 1, out)
    return folders[0] / "checkpoints" / "last.ckpt"


def _swept(
    config: str, options: Sequence[str], seeds: Sequence[int], jobs: int, out: Path
) -> tuple[dict[int, Path], dict[int, float | None]]:
    """Run a config with some seeds, or what is left of it: the folders of the runs, and their processor seconds."""
    typed = ["--config", config, "--seeds", str([*seeds]), "--jobs", str(jobs), "--out", str(out)]
    run_sweep(replace(parse_settings(typed), options=list(options), retry_failed=True))
    folders, seconds = {}, {}
    for record in SweepStudy(out).records():
        folder = RunFolder(out / record.run.name, Path(config).stem).finished()
        if folder is not None and record.run.seed in seeds:
            folders[record.run.seed], seconds[record.run.seed] = folder, record.processor_seconds
    if missing := [seed for seed in seeds if seed not in folders]:
        raise ValueError(f"--out is {out}, where another worker is at seed {missing[0]}: repeat the command once it has ended")
    return folders, seconds


def _code(method: str) -> str:
    """Digest of the file that defines a method, by its full name."""
    module, _, name = method.rpartition(".")
    return hashlib.sha256(Path(inspect.getfile(getattr(import_module(module), name))).read_bytes()).hexdigest()


def _weights_digest(checkpoint: Path) -> str:
    weights = weights_of_net(read_checkpoint(checkpoint, "model.initial_weights"))
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _parser() -> OptionParser:
    description = "Run a method on a federation that is fixed to the byte, or print the table of results files."
    parser = OptionParser("bench", description, _EXAMPLE)
    add = parser.add_argument
    add("bench", metavar="BENCH", help=f"{_NAME}, docs/forgetbench.md")
    add("--method", metavar="CLASS", help="the method: FedProx, or my_method.MyMethod of a file in the working folder")
    add("--federation", default="digits", metavar="NAME", help=f"{', '.join(federations())}; default digits")
    add("--seeds", metavar="SEEDS", help="a part of the federation's seeds, such as [1,2]; default all")
    add("--jobs", type=int, default=1, metavar="N", help="runs at once; default 1")
    add("--out", type=Path, default=Path("forgetbench"), metavar="FOLDER", help="of results and runs; default forgetbench")
    add("--table", type=Path, nargs="+", metavar="FILE", help="results files, of anybody")
    return parser
