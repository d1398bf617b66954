"""L2SP and PretrainedEWC against their equations in a plain loop."""

import copy

import pytest
import torch

from fl_lightning import FedAvg, FederatedDataModule, Trainer
from fl_lightning.data import Arrays, SomeClasses
from fl_lightning.methods import FedDF, FedPer, FedProx, Flashback, LocalOnly
from fl_lightning.models import MLP
from fl_lightning.tasks import L2SP, PretrainedEWC

PENALTY, MU = 0.9, 0.4


def known_before(tiny, size=6):
    """A source of what the net knew: samples that no client has, of three of the four classes."""
    generator = torch.Generator().manual_seed(8)
    return Arrays(
        torch.randn(size, 3, generator=generator, dtype=torch.float64), [0, 1, 2] * (size // 3), classes=["a", "b", "d"]
    )


def assert_rounds(tiny, method, mu, importance):
    """Three rounds with ``penalty/2 sum_i F_i (w_i - w_0i)^2``, and FedProx's pull towards what a client received."""
    net = tiny.new_net()
    start = copy.deepcopy(net)
    factor = importance(start)

    def objective(local, received, client, inputs, targets):
        value = tiny.losses(local(inputs), targets, client).mean()
        pairs = zip(local.parameters(), received.parameters(), start.parameters(), factor, strict=True)
        for weight, held, first, how_much in pairs:
            value = value + PENALTY / 2 * (how_much * (weight - first.detach()) ** 2).sum()
            value = value + mu / 2 * ((weight - held.detach()) ** 2).sum()
        return value

    for round, cohort in tiny.rounds:
        net.load_state_dict(tiny.mean({client: tiny.visit(net, client, round, objective) for client in cohort}))
    tiny.assert_same(method.net, net)
    tiny.assert_moved(net)


@pytest.mark.parametrize("tiny", ["sgd", "momentum", "adam tce"], indirect=True)
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_the_pull_is_towards_the_initial_weights(tiny, engine):
    """``penalty/2 ||w - w_0||^2``, alone and with FedProx, whose pull changes from round to round."""
    ones = lambda net: [torch.ones_like(weight) for weight in net.parameters()]  # noqa: E731
    assert_rounds(tiny, tiny.train(FedAvg, tasks=L2SP(PENALTY), engine=engine), 0.0, ones)
    assert_rounds(tiny, tiny.train(FedProx, mu=MU, tasks=L2SP(PENALTY), engine=engine), MU, ones)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_weights_that_mattered_are_held(tiny, engine):
    """F is the mean over the reference samples of their squared gradients at w_0, one sample after another."""

    def fisher(start):
        net, source = copy.deepcopy(start).eval(), known_before(tiny).load(None).train
        label = torch.tensor([0, 1, 3])[source.targets]
        totals = [torch.zeros_like(weight) for weight in net.parameters()]
        for inputs, target in zip(source.inputs, label):
            loss = torch.nn.functional.cross_entropy(net(inputs[None]), target[None])
            for total, gradient in zip(totals, torch.autograd.grad(loss, [*net.parameters()])):
                total += gradient**2 / len(label)
        return totals

    trained = tiny.train(FedAvg, tasks=PretrainedEWC(known_before(tiny), PENALTY), engine=engine)
    assert_rounds(tiny, trained, 0.0, fisher)
    plain, held = (tiny.train(FedAvg, **settings).reports[0] for settings in ({}, {"tasks": PretrainedEWC(known_before(tiny))}))
    weights = sum(weight.numel() for weight in trained.net.parameters())
    assert held.bytes_down - plain.bytes_down == 3 * 8 * weights  # F, to each of three clients
    assert held.bytes_up == plain.bytes_up


@pytest.mark.parametrize(("method", "steps"), [(FedDF, {"distillation_steps": 20}), (Flashback, {})])
@pytest.mark.parametrize("learner", [lambda tiny: L2SP(PENALTY), lambda tiny: PretrainedEWC(known_before(tiny), PENALTY)])
def test_clients_are_pulled_before_a_server_distils(tiny, method, steps, learner):
    """Their losses, which do not know of the server's public samples, have the pull."""
    plain, held = (
        tiny.train(method, tiny.new_data(public_size=12), norm=False, rounds=2, **steps, **settings)
        for settings in ({}, {"tasks": learner(tiny)})
    )
    start = [weight.detach() for weight in tiny.new_net(norm=False).parameters()]
    apart = [
        sum(float((weight - first).square().sum()) for weight, first in zip(one.net.parameters(), start, strict=True))
        for one in (plain, held)
    ]
    assert 0 < apart[1] < apart[0]


@pytest.mark.parametrize("learner", [lambda tiny: L2SP(0.0), lambda tiny: PretrainedEWC(known_before(tiny), 0.0)])
def test_without_penalty_it_is_fedavg(tiny, learner):
    """Bit for bit, also where a part of the net stays with its client."""
    for method in (FedAvg, FedPer):
        tiny.assert_same(tiny.train(method, tasks=learner(tiny)).net, tiny.train(method).net, atol=0)


@pytest.mark.parametrize("learner", [lambda: L2SP(2.0), lambda: PretrainedEWC(SomeClasses("digits", first=5), 50.0)])
def test_it_goes_on_from_a_checkpoint_with_the_same_start(learner, tmp_path):
    """The start is that of ``initial_weights`` and not the drawn net, and is in the checkpoint: the same bits."""

    def fit(rounds, initial=None, ckpt=None):
        new = SomeClasses("digits", first=5, without=True)
        data = FederatedDataModule(new, num_clients=4, clients_per_round=2, val_fraction=0.0)
        method = FedAvg(MLP, local_steps=3, initial_weights=initial, tasks=learner())
        trainer = Trainer(
            max_steps=rounds, accelerator="cpu", logger=False, enable_progress_bar=False, default_root_dir=tmp_path
        )
        trainer.fit(method, datamodule=data, ckpt_path=ckpt)
        path = tmp_path / f"{rounds}_{initial is None}.ckpt"
        trainer.save_checkpoint(path)
        return method, str(path)

    before, first = fit(2)
    whole, _ = fit(3, first)
    for name, tensor in before.net.named_parameters():
        assert torch.equal(whole.server_states.tensors("initial")[name], tensor)
    _, part = fit(1, first)
    resumed, _ = fit(3, first, part)
    for one, other in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda tiny: L2SP(-1.0), "^model.tasks.penalty is -1.0, must be at least 0: 0 pulls nothing$"),
        (
            lambda tiny: tiny.train(
                FedAvg, tasks=PretrainedEWC(Arrays(torch.zeros(2, 3).double(), [0, 1], classes=["a", "z"]))
            ),
            "^model.tasks.source is Arrays, with the class z, which data.source lacks: give both the same class names, "
            "as SomeClasses does$",
        ),
        (
            lambda tiny: tiny.train(LocalOnly, tasks=PretrainedEWC(known_before(tiny))),
            "sends its clients nothing, and so no Fisher information: use L2SP, or another method$",
        ),
    ],
)
def test_what_cannot_be_held_is_refused(tiny, make, message):
    with pytest.raises(ValueError, match=message):
        make(tiny)
