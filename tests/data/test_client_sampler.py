"""Who takes part: the samplers by name, those of a user, and what is refused."""

import math

import numpy as np
import pytest
import torch
import yaml
from options import NO_PICTURES
from torch import nn

from fl_lightning import SCAFFOLD, FedAvg, FedDyn
from fl_lightning.callbacks import PrivacyBudget
from fl_lightning.data import ClientSampler, FederatedDataModule, Poisson, Uniform, from_arrays
from fl_lightning.functional.random_streams import numpy_stream
from fl_lightning.privacy import UserLevelDP

N, SIZE, SEED = 7, 3, 4


def new_data(**settings):
    return FederatedDataModule(**{"num_clients": N, "clients_per_round": SIZE, "seed": SEED, **settings})


class Weekdays(ClientSampler):
    """Clients 0 to 4, then 5 and 6, then again."""

    def cohort(self, round, num_clients, size, seed):
        return np.array([4, 3, 2, 1, 0]) if round % 2 else torch.tensor([6, 5])


class Draws(ClientSampler):
    """What it is given, round after round, the last for all others."""

    def __init__(self, *drawn):
        self._drawn = drawn

    def cohort(self, round, num_clients, size, seed):
        return self._drawn[min(round, len(self._drawn)) - 1]


class Nobody(Draws):
    may_be_empty = True


def test_uniform_is_what_is_drawn_without_a_sampler():
    """``numpy.random.Generator.choice`` without replacement, by the stream (seed, round, cohort)."""
    plain, named = new_data(), new_data(client_sampler=Uniform())
    for round in range(1, 20):
        expected = sorted(numpy_stream(SEED, round, -1, "cohort").choice(N, SIZE, replace=False).tolist())
        assert plain.cohort(round) == named.cohort(round) == expected


@pytest.mark.parametrize(("clients_per_round", "size"), [(3, 3), (0.45, 3), (1.0, 7)])
def test_everybody_tosses_a_coin(clients_per_round, size):
    """4,000 rounds of 7 clients with q = size / 7: each client's share, and that of nobody, to five standard deviations."""
    data = new_data(client_sampler=Poisson(), clients_per_round=clients_per_round)
    there, q = np.zeros((4000, N)), size / N
    for row in range(4000):
        there[row, data.cohort(row + 1)] = 1
    assert abs(there.mean(axis=0) - q).max() <= 5 * math.sqrt(q * (1 - q) / 4000)
    empty = (1 - q) ** N
    assert abs((there.sum(axis=1) == 0).mean() - empty) <= 5 * math.sqrt(empty * (1 - empty) / 4000)


def test_cohorts_of_a_users_sampler_come_as_ascending_whole_numbers():
    """From an array or a tensor in any order."""
    data = new_data(client_sampler=Weekdays())
    assert [data.cohort(1), data.cohort(2)] == [[0, 1, 2, 3, 4], [5, 6]]
    assert all(type(client) is int for client in data.cohort(1) + data.cohort(2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"client_sampler": Draws([0, 7])}, "data.client_sampler Draws names client 7 in round 1, must name clients between 0"),
        ({"client_sampler": Draws([2, -1])}, "data.client_sampler Draws names client -1 in round 1, must name clients between"),
        ({"client_sampler": Draws([5, 2, 5])}, "data.client_sampler Draws names client 5 twice in round 1, must name clients"),
        (
            {"client_sampler": Draws([])},
            "data.client_sampler Draws names no client in round 1, must name clients between 0 and 6",
        ),
        ({"client_sampler": Draws(None)}, "data.client_sampler Draws names None in round 1, must name clients between 0"),
        ({"client_sampler": Draws(3)}, "data.client_sampler Draws names 3 in round 1, must name clients between 0 and 6"),
        (
            {"client_sampler": Draws([0.0])},
            "data.client_sampler Draws names [0.0] in round 1, must name clients between 0 and 6",
        ),
        (
            {"client_sampler": Draws(np.eye(9))},
            "data.client_sampler Draws names array([[1., 0., 0., 0., 0., 0., 0., 0., 0.], [0., 1., [...] in round 1, must name",
        ),
        ({"client_sampler": Draws(["0"])}, "data.client_sampler Draws names ['0'] in round 1, must name clients between 0"),
        ({"client_sampler": Poisson}, "data.client_sampler is <class 'fl_lightning.data.client_sampler.Poisson'>, must be a"),
        ({"client_sampler": "Poisson"}, "data.client_sampler is 'Poisson', must be a ClientSampler: such as Poisson()"),
        (
            {"client_sampler": Poisson(), "cohorts": [[0]]},
            "data.client_sampler is Poisson(), but data.cohorts names who takes part: leave one out",
        ),
        ({"cohorts": []}, "data.cohorts is empty, must name the clients of at least one round"),
        (
            {"cohorts": [0, 1]},
            "data.cohorts names 0 in round 1, must name clients between 0 and 6, each once and at",
        ),
    ],
)
def test_bad_cohorts_are_refused(settings, message):
    """Before any data is read, in one line that names key, round and what was drawn."""
    with pytest.raises(ValueError) as error:
        new_data(**settings)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_a_bad_cohort_of_a_later_round_is_refused_in_that_round():
    data = new_data(client_sampler=Draws([0], [1], [8]))
    assert data.cohort(2) == [1]
    with pytest.raises(
        ValueError, match="^data.client_sampler Draws names client 8 in round 3, must name clients between 0 and 6"
    ):
        data.cohort(3)


# In a fit ---------------------------------------------------------------------------------------------------------------


