"""GLFC against its equations in a plain loop."""

import pytest
import torch
from pairs import Pair

from fl_lightning import FedAvg
from fl_lightning.functional import gradient_compensation
from fl_lightning.functional.random_streams import stream_seed
from fl_lightning.losses import TruncatedCrossEntropy
from fl_lightning.tasks import GLFC

MEMORY, REPLAYED, RELATIONS = 8, 3, 0.4


def test_two_tasks_equal_the_equations(arriving, splitmix64):
    """Sample by sample, class by class: gradients of old and new classes weighted apart, relations of old ones by the teacher.

    A client's memory is read off a run that ends with the first task.
    """
    data, teacher = arriving.ready_data(), {}
    inputs, labels = data.samples.preparation.for_evaluation(data.train_set.inputs), data.train_set.targets
    before = arriving.train(GLFC, memory=MEMORY, distillation=RELATIONS, rounds=2)
    memories = [before.stored.states.read(client).method["tasks"]["memory"].tolist() for client in range(3)]

    def objective(visit, weights, batch, targets):
        memory = memories[visit.client] if visit.position > 0 else []
        if memory:
            key = stream_seed(0, visit.round, visit.client, "samples remembered")
            positions = [(splitmix64(key, visit.step * REPLAYED + i) >> 1) % len(memory) for i in range(REPLAYED)]
            chosen = [memory[position] for position in positions]
            batch, targets = torch.cat([batch, inputs[chosen]]), torch.cat([targets, labels[chosen]])
        p = 1 / (1 + (-arriving.logits(weights, batch)).exp())
        said = 1 / (1 + (-arriving.logits(teacher, batch)).exp()) if teacher else None
        learned = {int(labels[index]) for index in memory}
        g = [abs(float(p[b, y].detach()) - 1) for b, y in enumerate(targets.tolist())]
        kinds = [y in learned for y in targets.tolist()]
        means = {kind: sum(v for v, k in zip(g, kinds) if k == kind) / max(kinds.count(kind), 1) for kind in (True, False)}
        total = 0
        for b, y in enumerate(targets.tolist()):
            weight = g[b] / means[kinds[b]] if memory else 1.0
            for c in range(visit.seen):
                one = float(c == y)
                compensated = -weight * (one * p[b, c].log() + (1 - one) * (1 - p[b, c]).log())
                if said is None:
                    total = total + compensated
                    continue
                t = float(said[b, c]) if c < visit.first else one
                related = -(t * p[b, c].log() + (1 - t) * (1 - p[b, c]).log())
                total = total + (1 - RELATIONS) * compensated + RELATIONS * related
        return total / (len(targets) * visit.seen)

    expected = arriving.plain(objective, data, after_task=lambda visit, weights: teacher.update(weights), rounds=4)
    trained = dict(arriving.train(GLFC, memory=MEMORY, distillation=RELATIONS, rounds=4).net.named_parameters())
    arriving.assert_same({name: w[:4] if name in arriving.head else w for name, w in trained.items()}, expected)


def test_samples_that_fill_a_batch_up_weigh_on_nobody():
    """g is 0.1 and 0.3 of learned classes, 0.2 of a new one; two more samples do not count."""
    odds = (1 / torch.tensor([0.1, 0.9, 0.3, 0.2, 0.7], dtype=torch.float64) - 1).log()[:, None]
    learned, real = torch.tensor([True, True, True, False, False]), torch.tensor([True, False, True, True, False])
    weights = gradient_compensation(odds, torch.zeros(5, dtype=torch.int64), learned, real)
    torch.testing.assert_close(weights[real], torch.tensor([0.5, 1.5, 1.0], dtype=torch.float64))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"distillation": 1.5}, "model.tasks.distillation is 1.5, must be at most 1: the paper uses 0.5"),
        (
            {"loss": TruncatedCrossEntropy()},
            "model.loss is TruncatedCrossEntropy, but GLFC has binary cross entropies of its own: leave it out",
        ),
    ],
)
def test_what_does_not_fit_is_refused(arriving, settings, line):
    with pytest.raises(ValueError) as error:
        Pair(FedAvg, GLFC)(arriving.new_net(), **settings)
    assert str(error.value) == line
