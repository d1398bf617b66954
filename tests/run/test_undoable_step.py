"""A server's step that makes the model non-finite is undone, counted and named, and ends the run where it goes on."""

import copy
import dataclasses
import re
from collections import OrderedDict

import pytest
import torch
from torch import nn

from fl_lightning import SCAFFOLD, FedAvg, FedCurv, FedDyn, FedProx, FedReg, Flashback
from fl_lightning.callbacks import FederatedCallback, RunSummary
from fl_lightning.data import Arrays, FederatedDataModule
from fl_lightning.optimizers import FedAdam, FedYogi
from fl_lightning.protocol import RoundReport, Weighted
from fl_lightning.run.server_step import UndoableStep
from fl_lightning.tasks import ClassStream, Replay


class Reports(FederatedCallback):
    def __init__(self):
        super().__init__()
        self.rounds, self.seen = [], []

    def on_round_end(self, trainer, module, round, report):
        self.rounds.append(report)
        moments = [dict(state) for state in trainer.optimizers[0].state.values()]
        self.seen.append(copy.deepcopy((module.state_dict(), moments, module.stored.states.checkpoint()["states"])))


def loud(method, client, rounds, value=1e30):
    """The method with a client that sends finite but huge weights in some rounds."""

    class Loud(method):
        def client_result(self, net, sender):
            upload = super().client_result(net, sender)
            if sender.index != client or sender.round not in rounds:
                return upload
            sent = upload["weights"]
            return {**upload, "weights": sent._replace(tensors={k: torch.full_like(v, value) for k, v in sent.tensors.items()})}

    return Loud


def train(fit, data, method, rounds, ckpt_path=None, **settings):
    torch.manual_seed(0)
    net = nn.Sequential(OrderedDict(classifier=nn.Linear(4, 3))) if "tasks" in settings else nn.Linear(4, 3)
    trained, reports, summary = method(net, local_steps=2, **settings), Reports(), RunSummary()
    trainer = fit(trained, data, rounds, ckpt_path, callbacks=[reports, summary])
    return trained, reports, summary.results(trainer, trained)


@pytest.mark.parametrize("optimizer", [FedYogi, FedAdam])
@pytest.mark.parametrize("method", [FedAvg, SCAFFOLD, FedCurv])
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.one_in(3)
def test_a_step_that_overflows_is_undone(fit, toy_data, method, optimizer, engine):
    """1e30 squared is infinite in float32; the norm of 15 such values is ``sqrt(15) 1e30``.

    Weights, moments, variates and clients' states are those of the round before.
    """
    warning = r"^round 3: .*non-finite \(largest norm of an update: 3.87e\+30, of client 1\), and was undone"
    with pytest.warns(UserWarning, match=warning):
        trained, reports, results = train(
            fit, toy_data(monitor_test=1), loud(method, 1, {3}), 5, server_optimizer=optimizer, engine=engine
        )
    assert [report.undone for report in reports.rounds] == [False, False, True, False, False]
    assert all(tensor.isfinite().all() for tensor in trained.state_dict().values())
    (state, moments, states), (after, moments_after, states_after) = reports.seen[1:3]
    if method is not FedCurv:  # whose server forgets all but the last round, and the last was lost
        torch.testing.assert_close(after, state, rtol=0, atol=0)
    torch.testing.assert_close(after["net.weight"], state["net.weight"], rtol=0, atol=0)
    torch.testing.assert_close(moments_after, moments, rtol=0, atol=0)
    torch.testing.assert_close(states_after, states, rtol=0, atol=0)
    assert not torch.equal(reports.seen[3][0]["net.weight"], after["net.weight"])
    assert results["rounds_undone"] == [3]
    assert results["clients_left_out"] == {}
    assert trained.trainer.callback_metrics["train/round_undone"] == 0  # of the last round


def test_an_undone_round_is_as_a_lost_one(fit, toy_data):
    """The same bits as where the client sent NaN and nobody else came."""
    with pytest.warns(UserWarning, match="was undone"):
        undone = train(fit, toy_data(cohorts=[[0], [1], [2]]), loud(FedAvg, 1, {2}), 3, server_optimizer=FedYogi)[0]
    lost = train(fit, toy_data(cohorts=[[0], [1], [2]]), loud(FedAvg, 1, {2}, float("nan")), 3, server_optimizer=FedYogi)[0]
    assert torch.equal(undone.net.weight, lost.net.weight)
    assert undone.trainer.global_step == 3


