"""The round against a plain loop, written once more without any of the package's machinery."""

import copy
import math
import time
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    Callback,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    OnExceptionCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import FedAvg
from fl_lightning.callbacks import (
    ClientForgetting,
    Communication,
    FederatedCallback,
    LabelCounts,
    LossIncrease,
    PerClassAccuracy,
    RoundForgetting,
    RunSummary,
)
from fl_lightning.data import IID, Arrays, FederatedDataModule, from_arrays
from fl_lightning.data.evaluation_data import EvaluationData
from fl_lightning.models import CNN2

COHORTS = [[0, 2], [1, 2], [0, 1]]


def norm_net(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).double()


def shard(data, client):
    indices = data.shards.train_indices(client)
    return data.train_set.inputs[indices], data.train_set.targets[indices]


def plain_fedavg(net, data, cohorts, build_optimizer, steps, weigh=lambda size: size, clip=None, skip=()):
    """FedAvg of McMahan et al. on full batches; returns the final state dict. ``steps(size)`` local steps a visit."""
    net = copy.deepcopy(net)
    for cohort in cohorts:
        states, weights = [], []
        for client in cohort:
            inputs, targets = shard(data, client)
            local = copy.deepcopy(net).train()
            optimizer = build_optimizer(local.parameters())
            for _ in range(steps(len(targets))):
                optimizer.zero_grad()
                F.cross_entropy(local(inputs), targets).backward()
                if clip is not None:
                    nn.utils.clip_grad_norm_(local.parameters(), clip)
                optimizer.step()
            if client not in skip:
                states.append(local.state_dict())
                weights.append(weigh(len(targets)))
        mean = {name: sum(w * s[name].double() for w, s in zip(weights, states)) / sum(weights) for name in states[0]}
        net.load_state_dict({name: value.to(net.state_dict()[name].dtype) for name, value in mean.items()})
    return net.state_dict()


def assert_same(net, expected, atol=1e-12):
    for name, value in net.state_dict().items():
        torch.testing.assert_close(value, expected[name], atol=atol, rtol=0, msg=lambda text, name=name: f"{name}: {text}")


def momentum_sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.3, momentum=0.9, weight_decay=0.01)


@pytest.mark.parametrize("weighting", ["n_weighted", "uniform"])
def test_rounds_equal_a_plain_loop(fit, toy_data, weighting):
    """Three rounds, two of three clients of unequal size, momentum, weight decay and BatchNorm: equal to 1e-12 in float64."""
    data, net = toy_data(cohorts=COHORTS), norm_net()
    method = FedAvg(copy.deepcopy(net), optimizer=momentum_sgd, local_steps=2, server_weighting=weighting)
    fit(method, data, 3, precision="64-true")
    weigh = (lambda size: size) if weighting == "n_weighted" else (lambda size: 1)
    assert_same(method.net, plain_fedavg(net, data, COHORTS, momentum_sgd, lambda size: 2, weigh))


def test_integer_buffers_are_averaged_and_truncated(fit, toy_data):
    """Clients of 5 and 15 samples in batches of 5 count 1 and 3 batches: (5 * 1 + 15 * 3) / 20 = 2.5, truncated to 2."""
    method = FedAvg(norm_net(), local_epochs=1)
    fit(method, toy_data(cohorts=[[0, 2]], batch_size=5), 1, precision="64-true")
    counter = method.net[1].num_batches_tracked
    assert counter.dtype == torch.int64
    assert counter.item() == 2


