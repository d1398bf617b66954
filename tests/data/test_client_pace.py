"""Which task each client trains on at which time, by the rule of GLFC's code."""

import pytest
import torch

from fl_lightning.data.class_stream import ClientPace


def test_some_move_some_stay_and_some_join():
    """30 clients of whom 27 move, 40 of whom 36 do, and ten new ones each time, who are at the newest task."""
    tasks = ClientPace(moving=0.9, joining=10).tasks_of_clients(50, 3, seed=4)
    for task, there in ((1, 30), (2, 40)):
        moved = tasks[:there, task] == task
        assert int(moved.sum()) == there * 9 // 10
        assert torch.equal(tasks[:there, task][~moved], tasks[:there, task - 1][~moved])
        assert set(tasks[there : there + 10, task].tolist()) == {task}
    assert set(tasks[:30, 0].tolist()) == {0}
    assert [int((tasks[:, task] < 0).sum()) for task in range(3)] == [20, 10, 0]


def test_who_moves_is_drawn_by_the_seed_and_the_task():
    first, again, other = (ClientPace(0.5).tasks_of_clients(20, 3, seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first[:, 1], other[:, 1])
    assert not torch.equal(first[:, 1] == 1, first[:, 2] == 2)
    # A client that stayed moves past the task that it missed.
    assert [0, 0, 2] in first.tolist()


def test_the_default_moves_all_together():
    assert ClientPace().tasks_of_clients(3, 4, seed=0).tolist() == [[0, 1, 2, 3]] * 3


def test_one_client_at_least_moves():
    assert int((ClientPace(0.1).tasks_of_clients(3, 2, seed=0)[:, 1] == 1).sum()) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"moving": 0.0}, "data.tasks.moving is 0.0, must be above 0 and at most 1: 1 moves all clients together"),
        ({"moving": 1.1}, "data.tasks.moving is 1.1, must be above 0 and at most 1: 1 moves all clients together"),
        ({"joining": -1}, "data.tasks.joining is -1, must be at least 0: 0 has all clients there from the start"),
        ({"joining": 3}, "data.tasks.joining is 3 at each of 2 tasks, which leaves none of data.num_clients 6 for the first "
         "task: lower it, or raise data.num_clients"),
    ],
)  # fmt: skip
def test_a_pace_that_cannot_be_is_refused(settings, message):
    with pytest.raises(ValueError) as error:
        ClientPace(**settings).tasks_of_clients(6, 3, seed=0)
    assert str(error.value) == message
