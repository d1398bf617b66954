"""forgetbench: a cell by a method in a file of one's own, and what results files and commands are refused for."""

import hashlib
import inspect
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from fork_server import FORKED_RUNS
from written_pages import DOCS

from fl_lightning import __version__, methods
from fl_lightning.bench.federation import Federation, check_options, digest_of, federation, federations
from fl_lightning.bench.results_file import Cell, CellRun, read_cell, write_cell
from fl_lightning.bench.table import table
from fl_lightning.command_line import bench
from fl_lightning.sweep.points import Run

BENCH = ["bench", "forgetbench"]
PERSONAL = ("APFL", "Ditto", "FedBN", "FedPer", "FedRep", "FedRoD", "LGFedAvg", "LocalOnly", "PFedMe")
METHOD = '''
from fl_lightning import FedProx


class MyFedProx(FedProx):
    """A method in a file of one's own."""
'''


def a_cell(**changes):
    """Of a made-up run of digits, whose numbers are easy to reckon with."""
    of = federation("digits")
    accuracies = {1: 0.5, 2: 0.7}
    runs = {
        seed: CellRun(
            of.partitions[seed],
            "samples",
            {
                "test_accuracy": accuracy,
                "forgetting/round/mean": 0.25,
                "forgetting/client_mean/mean": -0.125,
                "forgetting/from_best/last": 0.0,
                "MB_up": 1.0,
                "MB_down": 2.0,
                "processor_seconds": 20.0,
            },
        )
        for seed, accuracy in accuracies.items()
    }
    cell = Cell("digits", "mine.Mine", ["--model.mu", "0.1"], "0.1.0", "0123456789", "code", "", runs)
    return replace(cell, **changes)


def test_text_of_a_results_file_stays_in_its_cell(tmp_path):
    """Of anybody's file: neither a row of its own, nor a command for the terminal."""
    write_cell(a_cell(method="a|b\n| c | d |", version="0.1|\x1b[2J"), tmp_path / "a.json")
    lines = table([read_cell(tmp_path / "a.json")]).splitlines()
    assert [line for line in lines if line.startswith("| ")] == [lines[2], lines[3], lines[4]]
    assert lines[4].startswith(r"| `a\|b\n\| c \| d \|")
    assert "\x1b" not in lines[4]


def test_the_table_by_hand(tmp_path):
    """Mean .6, sample deviation .141, t of one degree of freedom 12.706; F_ki with the sign by which positive is forgetting."""
    write_cell(a_cell(), tmp_path / "a.json")
    row = table([read_cell(tmp_path / "a.json")]).splitlines()[4]
    assert row == (
        "| `Mine --model.mu 0.1` | 2 of 5 | 0.600 ± 0.141 (-0.671 to 1.871) "
        "| 0.250 | 0.125 | 0.000 | 3.000 | 20.0 | 0.1.0 `0123456` |"
    )


def test_unknown_seconds_are_no_zero():
    """Of a run that ended while its bench was stopped no one knows them."""
    cell = a_cell()
    without = {name: number for name, number in cell.runs[2].numbers.items() if name != "processor_seconds"}
    row = table([replace(cell, runs={**cell.runs, 2: replace(cell.runs[2], numbers=without)})]).splitlines()[4]
    assert row.endswith("| - (1 of 2) | 0.1.0 `0123456` |")


@pytest.mark.parametrize(("cost", "spent"), [("MB_up", 11.0), ("processor_seconds", 181.0)])
def test_the_most_accurate_is_first_and_a_costly_row_is_marked(cost, spent):
    """The budget of digits is 12 MB, of which 2 are down, and 180 s."""
    expensive = a_cell(method="Costly", options=[])
    run = expensive.runs[1]
    expensive = replace(expensive, runs={1: replace(run, numbers={**run.numbers, "test_accuracy": 0.9, cost: spent})})
    rows = table([a_cell(), expensive]).splitlines()[4:6]
    assert rows[0].startswith("| `Costly` | 1 of 5, over budget | 0.900 |")
    assert rows[1].startswith("| `Mine")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda content: content["runs"]["1"]["numbers"].update(test_accuracy=0.99), "is not as it was written"),
        (lambda content: content.pop("runs"), "is not a results file of forgetbench"),
        (lambda content: content.update(format="another"), "is not as it was written"),
    ],
)
def test_an_edited_file_is_refused(tmp_path, change, says):
    path = tmp_path / "a.json"
    write_cell(a_cell(), path)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"a.json {says}"):
        read_cell(path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda content: content.update(protocol="0"), "of another version of the federation digits"),
        (lambda content: content["runs"]["2"].update(partition="0"), "seed 2 with another partition"),
        (lambda content: content.update(federation="digit"), "--federation is digit, must be one of digits, "),
        (lambda content: content.update(options=["--data.num_clients", "5"]), "--data.num_clients is fixed by forgetbench"),
    ],
)
def test_a_file_of_another_protocol_is_refused(tmp_path, change, says):
    """Even where its digest was made anew."""
    path = tmp_path / "a.json"
    write_cell(a_cell(), path)
    content = json.loads(path.read_text())
    content.pop("digest")
    change(content)
    path.write_text(json.dumps({**content, "digest": digest_of(content)}))
    with pytest.raises(ValueError, match=says):
        read_cell(path)


