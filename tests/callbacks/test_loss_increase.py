"""The loss increase against its definition in plain loops: resumed, streamed and under another engine too."""

import copy
import re
import shlex
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from batch_norm_net import BatchNormNet
from torch import nn

from fl_lightning import FedAvg, FedReg
from fl_lightning.callbacks import FederatedCallback, LossIncrease
from fl_lightning.data import FederatedDataModule, RandomCrop, RandomHorizontalFlip
from fl_lightning.evaluation.refits import refit_by_fedavg
from fl_lightning.privacy import DPSGD
from fl_lightning.report.log import read_log
from fl_lightning.robustness import LabelFlip

COHORTS = [[0, 2], [1, 2], [0, 1], [0, 2], [1, 2], [0, 1]]  # clients of 5, 10 and 15 samples
PAGE = Path(__file__).parents[2] / "docs" / "reading_the_heatmaps.md"
NAMES = ("forgetting/loss_before", "forgetting/loss_after", "forgetting/loss_increase")
EXACT = {"abs": 1e-12, "rel": 0}


def new_net():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


class Scalars(FederatedCallback):
    """Keeps what the module logged of the loss increase, by round."""

    def __init__(self):
        super().__init__()
        self.rounds = {}

    def on_round_end(self, trainer, module, round, report):
        if NAMES[0] in module.newest:
            self.rounds[round] = [module.newest.pop(name) for name in NAMES]


@pytest.fixture
def logged(fit, toy_data):
    """Rounds of FedAvg with the callback; gives [before, after, increase] by round, and the trainer."""

    def run(callback, rounds=6, ckpt_path=None, engine="sequential", prepare=lambda data: None, **settings):
        data, scalars = toy_data(**{"cohorts": COHORTS, "batch_size": 4, **settings}), Scalars()
        data.setup()
        prepare(data)
        method = FedAvg(new_net(), local_epochs=2, engine=engine)
        trainer = fit(method, data, rounds, ckpt_path, precision="64-true", callbacks=[callback, scalars])
        return scalars.rounds, trainer

    return run


def mean_loss(net, data, client):
    """On all training samples of a client."""
    indices = data.shards.train_indices(client)
    with torch.no_grad():
        return F.cross_entropy(net(data.train_set.inputs[indices]), data.train_set.targets[indices]).item()


