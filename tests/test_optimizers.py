"""Server optimizers against Algorithm 2 of Reddi et al. in NumPy."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from options import NO_PICTURES
from torch import nn

from fl_lightning import FedAvg
from fl_lightning.optimizers import FedAdam, FedYogi, optimizer_builder

COHORTS = [[0, 2], [1, 2], [0, 1]]
RATE, BETA_1, BETA_2, TAU = 0.05, 0.8, 0.9, 1e-2


def mean_of_clients(x, data, cohort):
    """Two full-batch steps of rate 0.1 of softmax regression with weights x, (3, 5), the last column the bias."""
    total, size = np.zeros_like(x), 0
    for client in cohort:
        indices = data.shards.train_indices(client)
        inputs, targets = data.train_set.inputs[indices].numpy(), data.train_set.targets[indices].numpy()
        inputs, y = np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1), x.copy()
        for _ in range(2):
            p = np.exp(inputs @ y.T)
            p /= p.sum(axis=1, keepdims=True)
            p[np.arange(len(p)), targets] -= 1
            y -= 0.1 * p.T @ inputs / len(p)
        total, size = total + len(inputs) * y, size + len(inputs)
    return total / size


def moments(momentum, second):
    """``m <- beta_1 m + (1 - beta_1) D``, v by its rule from tau^2, ``x <- x + rate m / (sqrt(v) + tau)``."""

    def step(x, D, state):
        m, v = state.get("m", 0.0), state.get("v", TAU**2)
        state["m"], state["v"] = momentum * m + (1 - momentum) * D, second(v, D**2)
        return x + RATE * state["m"] / (np.sqrt(state["v"]) + TAU)

    return step


def heavy_ball(x, D, state):
    """``v <- 0.7 v + D``, ``x <- x + v``."""
    state["v"] = 0.7 * state.get("v", 0.0) + D
    return x + state["v"]


ADAPTIVE = {"lr": RATE, "betas": (BETA_1, BETA_2), "tau": TAU}
CASES = {
    "FedAdam": (lambda w: FedAdam(w, **ADAPTIVE), moments(BETA_1, lambda v, s: BETA_2 * v + (1 - BETA_2) * s)),
    "FedYogi": (lambda w: FedYogi(w, **ADAPTIVE), moments(BETA_1, lambda v, s: v - (1 - BETA_2) * s * np.sign(v - s))),
    "FedAdagrad": (
        lambda w: torch.optim.Adagrad(w, lr=RATE, initial_accumulator_value=TAU**2, eps=TAU),
        moments(0.0, lambda v, s: v + s),
    ),
    "FedAvgM": (lambda w: torch.optim.SGD(w, lr=1.0, momentum=0.7), heavy_ball),
}


@pytest.mark.parametrize("name", CASES)
def test_rounds_equal_algorithm_2(fit, toy_data, name):
    """Three rounds, two of three clients of unequal size, to 1e-12; D is the clients' mean less x, and is added."""
    build, step = CASES[name]
    data, net, state = toy_data(cohorts=COHORTS, monitor_test=0), nn.Linear(4, 3, dtype=torch.float64), {}
    method = FedAvg(copy.deepcopy(net), server_optimizer=build, local_steps=2, engine="sequential")
    fit(method, data, 3, precision="64-true")
    x = torch.cat([net.weight, net.bias[:, None]], dim=1).detach().numpy()
    for cohort in COHORTS:
        x = step(x, mean_of_clients(x, data, cohort) - x, state)
    actual = torch.cat([method.net.weight, method.net.bias[:, None]], dim=1).detach()
    torch.testing.assert_close(actual, torch.from_numpy(x), atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_statistics_bypass_the_optimizer(fit, toy_data, name):
    """After one round they are the plain mean, as with FedAvg, bit for bit; the weights are not."""
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    nets = []
    for settings in ({"server_optimizer": CASES[name][0]}, {}):
        method = FedAvg(copy.deepcopy(net), local_steps=2, engine="sequential", **settings)
        fit(method, toy_data(cohorts=[[0, 2]], monitor_test=0), 1, precision="64-true")
        nets.append(method.net)
    for buffer in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(getattr(nets[0][1], buffer), getattr(nets[1][1], buffer)), buffer
    assert torch.equal(nets[0][0].weight, nets[1][0].weight) == (name == "FedAvgM")  # whose first step is FedAvg's


def one_step(optimizer, gradient, **settings):
    """A weight of 1 and v after one step."""
    weight = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    stepper = optimizer([weight], **settings)
    weight.grad = torch.tensor([gradient], dtype=torch.float64)
    stepper.step()
    return weight.item(), stepper.state[weight]["v"].item()


def test_steps_by_hand():
    """Pseudo-gradient -3, tau 1, betas 0 and 1/2: Adam v = (1 + 9) / 2, Yogi v = 1 + 9 / 2; x = 1 + 3 / (sqrt(v) + 1)."""
    settings = {"lr": 1.0, "betas": (0.0, 0.5), "tau": 1.0}
    assert one_step(FedAdam, -3.0, **settings) == pytest.approx((1 + 3 / (5**0.5 + 1), 5.0))
    assert one_step(FedYogi, -3.0, **settings) == pytest.approx((1 + 3 / (5.5**0.5 + 1), 5.5))


def test_yogi_stands_still_where_v_is_right_and_falls_slowly():
    """v = g^2: no change. From tau^2 = 1 with g = 1/2: ``1 - (1 - 0.9) / 4``, where Adam would go to ``0.9 + 0.1 / 4``."""
    settings = {"betas": (0.9, 0.9), "tau": 1.0}
    assert one_step(FedYogi, 1.0, **settings)[1] == 1.0
    assert one_step(FedYogi, 0.5, **settings)[1] == pytest.approx(0.975)
    assert one_step(FedAdam, 0.5, **settings)[1] == pytest.approx(0.925)


@pytest.mark.parametrize("optimizer", [FedAdam, FedYogi])
def test_weights_without_gradient_stay(optimizer):
    """A round without update moves nothing and leaves no state; a closure is called with gradients on."""
    weight = nn.Parameter(torch.ones(2))
    stepper = optimizer([weight])
    assert stepper.step() is None
    assert not stepper.state
    assert torch.equal(weight, torch.ones(2))

    def closure():
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert stepper.step(closure).item() == 2.0
    assert (weight < 1).all()


@pytest.mark.parametrize("name", CASES)
def test_moments_survive_a_checkpoint(fit, toy_data, tmp_path, name):
    """One round, a checkpoint, two more rounds: the same bits as three rounds in one go."""
    net, ends = nn.Linear(4, 3, dtype=torch.float64), []
    for cut in (False, True):
        checkpoint = None
        if cut:
            method = FedAvg(copy.deepcopy(net), server_optimizer=CASES[name][0])
            checkpoint = tmp_path / "cut.ckpt"
            fit(method, toy_data(cohorts=COHORTS, monitor_test=0), 1, precision="64-true").save_checkpoint(checkpoint)
        method = FedAvg(copy.deepcopy(net), server_optimizer=CASES[name][0])
        fit(method, toy_data(cohorts=COHORTS, monitor_test=0), 3, precision="64-true", ckpt_path=checkpoint)
        ends.append(method.net.weight)
    assert torch.equal(*ends)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 0.0}, "lr is 0.0, must be above 0"),
        ({"betas": (1.0, 0.9)}, "betas has 1.0, must be at least 0 and below 1"),
        ({"betas": (0.9, -0.1)}, "betas has -0.1, must be at least 0 and below 1"),
        ({"tau": 0.0}, "tau is 0.0, must be above 0: the paper uses 1e-3"),
    ],
)
@pytest.mark.parametrize("optimizer", [FedAdam, FedYogi])
def test_settings_out_of_range_are_refused(optimizer, settings, message):
    """One line with the key, the value and what is allowed."""
    with pytest.raises(ValueError) as error:
        optimizer_builder("model.server_optimizer", partial(optimizer, **settings))([nn.Parameter(torch.ones(1))])
    assert str(error.value) == f"model.server_optimizer.{message}"


