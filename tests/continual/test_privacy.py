"""Methods on task streams under differential privacy: those that train layers as they are, and those that are refused."""

import pytest
import torch

from fl_lightning import continual
from fl_lightning.continual import FedAvgOnTasks
from fl_lightning.privacy import DPSGD, UserLevelDP

FORMS = ("OnTasks", "EWC", "StableSGD", "APD")
PUBLIC = {name: getattr(continual, name) for name in continual.__all__ if name != "TaskLearner"}
LEARNERS = [name for name, kind in PUBLIC.items() if issubclass(kind, continual.TaskLearner)]
NAMES = sorted([*LEARNERS, *(f"{one}{form}" for one in ("FedAvg", "FedProx", "SCAFFOLD", "FedCurv") for form in FORMS)])
DECOMPOSED = [name for name in NAMES if issubclass(getattr(continual, name), continual.APD)]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in DECOMPOSED])
def test_without_noise_and_limit_it_is_the_method_itself(tiny, name):
    """C = 1000, which nothing reaches, and noise of 1e-12: three rounds, into the second task, to 1e-8."""
    actual, expected = (
        tiny.train(getattr(continual, name), rounds=3, privacy=privacy)
        for privacy in (DPSGD(1e-15, clipping_norm=1000.0), None)
    )
    for weight, other in zip(actual.net.parameters(), expected.net.parameters()):
        torch.testing.assert_close(weight, other, rtol=0, atol=1e-8)
    for client in expected.client_states.clients():
        tiny.assert_same_state(actual.client_states.read(client), expected.client_states.read(client), atol=1e-8)


@pytest.mark.parametrize("name", DECOMPOSED)
def test_decomposed_weights_are_refused(tiny, name):
    """By name, before round 1, with what to use instead."""
    with pytest.raises(ValueError) as error:
        tiny.train(getattr(continual, name), privacy=DPSGD(1.0))
    assert str(error.value) == (
        f"model.net under {name} has the layer conv, whose weights are made of several, which DP-SGD cannot clip by sample: "
        "use a method that trains layers as they are, such as FedAvgOnTasks"
    )


def test_accounting_and_user_level_noise_are_refused(tiny):
    """A client's samples change with its tasks; who takes part is up to the clocks."""
    with pytest.raises(ValueError, match="^model.privacy.accounting is true, but a client's samples change with its tasks in "):
        tiny.train(FedAvgOnTasks, privacy=DPSGD(1.0, accounting=True))
    with pytest.raises(ValueError, match="^model.privacy is UserLevelDP, .* but FedAvgOnTasks names them: "):
        tiny.train(FedAvgOnTasks, privacy=UserLevelDP(1.0))