def test_options_of_the_method_are_free():
    free = "--model.mu 1 --model.loss=CrossEntropy --model.optimizer.lr .1 --model.tasks LwF --model.engine auto --data.root x"
    check_options([*free.split(), "--model.tasks", '{"class_path": "LwF", "init_args": {"temperature": 2}}'])
    for key in (
        "model.net",
        "model.net.hidden",
        "model.local_steps",
        "model.tasks.source.first",
        "trainer.max_steps",
        "data.public_size",
        "config",
        "model",
    ):
        with pytest.raises(ValueError, match=rf"^--{key} is fixed by forgetbench"):
            check_options([f"--{key}", "1"])


@pytest.mark.parametrize("key", ["rounds_per_task", "source"])
@pytest.mark.parametrize("form", ['{"class_path": "LwF", "init_args": %s}', '{"class_path": "LwF", "dict_kwargs": %s}', "%s"])
def test_values_with_keys_of_their_own_are_looked_at(key, form):
    value = form % f'{{"{key}": 3}}'
    for option in (["--model.tasks", value], [f"--model.init_args.tasks={value}"]):
        with pytest.raises(ValueError, match=rf"^--model.tasks.{key} is fixed by forgetbench"):
            check_options(option)


def test_every_federation_is_whole():
    """A digest for every seed, configs that are bundled, columns of one name in all."""
    for of in federations().values():
        assert set(of.partitions) == set(of.seeds)
        assert len(set(of.partitions.values())) == len(of.seeds)
        assert len(of.digest) == 64
        assert list(of.measures) == ["accuracy", "F_t", "F_ki", "F"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bench", "speed", "--method", "FedAvg"], "BENCH is speed, must be forgetbench"),
        ([*BENCH], "give either --method CLASS, to run a cell, or --table FILES"),
        ([*BENCH, "--method", "FedAvg", "--federation", "digit"], "--federation is digit, must be one of digits, "),
        ([*BENCH, "--method", "FedAvg", "--seeds", "[9]"], "--seeds has 9, but digits has the seeds 1, 2, 3, 4, 5"),
        ([*BENCH, "--method", "FedAvg", "--jobs", "0"], "--jobs is 0, must be at least 1"),
        ([*BENCH, "--method", "FedAvg", "--trainer.max_steps", "2"], "--trainer.max_steps is fixed by forgetbench"),
        ([*BENCH, "--method", "FedAvgg", "--seeds", "[1]"], "FedAvgg"),
        ([*BENCH, "--table", "a.json", "--seeds", "[1]"], "--seeds does not combine with --table: leave it out"),
        ([*BENCH, "--table", "nowhere.json"], "--table has nowhere.json, which is not a file"),
    ],
)
def test_a_command_that_cannot_be_meant_is_one_line(main, tmp_path, arguments, says):
    code, _, error = main(*arguments)
    assert code == 1
    assert says in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--method FedDF", "--method is FedDF, which needs public samples, but no federation of forgetbench has any: "),
        ("--method Flashback --federation cifar10", "--method is Flashback, which needs public samples"),
        (
            "--method FedAvg --model.tasks EWC",
            "--method is FedAvg with the learner EWC, which needs tasks that each client learns",
        ),
        (
            "--method FedWeIT --federation cifar10",
            "--method is FedWeIT with the learner WeightedTransfer, which needs tasks that",
        ),
        (
            "--method FedProx --model.tasks LwF",
            "--method is FedProx with the learner LwF, which needs classes that arrive, but digits has all from the "
            "start: give --federation cifar100_tasks, or",
        ),
        ("--method FedAvg --model.tasks EWC --federation cifar100_tasks", "needs tasks that each client learns"),
        ("--method FedAvg --model.tasks null --federation cifar100_tasks", "FedAvg learns no tasks"),
        ("--method FedNTD --federation cifar100_tasks", "FedNTD overrides client_loss"),
        ("--method FedSGD", "FedSGD takes one step"),
        *(
            (f"--method {name}", f"--method is {name}, whose clients keep weights of their own")
            for name in ("APFL", "FedBN", "LocalOnly")
        ),
        ("--method FedAvg --model.personal [classifier.*] --federation cifar10", "clients keep weights of their own"),
        ("--method FedAvg --model.batch_norm_buffers local", "clients keep weights of their own"),
    ],
)
def test_what_cannot_take_part_is_refused_before_data_is_read(main, monkeypatch, tmp_path, options, says):
    monkeypatch.setattr("fl_lightning.data.FederatedDataModule.setup", lambda *_: pytest.fail("the data is read"))
    code, out, error = main(*BENCH, *options.split())
    assert (code, out) == (1, "")
    assert says in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_what_does_not_fit_the_data_is_refused_before_a_run(main, tmp_path):
    """The net is built first, whose layers a method may need."""
    code, out, error = main(*BENCH, "--method", "FedDecorr", "--model.class_layer", "nowhere")
    assert (code, out) == (1, "")
    assert "model.class_layer is 'nowhere', no layer of model.net MLP" in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_only_methods_that_cannot_take_part_have_local_steps_of_their_own():
    """Clients of the others take those of the protocol: ``head_epochs`` and ``inner_steps`` add no work to a row."""
    with_steps = {
        name
        for name in methods.__all__
        for argument in inspect.signature(getattr(methods, name)).parameters
        if argument.endswith(("_steps", "_epochs"))
    }
    assert {"FedRep", "PFedMe"} < with_steps <= {*PERSONAL, "FedDF", "Flashback"}