def federation(**settings):
    """Four clients of 4 samples; float64."""
    inputs = torch.linspace(-1, 1, 48, dtype=torch.float64).reshape(16, 3)
    clients = [range(start, start + 4) for start in range(0, 16, 4)]
    return from_arrays(inputs, torch.arange(16) % 3, clients, batch_size=2, **settings)


def train(fit, data, rounds, method=FedAvg, callbacks=(), **settings):
    torch.manual_seed(0)
    trained = method(nn.Linear(3, 3).double(), engine="sequential", **settings)
    fit(trained, data, rounds, precision="64-true", callbacks=list(callbacks))
    return trained


@pytest.mark.parametrize("method", [FedAvg, FedDyn, SCAFFOLD])
def test_a_users_sampler_trains_as_its_cohorts_do(fit, method):
    """The same bits as with the cohorts written down."""
    cohorts = [[0, 2], [3], [1, 2, 3]]
    drawn = train(fit, federation(client_sampler=Draws(*cohorts)), 3, method)
    torch.testing.assert_close(
        drawn.net.state_dict(), train(fit, federation(cohorts=cohorts), 3, method).net.state_dict(), rtol=0, atol=0
    )


@pytest.mark.parametrize("method", [FedAvg, FedDyn, SCAFFOLD])
def test_a_round_of_nobody_leaves_the_model(fit, method):
    """As it was, and as a round that went as it should."""
    trained = train(fit, federation(client_sampler=Nobody([])), 2, method)
    torch.manual_seed(0)
    torch.testing.assert_close(trained.net.state_dict(), nn.Linear(3, 3).double().state_dict(), rtol=0, atol=0)
    assert trained.lost_rounds.count == 0


def test_user_level_privacy_takes_poisson_cohorts(fit):
    """By name or in place of uniform ones: the same cohorts, the same bits, the same epsilon."""
    runs = [
        train(fit, federation(clients_per_round=2, seed=3, **sampler), 4, FedAvg, [PrivacyBudget()], **PRIVATE)
        for sampler in ({}, {"client_sampler": Poisson()})
    ]
    torch.testing.assert_close(runs[0].net.state_dict(), runs[1].net.state_dict(), rtol=0, atol=0)
    assert runs[0].newest["privacy/epsilon"] == runs[1].newest["privacy/epsilon"]
    assert runs[1].sampled_clients(2) == runs[1].data.cohort(2) == runs[0].sampled_clients(2)


PRIVATE = {"privacy": UserLevelDP(1.0), "server_weighting": "uniform"}


def test_user_level_privacy_refuses_other_samplers(fit):
    """A subclass of Poisson too, whose coins may be others."""

    class Loaded(Poisson):
        def cohort(self, round, num_clients, size, seed):
            return [0]

    for sampler in (Draws([0, 1]), Loaded()):
        message = f"but data.client_sampler {type(sampler).__name__} names them: use DPSGD"
        with pytest.raises(ValueError, match=message):
            train(fit, federation(client_sampler=sampler), 1, **PRIVATE)


def test_more_rounds_than_a_sampler_has_are_refused(fit):
    class TwoRounds(Draws):
        num_rounds = 2

    data = federation(client_sampler=TwoRounds([0], [1]))
    with pytest.raises(ValueError, match="^trainer.max_steps is 3, but data.client_sampler TwoRounds names 2 rounds: lower it"):
        train(fit, data, 3)


# On the command line ----------------------------------------------------------------------------------------------------

FIT = "fit --config digits_tce.yaml --model.net MLP --model.net.hidden [8]".split()
FIT += [*NO_PICTURES, "--trainer.max_steps", "2"]


def test_poisson_by_name(main, tmp_path):
    """The config keeps it, and a fit resumes from its checkpoint, not with another sampler."""
    code, _, error = main(*FIT, "--data.client_sampler", "Poisson", "--trainer.default_root_dir", "run")
    assert code == 0, error
    (checkpoint,) = tmp_path.rglob("last.ckpt")
    config = yaml.safe_load((checkpoint.parents[1] / "config.yaml").read_text())
    assert config["data"]["client_sampler"]["class_path"] == "fl_lightning.data.Poisson"
    more = [*FIT[:-1], "3", "--ckpt_path", str(checkpoint), "--trainer.default_root_dir", "more"]
    code, _, error = main(*more)
    assert code != 0
    assert "ckpt_path is of a run with other settings: data.client_sampler is Uniform, Poisson in the run" in error
    code, _, error = main(*more, "--data.client_sampler", "Poisson")
    assert code == 0, error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data.client_sampler", "Poison"], "data.client_sampler is Poison: "),
        (
            ["--data.client_sampler", "IID"],
            "data.client_sampler is IID, which belongs to another option: give --data.partition IID",
        ),
        (
            ["--data.client_sampler", "Poisson", "--data.cohorts", "[[0],[1]]"],
            "data.client_sampler is Poisson(), but data.cohorts names who takes part: leave one out",
        ),
        (
            ["--data.client_sampler", "mine.Far"],
            "data.client_sampler Far names client 20 in round 1, must name clients between",
        ),
        (["--data.client_sampler", "mine.Late"], "data.client_sampler Late names client 20 in round 2, must name clients"),
    ],
)
def test_bad_input_is_one_line(main, tmp_path, monkeypatch, arguments, message):
    sampler = "class {}(ClientSampler):\n    def cohort(self, round, num_clients, size, seed):\n        return [{}]\n"
    classes = sampler.format("Far", "20") + sampler.format("Late", "18 + round")
    (tmp_path / "mine.py").write_text(f"from fl_lightning.data import ClientSampler\n{classes}")
    code, _, error = main(*FIT, *arguments)
    lines = [line for line in error.splitlines() if line.startswith("fl-lightning: error: ")]
    assert code != 0
    assert len(lines) == 1
    assert message in lines[0]
