"""Configs based on others, and the bundled ones."""

import copy
import csv
import functools
import json
import operator
import random
import re
import subprocess
import sys
import tomllib
from argparse import ArgumentError
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from fl_lightning.command_line.trainer_command import trainer_parser
from fl_lightning.config_files.bundled import bundled_files, bundled_rows, describe_configs
from fl_lightning.config_files.reading import config_text, config_values
from fl_lightning.data import Arrays, Joined
from fl_lightning.data.sources.superclasses import CIFAR100_TABLE
from fl_lightning.report.runs import flatten
from fl_lightning.state.strict_yaml import load_yaml
from fl_lightning.tasks.classes.embeddings import ClassEmbeddings

CONFIGS = Path(__file__).parents[2] / "configs"
FITS = [name for name in bundled_rows() if not name.startswith("invert_")]  # the others are of fl-lightning attack


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write YAML files into the working folder, an empty one."""
    monkeypatch.chdir(tmp_path)

    def write(**files):
        for name, content in files.items():
            Path(f"{name}.yaml").write_text(yaml.safe_dump(content))

    return write


def test_values_of_the_file_win_and_the_rest_is_the_bases(write):
    """A mapping is merged key by key, a list or a number replaced, and of several bases the later wins."""
    write(
        first={"data": {"n": 1, "list": [1, 2], "alpha": 0.1}, "trainer": {"max_steps": 5}},
        second={"data": {"n": 2}},
        mine={"base": ["first.yaml", "second.yaml"], "data": {"list": [3]}, "seed_everything": 7},
    )
    assert config_values("mine.yaml") == {
        "data": {"n": 2, "list": [3], "alpha": 0.1},
        "trainer": {"max_steps": 5},
        "seed_everything": 7,
    }


def test_another_class_leaves_the_bases_arguments_behind(write):
    """Arguments of one optimizer mean nothing to another; those of the same class stay."""
    write(
        piece={
            "optimizer": {"class_path": "SGD", "init_args": {"momentum": 0.9}, "dict_kwargs": {"d": 1}},
            "net": {"class_path": "A", "init_args": {"b": 1}},
        },
        mine={
            "base": "piece.yaml",
            "optimizer": {"class_path": "Adam", "init_args": {"lr": 1}},
            "net": {"init_args": {"c": 2}},
        },
    )
    assert config_values("mine.yaml") == {
        "optimizer": {"class_path": "Adam", "init_args": {"lr": 1}},
        "net": {"class_path": "A", "init_args": {"b": 1, "c": 2}},
    }


RATE = {"init_args": {"lr": 0.25}}


@pytest.mark.parametrize(
    ("below", "over", "both"),
    [
        ("torch.optim.Adam", RATE, {"class_path": "torch.optim.Adam", **RATE}),
        ({"class_path": "torch.optim.SGD", **RATE}, {"class_path": "SGD"}, {"class_path": "SGD", **RATE}),
        ({"class_path": "SGD", **RATE}, "torch.optim.SGD", {"class_path": "torch.optim.SGD", **RATE}),
        ({"class_path": "torch.optim.sgd.SGD", **RATE}, "torch.optim.SGD", {"class_path": "torch.optim.SGD", **RATE}),
        ({"class_path": "mine.SGD", **RATE}, {"class_path": "torch.optim.SGD"}, {"class_path": "torch.optim.SGD"}),
        ({"class_path": "torch.optim.SGD", **RATE}, "torch.optim.Adam", "torch.optim.Adam"),
        ("digits", {"class_path": "Npz", "init_args": {"path": "x"}}, {"class_path": "Npz", "init_args": {"path": "x"}}),
        ("00:12:00:00", {"hours": 2}, {"hours": 2}),
    ],
)
def test_a_class_is_the_same_in_every_spelling(write, below, over, both):
    """As a text, by its name or its path; what is no class is replaced."""
    write(piece={"key": below}, mine={"base": "piece.yaml", "key": over})
    assert config_values("mine.yaml") == {"key": both}


def test_another_method_keeps_what_methods_have_in_common(write):
    write(
        piece={"model": {"class_path": "FedAvg", "init_args": {"net": "CNN2", "local_steps": 3}}},
        mine={"base": "piece.yaml", "model": {"class_path": "FedProx", "init_args": {"mu": 0.1}}},
        short={"base": "piece.yaml", "model": "FedProx"},
    )
    assert config_values("short.yaml")["model"] == {"class_path": "FedProx", "init_args": {"net": "CNN2", "local_steps": 3}}
    assert config_values("mine.yaml")["model"] == {
        "class_path": "FedProx",
        "init_args": {"net": "CNN2", "local_steps": 3, "mu": 0.1},
    }


def test_bases_have_bases(write):
    write(a={"x": {"a": 1, "b": 1, "c": 1}}, b={"base": "a.yaml", "x": {"b": 2, "c": 2}}, c={"base": "b.yaml", "x": {"c": 3}})
    assert config_values("c.yaml") == {"x": {"a": 1, "b": 2, "c": 3}}


def test_a_base_is_looked_for_next_to_the_file_then_here_then_among_ours(write, tmp_path):
    """A piece next to the config wins over one of the same name in the working folder, and that over a bundled one."""
    (tmp_path / "folder").mkdir()
    write(here={"x": "here"}, both={"x": "here"}, cifar10_fedavg={"x": "here"})
    for name, content in {"both": {"x": "next to"}, "mine": {"base": ["both.yaml"]}}.items():
        (tmp_path / "folder" / f"{name}.yaml").write_text(yaml.safe_dump(content))
    assert config_values("folder/mine.yaml") == {"x": "next to"}
    (tmp_path / "folder" / "mine.yaml").write_text("base: [here.yaml]")
    assert config_values("folder/mine.yaml") == {"x": "here"}
    (tmp_path / "folder" / "mine.yaml").write_text("base: cifar10_fedavg.yaml")
    assert config_values("folder/mine.yaml") == {"x": "here"}
    Path("cifar10_fedavg.yaml").unlink()
    assert config_values("folder/mine.yaml")["data"]["num_clients"] == 100


def test_a_bundled_config_is_based_on_bundled_ones(write):
    """By its name and by its path, even if the working folder has a file of its base's name."""
    whole_one = config_values("cifar10_tce_bn.yaml")
    write(cifar10_tce={"seed_everything": 7})
    assert config_values("cifar10_tce_bn.yaml") == whole_one
    assert config_values(str(CONFIGS / "tce" / "cifar10_tce_bn.yaml")) == whole_one
    write(cifar10_tce_bn={"seed_everything": 7})
    assert config_values("cifar10_tce_bn.yaml") == {"seed_everything": 7}  # the file of the working folder comes first


