"""Samplers of clients that are not always there."""

import math

import numpy as np
import pytest

from fl_lightning.data import DayAndNight, FederatedDataModule, SometimesThere, Trace

N = 6


def cohorts(sampler, rounds: int, size: int = N, seed: int = 3) -> list[list[int]]:
    data = FederatedDataModule(num_clients=N, clients_per_round=size, client_sampler=sampler, seed=seed)
    return [data.cohort(round) for round in range(1, rounds + 1)]


def test_probabilities():
    """4,000 rounds: each client's share to five standard deviations."""
    p = np.array([0.0, 0.1, 0.4, 0.5, 0.9, 1.0])
    there = np.zeros((4000, N))
    for row, cohort in enumerate(cohorts(SometimesThere(p.tolist()), 4000)):
        there[row, cohort] = 1
    assert (abs(there.mean(axis=0) - p) <= 5 * np.sqrt(p * (1 - p) / 4000)).all()
    assert cohorts(SometimesThere(0.5), 9) == cohorts(SometimesThere([0.5] * N), 9)


def test_those_who_are_there_are_drawn_equally():
    """Two of the three that are always there: each in two thirds of 3,000 rounds."""
    drawn = cohorts(SometimesThere([1.0, 1.0, 1.0, 0.0, 0.0, 0.0]), 3000, size=2)
    assert {len(cohort) for cohort in drawn} == {2}
    for client in range(3):
        share = sum(client in cohort for cohort in drawn) / 3000
        assert abs(share - 2 / 3) <= 5 * math.sqrt(2 / 9 / 3000)


def test_day_and_night():
    """Three rounds there, two away, for ever; clients begin at different rounds."""
    drawn = cohorts(DayAndNight(day=3, night=2), 20)
    for client in range(N):
        there = [client in cohort for cohort in drawn]
        assert there == there[:5] * 4
        (begin,) = [round for round in range(5) if there[round] and not there[round - 1]]
        assert [there[(begin + hour) % 5] for hour in range(5)] == [True, True, True, False, False]
    assert len({tuple(client in cohort for cohort in drawn) for client in range(N)}) > 1


def test_a_trace(tmp_path):
    """Client 5 has no line; in round 3 nobody is there."""
    (tmp_path / "trace.csv").write_text("0,1,1,0,0\n4,0,1,0,1\n\n1,1,0,0,1\n")
    trace = Trace(str(tmp_path / "trace.csv"))
    assert cohorts(trace, 4) == [[0, 1], [0, 4], [], [1, 4]]
    assert (trace.largest(5, 4), trace.largest(5, 1)) == (2, 1)  # two are there at most
    data = FederatedDataModule(num_clients=N, clients_per_round=N, client_sampler=trace)
    for round in (0, 5):
        with pytest.raises(ValueError, match=f"data.client_sampler Trace names 4 rounds, but round {round} is needed"):
            data.cohort(round)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,1,1\n9,1,0\n", "names client 9, but data.num_clients is 6: remove its line, or raise data.num_clients"),
        ("0,1,1\n0,1,0\n", "whose line 2 must be an index of another client, then 0 or 1 for each round"),
        ("0,1,1\n\n1,0,1\n\n2,x,1\n", "whose line 5 must be an index of another client, then 0 or 1 for each round"),
        ("0,1,2\n", "whose line 1 must be an index of another client, then 0 or 1 for each round"),
        ("client,1,2\n", "whose line 1 must be an index of another client, then 0 or 1 for each round"),
        ("0\n", "whose line 1 must be an index of another client, then 0 or 1 for each round"),
        ("0,1,1\n1,1\n", "whose lines must have one number of rounds, at least 1"),
        ("", "whose lines must have one number of rounds, at least 1"),
    ],
)
def test_bad_traces_are_refused(tmp_path, text, message):
    (tmp_path / "trace.csv").write_text(text)
    with pytest.raises(ValueError) as error:
        cohorts(Trace(str(tmp_path / "trace.csv")), 1)
    assert str(error.value) == f"data.client_sampler.file is {tmp_path}/trace.csv, {'which' * message.startswith('names')}" + (
        f" {message}" if message.startswith("names") else message
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SometimesThere(1.5), "data.client_sampler.probability has 1.5, must be between 0 and 1"),
        (lambda: SometimesThere([0.5, -0.1]), "data.client_sampler.probability has -0.1, must be between 0 and 1"),
        (
            lambda: cohorts(SometimesThere([0.5]), 1),
            "data.client_sampler.probability has 1 numbers, but data.num_clients is 6: ",
        ),
        (lambda: DayAndNight(day=0), "data.client_sampler.day is 0, must be at least 1"),
        (lambda: DayAndNight(night=0), "data.client_sampler.night is 0, must be at least 1"),
        (lambda: Trace("nowhere.csv"), "data.client_sampler.file is nowhere.csv, which does not exist: give a CSV file"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises((ValueError, FileNotFoundError)) as error:
        make()
    assert str(error.value).startswith(message)


def test_a_trace_that_ends_too_soon_is_refused(fit, tmp_path):
    from torch import nn

    from fl_lightning import FedAvg

    (tmp_path / "trace.csv").write_text("0,1,1\n")
    data = FederatedDataModule(num_clients=N, clients_per_round=2, client_sampler=Trace(str(tmp_path / "trace.csv")))
    with pytest.raises(ValueError, match=r"^trainer.max_steps is 3, but data.client_sampler Trace names 2 rounds: lower it$"):
        fit(FedAvg(nn.Sequential(nn.Flatten(), nn.Linear(64, 10))), data, 3)
