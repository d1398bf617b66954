"""Replay against a plain loop that keeps its memories itself, and what is remembered."""

import pytest
import torch

from fl_lightning.continual import FedAvgOnClasses, Replay
from fl_lightning.random_streams import numpy_stream, stream_seed

MEMORY, REPLAYED = 8, 3  # of 7 in a batch


def test_all_tasks_equal_a_plain_loop(arriving, splitmix64):
    """The mean over a batch and three remembered samples, cross entropy among all classes seen."""
    data = arriving.ready_data()
    inputs, labels = data.samples.preparation.for_evaluation(data.train_set.inputs), data.train_set.targets
    memories, met = {}, {}

    def objective(visit, weights, batch, targets):
        if visit.position > 0:
            memory, key = memories[visit.client], stream_seed(0, visit.round, visit.client, "samples remembered")
            positions = [(splitmix64(key, visit.step * REPLAYED + i) >> 1) % len(memory) for i in range(REPLAYED)]
            chosen = [memory[position] for position in positions]
            batch, targets = torch.cat([batch, inputs[chosen]]), torch.cat([targets, labels[chosen]])
        return arriving.seen_loss(visit, weights, batch, targets)

    def after_fit(visit, weights):
        if not visit.is_last_round:
            return
        held = data.present_shards.train_indices(visit.client)
        rng = numpy_stream(0, visit.position, visit.client, "what is remembered")
        memory = memories.setdefault(visit.client, [])
        for index in held[rng.permutation(len(held))].tolist():
            k = met.get(visit.client, 0)
            if k < MEMORY:
                memory.append(index)
            else:
                slot = int(rng.integers(0, k + 1))
                if slot < MEMORY:
                    memory[slot] = index
            met[visit.client] = k + 1

    expected = arriving.plain(objective, data, after_fit=after_fit)
    trained = arriving.train(Replay, memory=MEMORY)
    arriving.assert_same(trained.net, expected)
    for client in range(3):
        assert trained.client_states.read(client).method["memory"].tolist() == memories[client]


def test_without_memory_it_is_fine_tuning(arriving):
    """Bit for bit; and nothing more is sent with one."""
    plain = arriving.train(FedAvgOnClasses, softmax_over="seen")
    arriving.assert_same(arriving.train(Replay, memory=0).net, plain.net, atol=0)
    full = arriving.train(Replay, memory=MEMORY)
    for kind in ("bytes_down", "bytes_up"):
        assert [getattr(r, kind) for r in full.seen.rounds] == [getattr(r, kind) for r in plain.seen.rounds]


@pytest.mark.parametrize("selection", ["balanced", "herding"])
def test_memories_are_balanced(arriving, selection):
    """m divided by the classes met, of each the first ones of what there was before."""
    data = arriving.ready_data()
    after = [
        arriving.train(Replay, memory=6, selection=selection, rounds=rounds).client_states for rounds in (2, 4, 6)
    ]  # fmt: skip
    for client in range(3):
        memories = [states.read(client).method["memory"].tolist() for states in after]
        former = {}
        for position, memory in enumerate(memories):
            by_class = {}
            for index in memory:
                by_class.setdefault(int(data.train_set.targets[index]), []).append(index)
            rows = [client * 3 + seen for seen in range(position + 1)]
            met = data.shards.train_label_counts[rows].sum(dim=0)
            quota = 6 // int((met > 0).sum())
            assert {label: len(kept) for label, kept in by_class.items()} == {
                label: min(quota, int(count)) for label, count in enumerate(met) if count > 0
            }
            for label, kept in former.items():
                assert by_class[label] == kept[: len(by_class[label])]
            former = by_class


def test_a_client_remembers_at_its_last_visit_of_a_task(arriving):
    """Client 2 takes part in round 1 of task 0 alone; client 0 not in the last round of task 2."""
    data = arriving.new_data(cohorts=arriving.cohorts)
    trained = arriving.train(Replay, data, memory=MEMORY)
    shards = data.shards.train_label_counts.sum(dim=1).reshape(3, 3)
    assert [int(trained.client_states.read(client).method["met"]) for client in range(3)] == shards.sum(dim=1).tolist()


def test_settings_that_do_not_fit_are_refused(arriving):
    most = int(arriving.ready_data().shards.train_label_counts.sum(dim=1).reshape(3, 3).sum(dim=1).max())
    for settings, message in (
        ({"memory": -1}, "model.memory is -1, must be at least 0: 0 is fine-tuning"),
        ({"memory": 1000}, f"model.memory is 1000, but no client has more than {most} training samples: lower it"),
        ({"replayed": 0}, "model.replayed is 0, must be at least 1: null is half of data.batch_size"),
        ({"selection": "best"}, "model.selection is 'best', must be one of reservoir, balanced, herding"),
        (
            {"softmax_over": "new"},
            "model.softmax_over is new, but remembered samples are of old classes: set it to seen",
        ),
    ):
        with pytest.raises(ValueError) as error:
            arriving.train(Replay, **{"memory": 5, **settings})
        assert str(error.value) == message
