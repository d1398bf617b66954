"""TaskAccuracy: its scalars against loops over clients and tasks."""

import csv
import math

import pytest
import torch
from matplotlib.text import Text
from pairs import Pair

from fl_lightning import FedAvg
from fl_lightning.callbacks import Communication, FederatedCallback, LabelCounts, TaskAccuracy, label_counts, task_accuracy
from fl_lightning.callbacks.task_accuracy import task_scalars
from fl_lightning.protocol import RoundReport
from fl_lightning.tasks import APD, FedWeIT, TaskLearner

NAN = math.nan


def by_loops(table, num_learned):
    """Of a (N, T, T) table, all clients at the same position: ``a[t][i]``, t and i counted from 1 as in the paper."""
    scores = {"tasks/accuracy": 0.0, "tasks/forgetting": 0.0, "tasks/backward_transfer": 0.0}
    for client in table.tolist():
        a, T = [None, *([None, *row] for row in client)], num_learned
        scores["tasks/accuracy"] += sum(a[T][i] for i in range(1, T + 1)) / T / len(table)
        if T > 1:
            drops = [max(a[t][i] - a[T][i] for t in range(i, T)) for i in range(1, T)]
            scores["tasks/forgetting"] += sum(drops) / (T - 1) / len(table)
            scores["tasks/backward_transfer"] += sum(a[T][i] - a[i][i] for i in range(1, T)) / (T - 1) / len(table)
    for i in range(num_learned):
        scores[f"task_accuracy/{i + 1:02d}"] = sum(client[num_learned - 1][i] for client in table.tolist()) / len(table)
    return {name: score for name, score in scores.items() if num_learned > 1 or name not in list(scores)[1:3]}


