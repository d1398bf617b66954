"""A round in numbers, by hand."""

import torch

from fl_lightning.engines.cohort_share import Outcome, Share, round_report
from fl_lightning.exchange import RoundReport, Visit


def share_of(num_visits: int) -> Share:
    return Share(num_visits, torch.device("cpu"), lambda client, state: None)


def test_outcomes_are_in_the_order_of_the_cohort():
    """Recorded in two parts, the later visits first; a visit of another process is all zeros here."""
    share, seen = share_of(4), torch.tensor([True, False])
    share.record([3, 1], torch.tensor([0.5, 2.0]), seen, [(8, 16, True, True), (8, 0, False, False)], torch.tensor([3.0, 4.0]))
    share.record([0], torch.tensor([1.0]), torch.tensor([True]), [(0, 24, False, True)], torch.tensor([5.0]))
    assert share.outcomes() == [
        Outcome(loss=1, is_finite=1, bytes_down=0, bytes_up=24, has_state=0, has_weight=1, norm=5),
        Outcome(loss=2, is_finite=0, bytes_down=8, bytes_up=0, has_state=0, has_weight=0, norm=4),
        Outcome(0, 0, 0, 0, 0, 0, 0),
        Outcome(loss=0.5, is_finite=1, bytes_down=8, bytes_up=16, has_state=1, has_weight=1, norm=3),
    ]


def test_a_report_adds_up_outcomes():
    """An update counts that is sent, finite and of a weight above 0: here that of the first client alone."""
    visits = [Visit(7), Visit(2), Visit(5, sends=False), Visit(3)]
    outcomes = [
        Outcome(1.0, 1, 10, 20, 0, 1, 0.1),
        Outcome(2.0, 0, 10, 20, 0, 1, 0.2),
        Outcome(3.0, 1, 10, 0, 1, 1, 0.0),
        Outcome(4.0, 1, 10, 20, 0, 0, 0.4),
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