def local_fit(net, data, client, round, rate=0.1):
    """Two epochs of plain SGD from a net's weights."""
    local = copy.deepcopy(net)
    for batch in data.client_batches().batches(client, round, 2 * -(-data.num_train(client) // 4)):
        gradients = torch.autograd.grad(F.cross_entropy(local(batch.inputs), batch.targets), list(local.parameters()))
        for weight, gradient in zip(local.parameters(), gradients):
            weight.data -= rate * gradient
    return local


def before_after_increase(net, locals, data, round):
    """On the clients of the round before."""
    before, after = [], []
    for i in COHORTS[round - 2]:
        before.append(mean_loss(net, data, i))
        after.append(sum(mean_loss(local, data, i) for local in locals) / len(locals))
    values = sum(before) / len(before), sum(after) / len(after)
    return [*values, values[1] - values[0]]


def plain_losses(data, left_out=()):
    """[before, after, increase] by round, FedAvg and its models written down once more.

    Args:
        left_out: clients whose models are lost.
    """
    data.setup()
    data.to(torch.device("cpu"), torch.float64)
    net, losses = new_net(), {}
    for round, cohort in enumerate(COHORTS, start=1):
        locals = {}
        for client in cohort:
            if client in left_out:
                continue
            locals[client] = local_fit(net, data, client, round)
        if round > 1:
            losses[round] = before_after_increase(net, locals.values(), data, round)
        sizes = {client: data.num_train(client) for client in locals}
        for name, weight in net.named_parameters():
            total = sum(sizes[client] * local.get_parameter(name).data for client, local in locals.items())
            weight.data = total / sum(sizes.values())
    return losses


@pytest.fixture
def expected(toy_data):
    return plain_losses(toy_data(cohorts=COHORTS, batch_size=4))


def assert_equal(actual, expected):
    assert list(actual) == list(expected)
    for round, values in expected.items():
        assert actual[round] == pytest.approx(values, **EXACT), round


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_equals_plain_loops(logged, expected, engine):
    """Clients of unequal size count alike; round 1 has no round before it; the losses do rise."""
    actual, _ = logged(LossIncrease(every=1), engine=engine)
    assert list(actual) == [2, 3, 4, 5, 6]
    assert_equal(actual, expected)
    assert max(values[2] for values in actual.values()) > 0.01


def test_the_record_has_the_increase_of_each_model_on_the_data_of_each_client(fit, toy_data, expected, tmp_path):
    """Their mean is that of plain loops; a row for each client of the round, a column for each of the round before."""
    data, method = toy_data(cohorts=COHORTS, batch_size=4), FedAvg(new_net(), local_epochs=2)
    settings = {"precision": "64-true", "logger": True, "default_root_dir": tmp_path}
    trainer = fit(method, data, 3, callbacks=[LossIncrease(every=3)], **settings)
    ((round, increases),) = read_log(Path(trainer.log_dir)).tensors["clients/loss_increase"].items()
    assert (round, increases.shape) == (3, (2, 2))
    assert increases.mean() == pytest.approx(expected[3][2], abs=1e-6)


@pytest.mark.parametrize(("settings", "due"), [({"every": 3}, [3, 6]), ({"rounds": [1, 4]}, [4]), ({"every": 0}, [])])
def test_due_rounds_alone_keep_models(logged, expected, settings, due):
    """The cohort before is known although its round was not due; models are asked for in the rounds that use them."""
    callback = LossIncrease(**settings)
    actual, _ = logged(callback)
    assert_equal(actual, {round: expected[round] for round in due})
    assert [round for round in range(1, 7) if callback.wants_models(round)] == [r for r in range(1, 7) if callback.due(r)]
    assert not any(LossIncrease(**settings).wants_models(round) for round in range(1, 7))


@pytest.mark.parametrize("cut", [2, 3])
def test_a_resumed_run_logs_the_same(logged, tmp_path, cut):
    """Round cut + 1 needs the cohort of a round before the cut."""
    whole, _ = logged(LossIncrease(every=1))
    first, trainer = logged(LossIncrease(every=1), rounds=cut)
    trainer.save_checkpoint(tmp_path / "cut.ckpt")
    rest, _ = logged(LossIncrease(every=1), ckpt_path=tmp_path / "cut.ckpt")
    assert {**first, **rest} == whole
    assert next(iter(rest)) == cut + 1


def test_validation_samples_are_not_counted(logged, toy_data):
    """A part of each client is validated on: the losses are those of the rest."""
    actual, _ = logged(LossIncrease(every=1), val_fraction=0.4)
    assert_equal(actual, plain_losses(toy_data(cohorts=COHORTS, batch_size=4, val_fraction=0.4)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_streamed_samples_give_the_same(logged, expected, num_workers):
    actual, _ = logged(LossIncrease(every=1), storage="stream", num_workers=num_workers, eval_batch_size=7)
    assert_equal(actual, expected)


def test_a_model_that_is_not_finite_is_left_out(logged, toy_data):
    """Client 2's samples are infinite, and so its model is NaN: in round 4, of clients 0 and 2, the model of 0 alone counts."""

    def poison(data):
        data.train_set.inputs[data.shards.train_indices(2)] = torch.inf

    actual, _ = logged(LossIncrease(rounds=[4]), prepare=poison)
    data = toy_data(cohorts=COHORTS, batch_size=4)
    data.setup()
    poison(data)
    assert_equal(actual, {4: plain_losses(data, left_out=[2])[4]})


def test_augmentation_plays_no_part(fit):
    """Images that training crops and flips: what is measured is what evaluation would see."""

    def run(augment):
        settings = {"num_clients": 4, "clients_per_round": 2, "augment": augment, "batch_size": 64}
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        method = FedAvg(net, local_steps=1, optimizer=lambda weights: torch.optim.SGD(weights, lr=0.0))
        fit(method, FederatedDataModule("digits", **settings), 2, callbacks=[LossIncrease(every=2)])
        return [method.newest[name] for name in NAMES]

    plain, augmented = run([]), run([RandomCrop(padding=2), RandomHorizontalFlip()])
    assert plain == pytest.approx(augmented)
    assert plain[2] == pytest.approx(0, abs=1e-12)  # a rate of 0 moves nothing


@pytest.mark.parametrize("with_fedavg", [False, True])
@pytest.mark.slow
def test_the_command_line_takes_it(main, read_scalars, tmp_path, with_fedavg):
    """As docs/reading_the_heatmaps.md has it: added to the callbacks of a bundled config."""
    commands = re.findall(r"^fl-lightning (.*LossIncrease.*)$", PAGE.read_text().replace("\\\n", ""), re.MULTILINE)
    quick = ["--model.net", "MLP", "--trainer.callbacks.every", "1", "--trainer.max_steps", "4"]
    code, out, error = main(*shlex.split(commands[with_fedavg]), *quick)
    assert code == 0, error
    assert "forgetting/loss_increase" in out
    scalars = read_scalars(tmp_path / "runs" / "digits_tce" / "version_0")
    measured = {name: sorted(rounds) for name, rounds in scalars.items() if "/loss_" in name}
    names = [*NAMES, "forgetting/loss_after_fedavg", "forgetting/loss_increase_fedavg"] if with_fedavg else NAMES
    assert measured == {name: [2, 3, 4] for name in names}


class Trajectory(FederatedCallback):
    """Keeps the global model that each round starts from, and the measures of the loss that it leaves."""

    def __init__(self):
        super().__init__()
        self.nets, self.newest = {}, {}

    def on_round_start(self, trainer, module, round):
        self.nets[round] = copy.deepcopy(module.net)

    def on_round_end(self, trainer, module, round, report):
        self.newest[round] = {name: value for name, value in module.newest.items() if "/loss_" in name}
        module.newest.clear()


@pytest.fixture
def along_fedreg(fit, toy_data):
    """Rounds of FedReg; gives what a :class:`Trajectory` kept, the method, and the data as plain loops want them."""

    def run(callbacks, **common):
        data, trajectory = toy_data(cohorts=COHORTS, batch_size=4), Trajectory()
        settings = {"gamma": 1.0, "pseudo_step": 0.3, "num_perturbations": 3}
        method = FedReg(new_net(), **settings, local_epochs=2, learning_rate_decay=0.9, **common)
        fit(method, data, 6, precision="64-true", callbacks=[*callbacks, trajectory])
        return trajectory, method, data

    return run


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_fedavg_starts_from_fedregs_global_models(along_fedreg, engine):
    """Plain local steps from the weights that every round of FedReg starts from, at that round's rate."""
    trajectory, _, data = along_fedreg([LossIncrease(every=2, fedavg=True)], engine=engine)
    for round, net in trajectory.nets.items():
        newest = trajectory.newest[round]
        if round % 2:
            assert not newest
            continue
        locals = [local_fit(net, data, client, round, 0.1 * 0.9 ** (round - 1)) for client in COHORTS[round - 1]]
        before, after, increase = before_after_increase(net, locals, data, round)
        assert newest["forgetting/loss_before"] == pytest.approx(before, **EXACT)
        assert newest["forgetting/loss_after_fedavg"] == pytest.approx(after, **EXACT)
        assert newest["forgetting/loss_increase_fedavg"] == pytest.approx(increase, **EXACT)
        assert abs(newest["forgetting/loss_increase"] - increase) > 1e-3  # FedReg's is another


@pytest.mark.parametrize("common", [{"engine": "sequential"}, {"engine": "vectorized"}, {"privacy": DPSGD(0.5)}])
@pytest.mark.slow
def test_measuring_fedavg_changes_nothing_of_the_run(along_fedreg, common):
    """Global models of all rounds, what else is logged, and what is drawn next, bit for bit."""
    drawn = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        without, last, _ = along_fedreg([LossIncrease(every=1)], **common)
        drawn.append(torch.rand(1))
        torch.manual_seed(0)
        measured, measured_last, _ = along_fedreg([LossIncrease(every=1, fedavg=True)], **common)
        drawn.append(torch.rand(1))
    assert torch.equal(*drawn)
    nets = zip([*without.nets.values(), last.net], [*measured.nets.values(), measured_last.net], strict=True)
    for one, other in nets:
        assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))
    for round, newest in without.newest.items():
        assert newest == {name: value for name, value in measured.newest[round].items() if not name.endswith("_fedavg")}


def test_fedavgs_clients_are_hostile_where_fedregs_are(along_fedreg):
    """A client that flips labels trains on them here too; the others' models are the same."""
    _, method, _ = along_fedreg([])

    everybody = [*range(method.data.num_clients)]

    def models():
        refits = refit_by_fedavg(method, method.engine.context, 1, everybody)
        return refits.evaluate(lambda net: torch.cat([weight.detach().flatten() for weight in net.parameters()]))

    honest, method.hostile = models(), LabelFlip(0.4)
    apart = (models() - honest).norm(dim=1)
    assert apart.nonzero().flatten().tolist() == method.hostile.clients(len(everybody), method.seed)


class WithPseudoData(FedAvg):
    """FedAvg, for which FedAvg is measured too."""

    def pseudo_data(self, client):
        return {}


@pytest.mark.parametrize("batch_norm_buffers", ["averaged", "reset"])
def test_fedavgs_clients_have_the_runs_batch_norm(fit, toy_data, batch_norm_buffers):
    """From FedAvg's own global models, FedAvg's local steps are those of the run."""
    trajectory, net = Trajectory(), BatchNormNet([4], 3).double()
    method = WithPseudoData(net, local_epochs=2, engine="sequential", batch_norm_buffers=batch_norm_buffers)
    callbacks = [LossIncrease(every=1, fedavg=True), trajectory]
    fit(method, toy_data(cohorts=COHORTS, batch_size=5), 4, precision="64-true", callbacks=callbacks)
    for round in range(2, 5):
        newest = trajectory.newest[round]
        assert newest["forgetting/loss_increase_fedavg"] == pytest.approx(newest["forgetting/loss_increase"], **EXACT)


def test_fedavg_is_compared_with_fedreg_alone(main):
    command = "fit --config digits_tce.yaml --trainer.callbacks+=LossIncrease --trainer.callbacks.fedavg true"
    code, _, error = main(*command.split())
    assert code == 1
    assert "callback LossIncrease: fedavg is true and model is FedAvg" in error
    assert error.count("\n") == 1