@pytest.mark.filterwarnings("ignore:round")
def test_ten_undone_rounds_in_a_row_end_the_run(fit, toy_data):
    """In one line, with whose update was the largest."""
    with pytest.raises(FloatingPointError, match=r"10 rounds in a row were lost or undone .* of client 2\)\): lower the"):
        train(fit, toy_data(), loud(FedAvg, 2, set(range(3, 20))), 15, server_optimizer=FedYogi)


@pytest.mark.filterwarnings("ignore:round")
def test_a_distillation_that_diverges_is_undone(fit, toy_data):
    """Whatever the server does after its step."""

    class Diverges(FedAvg):
        calls = 0

        def after_server_step(self, probes):
            self.calls += 1
            if self.calls == 2:
                self.net.weight.data.fill_(float("inf"))

    trained, reports, _ = train(fit, toy_data(), Diverges, 3)
    assert [report.undone for report in reports.rounds] == [False, True, False]
    assert trained.net.weight.isfinite().all()


@pytest.mark.filterwarnings("ignore:round")
@pytest.mark.parametrize("hook", ["server_step", "after_server_step"])
@pytest.mark.parametrize("cohorts", [None, [[0], [0], [1], [0]]])
def test_a_server_that_diverges_without_an_update_is_undone_too(fit, toy_data, hook, cohorts):
    """From round 3 on it does so in every call, also where no client sent a finite update, and after the undo."""

    class Diverges(loud(FedAvg, 1, {3}, float("nan"))):
        pass

    def diverging(self, given):
        getattr(FedAvg, hook)(self, given)
        if self.round > 2:
            self.net.weight.data.fill_(float("inf"))

    setattr(Diverges, hook, diverging)
    data = toy_data() if cohorts is None else toy_data(cohorts=cohorts)
    trained, reports, results = train(fit, data, Diverges, 4)
    assert trained.net.weight.isfinite().all()
    assert results["rounds_undone"] == [3, 4]
    assert torch.equal(reports.seen[3][0]["net.weight"], reports.seen[1][0]["net.weight"])
    assert trained.trainer.global_step == 4


def test_the_summary_names_who_sent_the_largest_update(fit, toy_data):
    """Client 1 sends 3e38 in round 3; the honest ones, who receive a third of it, are left out from then on."""
    _, reports, results = train(fit, toy_data(), loud(FedAvg, 1, {3}, 3e38), 6)
    assert results["clients_left_out"]
    assert results["largest_update"] == {"norm": max(reports.rounds[2].norms), "client": 1, "round": 3}


@pytest.mark.filterwarnings("ignore:round")
@pytest.mark.parametrize("engine", ["sequential", "vectorized", "captured"])
def test_a_round_that_loses_more_than_half_moves_nothing(fit, toy_data, capsys, engine):
    """Client 1 sends 1e30 in round 2 and a finite model ever after; the honest two overflow on what it made of the model.

    What client 1 then sends is not taken: the model stays that of round 2. The summary names client 1 and that round:
    27 values of 1e30 each are ``sqrt(27) 1e30``.
    """
    torch.manual_seed(0)
    net, reports, summary = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3)), Reports(), RunSummary()
    method = loud(FedAvg, 1, range(2, 9))(net, local_steps=2, engine=engine)
    trainer = fit(method, toy_data(), 6, callbacks=[reports, summary])
    assert [report.lost for report in reports.rounds] == [False, False, True, True, True, True]
    assert [report.nonfinite for report in reports.rounds[2:]] == [[0, 2]] * 4
    assert [report.num_updates for report in reports.rounds] == [3, 3, 0, 0, 0, 0]
    torch.testing.assert_close(reports.seen[-1][0], reports.seen[1][0], rtol=0, atol=0)
    results = summary.results(trainer, method)
    assert results["rounds_lost"] == [3, 4, 5, 6]
    assert results["update_before_lost_rounds"] == {"norm": pytest.approx(27**0.5 * 1e30), "client": 1, "round": 2}
    assert results["rounds_without_update"] == 4
    assert re.search(r"last rounds of no use .* 4: the model is that of the round before them", capsys.readouterr().out)


