"""What is refused, word by word."""

import doctest
import math
import os
import pickle
from typing import Literal

import pytest

from fl_lightning import checks
from fl_lightning.checks import (
    ArgumentError,
    check_choice,
    check_each,
    check_file,
    check_range,
    check_whole,
    extras,
    under_keys,
)


@pytest.mark.parametrize("module", [checks, extras])
def test_the_examples_in_docstrings_give_what_they_say(module):
    failed, tried = doctest.testmod(module)
    assert failed == 0 < tried


@pytest.mark.parametrize(
    ("value", "limits", "message"),
    [
        (-1, {"at_least": 0}, "model.mu is -1, must be at least 0"),
        (0, {"above": 0}, "model.mu is 0, must be above 0"),
        (2_000_000, {"at_most": 1_000_000}, "model.mu is 2000000, must be at most 1,000,000"),
        (1.0, {"at_least": 0, "below": 1}, "model.mu is 1.0, must be at least 0 and below 1"),
        (0, {"above": 0, "at_most": 1}, "model.mu is 0, must be above 0 and at most 1"),
        (1.5, {"at_least": 0, "at_most": 1}, "model.mu is 1.5, must be between 0 and 1"),
        (math.inf, {"above": 0, "below": math.inf}, "model.mu is inf, must be above 0 and finite"),
        (math.nan, {"at_least": 0}, "model.mu is nan, must be at least 0"),
        (math.nan, {"at_most": 1}, "model.mu is nan, must be at most 1"),
        (None, {"at_least": 1}, "model.mu is None, must be at least 1"),
        ([8], {"at_least": 1}, "model.mu is [8], must be at least 1"),
        ("0.1", {"at_least": 0}, "model.mu is '0.1', must be a number at least 0"),
    ],
)
def test_a_number_outside_of_its_range_is_refused(value, limits, message):
    """In one line, with the hint at its end where there is one."""
    for hint, end in (("", ""), ("0 is FedAvg", ": 0 is FedAvg")):
        with pytest.raises(ValueError) as caught:
            check_range("model.mu", value, **limits, hint=hint)
        assert str(caught.value) == message + end


@pytest.mark.parametrize(
    ("value", "limits"),
    [(0, {"at_least": 0}), (1e-9, {"above": 0}), (1, {"at_least": 1, "at_most": 1}), (math.inf, {"above": 0}), (5, {})],
)
def test_a_number_within_its_range_passes(value, limits):
    """Limits that belong to the range included; infinity where nothing bounds it."""
    check_range("model.mu", value, **limits)


def test_a_choice_is_one_of_the_type():
    check_choice("model.client_state", "disk", Literal["memory", "disk"])
    for value in ("cloud", None, ["disk"]):
        with pytest.raises(ValueError) as caught:
            check_choice("model.client_state", value, Literal["memory", "disk"])
        assert str(caught.value) == f"model.client_state is {value!r}, must be one of memory, disk"


def test_a_choice_is_one_of_the_names_that_there_are():
    """Names that are known at run time only, with a hint."""
    check_choice("callbacks.x.layer", "a", ["a", "b"])
    with pytest.raises(ValueError, match=r"^callbacks\.x\.layer is 'c', must be one of a, b: null is their mean$"):
        check_choice("callbacks.x.layer", "c", ["a", "b"], hint="null is their mean")


def test_one_of_several_numbers_outside_of_the_range_is_refused():
    """The first one is named; none at all is within any range."""
    check_each("data.std", [], above=0)
    check_each("data.std", (0.5, 1.0), above=0, at_most=1)
    for values, found in (([0.5, 2.0, -1.0], "2.0"), ([math.nan], "nan"), ([None], "None")):
        with pytest.raises(ValueError) as caught:
            check_each("data.std", values, above=0, at_most=1, hint="as fractions")
        assert str(caught.value) == f"data.std has {found}, must be above 0 and at most 1: as fractions"


def test_an_argument_of_a_function_is_named_by_its_key():
    """Where the function is called with what the command line was given; others keep their names, and other errors are left."""
    with (
        pytest.raises(ArgumentError, match="^data.partition.alpha is 0, must be above 0$"),
        under_keys({"alpha": "data.partition.alpha"}),
    ):
        check_range("alpha", 0, above=0)
    with pytest.raises(ArgumentError, match="^sigma is 0, must be above 0$"), under_keys({"alpha": "data.partition.alpha"}):
        check_range("sigma", 0, above=0)
    with pytest.raises(ValueError, match="^alpha$"), under_keys({"alpha": "data.partition.alpha"}):
        raise ValueError("alpha")


def test_a_refusal_crosses_processes():
    error = pickle.loads(pickle.dumps(ArgumentError("model.mu", "is -1, must be at least 0")))
    assert str(error) == "model.mu is -1, must be at least 0"


def test_what_is_no_file_says_why(tmp_path):
    """Not everything that is no file is missing."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    check_file("ckpt_path", tmp_path / "file", "give another one")
    for name, what in (("", "is a folder"), ("pipe", "is a pipe or a device"), ("missing", "does not exist")):
        path = tmp_path / name
        with pytest.raises(FileNotFoundError) as caught:
            check_file("ckpt_path", path, "give another one")
        assert str(caught.value) == f"ckpt_path is {path}, which {what}: give another one"


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(ArgumentError, match="must be a whole number$"):
        check_whole("data.clients_per_round", value, at_least=1)
