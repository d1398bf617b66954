"""Devices by hand: who arrives, with how many steps, and when the round ends."""

import math

import pytest

from fl_lightning.data import Devices, FederatedDataModule
from fl_lightning.protocol.devices import Work

HEAD = "client,samples_per_second,download,upload\n"
# 10 steps of 4 samples, 100 bytes each way: 4 + 10 + 20, 8 + 1 + 1, and 40 + 1 + 1 seconds.
SPEEDS = HEAD + "0,10,10,5\n1,5,100,100\n2,1,100,100\n"
WORK = [Work(client, 10, 4.0, 100, 100) for client in range(3)]


@pytest.fixture
def speeds(tmp_path):
    (tmp_path / "speeds.csv").write_text(SPEEDS)
    return str(tmp_path / "speeds.csv")


def ends(devices: Devices, works=WORK, round: int = 1, drawn: int = 3) -> tuple[list[tuple[int, float, bool]], float | None]:
    finishes, seconds = devices.finishes(works, round, seed=0, drawn=drawn)
    return [tuple(finish) for finish in finishes], seconds


def test_the_slowest_ends_the_round(speeds):
    assert ends(Devices(speeds)) == ([(10, 34.0, True), (10, 10.0, True), (10, 42.0, True)], 42.0)


def test_a_deadline_leaves_the_slow_out(speeds):
    assert ends(Devices(speeds, deadline=34.0)) == ([(10, 34.0, True), (10, 10.0, True), (10, 42.0, False)], 34.0)
    assert ends(Devices(speeds, deadline=50.0))[1] == 42.0


def test_partial_work_by_speed(speeds):
    """Until 32 s: client 0 has 2 s for steps of 0.4 s, client 2 has 30 s for steps of 4 s."""
    finishes, seconds = ends(Devices(speeds, deadline=32.0, partial_work=True))
    assert finishes == [(5, pytest.approx(32.0), True), (10, 10.0, True), (7, 30.0, True)]
    assert seconds == pytest.approx(32.0)
    # Too slow for a single step.
    assert ends(Devices(speeds, deadline=5.0, partial_work=True))[0][2] == (1, 6.0, False)


def test_over_selection_takes_the_first(speeds):
    """Of a cohort of two; where only two clients are there, both."""
    devices, late = Devices(speeds, over_selection=1.5), Devices(speeds, over_selection=1.5, deadline=20.0)
    assert devices.drawn(2, 3) == late.drawn(2, 3) == 3
    assert ends(devices) == ([(10, 34.0, True), (10, 10.0, True), (10, 42.0, False)], 34.0)
    assert ends(devices, WORK[:2]) == ([(10, 34.0, True), (10, 10.0, True)], 34.0)
    assert ends(late)[1] == 20.0  # before the second comes


def test_what_is_not_sent_is_not_lost():
    """As by LocalOnly, whose clients train for themselves."""
    assert all(
        finish[2] for finish in ends(Devices(lost_uploads=0.99), [Work(client, 1, 1.0, 1, 0) for client in range(50)])[0]
    )


@pytest.mark.parametrize("factor", [1.0, 1.1, 1.25, 1.3, 1.5, 2.0, 3.7])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 10])
def test_as_many_are_taken_as_asked_for(tmp_path, factor, size):
    count = 50
    (tmp_path / "same.csv").write_text(HEAD + "".join(f"{client},1,1,1\n" for client in range(count)))
    devices = Devices(str(tmp_path / "same.csv"), over_selection=factor)
    works = [Work(client, 1, 1.0, 1, 1) for client in range(devices.drawn(size, count))]
    assert sum(finish[2] for finish in ends(devices, works, drawn=len(works))[0]) == size


def test_lost_uploads():
    """2,000 draws to five standard deviations; a client's does not depend on who else is there."""
    devices, works = Devices(lost_uploads=0.3), [Work(client, 1, 1.0, 1, 1) for client in range(20)]
    drawn = [ends(devices, works, round)[0] for round in range(1, 101)]
    share = sum(not finish[2] for finishes in drawn for finish in finishes) / 2000
    assert abs(share - 0.3) <= 5 * math.sqrt(0.3 * 0.7 / 2000)
    assert ends(devices, works[7:9], 5)[0] == drawn[4][7:9]
    assert ends(devices, works)[1] is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"deadline": 0.0}, "data.devices.deadline is 0.0, must be above 0 and finite: null is none"),
        ({"over_selection": 0.9}, "data.devices.over_selection is 0.9, must be at least 1 and finite: 1 draws no more clients"),
        ({"lost_uploads": 1.0}, "data.devices.lost_uploads is 1.0, must be at least 0 and below 1: 0 loses none"),
        ({"lost_uploads": -0.1}, "data.devices.lost_uploads is -0.1, must be at least 0 and below 1: 0 loses none"),
        ({"deadline": 5.0}, "data.devices.deadline is 5.0, but no client is late without data.devices.file: give one"),
        ({"over_selection": 1.5}, "data.devices.over_selection is 1.5, but no client is late without data.devices.file: give"),
        (
            {"partial_work": True},
            "data.devices.partial_work is True, but no client is late without data.devices.file: give one",
        ),
        ({"file": "nowhere.csv"}, "data.devices.file is nowhere.csv, which does not exist: give a CSV file"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        Devices(**settings)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("", {}, ": {}, line 1: the column client is missing: the file must have the columns {columns}"),
        ("0,1,1,1\n", {}, ": {}, line 1: the column client is missing: the file must have the columns {columns}"),
        (HEAD + "0,1,1\n", {}, ": {}, line 2: 3 values for the 4 columns {columns}: correct the line"),
        (HEAD + "0,1,0,1\n", {}, " is {}, whose line 2 must be an index of another client and three numbers above 0"),
        (HEAD + "0,1,nan,1\n", {}, " is {}, whose line 2 must be an index of another client and three numbers above 0"),
        (HEAD + "0,1,x,1\n", {}, " is {}, whose line 2 must be an index of another client and three numbers above 0"),
        (
            HEAD + "\n0,1,1,1\n\n0,1,1,1\n",
            {},
            " is {}, whose line 5 must be an index of another client and three numbers above 0",
        ),
        (HEAD + "0,1,1,1\n", {}, " is {}, which has no line for client 1: add one"),
        (SPEEDS, {}, " is {}, which names client 2, but data.num_clients is 2: remove its line, or raise data.num_clients"),
    ],
)
def test_bad_files_are_refused(tmp_path, text, settings, message):
    path, columns = tmp_path / "speeds.csv", "client, samples_per_second, download, upload"
    path.write_text(text)
    with pytest.raises(ValueError) as error:
        FederatedDataModule(num_clients=2, clients_per_round=1, devices=Devices(str(path), **settings))
    assert str(error.value) == f"data.devices.file{message.format(path, columns=columns)}"


def test_more_clients_than_there_are_cannot_be_drawn(speeds):
    with pytest.raises(ValueError) as error:
        FederatedDataModule(num_clients=3, clients_per_round=2, devices=Devices(speeds, over_selection=2.0))
    assert str(error.value) == (
        "data.devices.over_selection is 2.0, which draws 4 clients, but data.num_clients is 3: lower it, or "
        "data.clients_per_round"
    )


def test_partial_work_needs_a_deadline(speeds):
    with pytest.raises(ValueError, match="^data.devices.partial_work is True, but no client is late without data.devices.dead"):
        Devices(speeds, partial_work=True)
