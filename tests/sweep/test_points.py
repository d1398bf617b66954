"""--set and --seeds: what they mean, and what is refused."""

import pytest

from fl_lightning.sweep.points import Choices, Range, Run, as_options, as_typed, grid, parse_axes, parse_seeds, point_name


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("k=1", ("1",)),
        ("k=A,B", ("A", "B")),
        ("k= 0.10 , 1e-3 ", ("0.10", "1e-3")),
        ("k=[1,2],[3]", ("[1,2]", "[3]")),
        ("k={a: 1, b: [2,3]},null", ("{a: 1, b: [2,3]}", "null")),
        ("k='a,b',\"c]\"", ("a,b", "c]")),
        ("k=a=b", ("a=b",)),
        ("--k=1", ("1",)),
    ],
)
def test_values_are_taken_as_typed(text, values):
    """Commas part them, but for those in brackets and quotes."""
    assert parse_axes([text]) == [Choices("k", values)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("k=0.001..0.1:log", Range("k", 0.001, 0.1, log=True, whole=False)),
        ("k=1..10", Range("k", 1, 10, log=False, whole=True)),
        ("k=-1..1.5", Range("k", -1, 1.5, log=False, whole=False)),
        ("k=1e-4..1e-1", Range("k", 1e-4, 1e-1, log=False, whole=False)),
    ],
)
def test_two_dots_are_a_range(text, expected):
    assert parse_axes([text]) == [expected]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["k"], "--set k must be KEY=VALUES"),
        (["=1"], "--set =1 must be KEY=VALUES"),
        (["k="], "--set k= has an empty value"),
        (["k=1,,2"], "--set k=1,,2 has an empty value"),
        (["k=1,2,1"], "--set k has 1 twice"),
        (["k=1", "k=2"], "--set k is given twice"),
        (["k=[1,2"], "--set k=[1,2 lacks a closing ]: quote it for the shell, --set 'k=[1,2],[3]'"),
        (["k='a,b"], "lacks a closing '"),
        (["k=2..1"], "--set k=2..1 must go from a number to a higher one, such as"),
        (["k=0..1:log"], "--set k=0..1:log must go from a number to a higher one, both above 0"),
        (["seed_everything=1,2"], "--set seed_everything cannot be varied so: give --seeds"),
        (["ckpt_path=last"], "--set ckpt_path cannot be varied so"),
    ],
)
def test_what_is_no_set_is_refused(texts, message):
    with pytest.raises(ValueError) as raised:
        parse_axes(texts)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", [1, 2, 3]), ("1,2,5", [1, 2, 5]), ("[7]", [7]), ("[0, 4]", [0, 4]), ("1", [1])]
)
def test_seeds_are_a_number_or_a_list(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["0", "-1", "", "1,", "1,a", "1.5", "1,1", "[]", "[3", "3]", "[4294967296]"])
def test_what_are_no_seeds_is_refused(text):
    with pytest.raises(ValueError, match="--seeds"):
        parse_seeds(text)


def test_a_class_comes_before_its_options():
    point = {"model.mu": "1", "data.num_clients": "5", "model": "FedProx", "model.net.hidden": "[8]", "model.net": "MLP"}
    given = ["data.num_clients=5", "model=FedProx", "model.mu=1", "model.net=MLP", "model.net.hidden=[8]"]
    assert as_options(point) == [f"--{option}" for option in given]


def test_the_grid_has_every_combination():
    points = grid([Choices("a", ("1", "2")), Choices("b", ("x", "y"))])
    assert points == [{"a": "1", "b": "x"}, {"a": "1", "b": "y"}, {"a": "2", "b": "x"}, {"a": "2", "b": "y"}]
    assert grid([]) == [{}]


def test_names_of_points_tell_them_apart():
    """Short where that is clear, never longer than a file system allows, and different for different points."""
    assert point_name({"model.loss": "CE", "model.optimizer.lr": "0.1"}) == "loss=CE,lr=0.1"
    clash = {"model.optimizer.lr": "1", "model.server_optimizer.lr": "2"}
    assert point_name(clash) == "model.optimizer.lr=1,model.server_optimizer.lr=2"
    assert point_name({}) == "base"
    odd = [point_name({"data.root": root}) for root in ("a/b", "a_b", "a b", "../..")]
    assert len(set(odd)) == 4
    assert not any("/" in name or " " in name for name in odd)
    long = [point_name({"k": "x" * 300 + end}) for end in "ab"]
    assert len(set(long)) == 2
    assert max(map(len, long)) < 200
    assert Run({"a": "1"}, 3).name == "a=1/seed_3"


def test_drawn_numbers_have_six_digits():
    assert [as_typed(value) for value in (0.00123456789, 3, "A", 0.1)] == ["0.00123457", "3", "A", "0.1"]
