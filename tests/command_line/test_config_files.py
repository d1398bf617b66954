"""Configs put together from pieces, and what the bundled ones say of themselves."""

import copy
import csv
import functools
import json
import operator
import re
import subprocess
import sys
import tomllib
from argparse import ArgumentError
from collections import Counter
from pathlib import Path

import pytest
import torch
import yaml
from config_values import read_config

from fl_lightning.command_line import config_files
from fl_lightning.command_line.bundled_configs import Row, bundled_configs, bundled_files, bundled_rows, describe_configs
from fl_lightning.command_line.config_files import whole_configs
from fl_lightning.command_line.federated_cli import FederatedCLI, run_cli
from fl_lightning.command_line.former_configs import FORMER_CONFIGS
from fl_lightning.data import Arrays, Joined
from fl_lightning.data.sources.superclasses import CIFAR100_TABLE
from fl_lightning.state.strict_yaml import load_yaml

CONFIGS = Path(__file__).parents[2] / "configs"
FITS = [name for name in bundled_configs() if not name.startswith("invert_")]  # the others are of fl-lightning attack


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write YAML files into the working folder, an empty one."""
    monkeypatch.chdir(tmp_path)

    def write(**files):
        for name, content in files.items():
            Path(f"{name}.yaml").write_text(yaml.safe_dump(content))

    return write


def whole(name):
    with whole_configs(["fit", "--config", name, "--seed_everything", "1"]) as arguments:
        assert arguments[:2] == ["fit", "--config"]
        assert arguments[3:] == ["--seed_everything", "1"]
        return yaml.safe_load(Path(arguments[2]).read_text()), Path(arguments[2])


def test_values_of_the_file_win_and_the_rest_is_the_bases(write):
    """A mapping is merged key by key, a list or a number replaced, and of several bases the later wins."""
    write(
        first={"data": {"n": 1, "list": [1, 2], "alpha": 0.1}, "trainer": {"max_steps": 5}},
        second={"data": {"n": 2}},
        mine={"base": ["first.yaml", "second.yaml"], "data": {"list": [3]}, "seed_everything": 7},
    )
    merged, path = whole("mine.yaml")
    assert merged == {"data": {"n": 2, "list": [3], "alpha": 0.1}, "trainer": {"max_steps": 5}, "seed_everything": 7}
    assert path.stem == "mine"  # the run's folder is named after it
    assert not path.exists()  # it lives as long as the command line that has it


def test_another_class_leaves_the_bases_arguments_behind(write):
    """Arguments of one optimizer mean nothing to another; those of the same class stay."""
    write(
        piece={
            "optimizer": {"class_path": "SGD", "init_args": {"momentum": 0.9}},
            "net": {"class_path": "A", "init_args": {"b": 1}},
        },
        mine={
            "base": "piece.yaml",
            "optimizer": {"class_path": "Adam", "init_args": {"lr": 1}},
            "net": {"init_args": {"c": 2}},
        },
    )
    assert whole("mine.yaml")[0] == {
        "optimizer": {"class_path": "Adam", "init_args": {"lr": 1}},
        "net": {"class_path": "A", "init_args": {"b": 1, "c": 2}},
    }


def test_another_method_keeps_what_methods_have_in_common(write):
    write(
        piece={"model": {"class_path": "FedAvg", "init_args": {"net": "CNN2", "local_steps": 3}}},
        mine={"base": "piece.yaml", "model": {"class_path": "FedProx", "init_args": {"mu": 0.1}}},
    )
    assert whole("mine.yaml")[0]["model"] == {
        "class_path": "FedProx",
        "init_args": {"net": "CNN2", "local_steps": 3, "mu": 0.1},
    }


def test_bases_have_bases(write):
    write(a={"x": {"a": 1, "b": 1, "c": 1}}, b={"base": "a.yaml", "x": {"b": 2, "c": 2}}, c={"base": "b.yaml", "x": {"c": 3}})
    assert whole("c.yaml")[0] == {"x": {"a": 1, "b": 2, "c": 3}}


def test_a_config_without_a_base_is_taken_as_it_is(write):
    write(mine={"x": 1})
    assert whole("mine.yaml")[1] == Path("mine.yaml")


def test_a_base_is_looked_for_next_to_the_file_then_here_then_among_ours(write, tmp_path):
    """A piece next to the config wins over one of the same name in the working folder, and that over a bundled one."""
    (tmp_path / "folder").mkdir()
    write(here={"x": "here"}, both={"x": "here"}, legate={"x": "here"})
    for name, content in {"both": {"x": "next to"}, "mine": {"base": ["both.yaml"]}}.items():
        (tmp_path / "folder" / f"{name}.yaml").write_text(yaml.safe_dump(content))
    assert whole("folder/mine.yaml")[0] == {"x": "next to"}
    (tmp_path / "folder" / "mine.yaml").write_text("base: [here.yaml]")
    assert whole("folder/mine.yaml")[0] == {"x": "here"}
    (tmp_path / "folder" / "mine.yaml").write_text("base: legate.yaml")
    assert whole("folder/mine.yaml")[0] == {"x": "here"}
    Path("legate.yaml").unlink()
    assert whole("folder/mine.yaml")[0]["data"]["num_clients"] == 100


@pytest.mark.parametrize("name", ["cifar10_tce.yaml", "mnist_tasks_ewc.yaml"])
def test_a_bundled_config_is_based_on_bundled_ones(write, name):
    """A file and a combination are what they are, though the working folder has files of their pieces' names."""
    whole_one = read_config(name)
    write(**{piece: {"seed_everything": 7} for piece in ("cifar10", "legate", "tce_table1", "mnist_tasks", "tasks_ewc")})
    assert read_config(name) == whole_one
    write(**{name.removesuffix(".yaml"): {"seed_everything": 7}})
    assert read_config(name) == {"seed_everything": 7}  # the file of the working folder comes first


