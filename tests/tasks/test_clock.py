"""The clocks of all clients, without a net: ticks worked out by hand."""

import pytest
import torch

from fl_lightning.tasks.clock import Clock, TaskClocks


def visited(*rounds):
    return lambda within: any(round <= within for round in rounds)


def tick(clocks, visited, factors):
    """A round, after which who is done goes on."""
    clocks.tick(visited, factors)
    clocks.go_on()


def factors(*values):
    return {client: torch.tensor(value) for client, value in enumerate(values)}


def where(clocks):
    return clocks.positions, clocks.rounds_in_task.tolist(), clocks.factors


def test_all_change_tasks_together():
    """After R = 2 rounds, also who was not visited; rates are whole again, and after T = 2 tasks it is over."""
    clocks = TaskClocks(3, 2, 2, first_rate=0.1)
    tick(clocks, [0, 1], factors(1.0, 0.5))
    assert where(clocks) == ([0, 0, 0], [1, 1, 1], [1.0, 0.5, 1.0])
    tick(clocks, [0], {})
    assert where(clocks) == ([1, 1, 1], [0, 0, 0], [1.0] * 3)
    tick(clocks, [], {})
    tick(clocks, [], {})
    assert clocks.positions == [2, 2, 2]
    assert clocks.is_over
    assert not any(map(clocks.learns, range(3)))
    tick(clocks, [], {})
    assert clocks.positions == [2, 2, 2]


def test_all_wait_for_the_last_rate_to_fall():
    """Rates end at .04 of .1: who is below it rests until everyone is, then all go on."""
    clocks = TaskClocks(2, 3, 9, first_rate=0.1, smallest_rate=0.04)
    tick(clocks, [0, 1], factors(0.25, 0.5))
    assert [clocks.learns(client) for client in range(2)] == [False, True]
    assert clocks.positions == [0, 0]
    tick(clocks, [1], {1: torch.tensor(0.25)})
    assert where(clocks) == ([1, 1], [0, 0], [1.0, 1.0])


def test_each_changes_tasks_by_itself():
    """Asynchronous, R = 2 visits, lost ones too, or a rate that has fallen; who was not visited stands still."""
    clocks = TaskClocks(3, 2, 2, first_rate=0.1, schedule="asynchronous", smallest_rate=0.04)
    tick(clocks, [0, 1], factors(1.0, 0.3))
    assert where(clocks) == ([0, 1, 0], [1, 0, 0], [1.0, 1.0, 1.0])
    tick(clocks, [0], {})  # its update was lost
    assert where(clocks) == ([1, 1, 0], [0, 0, 0], [1.0, 1.0, 1.0])


def test_the_last_visit_of_a_task():
    """In its last round, where the rate ends it, and, where all change together, where no visit follows in its rounds."""
    for schedule, alone in (("synchronous", True), ("asynchronous", False)):
        clocks = TaskClocks(1, 2, 4, first_rate=0.1, schedule=schedule, smallest_rate=0.04)
        assert not clocks.is_last_visit(0, Clock(), visited(3))
        assert clocks.is_last_visit(0, Clock(), visited(4)) == alone
        assert clocks.is_last_visit(0, Clock(factor=0.3), visited(1))
        for _ in range(3):
            tick(clocks, [0], {})
        assert clocks.is_last_visit(0, Clock(), visited(1))


def test_they_come_back_from_their_state():
    """As a checkpoint or an undone round puts it back; what is asked follows once it is read."""
    clocks, other = (TaskClocks(2, 3, 2, first_rate=0.1, schedule="asynchronous") for _ in range(2))
    for visitors in ([0, 1], [0], [0]):
        tick(clocks, visitors, {0: torch.tensor(0.5)})
    other.load_state_dict(clocks.state_dict())
    other.read()
    assert where(other) == where(clocks) == ([1, 0], [1, 1], [0.5, 1.0])


@pytest.mark.parametrize(
    ("pace", "rate", "message"),
    [
        ({}, 0.0, "model.optimizer.lr is 0.0, must be above 0: "),
        ({"smallest_rate": 0.2}, 0.1, "model.tasks.smallest_rate is 0.2, must be at most 0.1: "),
    ],
)
def test_rates_that_end_every_task_are_refused(pace, rate, message):
    """One line with the key and the value."""
    with pytest.raises(ValueError) as error:
        TaskClocks(1, 1, 20, first_rate=rate, **pace)
    assert str(error.value).startswith(message)
