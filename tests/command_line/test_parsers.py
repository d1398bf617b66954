"""A command made from a function: what is a word and what an option, their types, and what is said of mistakes."""

from pathlib import Path

import pytest

from fl_lightning.command_line.parsers import arguments_of


def visit(places: list[Path], *, times: int = 1, why: str | None = None) -> None:
    """Go there.

    Args:
        places: where to go.
        times: how often, 95 % of the days.
        why: the reason.

    Example:
        fl-lightning visit here there
    """


def leave(place: Path) -> None:
    """Go away.

    Args:
        place: which one, such as here.

    Example:
        fl-lightning leave here
    """


def test_words_and_options_have_the_types_of_the_signature():
    line = ["here", "there", "--times", "2"]
    assert arguments_of(visit, line) == {"places": [Path("here"), Path("there")], "times": 2, "why": None}
    assert arguments_of(leave, ["here"]) == {"place": Path("here")}


@pytest.mark.parametrize(
    ("command", "line", "says"),
    [
        (visit, [], "PLACES are missing: give where to go, as in fl-lightning visit here there"),
        (leave, [], "PLACE is missing: give which one, such as here, as in fl-lightning leave here"),
        (visit, ["here", "--times", "often"], "times is often, must be a whole number"),
        (visit, ["here", "--time", "2"], "time is not an option here: did you mean times?"),
        (visit, ["here", "--times"], "times has no value: give one"),
        (leave, ["here", "there"], "there"),
    ],
)
def test_a_mistake_is_one_line(command, line, says):
    with pytest.raises(ValueError) as raised:
        arguments_of(command, line)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_docstring_is_the_help(capsys):
    with pytest.raises(SystemExit):
        arguments_of(visit, ["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "usage: fl-lightning visit [--times TIMES] [--why WHY] [PLACES ...] Go there." in shown
    assert "--times TIMES how often, 95 % of the days. (type: int, default: 1)" in shown
    assert "PLACES where to go." in shown
    assert "(required, type: Path)" in shown