@pytest.mark.parametrize(
    "name",
    ["cifar10_tce.yaml", "cifar10_fedadam.yaml", "flashback_femnist_500_fedreg.yaml", "fedweit_noniid50_fedprox_apd.yaml"],
)
def test_a_row_is_its_configs_and_its_values(parser, name):
    """Its name, and each config after a --config and each value after its key, are the same settings."""
    row = bundled_rows()[name]
    values = [word for key, value in row.values.items() for word in (f"--{key}", str(value))]
    assert len(row.base) > 1 or values
    parsed = []
    for names, options in (([name], []), (row.base, values)):
        with whole_configs(["fit", *(word for one in names for word in ("--config", one)), *options]) as arguments:
            parsed.append(parser.parse_args(arguments[1:]))
            del parsed[-1]["config"]
    assert parsed[0] == parsed[1]


def test_values_of_a_row_are_arguments_of_classes(monkeypatch):
    """A text in the place of a class is another class; what a class takes lies under its init_args."""
    values = {"model.net": "B", "model.net.width": 3, "model.optimizer.lr": 0.5, "data.alpha": 0.1, "trainer.max_steps": 2}
    rows = {
        "first.yaml": Row("first.yaml", "", "", "", ("digits_fedweit.yaml",), {"model.net": "A", "model.net.depth": 1}),
        "mine.yaml": Row("mine.yaml", "", "", "", ("first.yaml",), values),
    }
    monkeypatch.setattr(config_files, "bundled_rows", lambda: rows)
    merged = whole("mine.yaml")[0]
    assert merged["model"]["init_args"]["net"] == {"class_path": "B", "init_args": {"width": 3}}
    assert merged["model"]["init_args"]["optimizer"] == {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.5}}
    assert (merged["data"]["alpha"], merged["data"]["source"], merged["trainer"]["max_steps"]) == (0.1, "digits", 2)