@pytest.mark.parametrize("name", ["cifar10_tce.yaml", "cifar10_tce_bn.yaml", "fedweit_noniid50_ewc.yaml", "tasks_ewc.yaml"])
def test_a_config_is_printed_whole(write, name):
    """Its head and all of its values, without a base: a copy is the same config."""
    text = config_text(name)
    assert yaml.safe_load(text) == config_values(name)
    lines = bundled_files()[name].read_text().splitlines()
    head = lines[: [line.startswith("#") for line in lines].index(False)]
    assert text.splitlines()[: len(head)] == head
    if "base" not in load_yaml("\n".join(lines)):
        assert text.splitlines() == lines


def test_a_config_of_the_user_is_printed_whole(write):
    write(mine={"base": "digits_tce.yaml", "trainer": {"max_steps": 5}})
    printed = yaml.safe_load(config_text("mine.yaml"))
    assert (printed["trainer"]["max_steps"], printed["data"]["source"]) == (5, "digits")
    with pytest.raises(FileNotFoundError, match=r"config is digits_tc.yaml, neither .* did you mean digits_tce.yaml\?"):
        config_text("digits_tc.yaml")


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
        config_values("mine.yaml")
    assert "\n" not in str(raised.value)


@pytest.fixture(scope="module")
def parser():
    """That of ``fit``."""
    return trainer_parser("fit")


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


VALUES = {name: config_values(name) for name in FITS}
PARSED = fewest(VALUES)


