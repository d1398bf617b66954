"""SingleTask: a whole net for each task."""

from fl_lightning.tasks import SingleTask


def test_every_task_begins_at_the_initial_weights(tiny):
    """Against a plain loop in which each task has a net to itself; nothing is sent, models are as many nets as tasks."""
    method = tiny.train(SingleTask)
    names = (*tiny.body, *tiny.head)
    expected = tiny.plain(federated=False, per_task=names)
    tiny.assert_plain(method, expected)
    tiny.assert_moved(expected.now[0], names)
    assert all(report.bytes_up == report.bytes_down == report.num_updates == 0 for report in method.seen.rounds)
    assert method.tasks.model_values.tolist() == [3 * sum(weight.numel() for weight in tiny.weights.values())] * 3


def test_earlier_tasks_are_not_forgotten(tiny):
    """Accuracy on a task is the same ever after."""
    accuracy = tiny.train(SingleTask).tasks.task_accuracy
    for task in range(3):
        assert (accuracy[:, task:, task] == accuracy[:, task, task, None]).all()