@pytest.mark.parametrize("name", FORMER_CONFIGS)
def test_a_former_config_names_the_options_that_say_the_same(write, name):
    with pytest.raises(FileNotFoundError, match=f"config is {name}, which is no more: --") as raised:
        whole(name)
    assert str(raised.value) == f"config is {name}, which is no more: {FORMER_CONFIGS[name]} says the same"
    configs = re.findall(r"--config (\S+)", FORMER_CONFIGS[name])
    assert set(configs) <= {*bundled_files(), *bundled_configs()}


def test_a_former_config_comes_before_a_near_one():
    with pytest.raises(FileNotFoundError) as raised:
        whole("fedreg_figure_c2.yaml")
    cure = "--config fedreg_mnist_two_class_fedreg.yaml --model.pseudo_step 0.1 says the same"
    assert str(raised.value) == f"config is fedreg_figure_c2.yaml, which is no more: {cure}"


@pytest.mark.parametrize(
    ("files", "error", "message"),
    [
        ({"mine": {"base": "nowhere.yaml"}}, FileNotFoundError, "base in mine.yaml is nowhere.yaml, neither a file here nor"),
        ({"mine": {"base": "cifar10_tcee.yaml"}}, FileNotFoundError, "did you mean cifar10_tce.yaml?"),
        ({"mine": {"base": "mine.yaml"}}, ValueError, "config is mine.yaml, which is based on itself"),
        ({"mine": {"base": "b.yaml"}, "b": {"base": "mine.yaml"}}, ValueError, "config is mine.yaml, which is based on itself"),
        ({"mine": {"base": "b.yaml"}, "b": [1]}, ValueError, "config is b.yaml, which holds no keys"),
        ({"mine": {"base": 3}}, ValueError, "base in mine.yaml is 3, must be the name of a file or a list of names"),
        ({"mine": {"base": [["b"]]}}, ValueError, r"base in mine.yaml is \[\['b'\]\], must be"),
    ],
)
def test_a_mistaken_base_is_one_line(write, files, error, message):
    write(**files)
    with pytest.raises(error, match=message) as raised:
        whole("mine.yaml")
    assert "\n" not in str(raised.value)


class _Stop(Exception):
    """The parser is built, and nothing else is wanted."""


@pytest.fixture(scope="module")
def parser():
    """That of ``fit``; building it anew for every config would take a minute."""
    built = []

    class ParserOnly(FederatedCLI):
        def parse_arguments(self, parser, args):
            built.append(self._parser("fit"))
            raise _Stop

    with pytest.raises(_Stop):
        run_cli(["fit"], ParserOnly)
    return built[0]


def settings(value, path=(), kind=None):
    """Every value of a config with its key and the class that takes it, and every class with all the keys that it is given."""
    if not isinstance(value, dict):
        return {(path, kind, repr(value))}
    kind = value.get("class_path", kind)
    here = {(path, kind, *sorted(value.get("init_args", value)))}
    return here.union(*(settings(part, (*path, key), kind) for key, part in value.items()))


def fewest(configs):
    """Names of configs that hold every setting of all of them: the one with the most new settings first."""
    of = {name: settings(config) for name, config in configs.items()}
    missing, chosen = set().union(*of.values()), []
    while missing:
        chosen.append(max(of, key=lambda name: len(of[name] & missing)))
        missing -= of[chosen[-1]]
    return chosen


VALUES = {name: read_config(name) for name in FITS}
PARSED = fewest(VALUES)