@pytest.mark.parametrize("name", PARSED)
@pytest.mark.one_in(4)
def test_bundled_configs_are_what_the_command_line_takes(parser, name):
    """The parser looks at each value, and at the keys of each class, by itself: each stands in one of these configs."""
    config = parser.parse_args(["--config", name])
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
@pytest.mark.one_in(4)
def test_bundled_configs_name_their_table_and_number(name):
    """Paper, table or figure and setting, and the method; what it says of the rate is what is set."""
    row = bundled_rows()[name]
    assert re.fullmatch(r"[A-Z][\w -]+: .{20,}", row.paper)
    assert row.table
    assert row.text
    rate = re.search(r"lr ([\d.]+)$", row.text)
    optimizer = VALUES[name]["model"]["init_args"]["optimizer"]["init_args"]
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
@pytest.mark.one_in(3)
def test_configs_on_task_streams_build_their_data_and_net(parser, name):
    """On blank images: so many tasks and clients, and a net for the five classes of a task, or two."""
    num_tasks, num_clients, per_class = STREAMS[name]
    config = parser.parse_args(["--config", name])
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
        net = model.net.built(data.input_shape, len(data.classes), seed=0)
        batch = torch.empty(1, *data.input_shape)
        assert net.eval()(batch).shape == (1, 2 if name.startswith("mnist") else 5)


# data/loader.py of the FedWeIT authors: the tasks of clients 0 to 4. A letter for each set, its task's number.
AUTHORS_TASKS = """
    C5 C13 f0 C14 s1 t0 n1 C8 f13 C4
    C2 t5 f14 t4 n0 m0 f2 f15 C1 F1
    f11 s0 f10 f6 f7 C3 C10 m1 f1 t1
    F0 C15 f3 c1 C7 f8 c0 f9 C0 C6
    t7 f5 t6 t3 t2 C12 C11 C9 f12 f4
"""
SETS = {"c": "CIFAR10", "C": "CIFAR100", "F": "FashionMNIST", "f": "FaceScrub", "m": "MNIST", "n": "notMNIST", "s": "SVHN"}
SETS |= {"t": "GTSRB"}


def test_the_authors_tasks_of_noniid50(parser):
    """Their clients, order and classes: labels shuffled by Python's generator with the seed 777, cut into fives."""
    data = parser.instantiate(parser.parse_args(["--config", "fedweit_noniid50_authors_tasks.yaml"])).data
    data.source.sources = {name: blank(4, name, (1, 28, 28)) for name in data.source.sources}
    data.setup()
    dataset, streams = data.source.load(Path()), data.streams
    labels = torch.cat([dataset.train.targets, dataset.test.targets])
    rows = [line.split() for line in AUTHORS_TASKS.split("\n")[1:-1]]
    assert [len(row) for row in rows] == [10] * 5
    for client, row in enumerate(rows):
        for position, (letter, *number) in enumerate(row):
            name, index = SETS[letter], int("".join(number))
            classes = np.unique([label for label, source in enumerate(dataset.sources) if source == name])
            random.seed(777)
            random.shuffle(classes)
            held = torch.cat([streams.indices(client, position, part) for part in ("test", "validation")])
            held = torch.cat([held, streams.shards.train_indices(client * 10 + position)])
            assert sorted(labels[held].tolist()) == sorted(4 * classes[5 * index : 5 * index + 5].tolist()), (client, position)


@pytest.mark.parametrize("name", ["cifar100_classes_joint.yaml", "cifar100_classes_mfcl.yaml", "cifar100_classes_target.yaml"])
def test_configs_of_arriving_classes_build_their_data_and_net(parser, name):
    """On blank images: 10 tasks of 10 classes for 10 clients, and a net with a row for each of 100."""
    config = parser.parse_args(["--config", name])
    data, model = (parser.instantiate(config)[key] for key in ("data", "model"))
    data.source = blank(40, "CIFAR100", (3, 32, 32))
    data.setup()
    assert data.class_streams.num_seen == tuple(range(10, 101, 10))
    assert data.num_clients == data.participation.size == 10
    assert data.class_streams.repeating == ("joint" in name)
    assert model.net.built(data.input_shape, len(data.classes), seed=0).classifier.out_features == 100


