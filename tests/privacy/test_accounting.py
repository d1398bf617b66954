"""What is said of epsilon: equal to Opacus's accountant for the same schedule, and nothing without accounting."""

import copy
import json

import pytest
import torch
from opacus.accountants import RDPAccountant
from options import NO_PICTURES
from torch import nn

from fl_lightning import FedAvg
from fl_lightning.callbacks import PrivacyBudget, RunSummary
from fl_lightning.data import Devices, from_arrays
from fl_lightning.losses import (
    CalibratedCrossEntropy,
    CrossEntropy,
    MaskedCrossEntropy,
    ReweightedSoftmax,
    TruncatedCrossEntropy,
    WeightedCrossEntropy,
)
from fl_lightning.methods import SCAFFOLD, FedCurv, FedETF, FedLMD, FedNTD, FedProx, FedReg, FedRoD, FedRS, Flashback
from fl_lightning.privacy import DPSGD, UserLevelDP
from fl_lightning.privacy.defence import epsilon
from fl_lightning.state.atomic_files import atomic_save
from fl_lightning.tasks import EWC, TaskLearner

COHORTS = [[0, 1], [1, 2], [0], [0, 2]]
# toy_data's clients have 5, 10 and 15 samples, in batches of 4: rates, and local steps of two epochs.
RATES, STEPS = {0: 4 / 5, 1: 4 / 10, 2: 4 / 15}, {0: 4, 1: 6, 2: 8}
REHEARSAL = "the gradients that make pseudo and perturbed data and those on them"


def accountants_epsilon(rate, sigma, releases, delta):
    accountant = RDPAccountant()
    for _ in range(releases):
        accountant.step(noise_multiplier=sigma, sample_rate=rate)
    return accountant.get_epsilon(delta)


@pytest.mark.filterwarnings("ignore:Optimal order is the")
@pytest.mark.parametrize("rate", [1e-4, 0.3, 1.0])
@pytest.mark.parametrize("sigma", [0.01, 1.0, 8.0])
@pytest.mark.one_in(3)
def test_epsilon_is_that_of_the_accountant(rate, sigma):
    """For 1, 7 and 50 releases, at two deltas."""
    for releases in (1, 7, 50):
        for delta in (1e-5, 0.01):
            expected = accountants_epsilon(rate, sigma, releases, delta)
            assert epsilon({(rate, sigma): releases}, delta) == pytest.approx(expected, rel=1e-12)


def test_nothing_spent_is_nothing():
    assert epsilon({(0.1, 1.0): 0}, 1e-5) == 0.0


@pytest.mark.filterwarnings("error")
def test_noise_as_small_as_in_the_papers_has_an_epsilon_too():
    """sigma = 0.001, as on COVID-CT, where Opacus's sums would not end: the Gaussian mechanism's without sampling.

    RDP at the lowest order, 1.1, is 1.1 / (2e-6) = 550,000; what it means at delta 1e-5 adds ``log((a-1)/a) - log(delta a) /
    (a-1)`` = -2.4 + 114.2.
    """
    assert epsilon({(0.5, 0.001): 1}, 1e-5) == pytest.approx(550_111.8, abs=0.1)
    assert epsilon({(0.001, 0.0099): 3}, 1e-5) >= epsilon({(0.001, 0.01): 3}, 1e-5)


class Logged(FedAvg):
    """Keeps the epsilons of all rounds."""

    def log_round(self, metrics, round):
        self.__dict__.setdefault("epsilons", {})
        if "privacy/epsilon" in metrics:
            self.epsilons[round] = metrics["privacy/epsilon"]
        super().log_round(metrics, round)


def train(fit, toy_data, privacy, rounds=4, method=Logged, callbacks=(), ckpt_path=None, data=None, folder=None, **settings):
    data = data or toy_data(batch_size=4, cohorts=COHORTS)
    trained = method(nn.Linear(4, 3).double(), local_epochs=2, privacy=privacy, **settings)
    if folder is not None:
        trained.write_to(folder)
    trained.after = fit(trained, data, rounds, ckpt_path, precision="64-true", callbacks=[PrivacyBudget(), *callbacks])
    return trained