def test_mini_batches_equal_a_plain_loop(fit, toy_data):
    """Two epochs in batches of 3 (client 0's last one short), batch order taken from the data module: equal to 1e-12."""
    data, net = toy_data(cohorts=COHORTS, batch_size=3), norm_net()
    method = FedAvg(copy.deepcopy(net), optimizer=momentum_sgd, local_epochs=2)
    fit(method, data, 1, precision="64-true")
    states = []
    for client, size in ((0, 5), (2, 15)):
        local = copy.deepcopy(net).train()
        optimizer = momentum_sgd(local.parameters())
        batches = list(data.client_batches().batches(client, round=1, steps=2 * -(-size // 3)))
        assert sum(len(batch.targets) for batch in batches) == 2 * size
        for batch in batches:
            optimizer.zero_grad()
            F.cross_entropy(local(batch.inputs), batch.targets).backward()
            optimizer.step()
        states.append(local.state_dict())
    for name, value in method.net.named_parameters():
        torch.testing.assert_close(value.detach(), (5 * states[0][name] + 15 * states[1][name]) / 20, atol=1e-12, rtol=0)


def test_clipped_gradients_equal_torchs_clipping(fit, toy_data):
    """clip_local_gradients does what clip_grad_norm_ does in a plain loop."""
    data, net = toy_data(cohorts=COHORTS), norm_net()
    method = FedAvg(copy.deepcopy(net), optimizer=momentum_sgd, local_steps=3, clip_local_gradients=0.1)
    fit(method, data, 3, precision="64-true")
    assert_same(method.net, plain_fedavg(net, data, COHORTS, momentum_sgd, lambda size: 3, clip=0.1))


def test_server_momentum_is_fedavgm(fit, toy_data):
    """SGD with momentum at the server: v <- 0.9 v + D, x <- x + v with D = mean(y) - x."""
    data = toy_data(cohorts=COHORTS)
    net = nn.Linear(4, 3).double()
    x = {name: value.clone() for name, value in net.state_dict().items()}
    v = {name: torch.zeros_like(value) for name, value in x.items()}
    method = FedAvg(net, server_optimizer=lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9), local_steps=2)
    fit(method, data, 3, precision="64-true")
    for cohort in COHORTS:
        start = nn.Linear(4, 3).double()
        start.load_state_dict(x)
        mean = plain_fedavg(start, data, [cohort], lambda p: torch.optim.SGD(p, lr=0.1), lambda size: 2)
        v = {name: 0.9 * v[name] + mean[name] - x[name] for name in x}
        x = {name: x[name] + v[name] for name in x}
    assert_same(method.net, x)


def test_schedule_steps_once_a_round(fit, toy_data):
    """A server rate halved every 2 rounds is 1, 1, 0.5 in rounds 1 to 3, and 0.5 after them."""
    method = FedAvg(norm_net(), lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5))
    trainer = fit(method, toy_data(cohorts=COHORTS), 3, precision="64-true")
    assert trainer.optimizers[0].param_groups[0]["lr"] == 0.5
    assert trainer.global_step == 3


def poisoned(data, client):
    """The data with an infinite input at one client."""
    data.setup()
    data.train_set.inputs[data.shards.train_indices(client)[0]] = float("inf")
    return data


def test_a_client_that_is_not_finite_is_left_out(fit, toy_data):
    """The round equals a plain loop without that client; it is counted, and the summary names it."""
    data, net, summary = poisoned(toy_data(cohorts=COHORTS), client=2), norm_net(), RunSummary()
    method = FedAvg(copy.deepcopy(net), optimizer=momentum_sgd, local_steps=2)
    trainer = fit(method, data, 3, precision="64-true", callbacks=[summary], enable_progress_bar=False)
    assert_same(method.net, plain_fedavg(net, data, COHORTS, momentum_sgd, lambda size: 2, skip=(2,)))
    assert summary.results(trainer, method)["clients_left_out"] == {"2": 2}
    assert method.newest["train/nonfinite_clients"] == 0
    assert trainer.global_step == 3


def test_a_round_without_update_counts_and_moves_nothing(fit, toy_data):
    """Every client poisoned: weights, buffers and the server's momentum stay, the round counts."""
    data = poisoned(toy_data(cohorts=[[0]]), client=0)
    method = FedAvg(norm_net(), server_optimizer=lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9))
    trainer = fit(method, data, 1, precision="64-true")
    assert_same(method.net, norm_net().state_dict(), atol=0)
    assert trainer.global_step == 1
    assert not trainer.optimizers[0].state


