"""ICaRL: its parts are those of replay and distillation; here are its class means."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from fl_lightning import FedAvg
from fl_lightning.callbacks import FederatedCallback
from fl_lightning.data import Arrays, FederatedDataModule
from fl_lightning.tasks import GLFC, ClassStream, ICaRL, Replay


def test_class_means_are_those_of_all_memories(arriving):
    """Features of unit length under the model before the last round, summed over the clients one sample after another."""
    trained = arriving.train(ICaRL, memory=12)
    before = trained.seen.weights[-2]
    data = arriving.ready_data()
    inputs, labels = data.samples.preparation.for_evaluation(data.train_set.inputs), data.train_set.targets
    total, count = torch.zeros(6, 3, dtype=torch.float64), torch.zeros(6)
    for client in range(3):
        for index in trained.stored.states.read(client).method["tasks"]["memory"].tolist():
            feature = arriving.features(before, inputs[index : index + 1])[0]
            total[labels[index]] += feature / feature.norm()
            count[labels[index]] += 1
    assert (count > 0).all()
    mean = total / total.norm(dim=1, keepdim=True)
    torch.testing.assert_close(trained.server_states.tensors("class_means")["mean"], mean, atol=1e-9, rtol=0)
    tests = trained.data.evaluation.test_inputs()
    features = arriving.features(dict(trained.net.named_parameters()), torch.cat([*tests.split(100)]))
    features = features / features.norm(dim=1, keepdim=True)
    nearest = [int(torch.stack([(feature - m).norm() for m in mean]).argmin()) for feature in features]
    assert trained.tasks.nearest_mean_logits(tests).argmax(dim=1).tolist() == nearest


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_every_client_that_remembers_sends_its_means(arriving, engine):
    """One client a round: of each class the mean of the memory of the newest visitor that remembers it, in any round."""
    visitors, means = [0, 1, 2, 0, 1, 2], torch.zeros(6, 3, dtype=torch.float64)
    data, memories = arriving.new_data(cohorts=[[client] for client in visitors]), []
    trained = arriving.train(ICaRL, data, memory=12, engine=engine, callbacks=[Memories(memories)])
    inputs, labels = data.samples.preparation.for_evaluation(data.train_set.inputs), data.train_set.targets
    for round in range(1, 6):  # weights[round - 1] are received in the round after
        memory = memories[round].get(visitors[round], [])
        for label in set(labels[memory].tolist()):
            chosen = [index for index in memory if labels[index] == label]
            unit = torch.nn.functional.normalize(arriving.features(trained.seen.weights[round - 1], inputs[chosen]), dim=1)
            means[label] = unit.sum(dim=0) / unit.sum(dim=0).norm()
    assert (means[:4] != 0).any(dim=1).all()
    sent = trained.server_states.tensors("class_means")["mean"][means.any(dim=1)]
    torch.testing.assert_close(sent, means[means.any(dim=1)], atol=1e-9, rtol=0)


class Memories(FederatedCallback):
    """Each client's memory after every round."""

    def __init__(self, memories: list[dict[int, list[int]]]) -> None:
        super().__init__()
        self.memories = memories

    def on_round_end(self, trainer, module, round, report):
        states = {client: module.stored.states.read(client).method.get("tasks", {}) for client in range(3)}
        self.memories.append({client: state["memory"].tolist() for client, state in states.items() if "memory" in state})


@pytest.mark.parametrize("method", [ICaRL, GLFC])
def test_engines_remember_the_same_of_samples_that_tie(arriving, method):
    """A client has each sample twice: of two that tie it remembers the first before the second, whatever the rounding."""
    trained = []
    for engine in ("sequential", "vectorized"):
        data = arriving.new_data()
        data.setup()
        train = data.train_set
        for client in range(3):
            for row in range(3):
                held = data.shards.train_indices(3 * client + row)
                for label in train.targets[held].unique():
                    first, second = (held[train.targets[held] == label][part::2] for part in (0, 1))
                    train.inputs[second] = train.inputs[first[: len(second)]]
        trained.append(arriving.train(method, data, memory=12, engine=engine))
    memories = [[one.stored.states.read(client).method["tasks"]["memory"].tolist() for client in range(3)] for one in trained]
    assert memories[0] == memories[1]
    arriving.assert_same(trained[0].net, trained[1].net)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_half_precision_decides_no_tie(fit, engine):
    """Under bf16-mixed features are those of float32: by hand, samples at +-20 and +-50 degrees tie, turned by 1 degree."""
    angles = torch.deg2rad(torch.tensor([-50.0, -20.0, 20.0, 50.0]) + 1)
    inputs, targets = torch.stack([angles.cos(), angles.sin()], dim=1).repeat(2, 1), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    data = FederatedDataModule(
        Arrays(inputs, targets, inputs, targets),
        num_clients=1,
        clients_per_round=1,
        val_fraction=0,
        tasks=ClassStream(num_tasks=2),
    )
    net = nn.Sequential(OrderedDict(features=nn.Linear(2, 2, bias=False), classifier=nn.Linear(2, 2)))
    nn.init.eye_(net.features.weight)
    method = FedAvg(net, tasks=ICaRL(memory=4, rounds_per_task=1), engine=engine, local_steps=1)
    fit(method, data, 1, precision="bf16-mixed")
    assert method.stored.states.read(0).method["tasks"]["memory"].tolist() == [1, 2, 0, 3]


def test_without_distillation_it_is_replay_by_herding(arriving):
    """Bit for bit."""
    plain = arriving.train(Replay, memory=12, selection="herding")
    arriving.assert_same(arriving.train(ICaRL, memory=12, distillation=0.0).net, plain.net, atol=0)


def test_classes_that_leaked_are_never_nearest(arriving):
    """At a blurry border clients remember, and send means of, classes whose task is still to come."""
    trained = arriving.train(ICaRL, arriving.new_data(ClassStream(3, blurry=0.3)), rounds=2, memory=12, softmax_over="seen")
    means = trained.server_states.tensors("class_means")["mean"]
    assert (means != 0).any(dim=1)[2:].any()
    logits = trained.tasks.nearest_mean_logits(trained.data.evaluation.test_inputs())
    assert logits.isfinite().all(dim=0).tolist() == [True, True, False, False, False, False]


def test_classes_without_a_mean_are_never_nearest(arriving):
    trained = arriving.train(ICaRL, memory=12, rounds=2)
    logits = trained.tasks.nearest_mean_logits(trained.data.evaluation.test_inputs())
    assert logits.isfinite().all(dim=0).tolist() == [True, True, False, False, False, False]