OTHERS = {  # than those that toy_data is enough for
    "Flashback": (Flashback, {"public_size": 9}, {}),
    "Replay": (FedAvg, {"tasks": ClassStream(num_tasks=2)}, {"tasks": Replay(memory=4, rounds_per_task=1)}),
}


@pytest.mark.parametrize("method", [FedAvg, SCAFFOLD, FedDyn, FedReg, FedProx, *OTHERS])
def test_who_moves_a_model_far_on_which_nobody_overflows_is_named(fit, toy_data, capsys, method):
    """One layer takes weights of 1e30, and no round is lost: one warning all the same, with ``sqrt(15) 1e30``, and a row."""
    data, settings = toy_data(), {}
    if method in OTHERS:
        method, given, settings = OTHERS[method]
        samples = torch.randn(60, 4), torch.arange(60) % 3
        data = FederatedDataModule(Arrays(*samples, *samples), num_clients=3, clients_per_round=3, val_fraction=0, **given)
    warning = r"^round 2: the largest norm of an update: 3\.87e\+30, of client 1, where [0-9.]+ is usual: .*earlier checkpoint"
    with pytest.warns(UserWarning, match=warning) as warned:
        _, reports, results = train(fit, data, loud(method, 1, {2, 4}), 5, **settings)
    assert sum("is usual" in str(one.message) for one in warned) == 1
    assert not any(report.lost or report.undone or report.nonfinite for report in reports.rounds)
    assert results["far_update"]["client"] == 1
    assert re.search(r"largest finite update .* norm 3\.87e\+30, of client 1 in round 2", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("norms", "before", "usual"),
    [
        ([2.0, 1e30, 4.0, 3.0], None, 3.0),
        ([2.0, 3e6, 4.0, 3.0], None, None),  # not over a million times 3
        ([0.0, 1e30, 4.0, 0.0], None, 4.0),  # who sends nothing is not counted
        ([1e30, 1e30, 1e30, 3.0], 5.0, 5.0),  # most are far: what was usual before tells
        ([1e30, 0.0, 0.0, 0.0], None, None),  # nothing to compare with
        ([1e30, 0.0, 0.0, 0.0], 2.0, 2.0),
        ([999.0, 1e-9, 1e-9, 1e-9], None, None),  # clients that have learned all
        ([2.0, float("nan"), 4.0, 3.0], None, None),
    ],
)
def test_what_is_far(norms, before, usual):
    nonfinite = [client for client, norm in enumerate(norms) if norm != norm]
    settings = {"losses": [0.0] * 4, "num_updates": 4, "nonfinite": nonfinite, "bytes_down": 0, "bytes_up": 0, "norms": norms}
    report = RoundReport(1, [0, 1, 2, 3], **settings)
    assert report.far_above(before) == usual
    assert dataclasses.replace(report, undone=True).far_above(before) is None


@pytest.mark.parametrize("weight", [-1.0, 1e308])
def test_a_weight_of_an_upload_is_checked(fit, toy_data, weight):
    class Sends(FedAvg):
        def client_result(self, net, client):
            return super().client_result(net, client) | {"more": Weighted({"one": torch.ones(1)}, weight)}

    refused = re.escape(f"an upload's 'more' has the weight {weight}, must be 0 or from 1e-100")
    with pytest.raises(ValueError, match=refused):
        train(fit, toy_data(), Sends, 2)