def test_the_documented_embeddings_are_what_the_config_of_lander_reads(tmp_path, monkeypatch):
    """The page's lines write the file of its name in the working folder: of ten digits, pairs of letters."""
    monkeypatch.chdir(tmp_path)
    page = (CONFIGS.parent / "docs" / "arriving_classes.md").read_text()
    (lines,) = re.findall(r"```python\n(import numpy.*?)```", page, re.DOTALL)
    exec(lines, {})
    tasks = config_values("digits_classes_lander.yaml")["model"]["init_args"]["tasks"]
    rows = ClassEmbeddings(tasks["init_args"]["embeddings"]).of([str(digit) for digit in range(10)])
    assert rows.sum(dim=1).tolist() == [len(name) + 1 for name in "zero one two three four five six seven eight nine".split()]
    assert int(rows[6] @ rows[7]) == 1  # six and seven both begin with s


@pytest.mark.parametrize("name", [name for name in FITS if "tasks" in VALUES[name]["data"]])
def test_configs_on_task_streams_have_rounds_for_all_tasks(name):
    config = VALUES[name]
    settings = config["data"]["tasks"]["init_args"]
    num_tasks = settings.get("num_tasks", settings.get("tasks_per_client", 5))
    model = config["model"]["init_args"]
    pace = model["tasks"]["init_args"] if "tasks" in model else model
    assert config["trainer"]["max_steps"] == num_tasks * pace["rounds_per_task"]


def test_lines_are_as_short_as_those_of_the_code():
    """As pyproject.toml says for ruff, which reads no YAML."""
    limit = tomllib.loads((CONFIGS.parent / "pyproject.toml").read_text())["tool"]["ruff"]["line-length"]
    long = [path.name for path in CONFIGS.rglob("*.yaml") for line in path.read_text().splitlines() if len(line) > limit]
    assert long == []


def test_names_are_unique():
    """A bare name means one config, in whichever folder it is."""
    names = [path.name for path in CONFIGS.rglob("*.yaml")]
    assert sorted(names) == sorted(bundled_files())


METHODS = {  # a row of each table of settings of methods, as a row and the settings
    "mnist_tasks_fedavg": "tasks_apd tasks_ewc tasks_fedcurv tasks_fedprox tasks_fedweit tasks_stable_sgd",
    "cifar100_classes_fedavg": (
        "classes_ewc classes_fedprox classes_glfc classes_icarl classes_lander classes_lwf classes_mfcl classes_replay "
        "classes_target"
    ),
    "flashback_cifar10_beta_0.1_fedavg": "fedntd flashback moon",
}
WITH_ROWS = {method: row for row, methods in METHODS.items() for method in methods.split()}


@pytest.mark.parametrize(("method", "row"), WITH_ROWS.items())
def test_a_row_has_the_settings_of_its_method(write, method, row):
    """Rows repeat the values of the folder ``methods``, by which any config takes the same settings."""
    own = {"data": {"public_size": 1250}} if method == "flashback" else {}
    write(mine={"base": [f"{row}.yaml", f"{method}.yaml"], **own})
    name = method.removeprefix("tasks_").removeprefix("classes_")
    assert config_values("mine.yaml") == config_values(f"{row.removesuffix('fedavg')}{name}.yaml")


ALONE = {path.stem for path in (CONFIGS / "methods").glob("*.yaml")} - WITH_ROWS.keys() - {"dp_sgd"}  # which needs a sigma


@pytest.mark.parametrize("name", sorted(ALONE))
@pytest.mark.one_in(4)
def test_settings_of_methods_are_what_the_command_line_takes(parser, name):
    """After a row, for those that no row has: the others are held to be equal to a row's."""
    config = parser.parse_args(["--config", "digits_tce.yaml", "--config", f"{name}.yaml"])
    assert config.data.source == "digits"


TWICE = [  # complete files of one table
    ("cifar10_fedavg", "cifar10_tce"),
    ("cifar10_fedavg_mix", "cifar10_wsm"),
    ("fedreg_mnist_two_class_fedavg", "fedreg_mnist_two_class_fedreg"),
    ("flashback_cifar10_beta_0.1_fedavg", "flashback_cifar10_beta_0.1_flashback"),
    ("fedweit_noniid50_stl", "fedweit_noniid50_fedweit"),
    ("fedweit_overlapped_stl", "fedweit_overlapped_fedweit"),
]
OF_ONE = {"data.public_size", "callbacks.task_attention.layer"}