def expected_epsilons(sigma, delta):
    """After each round the largest over the clients so far: each with its rate, its visits and their steps."""
    visits, expected = dict.fromkeys(RATES, 0), {}
    for round, cohort in enumerate(COHORTS, start=1):
        for client in cohort:
            visits[client] += 1
        spent = [accountants_epsilon(RATES[k], sigma, visits[k] * STEPS[k], delta) for k in RATES if visits[k] > 0]
        expected[round] = max(spent)
    return expected


def test_the_largest_epsilon_over_clients_is_logged_every_round(fit, toy_data):
    """In round 2 client 0, with the highest rate, does not come, and what it has spent still counts."""
    method = train(fit, toy_data, DPSGD(1.3, accounting=True, delta=1e-3))
    expected = expected_epsilons(1.3, 1e-3)
    assert method.epsilons == pytest.approx(expected, rel=1e-12)
    assert len(set(expected.values())) >= 3
    assert method.newest["privacy/epsilon"] == pytest.approx(expected[4], rel=1e-12)


def test_visits_count_though_their_updates_do_not_arrive(fit, toy_data):
    """Nine of ten uploads are lost, and rounds with them."""
    data = toy_data(batch_size=4, cohorts=COHORTS, devices=Devices(lost_uploads=0.9))
    method = train(fit, toy_data, DPSGD(1.3, accounting=True, delta=1e-3), data=data)
    assert method.epsilons == pytest.approx(expected_epsilons(1.3, 1e-3), rel=1e-12)


def test_a_rate_is_the_share_of_a_batch_and_at_most_1(fit, toy_data):
    """Batches of 8 of 5, 10 and 15 samples: 1, 4/5 and 8/15; a whole shard: 1, one step an epoch."""
    for batch_size, rates in ((8, (1.0, 0.8, 8 / 15)), (None, (1.0, 1.0, 1.0))):
        data = toy_data(batch_size=batch_size)
        data.setup()
        assert [data.batch_sizes.sampling_rate(client) for client in range(3)] == pytest.approx(rates)
    method = train(fit, toy_data, DPSGD(1.3, accounting=True), 1, data=toy_data(batch_size=None))
    assert method.epsilons[1] == pytest.approx(accountants_epsilon(1.0, 1.3, 2, 1e-5), rel=1e-12)


def forget_settings(path) -> None:
    """Make a checkpoint one that names none of its run's settings: what only one side has is not compared."""
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["federated"]["settings"] = {}
    atomic_save(checkpoint, path)


@pytest.mark.parametrize("cut", [1, 3])
@pytest.mark.slow
def test_a_resumed_run_goes_on_counting(fit, toy_data, tmp_path, cut):
    """The same epsilon in every round after the cut, in the summary too."""
    privacy = DPSGD(1.3, accounting=True, delta=1e-3)
    train(fit, toy_data, privacy, cut).after.save_checkpoint(tmp_path / "cut.ckpt")
    summary = RunSummary()
    resumed = train(fit, toy_data, privacy, callbacks=[summary], ckpt_path=tmp_path / "cut.ckpt")
    expected = expected_epsilons(1.3, 1e-3)
    assert resumed.epsilons == pytest.approx({round: expected[round] for round in range(cut + 1, 5)}, rel=1e-12)
    assert summary.results(resumed.after, resumed)["privacy"]["epsilon"] == pytest.approx(expected[4], rel=1e-12)


