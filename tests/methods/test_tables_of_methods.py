"""The tables of methods in docs come from docstrings of files and classes: WRITE_PAGES=1 writes them again."""

import inspect
import re
import sys

import pytest
from written_pages import hold_table, round_of

from fl_lightning import FederatedModule, methods, tasks
from fl_lightning.config_files.bundled import bundled_files
from fl_lightning.config_files.reading import config_values
from fl_lightning.protocol import Learner

EXCHANGED = ("clients", "server", "more down", "more up", "a client keeps")
KINDS = ("one model", "personal models", "pretrained nets", "task streams", "arriving classes")
PERSONAL = ("a client uses", "the server has")


ROUNDS = {name: round_of(name) for name in sorted(methods.__all__, key=lambda name: (name != "FedAvg", name.lower()))}


@pytest.mark.parametrize("name", ROUNDS)
def test_every_method_says_what_a_round_is(name):
    """The objective and the server's step at least, and nothing that no table shows."""
    assert {"clients", "server"} <= ROUNDS[name].keys() <= {*EXCHANGED, *PERSONAL}
    assert (PERSONAL[0] in ROUNDS[name]) == (PERSONAL[1] in ROUNDS[name])


def _kind(name: str, value: type) -> str:
    if name in methods.__all__:
        return "personal models" if PERSONAL[0] in ROUNDS[name] else "one model"
    if issubclass(value, tasks.L2SP):
        return "pretrained nets"
    return "arriving classes" if issubclass(value, tasks.ClassLearner) else "task streams"


def test_the_table_of_kinds():
    """Every method and learner with the first line of its file."""
    found = {name: getattr(module, name) for module in (methods, tasks) for name in module.__all__}
    rows = []
    for name, value in found.items():
        if issubclass(value, FederatedModule | Learner):
            title = inspect.getdoc(sys.modules[value.__module__]).partition("\n")[0]
            rows.append([_kind(name, value), f"`{name}`", re.sub(r"^[\w -]+: ", "", title).rstrip(".")])
    rows.sort(key=lambda row: (KINDS.index(row[0]), row[1] != "`FedAvg`", row[1].lower()))
    hold_table("methods.md", ["kind", "method", "what it does"], rows)


def test_the_table_of_methods():
    rows = [[f"`{name}`", *(said.get(key, "") for key in EXCHANGED)] for name, said in ROUNDS.items()]
    hold_table("methods.md", ["method", *EXCHANGED], rows)


def test_the_table_of_methods_with_personal_models():
    """With the config of the paper's settings, where a method has one."""
    configs = {
        config_values(name)["model"].get("class_path"): f"`{name}`"
        for name, path in bundled_files().items()
        if path.parent.name == "methods" and "class_path" in config_values(name).get("model", {})
    }
    rows = [
        [f"`{name}`", *(said[key] for key in PERSONAL), configs.get(f"fl_lightning.{name}", "")]
        for name, said in ROUNDS.items()
        if PERSONAL[0] in said
    ]
    hold_table("personal_models.md", ["`--model`", *PERSONAL, "config"], rows)