def weighing(weights):
    class Weighing(FedAvg):
        def update_weight(self, client):
            return weights[client.index]

    return Weighing


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_a_client_of_weight_0_does_not_count(fit, toy_data, engine):
    """The mean is that of the others, and a round of such clients alone is lost, not NaN."""
    data = {"cohorts": [[0, 1, 2], [0], [1, 2]]}
    trained, reports, _ = train(fit, toy_data(**data), weighing([0.0, 1.0, 1.0]), 3, engine=engine)
    expected = train(fit, toy_data(cohorts=[[1, 2], [1, 2]]), weighing([0.0, 1.0, 1.0]), 2, engine=engine)
    torch.testing.assert_close(reports.seen[0][0], expected[1].seen[0][0])
    assert [report.num_updates for report in reports.rounds] == [2, 0, 2]
    assert torch.equal(reports.seen[0][0]["net.weight"], reports.seen[1][0]["net.weight"])
    assert trained.net.weight.isfinite().all()


def test_a_client_that_weighs_0_alone_stores_nothing(fit, toy_data):
    """The server does not learn of its control variate: the round is lost, and says so."""

    class Weighing(SCAFFOLD):
        def update_weight(self, client):
            return float(client.index != 0)

    method = Weighing(nn.Linear(4, 3).double())
    with pytest.warns(match="^round 2 is lost: all clients had weight 0$"):
        fit(method, toy_data(cohorts=[[1, 2], [0]]), 2, precision="64-true")
    assert sorted(method.stored.states.clients()) == [1, 2]
    assert method.newest["train/round_lost"] == 1


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf"), 1e308, 5e-324])
def test_what_is_no_weight_is_refused(fit, toy_data, engine, weight):
    """By the method, the client and the round."""
    refused = re.escape(f"Weighing.update_weight gives client 1 in round 1 the weight {weight}, must be")
    with pytest.raises(ValueError, match=refused):
        train(fit, toy_data(), weighing([1.0, weight, 1.0]), 2, engine=engine)


def test_clients_that_all_weigh_0_end_the_run(fit, toy_data):
    with pytest.raises(FloatingPointError, match="all clients had weight 0 in 10 rounds in a row .*update_weight"):
        train(fit, toy_data(), weighing([0.0, 0.0, 0.0]), 12)


def test_the_largest_norm_is_not_the_largest_value(fit, toy_data):
    """Weights of 1e30 at the server are in what everyone sends; client 2 alone has moved them, and is the one named.

    Its 12 weights go from 1e30 to -1e29: ``sqrt(12) 1.1e30``. The biases are 0.
    """

    class Stays(FedAvg):
        def client_result(self, net, client):
            upload = super().client_result(net, client)
            factor = -0.1 if client.index == 2 else 1.0
            sent = {name: factor * client.received_state[name] for name in upload["weights"].tensors}
            return {**upload, "weights": upload["weights"]._replace(tensors=sent)}

    net, reports = nn.Linear(4, 3), Reports()
    net.weight.data.fill_(1e30)
    net.bias.data.fill_(0)
    with pytest.warns(UserWarning, match=r"largest norm of an update: 3.81e\+30, of client 2\)"):
        fit(Stays(net, local_steps=1, server_optimizer=FedYogi), toy_data(), 1, callbacks=[reports])
    assert reports.rounds[0].norms == pytest.approx([0, 0, 12**0.5 * 1.1e30], rel=1e-6)


def test_who_blew_a_model_up_that_stays_finite_is_named(fit, toy_data):
    """A change of 1e30 under SGD leaves a finite model, from which no client comes back: the last ones are not to blame.

    27 values of 1e30 each: ``sqrt(27) 1e30``.
    """
    torch.manual_seed(0)
    method = loud(FedAvg, 1, {2})(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3)), local_steps=2)
    blamed = r"last: clients 0, 1, 2; before them, in round 2, the largest norm of an update: 5\.2e\+30, of client 1\)"
    with pytest.raises(FloatingPointError, match=blamed):
        fit(method, toy_data(), 15)


def test_a_buffer_that_is_called_as_a_frozen_weight_is_put_back():
    """Names in the net and in the method may be the same; which weight is frozen does not go by its name."""
    module = nn.Module()
    module.net = nn.Linear(2, 2)
    module.net.bias.requires_grad_(False)
    module.register_buffer("bias", torch.zeros(1))
    step = UndoableStep(module, torch.optim.SGD([module.net.weight], lr=1.0), [module.net.bias])
    step.remember()
    module.bias += 1
    step.undo()
    assert module.bias == 0
