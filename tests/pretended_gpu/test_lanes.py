"""Visits side by side on the pretended GPU: which lane each takes, and that a kind of visit is recorded once."""

import pytest
from pretended.runs import assert_same, loop

from fl_lightning.data import Fixed
from fl_lightning.engines import captured, visit_program


@pytest.fixture
def recordings(monkeypatch):
    """The visits that were recorded, by how many steps they have."""
    noted = []

    class Noting(visit_program.VisitProgram):
        def __call__(self, inputs):
            was_recorded = self._replay is not None
            result = super().__call__(inputs)
            if self._replay is not None and not was_recorded:
                noted.append(len(inputs.steps))
            return result

    monkeypatch.setattr(captured, "VisitProgram", Noting)
    return noted


@pytest.mark.parametrize(("most", "recorded"), [(32, [1, 2, 3, 4]), (0, [])])
def test_uneven_visits_are_recorded_once(recordings, monkeypatch, most, recorded):
    """Clients of 5, 10, 15 and 20 samples, three of them in a round: every number of steps once, in whatever order they come.

    Where no program is kept, visits run without a graph, and end the same.
    """
    monkeypatch.setattr(visit_program, "MOST_PROGRAMS", most)
    clients = [range(0, 5), range(5, 15), range(15, 30), range(30, 50)]
    data = {"partition": Fixed([[*client] for client in clients]), "batch_size": 5, "val_fraction": 0.0}
    settings = {"data": data, "local_steps": None, "local_epochs": 1, "rounds": 4}
    gpu, _ = loop("gpu", engine="captured", **settings)
    assert sorted(recordings) == recorded
    assert_same(gpu, loop("cpu", **settings)[0])


def test_visits_of_one_kind_run_side_by_side(recordings):
    """Three of two steps each, in three lanes, in every round."""
    gpu, _ = loop("gpu", engine="captured", rounds=3)
    assert recordings == [2, 2, 2]
    assert_same(gpu, loop("cpu", rounds=3)[0])
