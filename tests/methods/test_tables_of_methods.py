"""The tables of methods in docs come from the section Round of each class's docstring: WRITE_PAGES=1 writes them anew."""

import pytest
from written_pages import hold_table, round_of

from fl_lightning import methods
from fl_lightning.config_files.bundled import bundled_files
from fl_lightning.config_files.reading import config_values

EXCHANGED = ("clients", "server", "more down", "more up", "a client keeps")
PERSONAL = ("a client uses", "the server has")


ROUNDS = {name: round_of(name) for name in sorted(methods.__all__, key=lambda name: (name != "FedAvg", name.lower()))}


@pytest.mark.parametrize("name", ROUNDS)
def test_every_method_says_what_a_round_is(name):
    """The objective and the server's step at least, and nothing that no table shows."""
    assert {"clients", "server"} <= ROUNDS[name].keys() <= {*EXCHANGED, *PERSONAL}
    assert (PERSONAL[0] in ROUNDS[name]) == (PERSONAL[1] in ROUNDS[name])


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