def test_from_the_command_line(main):
    """FedAdam by its name, one round; a rate of 0 is met with one line."""
    run = ("fit", "--config", "digits_tce.yaml", "--trainer.max_steps", "1", "--trainer.limit_val_batches", "0")
    run += ("--model.net.hidden", "8", *NO_PICTURES, "--model.server_optimizer", "fl_lightning.optimizers.FedAdam")
    assert main(*run)[0] == 0
    code, _, error = main(*run, "--model.server_optimizer.lr", "0")
    assert code == 1
    assert error == "fl-lightning: error: model.server_optimizer.lr is 0.0, must be above 0\n"


@pytest.mark.parametrize("name", ["Adam", "SGD", "RMSprop"])
def test_optimizers_have_names(name):
    """torch's class with its defaults, for clients and server alike."""
    method = FedAvg(nn.Linear(4, 3), optimizer=name, server_optimizer=name)
    for build in (method.optimizer, method.server_optimizer):
        optimizer = build(method.net.parameters())
        assert type(optimizer) is getattr(torch.optim, name)
        assert optimizer.defaults["lr"] == getattr(torch.optim, name)(method.net.parameters()).defaults["lr"]


def test_server_optimizers_of_ours_have_names():
    """FedAdam is one of them."""
    net = nn.Linear(4, 3)
    assert type(FedAvg(net, server_optimizer="FedAdam").server_optimizer(list(net.parameters()))) is FedAdam


def test_a_step_without_closure_is_enough():
    """As local steps call it."""

    class Plain(torch.optim.SGD):
        def step(self):
            super().step()

    method = FedAvg(nn.Linear(4, 3), optimizer=lambda weights: Plain(weights, lr=0.1))
    assert type(method.optimizer(list(method.net.parameters()))) is Plain


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("Adm", r"is 'Adm', must be the name of an optimizer or build one from weights: did you mean Adam\?"),
        ("Optimizer", "is 'Optimizer', must be the name"),
        ("lr_scheduler", "is 'lr_scheduler', must be the name"),
        (torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1), "is SGD, must be the name of an optimizer or build one"),
        (None, "is NoneType, must be the name"),
    ],
)
@pytest.mark.parametrize("key", ["optimizer", "server_optimizer"])
def test_what_builds_no_optimizer_is_refused(key, given, message):
    """Key, what it is and the cure."""
    with pytest.raises(ValueError, match=rf"model\.{key} {message}"):
        FedAvg(nn.Linear(4, 3), **{key: given})
