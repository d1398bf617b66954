"""A round in numbers, by hand."""

import pytest
import torch

from fl_lightning.engines.cohort_share import Outcome, Share, round_report
from fl_lightning.protocol import ClientState, Gathered, Reply, RoundReport, Visit, Weighted


def share_of(num_visits: int) -> Share:
    return Share(num_visits, torch.device("cpu"), lambda client, state: None)


def reply(client: int, **parts) -> Reply:
    return Reply(1, client, loss=torch.zeros(1), **parts)


def test_outcomes_are_in_the_order_of_the_cohort():
    """Booked in two parts, the later visits first."""
    share, kept = share_of(3), ClientState({"a": torch.zeros(1)})
    share.measure([2, 1], torch.tensor([[0.5, 1, 3.0], [2.0, 0, 4.0]]))
    for position, of_one in ((2, {"bytes_up": 16, "state": kept, "weight": 2.0}), (1, {})):
        share.note(position, reply(position, bytes_down=8, **of_one), dict)
    share.measure([0], torch.tensor([[1.0, 1, 5.0]]))
    share.note(0, reply(0, bytes_up=24, weight=1.0), dict)
    assert share.outcomes() == [
        Outcome(loss=1, is_finite=1, bytes_down=0, bytes_up=24, has_state=0, has_weight=1, norm=5),
        Outcome(loss=2, is_finite=0, bytes_down=8, bytes_up=0, has_state=0, has_weight=0, norm=4),
        Outcome(loss=0.5, is_finite=1, bytes_down=8, bytes_up=16, has_state=1, has_weight=1, norm=3),
    ]


def test_all_of_a_reply_is_booked():
    """Once: what is summed and what is gathered, the state, the probe and the model; what is not finite is not summed."""
    states = {}
    share = Share(2, torch.device("cpu"), states.__setitem__, keeps_models=True)
    for position, value in enumerate((3.0, torch.inf)):
        upload = {"w": Weighted({"a": torch.tensor([value, 1.0])}, 2.0), "g": Gathered({"b": torch.tensor([value])})}
        kept, probe = ClientState({"a": torch.tensor([value])}), {"p": torch.tensor(value)}
        visit = Reply(1, 7 + position, torch.ones(1), upload, 2.0, kept, probe, 8, 16)
        share.book(position, visit, torch.ones(1), lambda value=value: {"m": torch.tensor(value)})
    assert share.reduced.mean("w")["a"].tolist() == [3, 1]
    assert float(share.reduced.total_weight("w")) == 2
    assert share.outcomes() == [Outcome(1, 1, 1, 8, 16, True, True), Outcome(1, 0, 1, 8, 16, True, True)]
    assert {client: float(state.method["a"]) for client, state in states.items()} == {7: 3, 8: torch.inf}
    assert share.reduced.gathered("g")[7] == {"b": torch.tensor([3.0])}
    assert [float(share.probes[position]["p"]) for position in (0, 1)] == [3, torch.inf]
    assert [float(share.models[position]["m"]) for position in (0, 1)] == [3, torch.inf]


@pytest.mark.parametrize("part", ["state", "gathered", "weighted"])
def test_one_value_that_is_not_finite_leaves_a_client_out(part):
    """Wherever it is."""
    share, bad = share_of(1), {"a": torch.tensor([torch.nan])}
    upload = {"w": Weighted({"a": torch.ones(1)}, 1.0)}
    upload |= {"weighted": {"v": Weighted(bad, 1.0)}, "gathered": {"g": Gathered(bad)}}.get(part, {})
    share.book(0, reply(0, upload=upload, state=ClientState(bad if part == "state" else {})), torch.zeros(1), dict)
    assert share.outcomes()[0].is_finite == 0
    assert float(share.reduced.total_weight("w")) == 0


def test_a_report_adds_up_outcomes():
    """An update counts that is sent, finite and of a weight above 0: here that of the first client alone."""
    visits = [Visit(7), Visit(2), Visit(5, sends=False), Visit(3)]
    outcomes = [
        Outcome(1.0, 1, 0.1, 10, 20, 0, 1),
        Outcome(2.0, 0, 0.2, 10, 20, 0, 1),
        Outcome(3.0, 1, 0.0, 10, 0, 1, 1),
        Outcome(4.0, 1, 0.4, 10, 20, 0, 0),
    ]
    assert round_report(6, visits, outcomes) == RoundReport(
        round=6,
        clients=[7, 2, 5, 3],
        losses=[1.0, 2.0, 3.0, 4.0],
        num_updates=1,
        nonfinite=[2],
        bytes_down=40,
        bytes_up=60,
        norms=[0.1, 0.2, 0.0, 0.4],
    )


@pytest.mark.parametrize(("finite", "lost"), [([1, 1, 0, 0], False), ([1, 0, 0], True), ([0], True), ([], False)])
def test_a_round_that_loses_more_than_half_of_its_updates_is_lost(finite, lost):
    """Half is not more; who sends nothing does not count, here the client at the end."""
    visits = [*map(Visit, range(len(finite))), Visit(9, sends=False)]
    outcomes = [Outcome(1.0, flag, 1.0, 0, 0, 0, 1) for flag in [*finite, 0]]
    report = round_report(1, visits, outcomes)
    assert (report.lost, report.num_updates) == (lost, 0 if lost else sum(finite))
    assert report.counted == [client for client, flag in enumerate(finite) if flag and not lost]
    bounded = round_report(1, visits, outcomes, can_be_lost=False)
    assert (bounded.lost, bounded.num_updates) == (finite == [0], sum(finite))
    weightless = round_report(1, visits, [outcome._replace(has_weight=0) for outcome in outcomes])
    assert (weightless.lost, weightless.num_updates) == (finite != [], 0)


@pytest.mark.parametrize(("norm", "proven", "counts"), [(2.0, (), False), (2.0, ("w",), True), (torch.nan, ("w",), False)])
def test_only_a_norm_proves_that_an_upload_is_finite(norm, proven, counts):
    """Client 0 sends an infinity: seen in values that the norm does not cover, and not looked for where the norm shows it.

    The other name, which is not part of the norm, is always looked at.
    """
    for name in ("w", "v"):
        share, upload = share_of(1), {key: Weighted({"a": torch.tensor([1.0, 1.0])}, 1.0) for key in ("w", "v")}
        upload[name].tensors["a"][1] = torch.inf
        share.book(0, reply(0, upload=upload), torch.tensor([norm]), dict, proven)
        assert bool(share.outcomes()[0].is_finite) == (counts and name == "w")