class Newest(FederatedCallback):
    """What was logged up to the end of each round, and the table."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_round_end(self, trainer, module, round, report):
        self.seen.append((dict(module.newest), module.tasks.task_accuracy.clone(), module.tasks.model_values.clone()))


def test_scalars_of_every_round(tiny, monkeypatch):
    """Six rounds, two a task; what is known of a task is renewed in each. The table is drawn in round 4 and in the last."""
    drawn, newest = [], Newest()
    monkeypatch.setattr(task_accuracy, "log_figure", lambda trainer, name, figure, round: drawn.append((name, round)))
    tiny.train(TaskLearner, callbacks=[TaskAccuracy(every=4), newest])
    for round, (scalars, table, values) in enumerate(newest.seen, start=1):
        expected = by_loops(table, num_learned=(round + 1) // 2)
        expected |= {"tasks/learned": round // 2, "tasks/model_megabytes": 4e-6 * float(values.sum())}
        of_tasks = {name: value for name, value in scalars.items() if "task" in name}
        assert of_tasks == pytest.approx(expected), round
    assert drawn == [("tasks/accuracy_table", 4), ("tasks/accuracy_table", 6)]


def test_the_size_of_models(tiny):
    """Dense: the body, and a head for each task that is over. Sparse: what the threshold leaves of A, whatever l1 that is."""
    body, head = (sum(tiny.weights[name].numel() for name in names) for names in (tiny.body, tiny.head))
    for rounds, heads in ((1, 0), (2, 1), (6, 3)):
        assert tiny.train(TaskLearner, rounds=rounds).tasks.model_values.tolist() == [body + heads * head] * 3
    weights, biases = 32 + 48, 4 + 3
    for method, attention in ((APD, 0), (FedWeIT, 2 * 2)):
        whole, nothing = (tiny.train(method, l1=l1, l2=0.0).tasks.model_values.tolist() for l1 in (0.0, 10.0))
        rest = weights + 3 * (2 * biases + head + attention)  # B; of each task biases, as many masks, head, attention
        assert nothing == [rest] * 3, method
        assert whole == [rest + 3 * weights] * 3, method


def test_clients_at_different_tasks():
    """Client 0 is through two tasks; 1 through its first and missed the second; 2 lost the first; 3 was never evaluated."""
    table = torch.full((4, 3, 3), NAN, dtype=torch.float64)
    table[0, 0, 0], table[0, 1, :2] = 0.9, torch.tensor([0.5, 0.8])
    table[1, 0, 0], table[1, 2, 0], table[1, 2, 2] = 0.6, 0.7, 0.4
    table[2, 0, 0], table[2, 1, 1] = 0.3, 1.0
    scalars = {name: float(value) for name, value in task_scalars(table).items()}
    assert scalars == pytest.approx(
        {
            "tasks/accuracy": (1.3 / 2 + 1.1 / 2 + 1.0) / 3,
            "tasks/forgetting": (0.4 - 0.1) / 2,
            "tasks/backward_transfer": (-0.4 + 0.1) / 2,
            "task_accuracy/01": (0.5 + 0.7) / 2,
            "task_accuracy/02": (0.8 + 1.0) / 2,
            "task_accuracy/03": 0.4,
        }
    )
    assert task_scalars(table[3:]) == {}


def test_single_clients_are_logged_by_name(tiny):
    """Of the clients that are asked for, over the tasks that each has learned; one that does not exist is refused."""
    newest = Newest()
    tiny.train(TaskLearner, callbacks=[TaskAccuracy(clients=[2, 0]), newest])
    for round, (scalars, table, _) in enumerate(newest.seen, start=1):
        position = (round - 1) // 2
        for client in (0, 2):
            expected = sum(table[client, position, : position + 1].tolist()) / (position + 1)
            assert scalars[f"tasks/accuracy_of_client/{client}"] == pytest.approx(expected)
        assert "tasks/accuracy_of_client/1" not in scalars
    with pytest.raises(ValueError, match="callbacks.task_accuracy.clients has 3, must be between 0 and 2"):
        tiny.train(TaskLearner, callbacks=[TaskAccuracy(clients=[0, 3])])


def test_the_table_of_every_client_is_a_file(tiny, tmp_path):
    """A line for each accuracy that was measured, at positions counted from 1, with the task's name."""

    class InFolder(FedAvg):
        def on_fit_start(self):
            self.write_to(tmp_path)
            super().on_fit_start()

    method = tiny.train(Pair(InFolder, TaskLearner), tiny.new_data(cohorts=tiny.cohorts), rounds=3, callbacks=[TaskAccuracy()])
    with open(tmp_path / "task_accuracy.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    table, order = method.tasks.task_accuracy.tolist(), method.data.streams.order.tolist()
    measured = [(c, t, i) for c in range(3) for t in range(3) for i in range(3) if not math.isnan(table[c][t][i])]
    assert len(measured) == 3 + 2 * 2  # client 2 has not begun its second task
    assert [(int(line["client"]), int(line["after"]) - 1, int(line["on"]) - 1) for line in lines] == measured
    for line, (c, t, i) in zip(lines, measured):
        assert float(line["accuracy"]) == pytest.approx(table[c][t][i], abs=1e-6)
        assert line["task"] == method.data.streams.names[order[c][i]]


def test_label_counts_say_that_they_are_of_first_tasks(tiny, monkeypatch):
    """The picture before round 1 names the stream, not the partition, which plays no part."""
    drawn = {}
    monkeypatch.setattr(label_counts, "log_figure", lambda trainer, name, figure, round: drawn.update({name: figure}))
    tiny.train(TaskLearner, rounds=1, callbacks=[LabelCounts()])
    figure = drawn["label_counts/partition"]
    titles = [text.get_text() for text in figure.findobj(Text)]
    assert "Labels of the clients' first tasks, TaskStream(by=classes, tasks_per_client=None)" in titles


def test_other_methods_have_no_tasks(tiny):
    """Nothing is looked at."""
    TaskAccuracy().on_aggregate_end(None, FedAvg(tiny.new_net()), 1)


class Bytes(FederatedCallback):
    """What every round sent, and where its clients were."""

    def __init__(self):
        super().__init__()
        self.positions, self.rounds = [], []

    def on_round_start(self, trainer, module, round):
        self.positions = module.tasks.clocks.position.tolist()

    def on_round_end(self, trainer, module, round, report):
        self.rounds.append((report, self.positions, dict(module.newest)))


def test_bytes_of_each_task(tiny):
    """FedWeIT, whose uploads and downloads change: a loop over the rounds, each of one task."""
    seen, totals = Bytes(), {}
    tiny.train(FedWeIT, callbacks=[Communication(), seen])
    for report, positions, newest in seen.rounds:
        (position,) = {positions[client] for client in report.clients}
        for direction, sent in (("down", report.bytes_down), ("up", report.bytes_up)):
            name = f"task_bytes/{direction}_{position + 1:02d}"
            totals[name] = totals.get(name, 0) + sent
        assert {name: value for name, value in newest.items() if name.startswith("task_bytes/")} == pytest.approx(totals)
    assert len(totals) == 6
    assert totals["task_bytes/down_01"] != totals["task_bytes/down_02"]


def test_bytes_of_lost_uploads_are_of_their_clients_tasks():
    """Everyone who was drawn has a part of the bytes down, also if no upload arrives."""
    counted = Communication()
    counted._positions = [0, 1, 1]
    counted._count_tasks(RoundReport(1, [0], [0.5], 1, [], 30, 6, [1.0], missing=[1, 2]))
    assert counted.of_tasks == {"down_01": 10, "down_02": 20, "up_01": 6}
    counted._count_tasks(RoundReport(2, [], [], 0, [], 10, 0, [], lost=True, missing=[2]))
    assert counted.of_tasks["down_02"] == 30