@pytest.mark.parametrize(("first", "second"), TWICE)
def test_complete_files_of_a_table_agree(first, second):
    """They differ in the method, its arguments and its rate."""
    values, others = (dict(flatten(VALUES[f"{name}.yaml"])) for name in (first, second))
    differing = {key for key in values.keys() & others.keys() if values[key] != others[key]}
    assert differing <= {"model", "model.tasks", "model.optimizer.lr"}
    assert {key for key in values.keys() ^ others.keys() if not re.match(r"model\.(tasks\.)?\w+$", key)} <= OF_ONE


def test_first_rows_are_complete_in_their_files():
    """The method of each paper and the examples on digits. Every folder has one, except that of optimizers on a paper's row."""
    complete = {name for name in bundled_rows() if not bases_of(bundled_files()[name])}
    first = {"cifar10_tce", "cifar10_wsm", "fedreg_mnist_two_class_fedreg", "flashback_cifar10_beta_0.1_flashback"}
    first |= {"fedweit_overlapped_fedweit", "fedweit_noniid50_fedweit", "fedweit_interference", "moon_cifar10"}
    first |= {"digits_tce", "digits_fedweit", "digits_classes"}
    assert {f"{name}.yaml" for name in first} <= complete
    folders = {bundled_files()[name].parent.name for name in bundled_rows()}
    assert folders - {bundled_files()[name].parent.name for name in complete} == {"server_optimizers"}


def bases_of(path):
    base = load_yaml(path.read_text()).get("base", [])
    return {base} if isinstance(base, str) else set(base)


def test_a_row_with_the_values_of_another_says_so():
    """It is only its base, and its text names that."""
    names_of: dict[str, list[str]] = {}
    for name in bundled_rows():
        names_of.setdefault(json.dumps(VALUES.get(name) or config_values(name), sort_keys=True, default=str), []).append(name)
    for names in names_of.values():
        (first,) = (name for name in names if bases_of(bundled_files()[name]).isdisjoint(names))
        for name in set(names) - {first}:
            assert load_yaml(bundled_files()[name].read_text()) == {"base": first}
            assert f"as {first}" in bundled_rows()[name].text


def test_a_row_is_based_on_one_complete_row():
    """A reader of a row opens one more file; settings of methods are whole."""
    for name, path in bundled_files().items():
        base = load_yaml(path.read_text()).get("base")
        assert base is None or (base in bundled_rows() and not bases_of(bundled_files()[base])), name
        assert base is None or name in bundled_rows()


def test_heads_have_paper_row_and_result():
    """A paper has one name and title; a third line has the numbers, or what the row is for."""
    papers = {(bundled_files()[name].parent, row.paper) for name, row in bundled_rows().items()}
    assert len(papers) == len({folder for folder, _ in papers}) == len({paper for _, paper in papers})
    for name in bundled_rows():
        lines = bundled_files()[name].read_text().splitlines()
        assert all(line.startswith("# ") for line in lines[:3]), name
        assert ": " in lines[1]


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
    assert sorted(listed) == sorted(bundled_rows())


def test_a_base_that_is_named_again_and_again_is_read_once(tmp_path):
    """Thirty files that each name the next three times: 3^30 readings otherwise."""
    for level in range(30):
        (tmp_path / f"{level}.yaml").write_text(f"base: [{', '.join([f'{level + 1}.yaml'] * 3)}]\nlevel_{level}: {level}\n")
    (tmp_path / "30.yaml").write_text("deepest: 1\n")
    assert config_values(str(tmp_path / "0.yaml")) == {"deepest": 1, **{f"level_{level}": level for level in range(30)}}


def test_a_chain_of_bases_has_an_end(tmp_path):
    for level in range(60):
        (tmp_path / f"{level}.yaml").write_text(f"base: {level + 1}.yaml\n")
    with pytest.raises(ValueError, match=r"config is 0\.yaml, under which bases lie deeper than 50 levels: shorten the chain"):
        config_values(str(tmp_path / "0.yaml"))