def test_ten_rounds_without_update_stop_the_run(fit, toy_data):
    """The tenth such round in a row ends in an error that names the clients and the cure."""
    data = poisoned(toy_data(cohorts=[[1]] * 12), client=1)
    method = FedAvg(norm_net())
    with pytest.raises(FloatingPointError, match="10 rounds in a row.*clients 1.*model.optimizer.lr"):
        fit(method, data, 12, precision="64-true")
    assert method.lost_rounds.count == 10


def digits_run(fit, net=None, callbacks=(), rounds=3, seed=0, **settings):
    data = FederatedDataModule("digits", num_clients=10, clients_per_round=3, batch_size=32, monitor_test=1, seed=seed)
    method = FedAvg(net or (lambda shape, classes: CNN2(shape, classes, hidden=16)), local_steps=2, seed=seed)
    fit(method, data, rounds, callbacks=list(callbacks), **settings)
    return method.net.state_dict()


class DropoutNet(nn.Sequential):
    """A net that draws from the global generator while it trains."""

    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, classes))


def test_result_does_not_depend_on_global_generators(fit):
    """Dropout and initial weights: whatever was drawn before, the same seed gives the same bits, another seed others."""
    torch.manual_seed(1)
    first = digits_run(fit, DropoutNet)
    torch.manual_seed(2)
    torch.rand(17)
    second = digits_run(fit, DropoutNet)
    other = digits_run(fit, DropoutNet, seed=1)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["1.weight"], other["1.weight"])


def test_a_fit_leaves_the_global_generator_alone(fit):
    """The caller's draws go on as if no run had been in between."""
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    digits_run(fit, DropoutNet, rounds=1)
    assert torch.equal(torch.rand(4), expected)


def test_callbacks_do_not_change_the_result(fit, tmp_path):
    """All callbacks in every round, local forgetting too, against none: the same bits."""
    watched = [
        PerClassAccuracy(every=1),
        ClientForgetting(every=1),
        RoundForgetting(every=1, clients_every=1),
        LabelCounts(every=1),
        LossIncrease(every=1),
        Communication(),
        RunSummary(),
    ]
    plain = digits_run(fit, DropoutNet, rounds=2)
    seen = digits_run(fit, DropoutNet, watched, rounds=2, logger=True, default_root_dir=tmp_path)
    assert all(torch.equal(plain[name], seen[name]) for name in plain)