@pytest.mark.parametrize("name", PARSED)
def test_bundled_configs_are_what_the_command_line_takes(parser, name):
    """The parser looks at each value, and at the keys of each class, by itself: each stands in one of these configs."""
    with whole_configs(["fit", "--config", name]) as arguments:
        config = parser.parse_args(arguments[1:])
    assert config.trainer.max_steps > 0
    assert config.model.class_path.startswith("fl_lightning.")


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("model.init_args.mu", 0.1, r"\bmu\b"),
        ("model.init_args.local_epochs", "initial", "local_epochs"),
        ("model.init_args.net.init_args.hidden", [32], "hidden"),
        ("data.partition.class_path", "fl_lightning.models.ResNet18", "partition"),
        ("data.augment", [{"class_path": "fl_lightning.data.RandomCrop", "init_args": {"share": 0.5}}], "share"),
    ],
)
def test_a_faulty_config_is_among_those_that_are_parsed(parser, write, key, value, fault):
    """Keys and values that are right in other configs, and wrong for the class or at the key where they stand in this one."""
    name = "cifar100_20_clients_fedavg.yaml"
    assert name not in PARSED
    faulty = copy.deepcopy(VALUES[name])
    *above, last = key.split(".")
    functools.reduce(operator.getitem, above, faulty)[last] = value
    assert name in fewest({**VALUES, name: faulty})
    write(faulty=faulty)
    with pytest.raises(ArgumentError, match=fault):
        parser.parse_args(["--config", "faulty.yaml"])


@pytest.mark.parametrize("name", [name for name in FITS if not name.startswith("digits_")])
def test_bundled_configs_name_their_table_and_number(name):
    """Paper, table or figure and setting, and the method; what it says of the rate is what is set."""
    row = bundled_rows()[name]
    assert re.fullmatch(r"[A-Z][\w -]+: .{20,}", row.paper)
    assert row.table
    assert row.text
    rate = re.search(r"lr ([\d.]+)$", row.text)
    optimizer = read_config(name)["model"]["init_args"]["optimizer"]["init_args"]
    assert optimizer["lr"] > 0
    assert rate is None or optimizer["lr"] == float(rate[1])


STREAMS = {  # of the configs on task streams: tasks of a client, clients, images of a class that are enough
    "fedweit_overlapped_fedprox_stable_sgd.yaml": (10, 5, 20),
    "fedweit_overlapped_20_tasks_fedweit.yaml": (20, 5, 20),
    "fedweit_overlapped_20_clients_apd.yaml": (10, 20, 40),
    "fedweit_overlapped_100_clients_fedweit.yaml": (10, 100, 200),
    "fedweit_overlapped_5_epochs.yaml": (10, 5, 20),
    "fedweit_noniid50_fedavg_apd.yaml": (10, 5, 4),
    "fedweit_noniid50_asynchronous.yaml": (10, 5, 4),
    "fedweit_noniid50_sparse_apd.yaml": (10, 5, 4),
    "fedweit_noniid50_resnet18_fedprox_apd.yaml": (10, 5, 4),
    "mnist_tasks_fedweit.yaml": (5, 5, 50),
}
NONIID50 = {"CIFAR100": 15, "FaceScrub": 16, "GTSRB": 9} | dict.fromkeys(
    ("CIFAR10", "FashionMNIST", "MNIST", "notMNIST", "SVHN"), 2
)
NUM_CLASSES = {"CIFAR100": 100, "FaceScrub": 100, "GTSRB": 43}  # ten of all others


def blank(per_class, name, shape):
    """A set with the shapes and numbers of classes of one that is not here."""
    with open(CIFAR100_TABLE, newline="") as table:
        names = sorted(row["class"] for row in csv.DictReader(table)) if name == "CIFAR100" else None
    labels = torch.arange(NUM_CLASSES.get(name, 10)).repeat(per_class)
    return Arrays(torch.zeros(1, *shape, dtype=torch.uint8).expand(len(labels), *shape), labels, classes=names)