def test_a_run_that_goes_on_with_other_noise_adds_to_what_was_spent(fit, toy_data, tmp_path):
    """Two rounds at sigma 1.3, two at 0.9: the accountant steps once for each noisy sum, at the sigma of its time."""
    train(fit, toy_data, DPSGD(1.3, accounting=True, delta=1e-3), 2).after.save_checkpoint(tmp_path / "cut.ckpt")
    forget_settings(tmp_path / "cut.ckpt")
    resumed = train(fit, toy_data, DPSGD(0.9, accounting=True, delta=1e-3), ckpt_path=tmp_path / "cut.ckpt")
    spent = []
    for client, rate in RATES.items():
        accountant = RDPAccountant()
        for round, cohort in enumerate(COHORTS, start=1):
            for _ in range(STEPS[client] * (client in cohort)):
                accountant.step(noise_multiplier=1.3 if round <= 2 else 0.9, sample_rate=rate)
        spent.append(accountant.get_epsilon(1e-3))
    assert resumed.epsilons[4] == pytest.approx(max(spent), rel=1e-12)


def test_rounds_without_accounting_cannot_be_accounted_for_later(fit, toy_data, tmp_path):
    train(fit, toy_data, DPSGD(1.3), 2).after.save_checkpoint(tmp_path / "cut.ckpt")
    with pytest.raises(ValueError, match="model.privacy.accounting is True, False in the run"):
        train(fit, toy_data, DPSGD(1.3, accounting=True), ckpt_path=tmp_path / "cut.ckpt")
    forget_settings(tmp_path / "cut.ckpt")
    with pytest.raises(ValueError, match="only 0 of the 2 rounds of ckpt_path were accounted for: resume without accounting"):
        train(fit, toy_data, DPSGD(1.3, accounting=True), ckpt_path=tmp_path / "cut.ckpt")


def test_without_accounting_nothing_is_said_of_epsilon(fit, toy_data, tmp_path, capsys):
    """Neither logged nor printed, and null in the file; batches are the shuffled ones."""
    for privacy in (DPSGD(1.3), None):
        summary = RunSummary()
        method = train(fit, toy_data, privacy, 1, callbacks=[summary], folder=tmp_path)
        assert method.epsilons == {}
        assert "privacy/epsilon" not in method.newest
        assert "epsilon" not in capsys.readouterr().out
        assert not method.engine.context.protection.poisson_batches
        results = json.loads((tmp_path / "results.json").read_text())["privacy"]
        defence = {"defence": "DPSGD(sigma=1.3, C=1)", "epsilon": None, "delta": 1e-5, "not_covered": []}
        assert results == (defence if privacy else {})


def test_the_file_and_the_table_say_what_was_spent(main, tmp_path, read_scalars):
    """A run of the command line: results.json, the table's rows and the curve in TensorBoard agree."""
    code, out, error = main(
        *("fit", "--config", "digits_tce.yaml", "--model.net", "MLP", "--model.loss", "CrossEntropy"),
        *("--model.privacy", "DPSGD", "--model.privacy.noise_multiplier", "1.5", "--model.privacy.accounting", "true"),
        *("--model.privacy.delta", "1e-3", "--model.local_steps", "2", "--trainer.max_steps", "2", "--data.monitor_test", "0"),
        *("--data.batch_size", "8", "--trainer.log_every_n_steps", "1", *NO_PICTURES),
    )
    assert code == 0, error
    folder = tmp_path / "runs" / "digits_tce" / "version_0"
    privacy = json.loads((folder / "results.json").read_text())["privacy"]
    curve = read_scalars(folder)["privacy/epsilon"]
    assert (privacy["defence"], privacy["delta"], privacy["not_covered"]) == ("DPSGD(sigma=1.5, C=1)", 1e-3, [])
    assert sorted(curve) == [1, 2]
    assert curve[2] == pytest.approx(privacy["epsilon"], rel=1e-6)
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines()]
    assert ["privacy", "DPSGD(sigma=1.5, C=1)"] in rows
    assert ["epsilon", f"{privacy['epsilon']:.4g} at delta 0.001"] in rows


