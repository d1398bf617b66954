"""TaskAttention: what a client's state says, and the pictures of a run."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.testing import assert_close

from fl_lightning.callbacks import TaskAttention
from fl_lightning.callbacks.task_attention import attention
from fl_lightning.protocol import ClientState, LearnedTask
from fl_lightning.report.log import read_log
from fl_lightning.report.run_figures import pictures


def learned(known, weights=None):
    """A task: the foreign ones that it was given, by client and position, and its attention by weight."""
    tensors = {name: torch.tensor(values) for name, values in (weights or {}).items()}
    return LearnedTask(tensors, known=torch.tensor(known, dtype=torch.int64).reshape(-1, 2))


def test_attention_is_the_mean_over_layers_of_each_given_task():
    """Task 0 knew nothing; task 1 was given task 0 of clients 2 and 1, in that order; task 2 task 1 of client 2.

    Columns ascend: (1, 0), (2, 0), (2, 1). Layers a and b give task 1 (.5, .1) and (.3, .3): means .4 for client 2, .2 for 1.
    """
    tasks = {
        0: learned([]),
        1: learned([[2, 0], [1, 0]], {"a.attention": [0.5, 0.1, 9.0], "b.attention": [0.3, 0.3, 9.0]}),  # room for three
        2: learned([[2, 1]], {"a.attention": [-0.2, 9.0, 9.0], "b.attention": [0.6, 9.0, 9.0]}),
    }
    table, columns = attention(tasks, num_tasks=4, names=["a.attention", "b.attention"])
    nan = float("nan")
    assert columns == [(1, 0), (2, 0), (2, 1)]
    expected = torch.tensor([[nan, nan, nan], [0.2, 0.4, nan], [nan, nan, 0.2], [nan, nan, nan]])
    assert_close(table, expected, equal_nan=True)


def test_attention_of_one_layer():
    """That of Figure 8: of b alone, (.3, .2) for task 1."""
    weights = {f"{layer}.parametrizations.weight.0.attention": row for layer, row in (("a", [0.5, 0.1]), ("b", [0.3, 0.2]))}
    table, columns = attention({1: learned([[1, 0], [2, 0]], weights)}, num_tasks=2, names=[list(weights)[1]])
    assert columns == [(1, 0), (2, 0)]
    assert_close(table[1], torch.tensor([0.3, 0.2]))


def test_a_layer_that_has_no_attention_is_refused(main):
    """One line with the layers that have."""
    options = ["--trainer.max_steps", "1", "--callbacks.task_attention.layer", "classifier"]
    code, _, error = main("fit", "--config", "digits_fedweit.yaml", *options)
    assert code != 0
    assert error.count("\n") == 1
    assert "callbacks.task_attention.layer is 'classifier', must be one of features." in error


def test_a_client_without_a_state_has_no_attention():
    table, columns = attention({}, num_tasks=3, names=["a.attention"])
    assert table.shape == (3, 0)
    assert columns == []


def test_a_run_draws_the_first_clients_when_it_ends(main, tmp_path):
    """Three rounds of one round a task: from the second task on clients build on others'."""
    options = "--trainer.max_steps 3 --model.tasks.rounds_per_task 1 --model.net.hidden 16 --data.batch_size 60".split()
    options += ["--callbacks.task_attention.num_clients", "2"]
    code, printed, error = main("fit", "--config", "digits_fedweit.yaml", *options)
    assert code == 0, error
    assert " in memory, more with each task\n" in printed
    (folder,) = Path().glob("runs/digits_fedweit/version_0")
    images = EventAccumulator(str(folder)).Reload().Tags()["images"]
    assert [name for name in images if "attention" in name] == ["tasks/attention/client_0", "tasks/attention/client_1"]
    logged = [picture.tag for picture in pictures(read_log(folder)) if picture.tag.startswith("tasks/")]
    assert logged == ["tasks/accuracy_table", "tasks/attention/client_0", "tasks/attention/client_1"]


def test_the_first_clients_are_those_with_the_smallest_numbers():
    """In whatever order the store lists them: last are those of the newest round."""
    asked = []
    states = SimpleNamespace(clients=lambda: [2, 0, 1], read=lambda client: asked.append(client) or ClientState())
    tasks, data = SimpleNamespace(attention_tensors=lambda: {"a": "a.attention"}), SimpleNamespace(num_tasks=2)
    module = SimpleNamespace(tasks=tasks, data=SimpleNamespace(streams=data), stored=SimpleNamespace(states=states))
    TaskAttention(every=1, num_clients=2).on_aggregate_end(None, module, 1)
    assert asked == [0, 1]


def test_no_clients_is_refused():
    with pytest.raises(ValueError, match="callbacks.task_attention.num_clients is 0, must be at least 1"):
        TaskAttention(num_clients=0)