@pytest.mark.parametrize("name", STREAMS)
def test_configs_on_task_streams_build_their_data_and_net(parser, name):
    """On blank images: so many tasks and clients, and a net for the five classes of a task, or two."""
    num_tasks, num_clients, per_class = STREAMS[name]
    with whole_configs(["fit", "--config", name]) as arguments:
        config = parser.parse_args(arguments[1:])
    data, model = (parser.instantiate(config)[key] for key in ("data", "model"))
    if isinstance(data.source, Joined):
        data.source.sources = {name: blank(per_class, name, (1, 28, 28)) for name in data.source.sources}
    else:
        data.source = blank(per_class, data.source.name, (1, 28, 28) if data.source.name == "MNIST" else (3, 32, 32))
    data.setup()
    assert data.streams.order.shape == (num_clients, num_tasks)
    if "noniid50" in name:  # Table A.5 of the FedWeIT paper; names of a task's classes begin with that of their set
        assert Counter(task.split("/")[0] for task in data.streams.names) == NONIID50
        assert Counter(len(task.split(", ")) for task in data.streams.names) == {5: 49, 3: 1}
    with torch.device("meta"):
        net = model._build_net(data.input_shape, len(data.classes))
        batch = torch.empty(1, *data.input_shape)
        assert net.eval()(batch).shape == (1, 2 if name.startswith("mnist") else 5)


@pytest.mark.parametrize("name", ["cifar100_classes_joint.yaml", "cifar100_classes_mfcl.yaml"])
def test_configs_of_arriving_classes_build_their_data_and_net(parser, name):
    """On blank images: 10 tasks of 10 classes for 10 clients, and a net with a row for each of 100."""
    with whole_configs(["fit", "--config", name]) as arguments:
        config = parser.parse_args(arguments[1:])
    data, model = (parser.instantiate(config)[key] for key in ("data", "model"))
    data.source = blank(40, "CIFAR100", (3, 32, 32))
    data.setup()
    assert data.class_streams.num_seen == tuple(range(10, 101, 10))
    assert data.num_clients == data.participation.size == 10
    assert data.class_streams.mixed == ("joint" in name)
    assert model._build_net(data.input_shape, len(data.classes)).classifier.out_features == 100


@pytest.mark.parametrize("name", [name for name in FITS if "tasks" in read_config(name)["data"]])
def test_configs_on_task_streams_have_rounds_for_all_tasks(name):
    config = read_config(name)
    settings = config["data"]["tasks"]["init_args"]
    num_tasks = settings.get("num_tasks", settings.get("tasks_per_client", 5))
    assert config["trainer"]["max_steps"] == num_tasks * config["model"]["init_args"]["rounds_per_task"]


def test_no_setting_is_written_down_in_twenty_files():
    """Lines that set a value occur in few files; keys that only open a mapping may."""
    lines = [set(path.read_text().splitlines()) for path in CONFIGS.rglob("*.yaml")]
    counts = {line: sum(line in file for file in lines) for line in set().union(*lines)}
    settings = {line: count for line, count in counts.items() if re.match(r" *\w+: \S", line) and not line.startswith("base")}
    assert max(settings.values()) < 20, max(settings.items(), key=lambda item: item[1])


def test_lines_are_as_short_as_those_of_the_code():
    """As pyproject.toml says for ruff, which reads no YAML."""
    limit = tomllib.loads((CONFIGS.parent / "pyproject.toml").read_text())["tool"]["ruff"]["line-length"]
    long = [path.name for path in CONFIGS.rglob("*.yaml") for line in path.read_text().splitlines() if len(line) > limit]
    assert long == []


def test_names_are_unique():
    """A bare name means one config, in whichever folder it is."""
    files = [path.name for path in CONFIGS.rglob("*.yaml") if path.name != "rows.yaml"]
    combinations = [row.name for row in bundled_rows().values() if row.base]
    assert len({*files, *combinations}) == len(files) + len(combinations)
    assert set(bundled_files()) == set(files)
    tables = [table for path in CONFIGS.glob("*/rows.yaml") for table in load_yaml(path.read_text())["tables"].values()]
    assert sorted(name for table in tables for name in table) == bundled_configs()


def test_every_file_is_a_row_or_a_piece():
    """A file next to a rows.yaml is a row of it, and a piece is in use, but for methods, which combine with the user's data."""
    rows = {name for name, row in bundled_rows().items() if not row.base}
    listed = {path.name for path in CONFIGS.glob("*/*.yaml") if (path.parent / "rows.yaml").is_file()} - {"rows.yaml"}
    assert rows == listed
    used = {name for row in bundled_rows().values() for name in row.base}
    used = used.union(*(bases_of(path) for path in bundled_files().values()))
    unused = set(bundled_files()) - rows - used
    assert {bundled_files()[name].parent.name for name in unused} <= {"methods"}


