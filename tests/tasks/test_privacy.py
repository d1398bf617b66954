"""Methods on task streams under differential privacy: those that train layers as they are, and those that are refused."""

import pytest
import torch
from pairs import DECOMPOSED, LEARNERS, pair_of

from fl_lightning.privacy import DPSGD, UserLevelDP
from fl_lightning.tasks import TaskLearner

METHODS = ("LocalOnly", "FedAvg", "FedProx", "SCAFFOLD", "FedCurv")
TRAINED_AS_THEY_ARE = [f"{method} {learner}" for method in METHODS for learner in LEARNERS if learner not in DECOMPOSED]
REFUSED = ["FedWeIT", *(f"{method} {learner}" for method in METHODS for learner in DECOMPOSED)]


@pytest.mark.parametrize("name", [*TRAINED_AS_THEY_ARE, "LocalOnly SingleTask"])
@pytest.mark.one_in(4)
def test_without_noise_and_limit_it_is_the_method_itself(tiny, name):
    """C = 1000, which nothing reaches, and noise of 1e-12: three rounds, into the second task, to 1e-8."""
    actual, expected = (
        tiny.train(pair_of(name), rounds=3, privacy=privacy) for privacy in (DPSGD(1e-15, clipping_norm=1000.0), None)
    )
    for weight, other in zip(actual.net.parameters(), expected.net.parameters()):
        torch.testing.assert_close(weight, other, rtol=0, atol=1e-8)
    for client in expected.stored.states.clients():
        tiny.assert_same_state(actual.stored.states.read(client), expected.stored.states.read(client), atol=1e-8)


@pytest.mark.parametrize("name", REFUSED)
def test_decomposed_weights_are_refused(tiny, name):
    """By name, before round 1, with what to use instead."""
    with pytest.raises(ValueError) as error:
        tiny.train(pair_of(name), privacy=DPSGD(1.0))
    assert str(error.value) == (
        f"model.net under {name.split()[0]} has the layer conv, whose weights are made of several, which DP-SGD cannot clip by "
        "sample: use a method that trains layers as they are, or EWC in model.tasks"
    )


def test_accounting_and_user_level_noise_are_refused(tiny):
    """A client's samples change with its tasks; who takes part is up to the clocks."""
    with pytest.raises(ValueError, match="^model.privacy.accounting is true, but a client's samples change with its tasks in "):
        tiny.train(TaskLearner, privacy=DPSGD(1.0, accounting=True))
    with pytest.raises(
        ValueError, match="^model.privacy is UserLevelDP, but clients that learn tasks, as with TaskLearner, tell the "
    ):
        tiny.train(TaskLearner, privacy=UserLevelDP(1.0))
