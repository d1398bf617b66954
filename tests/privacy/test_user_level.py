"""User-level privacy at the server, against a plain loop; cohorts by coin, empty ones among them."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from declared_by_tests import changes, needs_of, needs_without_net
from lightning.pytorch.callbacks import ModelCheckpoint
from opacus.accountants import RDPAccountant
from torch import nn

from fl_lightning import FedAvg, FederatedStrategy, methods
from fl_lightning.callbacks import (
    ClientForgetting,
    Communication,
    LabelCounts,
    LossIncrease,
    PerClassAccuracy,
    PrivacyBudget,
    RoundForgetting,
    RoundProgressBar,
    RunSummary,
)
from fl_lightning.data import from_arrays
from fl_lightning.functional.random_streams import stream_seed
from fl_lightning.privacy import DPSGD, UserLevelDP
from fl_lightning.protocol import Needs

SIZES, SIGMA, CLIP, RATE = [6, 10, 7, 4, 9], 0.5, 0.3, 0.2
PRIVACY = UserLevelDP(SIGMA, CLIP)
SEED, FIRST_EMPTY = 16, 2  # whose cohorts are [1], [1, 2], [], [0, 3, 4], [4], and [], [0, 1, 3, 4], [2, 4], [4], [3, 4]


def new_data(public_size=0, **settings):
    """Five clients of whom 2 take part on average; float64."""
    generator = torch.Generator().manual_seed(5)
    targets = torch.randint(0, 4, (48,), generator=generator)
    inputs = torch.randn(48, 3, generator=generator, dtype=torch.float64)
    inputs[:, 0] += targets
    clients = [part.tolist() for part in torch.arange(36).split(SIZES)]
    count = 36 + public_size
    defaults = {"clients_per_round": 2, "batch_size": 4, "classes": list("abcd"), "seed": SEED, "public_size": public_size}
    defaults |= {"test_inputs": inputs[36:], "test_targets": targets[36:]}
    return from_arrays(inputs[:count], targets[:count], clients, **{**defaults, **settings})


def new_net():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double()


def momentum(weights):
    return torch.optim.SGD(weights, lr=0.8, momentum=0.5)


def train(fit, method=FedAvg, rounds=5, data=None, net=None, callbacks=(), trainer=None, ckpt_path=None, **settings):
    defaults = {"optimizer": lambda weights: torch.optim.SGD(weights, lr=RATE), "engine": "sequential", "seed": SEED}
    defaults |= {"server_weighting": "uniform", "server_optimizer": momentum, "privacy": PRIVACY}
    trained = method(net or new_net(), **{**defaults, **settings})
    trainer = {"precision": "64-true", "callbacks": list(callbacks), **(trainer or {})}
    if "default_root_dir" in trainer:
        trained.write_to(trainer["default_root_dir"])
    trained.trainer_after = fit(trained, data or new_data(), rounds, ckpt_path, **trainer)
    return trained


def cohorts_of(rounds):
    data = new_data()
    data.setup()
    return [PRIVACY.cohort(data.participation, round) for round in range(1, rounds + 1)]


def plain_rounds(rounds, frozen=()):
    """``g = (sigma C z - sum_k d_k min(1, C / ||d_k||)) / 2``, d_k client k's change, z drawn weight after weight;
    ``v = v / 2 + g``, ``w -= 0.8 v``. Returns the weights and the norms of the d_k.
    """
    data, net, norms = new_data(), new_net(), []
    data.setup()
    data.to(torch.device("cpu"), torch.float64)
    weights = {name: weight.detach() for name, weight in net.named_parameters()}
    velocity = {name: torch.zeros_like(weight) for name, weight in weights.items() if name not in frozen}
    for round, cohort in enumerate(cohorts_of(rounds), start=1):
        total = {name: torch.zeros_like(weights[name]) for name in velocity}
        for client in cohort:
            local = dict(weights)
            for batch in data.client_batches().batches(client, round, -(-SIZES[client] // 4)):
                leaves = {name: local[name].clone().requires_grad_() for name in velocity}
                loss = F.cross_entropy(torch.func.functional_call(net, {**local, **leaves}, (batch.inputs,)), batch.targets)
                for name, gradient in zip(leaves, torch.autograd.grad(loss, list(leaves.values()))):
                    local[name] = local[name] - RATE * gradient
            change = {name: local[name] - weights[name] for name in velocity}
            norms.append(math.sqrt(sum(float(part.square().sum()) for part in change.values())))
            for name in total:
                total[name] += change[name] * min(1.0, CLIP / norms[-1])
        noise = torch.Generator().manual_seed(stream_seed(SEED, round, -1, "user-level noise"))
        for name in velocity:
            drawn = SIGMA * CLIP * torch.randn(weights[name].shape, generator=noise, dtype=torch.float64)
            velocity[name] = 0.5 * velocity[name] + (drawn - total[name]) / 2
            weights[name] = weights[name] - 0.8 * velocity[name]
    return weights, norms


def assert_same(method, expected):
    torch.testing.assert_close({n: w.detach() for n, w in method.net.named_parameters()}, dict(expected), rtol=0, atol=1e-9)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_rounds_equal_a_plain_loop(fit, engine):
    """Five rounds with server momentum, the third of them without a client: noise alone; some changes clipped, some not."""
    expected, norms = plain_rounds(5)
    assert cohorts_of(5) == [[1], [1, 2], [], [0, 3, 4], [4]]
    assert 0 < sum(norm > CLIP for norm in norms) < len(norms)
    assert_same(train(fit, engine=engine), expected)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "64-true"])
def test_what_a_client_sends_is_within_the_bound(fit, precision):
    """From weights of 1, where float32 has steps of 1e-7: the norm of each change, in float64, is C to 1e-5."""
    norms = []

    class Watched(UserLevelDP):
        def bound(self, upload, received):
            bounded = super().bound(upload, received)
            sent = bounded["weights"].tensors
            norms.append(float(torch.cat([(sent[name].double() - received[name].double()).flatten() for name in sent]).norm()))
            return bounded

    net = new_net().float()
    for weight in net.parameters():
        nn.init.ones_(weight)
    train(fit, net=net, privacy=Watched(SIGMA, clip := 1e-2), trainer={"precision": precision})
    assert norms == pytest.approx([clip] * len(norms), rel=1e-5)
    assert len(norms) >= 7


@pytest.mark.parametrize(
    ("precision", "dtype", "message"),
    [
        (
            "bf16-true",
            torch.float32,
            "trainer.precision is bf16-true, but UserLevelDP takes norms in full precision: use 32-true",
        ),
        (
            "32-true",
            torch.bfloat16,
            "model.net has 0.weight in torch.bfloat16, but UserLevelDP takes norms in full precision: give net.float()",
        ),
    ],
)
def test_half_precision_is_refused(fit, precision, dtype, message):
    """In bfloat16 near 1, a change of norm .5 is rounded to one of norm .78."""
    with pytest.raises(ValueError) as error:
        train(fit, net=new_net().to(dtype), trainer={"precision": precision})
    assert str(error.value) == message


def test_frozen_weights_get_no_noise(fit):
    """Nor count in the norm."""
    net = new_net()
    net[0].weight.requires_grad_(False)
    method = train(fit, net=net)
    assert_same(method, plain_rounds(5, frozen=("0.weight",))[0])
    assert torch.equal(method.net[0].weight, new_net()[0].weight)


def test_what_stays_at_home_gets_no_noise(fit):
    """A personal class layer: the global one is as it was."""

    class Personal(FedAvg):
        personal = ("2.*",)

    method = train(fit, Personal)
    assert torch.equal(method.net[2].weight, new_net()[2].weight)
    assert not torch.equal(method.net[0].weight, new_net()[0].weight)


def test_two_processes_do_as_one(fit, tmp_path):
    """Noise is added once, not once a process; a round without clients is one in both."""
    for name, settings in (("one", {}), ("two", {"strategy": FederatedStrategy(start_method="fork"), "devices": 2})):
        keep = ModelCheckpoint(tmp_path / name, filename="last", every_n_train_steps=5)
        train(fit, callbacks=[keep], trainer={"enable_checkpointing": True, **settings})
    one, two = (torch.load(tmp_path / name / "last.ckpt", weights_only=True)["state_dict"] for name in ("one", "two"))
    torch.testing.assert_close(two, one, rtol=0, atol=1e-12)
    torch.testing.assert_close(one, {f"net.{name}": w for name, w in plain_rounds(5)[0].items()}, rtol=0, atol=1e-9)


def test_a_run_in_two_parts_ends_as_one_in_one(fit, tmp_path):
    """Cut before the round without clients: the same bits, and the same budget."""
    torch.manual_seed(1)
    train(fit, rounds=2, callbacks=[PrivacyBudget()]).trainer_after.save_checkpoint(tmp_path / "2.ckpt")
    whole = train(fit, callbacks=[PrivacyBudget()])
    torch.manual_seed(2)
    resumed = train(fit, callbacks=[PrivacyBudget()], ckpt_path=tmp_path / "2.ckpt")
    torch.testing.assert_close(resumed.net.state_dict(), whole.net.state_dict(), rtol=0, atol=0)
    assert resumed.newest["privacy/epsilon"] == whole.newest["privacy/epsilon"]


def test_noise_has_the_variance_asked_for(fit):
    """A rate of 0 and four rounds: 16,240 weights each move by N(0, (sigma C / 2)^2) a round, and no round as another."""
    moves = []

    class Still(FedAvg):
        def server_step(self, update):
            moves.append(torch.cat([part.flatten() for part in update.pseudo_gradient.values()]))
            super().server_step(update)

    net = nn.Sequential(nn.Linear(3, 200), nn.Linear(200, 77), nn.Linear(77, 4)).double()
    train(fit, Still, 4, net=net, optimizer=lambda weights: torch.optim.SGD(weights, lr=0.0))
    drawn = torch.stack(moves) / (SIGMA * CLIP / 2)
    count = drawn.shape[1]
    assert drawn.mean(dim=1).abs().max() < 5 / math.sqrt(count)
    assert (drawn.square().mean(dim=1) - 1).abs().max() < 5 * math.sqrt(2 / count)
    assert (torch.corrcoef(drawn) - torch.eye(4)).abs().max() < 5 / math.sqrt(count)


def test_everybody_tosses_a_coin():
    """6,000 rounds, q = 2 / 5: how often each client comes, each pair, each size of a cohort, to five standard deviations."""
    there = torch.zeros(6000, 5, dtype=torch.float64)
    for row, cohort in enumerate(cohorts_of(6000)):
        assert cohort == sorted(set(cohort))
        there[row, cohort] = 1
    bound, q = 5 / math.sqrt(6000), 0.4
    assert (there.mean(dim=0) - q).abs().max() < bound * math.sqrt(q * (1 - q))
    pairs = there.T @ there / 6000
    assert (pairs - q**2).fill_diagonal_(0).abs().max() < bound * math.sqrt(q**2 * (1 - q**2))
    for size in range(6):
        expected = math.comb(5, size) * q**size * (1 - q) ** (5 - size)
        share = float((there.sum(dim=1) == size).double().mean())
        assert abs(share - expected) < bound * math.sqrt(expected * (1 - expected)), size
    after = (there[1:] * there[:-1]).mean(dim=0)  # rounds know nothing of each other
    assert (after - q**2).abs().max() < bound


def test_all_clients_on_average_are_all_clients():
    """q = 1: nobody ever stays away."""
    data = new_data(clients_per_round=1.0)
    data.setup()
    assert all(PRIVACY.cohort(data.participation, round) == [0, 1, 2, 3, 4] for round in range(1, 50))


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_rounds_without_a_client_harm_no_callback(fit, tmp_path, engine, capsys):
    """Every callback in every round, the first round empty too, where engines are rehearsed."""
    data = new_data(seed=FIRST_EMPTY, val_fraction=0.3, monitor_test=1)
    summary = RunSummary()
    callbacks = [
        *(kind(every=1) for kind in (ClientForgetting, RoundForgetting, LabelCounts, LossIncrease)),
        PerClassAccuracy(every=1, clients_every=1),
        Communication(),
        PrivacyBudget(),
        RoundProgressBar(),
        summary,
    ]
    trainer = {"enable_progress_bar": True, "default_root_dir": tmp_path}
    method = train(fit, rounds=3, data=data, callbacks=callbacks, engine=engine, trainer=trainer)
    assert method.sampled_clients(1) == []
    assert method.lost_rounds.count == 0
    assert (tmp_path / "results.json").exists()


def test_epsilon_is_that_of_the_accountant(fit):
    """Of rounds with q = 2 / 5 and sigma = 0.5, counted whoever came, with the empty one."""
    budget = PrivacyBudget()
    logged = []

    class Logged(FedAvg):
        def log_round(self, metrics, round):
            logged.extend(value for name, value in metrics.items() if name == "privacy/epsilon")
            super().log_round(metrics, round)

    train(fit, Logged, callbacks=[budget], privacy=UserLevelDP(SIGMA, CLIP, delta=1e-3))
    accountant = RDPAccountant()
    expected = []
    for _ in range(5):
        accountant.step(noise_multiplier=SIGMA, sample_rate=0.4)
        expected.append(accountant.get_epsilon(1e-3))
    assert logged == pytest.approx(expected, rel=1e-12)


# What is refused, and what is not ---------------------------------------------------------------------------------------

NOT_BOUNDED = [name for name in methods.__all__ if changes(name, "client_result", "aggregate", "probe")]
# For nets that are refused, or with cohorts of the method's.
REFUSED_OTHERWISE = [
    name for name in methods.__all__ if needs_of(name)[1].get("norm", False) or changes(name, "cohort", "update_weight")
]


@pytest.mark.parametrize("name", [name for name in methods.__all__ if name not in NOT_BOUNDED + REFUSED_OTHERWISE])
@pytest.mark.one_in(3)
def test_methods_that_send_weights_alone_run(fit, name):
    of_data, settings = needs_without_net(name)
    trained = train(fit, getattr(methods, name), 4, new_data(**of_data), net=Parts(), **settings)
    assert all(weight.isfinite().all() for weight in trained.net.parameters())


@pytest.mark.parametrize("name", NOT_BOUNDED)
def test_methods_with_hooks_that_are_not_bounded_are_refused(fit, name):
    """By name, with the hooks that send it and what to do."""
    data = new_data(public_size=12)
    with pytest.raises(ValueError) as error:
        train(fit, getattr(methods, name), net=Parts(), data=data)
    assert str(error.value).startswith(
        f"model.privacy is UserLevelDP, which bounds the weights that clients send, but {name} changes "
    )
    assert str(error.value).endswith(": use DPSGD, or another method")


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.classifier = nn.Linear(3, 5).double(), nn.Linear(5, 4).double()

    def forward(self, inputs):
        return self.classifier(self.features(inputs))


class EqualWeights(FedAvg):
    def update_weight(self, client):
        return 2.0


class ReadsEach(FedAvg):
    needs = Needs(each_upload=True)


class NamedCohort(FedAvg):
    def cohort(self, round):
        return super().cohort(round)


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        (FedAvg, {"server_weighting": "n_weighted"}, "model.server_weighting is n_weighted, but UserLevelDP bounds clients"),
        (EqualWeights, {}, "model.server_weighting is uniform, but UserLevelDP bounds clients that count equally: "),
        (NamedCohort, {}, "model.privacy is UserLevelDP, which draws cohorts by coin, but NamedCohort names them: use DPSGD"),
        (
            ReadsEach,
            {},
            "model.privacy is UserLevelDP, which bounds a sum of changes, but ReadsEach reads each client's weights: ",
        ),
        (
            FedAvg,
            {"data": new_data(cohorts=[[0]] * 5)},
            "model.privacy is UserLevelDP, which draws cohorts by coin, but data.cohorts names them: use DPSGD",
        ),
        (
            FedAvg,
            {"net": nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double()},
            "model.net has the layer 1, BatchNorm1d, which lets samples of a batch see each other, so UserLevelDP",
        ),
    ],
)
def test_what_cannot_be_bounded_is_refused(fit, method, settings, message):
    """Before round 1, in one line."""
    with pytest.raises(ValueError) as error:
        train(fit, method, **settings)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((0.0,), "model.privacy.noise_multiplier is 0.0, must be above 0"),
        ((math.nan,), "model.privacy.noise_multiplier is nan, must be above 0"),
        ((1.0, -1.0), "model.privacy.clipping_norm is -1.0, must be above 0"),
        ((1.0, 1.0, 2.0), "model.privacy.delta is 2.0, must be above 0 and below 1: 1e-5 is usual"),
    ],
)
def test_values_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError) as error:
        UserLevelDP(*settings)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "model.server_weighting is n_weighted, but UserLevelDP bounds clients that count equally: set it to uniform"),
        (
            ["--model", "SCAFFOLD", "--model.server_weighting", "uniform"],
            "but SCAFFOLD changes client_result and aggregate: use DPSGD, or another method",
        ),
    ],
)
def test_bad_input_on_the_command_line_is_one_line(main, tmp_path, arguments, message):
    code, _, error = main(
        *("fit", "--config", "digits_tce.yaml", *arguments),
        *("--model.privacy", "UserLevelDP", "--model.privacy.noise_multiplier", "1"),
    )
    lines = [line for line in error.splitlines() if line.startswith("fl-lightning: error: ")]
    assert code != 0
    assert len(lines) == 1
    assert message in lines[0]
    assert list(tmp_path.iterdir()) == []


def test_data_of_a_private_run_serves_others_as_ever(fit):
    """The same data module after a run with coins: cohorts of two again."""
    data = new_data()
    train(fit, data=data)
    train(fit, data=data, privacy=None)
    assert all(len(data.cohort(round)) == 2 for round in range(1, 6))


def test_running_statistics_of_instance_norm_are_refused(fit, toy_data):
    """They are averages over samples that no noise covers; without them the layer is as good as group norm."""
    for privacy in (UserLevelDP(1.0), DPSGD(1.0)):
        norm = nn.InstanceNorm1d(1, track_running_stats=True)
        net = nn.Sequential(nn.Unflatten(1, (1, 4)), norm, nn.Flatten(), nn.Linear(4, 3))
        with pytest.raises(ValueError, match="layer 1, InstanceNorm1d, whose running statistics .* cannot hide"):
            fit(FedAvg(net, privacy=privacy, server_weighting="uniform"), toy_data(batch_size=4), 1)


def test_frozen_batch_norm_is_taken(fit, toy_data):
    """In evaluation mode it mixes no samples. One with trained weights is refused, and one that keeps no statistics."""
    for privacy in (UserLevelDP(1.0), DPSGD(1.0)):
        settings = {"privacy": privacy, "server_weighting": "uniform"}
        for trained, tracks in ((["2.*"], True), (["1.*", "2.*"], True), (["2.*"], False)):
            net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=tracks), nn.Linear(4, 3))
            before = copy.deepcopy(net[:2].state_dict())
            if tracks and len(trained) == 1:
                fit(FedAvg(net, trained=trained, **settings), toy_data(batch_size=4), 1)
                torch.testing.assert_close(net[:2].state_dict(), before, rtol=0, atol=0)
            else:
                with pytest.raises(ValueError, match="layer 1, BatchNorm1d, which lets samples of a batch see each other"):
                    fit(FedAvg(net, trained=trained, **settings), toy_data(batch_size=4), 1)


class Counting(nn.Linear):
    """A layer that averages its inputs into a buffer, as timm's EvoNorm layers do with squares."""

    def __init__(self):
        super().__init__(4, 3)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("constant", torch.ones(4))

    def forward(self, inputs):
        if self.training:
            self.mean.lerp_(inputs.mean(dim=0), 0.1)
        return super().forward(inputs * self.constant)


def test_running_statistics_of_other_layers_are_refused(fit, toy_data):
    for privacy in (UserLevelDP(1.0), DPSGD(1.0)):
        method = FedAvg(nn.Sequential(Counting()), privacy=privacy, server_weighting="uniform")
        with pytest.raises(ValueError, match=r"model\.net has the buffer 0\.mean, .* cannot hide: use a net without running"):
            fit(method, toy_data(batch_size=4), 1)
