"""The table of a sweep and its file: means, deviations and counts by hand."""

import csv
from io import StringIO

import pytest
from rich.console import Console

from fl_lightning.sweep.points import Run
from fl_lightning.sweep.screen import LiveTable, Screen
from fl_lightning.sweep.study import Record
from fl_lightning.sweep.table import as_csv, as_table, rows, totals


def done(lr, seed, test, val, **more):
    return Record(Run({"model.optimizer.lr": lr}, seed), "done", {"test_accuracy": test, "val_accuracy": val, **more}, "")


def other(lr, seed, stands, error=""):
    return Record(Run({"model.optimizer.lr": lr}, seed), stands, {}, error)


RECORDS = [
    done("0.1", 1, 0.5, 0.25, **{"forgetting/round/last": 0.125}),
    done("0.3", 1, 0.75, 0.5),
    done("0.1", 2, 0.75, 0.75),
    other("0.3", 2, "failed", "no memory"),
    other("1", 1, "pruned"),
    other("1", 2, "running"),
    other("3", 1, "waiting"),
    done("10", 1, 0.9, 0.9),
    other("10", 2, "pruned"),
]


def printed(renderable, width=100, **settings):
    console = Console(file=StringIO(), width=width, **settings)
    console.print(renderable)
    return console.file.getvalue()


def cells(text):
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line.startswith("│")]


def test_a_row_has_the_mean_and_the_deviation_over_seeds():
    """(.5 + .75) / 2 = .625 and sqrt(2 * .125^2 / 1) = .1768; .25 and .75 give .5 and .3536; of one seed there is none."""
    assert cells(printed(as_table(rows(RECORDS)))) == [
        ["0.1", "0.6250 ± 0.1768", "0.5000 ± 0.3536", "2 done"],
        ["0.3", "-", "-", "1 done, 1 failed"],
        ["1", "-", "-", "1 running, 1 pruned"],
        ["3", "-", "-", "1 waiting"],
        ["10", "-", "-", "1 done, 1 pruned"],  # the other seed alone would flatter
    ]
    assert totals(rows(RECORDS)) == "1 running, 4 done, 1 failed, 2 pruned, 1 waiting"


def test_the_file_has_every_metric():
    """Empty where there is no deviation; read back as any reader of CSV does, with a comma and quotes in an error."""
    records = [*RECORDS, other("3", 2, "failed", 'says "no", twice')]
    lines = list(csv.DictReader(StringIO(as_csv(rows(records)))))
    assert [line["model.optimizer.lr"] for line in lines] == ["0.1", "0.3", "1", "3", "10"]
    assert float(lines[0]["test_accuracy"]) == 0.625
    assert float(lines[0]["test_accuracy_sd"]) == pytest.approx(0.125 * 2**0.5)
    assert (lines[0]["forgetting/round/last"], lines[0]["forgetting/round/last_sd"]) == ("", "")  # one of two runs has it
    assert (lines[1]["done"], lines[1]["failed"], lines[1]["errors"]) == ("1", "1", "seed 2: no memory")
    assert lines[3]["errors"] == 'seed 2: says "no", twice'


def test_a_long_table_shows_what_is_going_on():
    """Of 30 points five fit: what runs, then what ended last; the rest is counted."""
    records = [done(str(number), 1, 0.5, 0.5) for number in range(10)] + [other("10", 1, "running")]
    records += [other(str(number), 1, "waiting") for number in range(11, 30)]
    text = printed(as_table(rows(records), most=5))
    assert [row[0] for row in cells(text)] == ["6", "7", "8", "9", "10"]
    assert "and 25 more" in text


def test_the_live_table_shows_progress_and_failures():
    console = Console(file=StringIO(), width=100, height=30, force_terminal=True)
    with LiveTable(console) as screen:
        screen.say("lr=0.3/seed_2: failed: no memory")
        screen.say("lr=0.3/seed_1: done")
        screen.show(rows(RECORDS), {"lr=1": "seed 2: round 7 0.912"})
        text = console.file.getvalue()
    assert "seed 2: round 7 0.912" in text
    assert "lr=0.3/seed_2: failed: no memory" in text
    assert "lr=0.3/seed_1: done" not in text


def test_without_a_terminal_there_are_lines(capsys):
    with Screen() as screen:
        screen.say("lr=0.3/seed_1: done")
        screen.show(rows(RECORDS), {})
    assert capsys.readouterr().out == "lr=0.3/seed_1: done\n"


def test_values_in_brackets_are_shown_as_they_are():
    """Not read as markup of the terminal."""
    point = {"model.personal": "[classifier.*]", "data.root": "[/x/a]"}
    record = Record(Run(point, 1), "done", {"test_accuracy": 0.5, "val_accuracy": 0.5}, "")
    assert cells(printed(as_table(rows([record]))))[0][:2] == ["[classifier.*]", "[/x/a]"]
