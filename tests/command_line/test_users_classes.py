"""Errors in the code of classes that a user wrote: the last line names the key and the class."""

import pytest

CODE = """
from fl_lightning.data import ClientSampler, Partition

class Lookup(ClientSampler):
    def cohort(self, round, num_clients, size, seed):
        return {0: [0]}[round]

class Later(ClientSampler):
    def cohort(self, round, num_clients, size, seed):
        return [0] if round == 1 else [int("x")]

class TooFew(Partition):
    def __call__(self, labels):
        return []
"""


@pytest.mark.parametrize(
    ("key", "name", "said"),
    [
        ("client_sampler", "Lookup", "KeyError: 1 (data.client_sampler Lookup) (users_rules.py, line 6)"),
        (
            "client_sampler",
            "Later",
            "invalid literal for int() with base 10: 'x' (data.client_sampler Later) (users_rules.py, line 10)",
        ),
        ("partition", "TooFew", "TooFew.__call__() takes 2 positional arguments but 4 were given (data.partition TooFew)"),
    ],
)
def test_a_code_error_names_the_key_the_class_and_the_line(main, tmp_path, monkeypatch, key, name, said):
    (tmp_path / "users_rules.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    arguments = ["fit", "--config", "digits_tce.yaml", f"--data.{key}", f"users_rules.{name}", "--trainer.max_steps", "2"]
    code, _, error = main(*arguments)
    assert code != 0
    assert error.splitlines()[-1].endswith(said)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("users_syntax.Method", "invalid syntax (users_syntax.py, line 1): correct the name or its file"),
        ("users_import.Method", "No module named 'nowhere': correct the name or its file"),
        ("users_class.Method", "which does not derive from FederatedModule: derive it, or give another class"),
        ("users_class.Other", "module 'users_class' has no attribute 'Other': correct the name or its file"),
        ("nowhere.Method", "there is no nowhere.py in the working folder, and no package of this name: correct the name"),
    ],
)
def test_a_class_that_cannot_be_taken_is_one_line(main, tmp_path, name, said):
    (tmp_path / "users_syntax.py").write_text("class (:")
    (tmp_path / "users_import.py").write_text("import nowhere")
    (tmp_path / "users_class.py").write_text("class Method: pass")
    code, _, error = main("fit", "--config", "digits_tce.yaml", "--model", name)
    assert code == 1
    assert error in (f"fl-lightning: error: model is {name}: {said}\n", f"fl-lightning: error: model is {name}, {said}\n")