def test_bf16_mixed_equals_a_plain_autocast_loop(fit, toy_data):
    """Each forward pass sees the weights of its step, not a half-precision copy kept from the step before."""
    data = toy_data(cohorts=[[0]])
    data.setup()
    net = norm_net().float()
    method = FedAvg(copy.deepcopy(net), local_steps=5)
    fit(method, data, 1, precision="bf16-mixed")
    inputs, targets = shard(data, 0)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(5):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(net.train()(inputs.float()), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    # Order of the five samples differs, hence bfloat16 rounding; a stale copy is off by 100 times that.
    assert_same(method.net, net.state_dict(), atol=2e-3)


@pytest.mark.parametrize("precision", ["bf16-true", "64-true", "32-true"])
def test_other_precisions_run(fit, precision):
    """Two rounds change the weights and leave them finite."""
    state = digits_run(fit, rounds=2, precision=precision)
    assert all(value.isfinite().all() for value in state.values())


def test_float16_on_a_cpu_is_said_to_be_bfloat16(fit):
    """By Lightning, in Python; the command line refuses it."""
    with pytest.warns(
        UserWarning, match=r"precision='16-mixed'.* not supported on CPU. Using `precision='bf16-mixed'` instead"
    ):
        digits_run(fit, rounds=1, precision="16-mixed")


def test_bytes_are_those_of_weights_and_buffers(fit, toy_data):
    """63 weights and 12 statistics of 8 bytes and a counter of 8, two clients, three rounds, up and down."""
    communication = Communication()
    fit(FedAvg(norm_net()), toy_data(cohorts=COHORTS), 3, precision="64-true", callbacks=[communication])
    num_weights = 4 * 6 + 6 + 6 + 6 + 6 * 3 + 3
    assert communication.total_up == communication.total_down == 3 * 2 * 8 * (num_weights + 12 + 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gradient_clip_val": 1.0}, "trainer.gradient_clip_val is 1.0.*model.clip_local_gradients"),
        ({"accumulate_grad_batches": 2}, "trainer.accumulate_grad_batches is 2.*: use model.micro_batch_size"),
        (
            {"callbacks": [StochasticWeightAveraging(0.1, 1)]},
            "callbacks has StochasticWeightAveraging, .*: use .*WeightAveraging$",
        ),
        ({"callbacks": [GradientAccumulationScheduler({0: 2})]}, "callbacks has Gradient.*: use model.micro_batch_size"),
        ({"callbacks": [BackboneFinetuning()]}, "callbacks has BackboneFinetuning, .*: use model.trained"),
        ({"callbacks": [BatchSizeFinder()]}, "callbacks has BatchSizeFinder, .*: leave it out"),
        ({"callbacks": [LearningRateFinder()]}, "callbacks has LearningRateFinder, .*: use fl-lightning sweep"),
        ({"callbacks": [ModelPruning("l1_unstructured", amount=0.5)]}, "callbacks has ModelPruning, .*: leave it out"),
        ({"callbacks": [OnExceptionCheckpoint("a")], "enable_checkpointing": True}, "has OnExceptionCheckpoint, .*: leave it"),
        (
            {"callbacks": [ModelCheckpoint(save_on_exception=True)], "enable_checkpointing": True},
            "ModelCheckpoint with save_on_exception, .*: leave it",
        ),
        (
            {"callbacks": [EarlyStopping("val/accuracy")], "check_val_every_n_epoch": 1},
            "callbacks has EarlyStopping, .*: give it check_on_train_epoch_end=False$",
        ),
        (
            {"callbacks": [EarlyStopping("val/accuracy", check_on_train_epoch_end=True)]},
            "callbacks has EarlyStopping, .*: give it check_on_train_epoch_end=False$",
        ),
        ({"max_epochs": 3}, "trainer.max_epochs is 3.*max_steps"),
        ({"min_epochs": 2}, "trainer.min_epochs is 2.*min_steps"),
        ({"gradient_clip_algorithm": "value"}, "trainer.gradient_clip_algorithm is value.*model.clip_local_gradients"),
        ({"check_val_every_n_epoch": 5}, "trainer.check_val_every_n_epoch is 5.*val_check_interval"),
        ({"limit_val_batches": 0.5}, "trainer.limit_val_batches is 0.5, must be 1.0 .* or a whole number"),
        ({"sync_batchnorm": True}, "trainer.sync_batchnorm is True"),
        ({"reload_dataloaders_every_n_epochs": 2}, "trainer.reload_dataloaders_every_n_epochs is 2.*leave it out"),
        (
            {"callbacks": [EarlyStopping("test/accuracy", check_on_train_epoch_end=False)], "val_check_interval": 5},
            "callbacks has EarlyStopping of test/accuracy, but data.monitor_test is 10, .*: set data.monitor_test to 5$",
        ),
        (
            {
                "callbacks": [ModelCheckpoint(monitor="test/accuracy")],
                "val_check_interval": "00:00:30:00",
                "enable_checkpointing": True,
            },
            "callbacks has ModelCheckpoint of test/accuracy, but data.monitor_test is 10, .*: set data.monitor_test to 1$",
        ),
        ({"strategy": "ddp"}, "trainer.strategy is DDPStrategy.*federated"),
        ({"precision": "16-true"}, "trainer.precision is 16-true.*bf16-mixed"),
    ],
)
def test_trainer_settings_that_a_round_cannot_honour_are_refused(fit, toy_data, settings, message):
    """Named, with the cure, before anything is trained."""
    method = FedAvg(norm_net())
    with pytest.raises(ValueError, match=message):
        fit(method, toy_data(), 1, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"local_steps": 0}, "model.local_steps is 0"),
        ({"local_epochs": 0}, "model.local_epochs is 0"),
        ({"local_epochs": 1.5}, "model.local_epochs is 1.5, must be a whole number"),
        ({"local_steps": 1, "local_epochs": 1}, "model.local_steps is 1 and model.local_epochs is 1"),
        ({"clip_local_gradients": 0.0}, "model.clip_local_gradients is 0.0"),
        ({"server_weighting": "n"}, "model.server_weighting is 'n'"),
        ({"engine": "warp"}, "model.engine is 'warp'"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    """The error names the key as the user typed it and its value."""
    with pytest.raises(ValueError, match=message):
        FedAvg(norm_net(), **settings)


def test_a_net_with_too_few_outputs_is_refused(fit, toy_data):
    """Two outputs for three classes: said before round 1."""
    with pytest.raises(ValueError, match=r"model.net gives outputs of shape \(2,\), the data has 3 classes"):
        fit(FedAvg(nn.Linear(4, 2).double()), toy_data(), 1, precision="64-true")


def test_more_rounds_than_fixed_cohorts_are_refused(fit, toy_data):
    """Three cohorts cannot serve four rounds."""
    with pytest.raises(ValueError, match="trainer.max_steps is 4, but data.cohorts names 3 rounds"):
        fit(FedAvg(norm_net()), toy_data(cohorts=COHORTS), 4, precision="64-true")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"limit_train_batches": 3}, "trainer.limit_train_batches is 3"),
        ({"limit_train_batches": 1}, "trainer.limit_train_batches is 1,"),
        ({"overfit_batches": 2}, "trainer.overfit_batches is 2"),
        ({"overfit_batches": 0.5}, "trainer.overfit_batches is 0.5"),
        ({"max_steps": -1, "max_epochs": 1}, "trainer.max_epochs is 1, but a training step is a round: give max_steps"),
        ({"max_steps": -1, "max_epochs": None}, "trainer.max_steps is -1, must be at least 1"),
    ],
)
def test_trainer_settings_that_would_repeat_or_never_end_are_refused(fit, toy_data, settings, message):
    """Rounds are counted by max_steps alone."""
    with pytest.raises(ValueError, match=message):
        fit(FedAvg(norm_net()), toy_data(), 1, precision="64-true", **settings)