def bases_of(path):
    base = load_yaml(path.read_text()).get("base", [])
    return {base} if isinstance(base, str) else set(base)


def num_values(content):
    """How many values a config sets, those in lists included."""
    if isinstance(content, dict | list):
        return sum(map(num_values, content.values() if isinstance(content, dict) else content))
    return 1


def test_a_row_with_the_values_of_another_says_so():
    """It is based on that one alone, and its text names it."""
    names_of: dict[str, list[str]] = {}
    for name in bundled_rows():
        names_of.setdefault(json.dumps(VALUES.get(name) or read_config(name), sort_keys=True, default=str), []).append(name)
    for names in names_of.values():
        (first,) = (name for name in names if len(names) == 1 or set(bundled_rows()[name].base).isdisjoint(names))
        for name in set(names) - {first}:
            row = bundled_rows()[name]
            assert row.base == (first,)
            assert row.values == {}
            assert f"as {first}" in row.text


def test_a_file_says_more_than_one_option():
    """Less than that stands in the row that needs it."""
    for name, path in bundled_files().items():
        content = load_yaml(path.read_text())
        content.pop("base", None)
        assert num_values(content) > 1, name


def test_bases_lie_two_files_deep_at_most():
    """A reader of a row opens its settings and those of its paper."""
    for name, path in bundled_files().items():
        for base in bases_of(path):
            assert not bases_of(bundled_files()[base]), f"{name} is based on {base}, which has a base"


def test_heads_are_short():
    """What a row is, and where a value departs; the papers' settings say whose they are at length."""
    for name, row in bundled_rows().items():
        if not row.base:
            lines = bundled_files()[name].read_text().splitlines()
            assert sum(line.startswith("#") for line in lines) <= 2, name


def test_the_list_has_every_config_on_a_line():
    """As the command prints it: below its table, and that below its paper, each of which is there once."""
    result = subprocess.run(
        [Path(sys.executable).with_name("fl-lightning"), "configs"], capture_output=True, text=True, check=True
    )
    assert result.stdout.rstrip("\n") == describe_configs()
    lines = result.stdout.splitlines()
    papers = [line for line in lines if line and not line.startswith(" ")]
    assert len(set(papers)) == len(papers) == len({row.paper for row in bundled_rows().values()})
    listed, paper, table = [], None, None
    for line in filter(None, lines):
        if line.startswith("    "):
            row = bundled_rows()[line.split()[0]]
            assert (row.paper, row.table) == (paper, table)
            assert line.endswith(f"  {row.text}")
            listed.append(row.name)
        elif line.startswith("  "):
            table = line.strip()
        else:
            paper = line
    assert sorted(listed) == bundled_configs()


def test_a_base_that_is_named_again_and_again_is_read_once(tmp_path):
    """Thirty files that each name the next three times: 3^30 readings otherwise."""
    for level in range(30):
        (tmp_path / f"{level}.yaml").write_text(f"base: [{', '.join([f'{level + 1}.yaml'] * 3)}]\nlevel_{level}: {level}\n")
    (tmp_path / "30.yaml").write_text("deepest: 1\n")
    assert read_config(str(tmp_path / "0.yaml")) == {"deepest": 1, **{f"level_{level}": level for level in range(30)}}


def test_a_chain_of_bases_has_an_end(tmp_path):
    for level in range(2000):
        (tmp_path / f"{level}.yaml").write_text(f"base: {level + 1}.yaml\n")
    with pytest.raises(ValueError, match=r"config is 0\.yaml, under which bases lie deeper than 50 levels: shorten the chain"):
        read_config(str(tmp_path / "0.yaml"))