@pytest.mark.parametrize(
    ("method", "settings", "expected"),
    [
        (FedAvg, {}, ()),
        (FedProx, {}, ()),
        (FedNTD, {}, ()),
        (SCAFFOLD, {}, ()),
        (SCAFFOLD, {"option": "I"}, ("option I's gradients on all samples",)),
        (FedCurv, {}, ("the Fisher information",)),
        (FedReg, {}, (REHEARSAL,)),
        (FedReg, {"modified_gradients": True}, (REHEARSAL,)),
        (Flashback, {}, ("the label counts that clients send",)),
        (FedRS, {}, ("the classes that a client holds",)),
        (FedLMD, {}, ("the majority classes",)),
        (FedRoD, {}, ("the label counts in the loss",)),
        (FedAvg, {"loss": TruncatedCrossEntropy()}, ("the label counts in the loss",)),
        (FedAvg, {"loss": WeightedCrossEntropy()}, ("the label counts in the loss",)),
        (FedCurv, {"loss": MaskedCrossEntropy()}, ("the label counts in the loss", "the Fisher information")),
        (FedAvg, {"tasks": TaskLearner()}, ("the validation loss that steers learning rates",)),
        (FedAvg, {"tasks": EWC()}, ("the validation loss that steers learning rates", "the Fisher information")),
    ],
)
def test_what_epsilon_does_not_cover_is_said(method, settings, expected):
    """Of what a client takes from its samples other than clipped and noisy gradients; nothing of it under user-level noise."""
    trained = method(nn.Linear(4, 3), privacy=DPSGD(1.0), **settings)
    assert trained.privacy.not_covered(trained) == expected
    assert UserLevelDP(1.0).not_covered(trained) == ()


@pytest.mark.parametrize(
    ("method", "loss"),
    [
        *((FedAvg, loss()) for loss in (CrossEntropy, TruncatedCrossEntropy, ReweightedSoftmax, MaskedCrossEntropy)),
        (FedAvg, CalibratedCrossEntropy()),
        (FedAvg, WeightedCrossEntropy([1.0, 2.0, 3.0])),
        *((method, CrossEntropy()) for method in (FedProx, FedNTD, FedETF, FedRS)),
    ],
)
def test_what_moves_an_update_further_than_the_noise_covers_is_said(fit, method, loss):
    """Another class of one sample moves the noiseless step by at most 2 C / (q n), its old and its new gradient, or is said.

    That sample is the only one of its class, which the net gives most of the probability.
    """
    torch.manual_seed(0)
    inputs, count, clip = torch.randn(60, 4, dtype=torch.float64), 30, 1e-3
    net, ends = nn.Linear(4, 3).double(), []
    net.bias.data[2] = 3.0
    for last in (1, 2):
        targets = torch.cat([torch.arange(59) % 2, torch.tensor([last])])
        data = from_arrays(inputs, targets, [range(60)], batch_size=count, classes=list("abc"))
        privacy = DPSGD(1e-9, clip, accounting=True)
        step = {"optimizer": lambda weights: torch.optim.SGD(weights, lr=1.0), "local_steps": 1}
        trained = method(copy.deepcopy(net), loss=loss, privacy=privacy, **step)
        fit(trained, data, 1, precision="64-true")
        ends.append(torch.cat([weight.detach().flatten() for weight in trained.net.parameters()]))
    is_covered = (ends[0] - ends[1]).norm() <= 2 * clip / count * (1 + 1e-6)
    assert is_covered == (trained.released_without_noise == ())


def test_the_summary_says_what_epsilon_does_not_cover(fit, toy_data, capsys):
    """A row each."""
    summary, both = RunSummary(), ["the label counts in the loss", "the Fisher information"]
    method = train(fit, toy_data, DPSGD(1.0), 1, FedCurv, [summary], loss=TruncatedCrossEntropy())
    assert summary.results(method.after, method)["privacy"]["not_covered"] == both
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in capsys.readouterr().out.splitlines()]
    assert all(["not covered by epsilon", what] in rows for what in both)