@pytest.mark.parametrize("settings", [{"fast_dev_run": 2}, {"min_steps": 1, "max_epochs": None, "check_val_every_n_epoch": 1}])
def test_what_lightning_sets_by_itself_is_taken(fit, toy_data, settings):
    """Its fast run is of one epoch, and a least number of steps makes a least number of epochs."""
    assert fit(FedAvg(norm_net()), toy_data(), 2, precision="64-true", **settings).global_step == 2


@pytest.mark.parametrize("ends_early", [False, True])
def test_a_run_with_a_least_number_of_rounds_can_end_before_its_last(fit, toy_data, ends_early):
    """The accuracy is not exceeded in round 4, and it stops after ``min_steps``; every run ends with an evaluation."""
    seen = []

    class Evaluated(Callback):
        def on_validation_end(self, trainer, module):
            seen.append(trainer.global_step)

    stops = [EarlyStopping("test/accuracy", patience=1, min_delta=2.0, mode="max", check_on_train_epoch_end=False)]
    callbacks = [Evaluated(), *(stops * ends_early)]
    settings = {"precision": "64-true", "min_steps": 5, "val_check_interval": 2, "callbacks": callbacks}
    trainer = fit(FedAvg(norm_net()), toy_data(monitor_test=2), 7, **settings)
    assert (trainer.global_step, seen) == ((5, [0, 2, 4, 5]) if ends_early else (7, [0, 2, 4, 6, 7]))


