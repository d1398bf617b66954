"""Schedules of torch for the rates of clients and server, by round and by local step."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, OneCycleLR, StepLR

from fl_lightning import SCAFFOLD, FedAvg, FedNova, Trainer
from fl_lightning.data import from_arrays
from fl_lightning.functional.schedules import RateFactors, check_schedule


def cosine(round):
    """Half a cosine over 4 rounds, from 1 in round 1."""
    return (1 + math.cos(math.pi * (round - 1) / 4)) / 2


def data():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    return from_arrays(inputs, torch.arange(12) % 3, [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11]], batch_size=None)


def fit(rounds, ckpt=None, save=None, **settings):
    torch.manual_seed(0)
    net = nn.Linear(3, 3).double()
    method = FedAvg(net, local_steps=3, optimizer=lambda w: torch.optim.Adam(w, lr=0.05), **settings)
    trainer = Trainer(max_steps=rounds, accelerator="cpu", precision="64-true", logger=False, enable_checkpointing=False)
    trainer.fit(method, datamodule=data(), ckpt_path=ckpt)
    if save is not None:
        trainer.save_checkpoint(save)
    return method


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_clients_follow_a_schedule_over_rounds(engine):
    """Three rounds of FedAvg with Adam in a plain loop, whose rate is that of the cosine's formula."""
    trained = fit(3, engine=engine, client_lr_scheduler=lambda one: CosineAnnealingLR(one, T_max=4))
    torch.manual_seed(0)
    net, federation = nn.Linear(3, 3).double(), data()
    federation.setup()
    for round in (1, 2, 3):
        locals = []
        for client, size in ((0, 4), (1, 8)):
            local = nn.Linear(3, 3).double()
            local.load_state_dict(net.state_dict())
            optimizer = torch.optim.Adam(local.parameters(), lr=0.05 * cosine(round))
            for batch in federation.client_batches().batches(client, round, 3):
                optimizer.zero_grad()
                nn.functional.cross_entropy(local(batch.inputs.double()), batch.targets).backward()
                optimizer.step()
            locals.append((size / 12, local))
        net.load_state_dict({name: sum(p * one.state_dict()[name] for p, one in locals) for name in net.state_dict()})
    for one, other in zip(trained.net.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def test_a_resumed_run_follows_the_same_schedule(tmp_path):
    """The factor is a function of the round: the same bits, and another schedule is refused by name."""
    schedule = {"client_lr_scheduler": lambda one: OneCycleLR(one, max_lr=1.0, total_steps=6, pct_start=0.5)}
    whole = fit(4, **schedule)
    fit(2, save=tmp_path / "half.ckpt", **schedule)
    resumed = fit(4, ckpt=tmp_path / "half.ckpt", **schedule)
    for one, other in zip(whole.net.parameters(), resumed.net.parameters(), strict=True):
        assert torch.equal(one, other)
    with pytest.raises(ValueError, match=r"model\.client_lr_scheduler is None, OneCycleLR in the run"):
        fit(4, ckpt=tmp_path / "half.ckpt")


def test_warm_up_and_cosine():
    """OneCycleLR rises to 1 over its first part, then falls: factors of torch's own on a rate of 1."""
    factors = RateFactors("model.client_lr_scheduler", lambda one: OneCycleLR(one, 1.0, total_steps=10, pct_start=0.3))
    values = [factors(round) for round in range(1, 11)]
    assert values[2] == max(values) == 1.0
    assert values[0] < values[1] < values[2] > values[3] > values[-1]
    assert factors(2) == values[1] == copy.deepcopy(factors)(2)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda one: StepLR(one, step_size=0),
            r"^model\.lr_scheduler is StepLR\(step_size=0, gamma=.*\), which fails .*1 \(integer .* by zero\): change",
        ),
        (
            lambda one: OneCycleLR(one, 1.0, total_steps=3, cycle_momentum=False),
            r"^model\.lr_scheduler is OneCycleLR\(total_steps=3.*fails after round 4 \(",
        ),
        (
            lambda one: OneCycleLR(one, 1.0, total_steps=-1),
            r"^model\.lr_scheduler cannot be built \(.*-1\): change its arguments$",
        ),
        (lambda one: StepLR(one), r"^model\.lr_scheduler cannot be built \(.*'step_size'\): change its arguments$"),
    ],
)
def test_a_schedule_that_fails_is_refused_before_round_1(build, message):
    """In one line with the key, the class and its arguments; of the server and of clients."""
    with pytest.raises(ValueError, match=message) as caught:
        check_schedule("model.lr_scheduler", build, 8)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=message.replace("lr_scheduler", "client_lr_scheduler")):
        fit(8, client_lr_scheduler=build)
    with pytest.raises(ValueError, match=message):
        fit(8, lr_scheduler=build)


