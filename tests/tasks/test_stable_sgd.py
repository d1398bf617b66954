"""StableSGD's rates by hand, and a run with them against a plain loop."""

import pytest
import torch
from pairs import Pair

from fl_lightning.methods import FedAvg, FedProx, LocalOnly
from fl_lightning.tasks import StableSGD
from fl_lightning.tasks.clock import TaskClocks


def momentum(weights):
    return torch.optim.SGD(weights, lr=0.1, momentum=0.5)


@pytest.mark.parametrize("method", [Pair(kind, StableSGD) for kind in (LocalOnly, FedAvg, FedProx)])
def test_the_rate_falls_from_task_to_task(tiny, method):
    """``max(.1 * .5 ** t, .03)``, t from 1: .05, .03, .03."""
    settings = {"mu": 0.3} if method.method is FedProx else {}
    trained = tiny.train(method, optimizer=momentum, task_decay=0.5, lowest_rate=0.03, **settings)

    def penalty(visit, weights):
        pull = sum(((weights[name] - visit.received[name]) ** 2).sum() for name in tiny.body)
        return (method.method is FedProx) * 0.15 * pull

    rates = [0.05, 0.03, 0.03]
    tiny.assert_plain(trained, tiny.plain(penalty, federated=method.is_federated, rate=rates.__getitem__))


def test_the_papers_rates():
    """From .1, .8 times as much in each task, not below 5e-5."""
    learner, rates = StableSGD(), []
    learner.first_rate, learner.clocks = 0.1, TaskClocks(1, 61, 20, first_rate=0.1)
    for position in (0, 1, 4, 60):
        learner.clocks.position.fill_(position)
        learner.clocks.read()
        rates.append(0.1 * learner.rate_factor(0))
    assert rates == pytest.approx([0.08, 0.064, 0.1 * 0.8**5, 5e-5])


def test_a_rate_that_does_not_fall_ends_no_task(tiny):
    """Validation losses that never fall, patience 1, any fall too far: tasks last R = 3 rounds all the same, whatever
    rate they might end at."""

    class Hopeless(StableSGD):
        def __init__(self, **settings):
            super().__init__(**settings)
            self.validation_loss = lambda net, client, position: 0.0

    method = tiny.train(Hopeless, optimizer=momentum, rounds_per_task=3, patience=1, smallest_rate=9.0)
    assert len(method.seen.rounds) == 9


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task_decay": 0.0}, "model.tasks.task_decay is 0.0, must be above 0 and at most 1: the paper uses 0.8"),
        ({"task_decay": 1.1}, "model.tasks.task_decay is 1.1, must be above 0 and at most 1: the paper uses 0.8"),
        ({"lowest_rate": -1.0}, "model.tasks.lowest_rate is -1.0, must be at least 0: the paper uses 5e-5"),
    ],
)
def test_settings_out_of_range_are_refused(tiny, settings, message):
    """One line with the key, the value and what is allowed."""
    with pytest.raises(ValueError) as error:
        StableSGD(**settings)
    assert str(error.value) == message