def test_a_second_fit_of_one_trainer_is_refused_unless_it_continues(fit, toy_data, tmp_path):
    """The states of the server's optimizer are in a checkpoint; from it the weights are those of one fit of all rounds."""

    class Stops(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            trainer.should_stop = batch == 2

    def method():
        return FedAvg(norm_net(), server_optimizer=lambda weights: torch.optim.Adam(weights, lr=0.1))

    trained, data, expected = method(), toy_data(), method()
    trainer = fit(trained, data, 5, precision="64-true", callbacks=[Stops()])
    trainer.save_checkpoint(tmp_path / "2.ckpt")
    for other in (trained, FedAvg(norm_net())):
        with pytest.raises(ValueError, match=r"^trainer has done 2 rounds, .*: make a new Trainer, or give fit a ckpt_path"):
            trainer.fit(other, datamodule=data)
    trainer.fit(trained, datamodule=data, ckpt_path=tmp_path / "2.ckpt")
    fit(expected, toy_data(), 5, precision="64-true")
    for name, weight in expected.net.state_dict().items():
        assert torch.equal(trained.net.state_dict()[name], weight), name


@pytest.mark.parametrize("name", ["on_train_start", "on_save_checkpoint", "training_step"])
def test_a_hook_of_lightning_that_leaves_out_the_runs_is_refused(name):
    """As the class is made: without it a resumed run would lack states, or never end. An override that calls it is taken."""

    def override(self, *arguments):
        pass

    with pytest.raises(TypeError, match=rf"^Mine.{name} leaves out .*: call super\(\).{name}\(\) in it$"):
        type("Mine", (FedAvg,), {name: override})

    class Extended(FedAvg):
        def on_train_start(self):
            super().on_train_start()


def test_a_plateau_schedule_is_refused(fit, toy_data):
    """It would need a metric that a round does not have."""
    method = FedAvg(norm_net(), lr_scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau)
    with pytest.raises(ValueError, match="model.lr_scheduler is ReduceLROnPlateau"):
        fit(method, toy_data(), 1, precision="64-true")


def test_a_schedule_that_no_checkpoint_can_hold_is_refused(fit, toy_data):
    """A function of C has nothing to store: the first round would end in a traceback of torch's."""
    method = FedAvg(norm_net(), lr_scheduler=lambda server: torch.optim.lr_scheduler.LambdaLR(server, math.sqrt))
    with pytest.raises(ValueError, match="model.lr_scheduler is LambdaLR, whose state no checkpoint can hold"):
        fit(method, toy_data(), 1, precision="64-true")


@pytest.mark.parametrize(("key", "given"), [("net", "CNN2"), ("lr_scheduler", "StepLR"), ("client_lr_scheduler", "StepLR")])
def test_what_builds_nothing_is_refused(key, given):
    """A name where Python wants the object: one line with the key."""
    with pytest.raises((TypeError, ValueError), match=rf"model\.{key} is '{given}', must .*build") as caught:
        FedAvg(**{"net": norm_net(), key: given})
    assert "\n" not in str(caught.value)


def test_a_single_class_is_refused(fit, tmp_path):
    """What a root one folder too high gives: an accuracy of 1 and nothing learnt."""
    data = from_arrays(torch.zeros(4, 4, dtype=torch.float64), torch.zeros(4).long(), [[0, 1], [2, 3]], classes=["notMNIST"])
    with pytest.raises(ValueError, match=r"data\.source has the single class 'notMNIST'.*check data\.root"):
        fit(FedAvg(nn.Linear(4, 1).double()), data, 1, precision="64-true")


def test_a_frozen_net_is_refused(fit, toy_data):
    """Nothing to train: said in our words."""
    with pytest.raises(ValueError, match="model.net has no weight that requires a gradient"):
        fit(FedAvg(norm_net().requires_grad_(False)), toy_data(), 1, precision="64-true")


def test_a_net_for_other_inputs_is_refused(fit, toy_data):
    """Five features where the data has four."""
    with pytest.raises(ValueError, match=r"model.net cannot take inputs of shape \(4,\)"):
        fit(FedAvg(nn.Linear(5, 3).double()), toy_data(), 1, precision="64-true")


def test_training_scalars_can_be_switched_off(fit, toy_data):
    """log_every_n_steps=0, as Lightning allows."""
    fit(FedAvg(norm_net()), toy_data(), 1, precision="64-true", log_every_n_steps=0)


def test_training_scalars_stand_where_the_run_is_evaluated(fit, toy_data, tmp_path, read_scalars):
    """Lightning's default logs every 50 steps: of 7 rounds those evaluated alone, every 3 and the last; every 2 adds those."""
    for every, rounds in ((None, [3, 6, 7]), (2, [2, 3, 4, 6, 7])):
        logger = TensorBoardLogger(tmp_path, name=str(every))
        settings = {"log_every_n_steps": every, "val_check_interval": 3, "check_val_every_n_epoch": None}
        fit(FedAvg(norm_net()), toy_data(), 7, precision="64-true", logger=logger, **settings)
        assert sorted(read_scalars(logger.log_dir)["train/loss"]) == rounds


class Monitor(FederatedCallback):
    """Keeps what a callback of Lightning's can monitor after each round, and the losses of its clients."""

    def __init__(self):
        self.seen, self.losses = [], []

    def on_round_end(self, trainer, module, round, report):
        self.losses.append(report.losses)

    def on_train_batch_end(self, trainer, *_):
        self.seen.append({name: float(value) for name, value in trainer.callback_metrics.items()})


def test_callbacks_can_monitor_each_round(fit, toy_data):
    """Also rounds that no logger gets: the loss is the mean of the two clients'."""
    monitor = Monitor()
    fit(FedAvg(norm_net()), toy_data(cohorts=COHORTS), 3, precision="64-true", callbacks=[monitor], log_every_n_steps=0)
    for seen, losses in zip(monitor.seen, monitor.losses, strict=True):
        assert seen["train/loss"] == pytest.approx(sum(losses) / 2, rel=1e-12)
        assert seen["train/nonfinite_clients"] == seen["train/round_undone"] == 0
    assert len({seen["train/loss"] for seen in monitor.seen}) == 3


class Logits(dict):
    """What nets of Hugging Face give: a dictionary with attributes."""

    def __init__(self, logits):
        super().__init__(logits=logits)
        self.logits = logits


class Structured(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.linear, self.wrap = nn.Linear(4, 3), wrap

    def forward(self, inputs):
        return self.wrap(self.linear(inputs))


@pytest.mark.parametrize(
    ("wrap", "message"),
    [
        (
            lambda logits: [logits],
            r"model\.net gives list, must be logits \(samples, classes\), an object with logits or a tuple",
        ),
        (lambda logits: (None, logits), r"model\.net gives tuple, must be logits"),
        (lambda logits: logits[:, None], r"model\.net gives outputs of shape \(1, 3\).*segmentation is not supported"),
    ],
    ids=["Hugging Face", "tuple", "sequence"],
)
def test_a_net_that_gives_no_logits_is_refused(fit, toy_data, wrap, message):
    """Before the first round, in one line."""
    with pytest.raises(ValueError, match=message) as caught:
        fit(FedAvg(Structured(wrap).double()), toy_data(), 1, precision="64-true")
    assert "\n" not in str(caught.value)


def test_load_from_checkpoint(fit, toy_data, tmp_path):
    """A trained net comes back in one line, without any data."""
    method = FedAvg(norm_net())
    fit(method, toy_data(), 1, precision="64-true").save_checkpoint(tmp_path / "x.ckpt")
    again = FedAvg.load_from_checkpoint(tmp_path / "x.ckpt", net=norm_net(seed=1))
    assert_same(again.net, method.net.state_dict(), atol=0)


class DrawsAtTheServer(FedAvg):
    """Keeps what a draw at the server gave."""

    def after_server_step(self, probes):
        self.drawn = torch.rand(1).item()


def test_server_hooks_draw_from_the_rounds_stream(fit, toy_data):
    """Whatever the global generator held, a draw at the server is that of (seed, round); another round gives another."""
    drawn = []
    for rounds, global_seed in ((2, 1), (2, 2), (3, 1)):
        torch.manual_seed(global_seed)
        method = DrawsAtTheServer(norm_net())
        fit(method, toy_data(), rounds, precision="64-true")
        drawn.append(method.drawn)
    assert drawn[0] == drawn[1] != drawn[2]


def test_results_are_those_of_the_last_round(fit, toy_data):
    """Five rounds, test set every two: measured in 0, 2, 4 and 5; means are over the second half, best and last over all."""
    summary = RunSummary()
    method = FedAvg(norm_net())
    trainer = fit(method, toy_data(monitor_test=2), 5, precision="64-true", callbacks=[summary])
    curve = summary._curves["test/accuracy"]
    assert list(curve) == [0, 2, 4, 5]
    readings = summary.results(trainer, method)["test_accuracy"]
    assert readings["last_round"] == 5
    assert readings["last"] == curve[5]
    expected = (curve[4] + curve[5]) / 2
    assert readings["last_rounds_mean"] == readings["moving_average"] == pytest.approx(expected)
    assert readings["best"] == max(curve[round] for round in (2, 4, 5))


@pytest.mark.parametrize("command", ["validate", "test", "predict"])
def test_a_loader_of_other_batches_is_refused(fit, toy_data, command):
    trainer = fit(method := FedAvg(norm_net()), toy_data(val_fraction=0.2), 1, precision="64-true")
    others = DataLoader(TensorDataset(torch.zeros(6, 4), torch.zeros(6)), batch_size=3)
    with pytest.raises(ValueError, match="^dataloaders gives batches of type list, must be left out, so that the data module"):
        getattr(trainer, command)(method, others)


def test_monitor_test_0_leaves_the_test_set_alone(fit, toy_data, monkeypatch):
    """No callback reads it either."""
    data = toy_data(monitor_test=0, val_fraction=0.2)
    monkeypatch.setattr(EvaluationData, "test_inputs", lambda evaluation: pytest.fail("the test set was read"))
    method = FedAvg(nn.Linear(4, 3).double())
    fit(method, data, 2, precision="64-true", callbacks=[PerClassAccuracy(every=1), RoundForgetting(every=1, clients_every=1)])
    assert not any(name.startswith("test/") for name in method.newest)


def test_a_round_costs_what_its_cohort_costs(fit):
    """Ten clients of four samples: a round among 20,000 clients takes at most half as long again as one among 100.

    Three tries: a neighbour on the machine may take one of them.
    """
    ratios = []
    for _ in range(3):
        small, large = (seconds_of_a_round(fit, population) for population in (100, 20_000))
        ratios.append(large / small)
        if ratios[-1] < 1.5:
            return
    pytest.fail(f"a round among 20,000 clients takes {ratios} times one among 100")


def seconds_of_a_round(fit, population):
    inputs, targets = torch.randn(4 * population, 8), torch.arange(4 * population) % 2
    data = FederatedDataModule(
        Arrays(inputs, targets), num_clients=population, clients_per_round=10, batch_size=4, partition=IID(), val_fraction=0
    )
    clock = _Clock()
    fit(FedAvg(nn.Linear(8, 2)), data, 60, callbacks=[clock], val_check_interval=1000)
    return min(end - start for start, end in pairwise(clock.starts))


class _Clock(FederatedCallback):
    """When each round started."""

    def __init__(self):
        super().__init__()
        self.starts = []

    def on_round_start(self, trainer, module, round):
        self.starts.append(time.perf_counter())


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({"local_epochs": 1}, "4, which gives client 1"),
        ({"local_steps": 1}, None),
        ({"local_steps": 1, "micro_batch_size": 3}, "4 and model.micro_batch_size 3, which gives client 0"),
        ({"local_steps": 1, "micro_batch_size": 2}, None),
    ],
)
def test_a_batch_of_one_sample_under_batch_norm_is_refused_before_training(fit, settings, refused):
    """Client 1 has 5 samples: its second batch of 4 has one, which one local step does not reach; so has a batch's part."""
    data = from_arrays(torch.randn(9, 3), torch.arange(9) % 2, [range(4), range(4, 9)], batch_size=4)
    method = FedAvg(torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 2)), **settings)
    if refused is None:
        fit(method, data, 1)
        return
    with pytest.raises(ValueError, match=f"^data.batch_size is {refused} a batch of one sample"):
        fit(method, data, 1)


def test_a_batch_of_one_image_under_batch_norm_is_taken(fit):
    """One image has enough values of each channel."""
    data = from_arrays(torch.randn(5, 1, 4, 4), torch.arange(5) % 2, [range(5)], batch_size=4)
    net = torch.nn.Sequential(torch.nn.BatchNorm2d(1), torch.nn.Flatten(), torch.nn.Linear(16, 2))
    assert fit(FedAvg(net, local_epochs=1), data, 1).global_step == 1