def test_a_schedule_that_ends_with_the_run_is_taken():
    """As many steps as rounds, and a function of Python's."""
    fit(3, lr_scheduler=lambda one: LambdaLR(one, lambda round: 1 / (1 + round)))
    fit(3, client_lr_scheduler=lambda one: OneCycleLR(one, 1.0, total_steps=4))


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize("engine", ["sequential", "vectorized", pytest.param("captured", marks=pytest.mark.slow)])
def test_clients_follow_a_schedule_over_local_steps(engine, optimizer):
    """Two rounds of SCAFFOLD or FedAvg in a plain loop: the rate of each step, times that of the round.

    SCAFFOLD's new variate is ``c_i - c + (x - y) / sum of the rates``.
    """
    factors = [0.2, 0.6, 1.0]  # LinearLR from 0.2 over two steps
    kind = SCAFFOLD if optimizer == "SGD" else FedAvg
    torch.manual_seed(0)
    method = kind(
        nn.Linear(3, 3).double(),
        local_steps=3,
        optimizer=lambda w: getattr(torch.optim, optimizer)(w, lr=0.05),
        engine=engine,
        learning_rate_decay=0.5,
        visit_lr_scheduler=lambda one: LinearLR(one, start_factor=0.2, total_iters=2),
    )
    trainer = Trainer(max_steps=2, accelerator="cpu", precision="64-true", logger=False, enable_checkpointing=False)
    trainer.fit(method, datamodule=data())
    torch.manual_seed(0)
    net, federation = nn.Linear(3, 3).double(), data()
    federation.setup()
    zeros = [torch.zeros_like(p) for p in net.parameters()]
    server, variates = zeros, [zeros, zeros]
    for round in (1, 2):
        fits, changes = [], []
        for client, size in ((0, 4), (1, 8)):
            local = copy.deepcopy(net)
            stepper = getattr(torch.optim, optimizer)(local.parameters(), lr=0.05)
            rates = [0.05 * 0.5 ** (round - 1) * factor for factor in factors]
            for rate, batch in zip(rates, federation.client_batches().batches(client, round, 3), strict=True):
                stepper.param_groups[0]["lr"] = rate
                stepper.zero_grad()
                nn.functional.cross_entropy(local(batch.inputs.double()), batch.targets).backward()
                for weight, own, common in zip(local.parameters(), variates[client], server):
                    weight.grad += common - own
                stepper.step()
            fits.append((size / 12 if kind is FedAvg else 0.5, local))  # SCAFFOLD weighs clients equally
            if optimizer == "SGD":
                moved = [(x - y).detach() / sum(rates) for x, y in zip(net.parameters(), local.parameters())]
                renewed = [own - common + move for own, common, move in zip(variates[client], server, moved)]
                changes.append([new - own for new, own in zip(renewed, variates[client])])
                variates[client] = renewed
        if changes:
            server = [common + sum(column) / 2 for common, column in zip(server, zip(*changes))]  # over N = 2 clients
        net.load_state_dict({name: sum(p * one.state_dict()[name] for p, one in fits) for name in net.state_dict()})
    for one, other in zip(method.net.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


def test_a_schedule_within_visits_that_fails_is_refused_before_round_1():
    with pytest.raises(
        ValueError, match=r"^model\.visit_lr_scheduler is OneCycleLR\(total_steps=1.*fails after local step 2 \("
    ):
        fit(1, visit_lr_scheduler=lambda one: OneCycleLR(one, 1.0, total_steps=1, cycle_momentum=False))
    with pytest.raises(ValueError, match=r"^model\.visit_lr_scheduler is given, but FedNova counts"):
        FedNova(nn.Linear(3, 3), visit_lr_scheduler=lambda one: StepLR(one, 1))