@pytest.mark.slow
def test_a_method_in_a_file_of_ones_own(main, monkeypatch, tmp_path):
    """The commands of docs/forgetbench.md on one seed: a cell in part, its results file, and the table that is made of it."""
    monkeypatch.setattr("fl_lightning.sweep.worker.subprocess", FORKED_RUNS)
    (tmp_path / "my_method.py").write_text(METHOD)
    page = (DOCS / "forgetbench.md").read_text()
    (command,) = re.findall(r"^fl-lightning (bench forgetbench --method .*)$", page, re.MULTILINE)
    code, out, error = main(*command.split(), "--seeds", "[1]")
    assert (code, error) == (0, "")
    (path,) = Path("forgetbench").glob("*.json")
    assert out.splitlines()[-1] == f"Results file: {path}"
    cell = read_cell(path)
    assert (cell.method, cell.options) == ("my_method.MyFedProx", ["--model.mu", "0.1"])
    assert cell.code == hashlib.sha256(METHOD.encode()).hexdigest()
    assert cell.runs[1].partition == federation("digits").partitions[1]
    assert cell.runs[1].numbers["rounds"] == 20
    code, out, _ = main(*BENCH, "--table", str(path))
    assert code == 0
    assert "| `MyFedProx --model.mu 0.1` | 1 of 5 | 0." in out


def test_runs_of_another_version_of_the_file_are_not_used(monkeypatch, tmp_path):
    """Each version of the user's file has its own folder of runs, and a method of the package one."""
    folders = []

    def swept(config, options, seeds, jobs, out):
        folders.append(out.name)
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("fl_lightning.command_line.bench._swept", swept)
    monkeypatch.setattr("fl_lightning.command_line.bench._checked_data", lambda command: {})
    for method, code in (("methods_of_mine.Mine", "1"), ("methods_of_mine.Mine", "2"), ("FedProx", "1"), ("FedProx", "2")):
        (tmp_path / "methods_of_mine.py").write_text(f"class Mine:\n    number = {code}\n")
        with pytest.raises(KeyboardInterrupt):
            bench.run(["forgetbench", "--method", method])
    mine, of_package = folders[:2], folders[2:]
    assert len({*mine}) == 2
    assert of_package == ["digits-FedProx"] * 2


def test_runs_of_another_commit_are_not_used(monkeypatch, tmp_path):
    """The results file would give them the commit and the digests of today's code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fl_lightning.command_line.bench._checked_data", lambda command: {})
    run = Path("forgetbench/runs/digits-FedProx", Run({}, 1).name, Path(federation("digits").config).stem, "version_0")
    run.mkdir(parents=True)
    (run / "results.json").write_text(f'{{"version": "{__version__}", "commit": "abc"}}')
    with pytest.raises(ValueError, match=r"^--out has forgetbench.*, made by .*commit abc, but this is .*another --out$"):
        bench.run(["forgetbench", "--method", "FedProx"])


def test_a_seed_that_another_worker_has_is_named(monkeypatch, tmp_path):
    """This one had nothing to do, and the run has no results yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fl_lightning.sweep.entered_sweep.Worker.work", lambda self: None)
    with pytest.raises(ValueError, match=r"^--out is out, where another worker is at seed 1: repeat the command"):
        bench._swept("digits_tce.yaml", [], [1], 1, Path("out"))


@pytest.mark.slow
def test_runs_begin_with_the_pretrained_net(main, monkeypatch, tmp_path):
    """A federation of digits in place of one of CIFAR-100: the digits 5 to 9, for a net that knows the others."""
    measures = {"accuracy": "test_accuracy", "F": "reference/old/lost"}
    small = Federation("small", "digits_other_five.yaml", [1], 1e6, 1e6, measures, {1: "p"}, "digits_first_five.yaml")
    monkeypatch.setattr("fl_lightning.bench.federation.federations", lambda: {"small": small})
    monkeypatch.setattr("fl_lightning.bench.table.federations", lambda: {"small": small})
    monkeypatch.setattr("fl_lightning.command_line.bench.data_digests", lambda data: ("p", "s"))
    monkeypatch.setattr("fl_lightning.sweep.worker.subprocess", FORKED_RUNS)
    code, _, error = main(*BENCH, "--federation", "small", "--method", "FedAvg")
    assert (code, error) == (0, "")
    (path,) = Path("forgetbench").glob("*.json")
    cell = read_cell(path)
    assert len(cell.initial_weights) == 64
    assert cell.runs[1].numbers["reference/old/lost"] > 0.5  # nearly all of what the net knew: docs/pretrained_nets.md
