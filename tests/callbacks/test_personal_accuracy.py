"""Personal models on their clients' samples, against plain loops over what clients keep."""

import copy
from functools import partial

import lightning.pytorch as pl
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fl_lightning import Ditto, FedAvg, FedBABU, FedBN, FedPer, FedRep, LocalOnly
from fl_lightning.callbacks import ClientForgetting, PerClassAccuracy, PersonalAccuracy, RoundForgetting
from fl_lightning.data import FederatedDataModule, from_arrays
from fl_lightning.evaluation.fine_tuning import FineTuning
from fl_lightning.functional import worst_decile

SIZES = [10, 12, 14, 16, 20]  # client 4 never takes part
COHORTS = [[0, 1, 2], [1, 3], [0, 2]]


def new_data(**settings) -> FederatedDataModule:
    generator = torch.Generator().manual_seed(3)
    targets = torch.randint(0, 3, (sum(SIZES) + 30,), generator=generator)
    inputs = torch.randn(len(targets), 4, generator=generator, dtype=torch.float64)
    inputs[:, :3] += F.one_hot(targets, 3)
    clients = [part.tolist() for part in torch.arange(sum(SIZES)).split(SIZES)]
    test = {"test_inputs": inputs[-30:], "test_targets": targets[-30:]}
    defaults = {"batch_size": None, "cohorts": COHORTS, "val_fraction": 0.3, "monitor_test": 1, **test}
    return from_arrays(inputs[: sum(SIZES)], targets[: sum(SIZES)], clients, **{**defaults, **settings})


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh())
        self.classifier = nn.Linear(6, 3)

    def forward(self, inputs):
        return self.classifier(self.features(inputs))


def new_net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net().double()


@pytest.fixture
def run(fit, monkeypatch):
    """A method after its rounds, what it logged, by round and name, and its callbacks; without pictures, which take longer."""
    monkeypatch.setattr("fl_lightning.callbacks.personal_accuracy.accuracy_of_clients", lambda *_: None)

    def train(method, data=None, rounds=3, callbacks=(), **settings):
        class Logged(method):
            def log_round(self, metrics, round):
                super().log_round(metrics, round)
                for name in metrics:
                    self.logged.setdefault(name, {})[round] = self.newest[name]

        Logged.__name__ = method.__name__
        trained = Logged(new_net(), **{"engine": "sequential", "local_steps": 2, **settings})
        trained.logged = {}
        trained.trainer_after = fit(
            trained, data or new_data(), rounds, precision="64-true", callbacks=[PersonalAccuracy(every=1), *callbacks]
        )
        return trained

    return train


def hits(net, inputs, targets):
    with torch.no_grad():
        return (net.eval()(inputs).argmax(dim=1) == targets).double()


def personal_net(method, client, head="classifier."):
    """The server's net with what a client keeps in place of the server's part."""
    net = copy.deepcopy(method.net)
    net.load_state_dict({**net.state_dict(), **method.stored.states.read(client).weights})
    return net


def part(data, indices):
    return data.train_set.inputs[indices], data.train_set.targets[indices]


def parts_of(data, client):
    return {"validation": data.shards.validation_indices(client), "held_out": held_out(data, client)}


def held_out(data, client):
    return data.shards.test[data.shards.test_start[client] : data.shards.test_start[client + 1]]


def test_numbers_over_clients(run):
    """Mean, sample mean, deviation, worst tenth and minimum of five clients' models, on validation and test parts."""
    method = run(FedPer, new_data(test_fraction=0.3))
    for kind in ("validation", "held_out"):
        of_each = [
            hits(personal_net(method, client), *part(method.data, parts_of(method.data, client)[kind])) for client in range(5)
        ]
        accuracy = torch.stack([each.mean() for each in of_each])
        expected = {
            "mean": accuracy.mean(),
            "sample_mean": torch.cat(of_each).mean(),
            "std": ((accuracy - accuracy.mean()) ** 2).mean().sqrt(),
            "worst_decile": accuracy.min(),
            "min": accuracy.min(),
            "visited_mean": accuracy[:4].mean(),
            "never_visited": 1 / 5,
            "without_samples": 0,
        }
        logged = {name: method.logged[f"personal/{kind}/{name}"][3] for name in expected}
        assert logged == pytest.approx({name: float(value) for name, value in expected.items()}, abs=1e-12)
    assert method.newest["val/accuracy"] == method.newest["personal/validation/mean"]
    assert method.newest["test/accuracy"] == method.newest["personal/held_out/mean"]


def test_the_test_set_is_dealt_out_where_clients_have_no_test_parts(run):
    """Without a test fraction the tag says so, and each sample is asked of one client."""
    method = run(FedPer)
    tests = method.data.evaluation.client_tests
    assert tests.kind == "matched"
    assert sorted(tests.indices.tolist()) == list(range(30))
    of_each = [
        hits(personal_net(method, client), method.data.test_set.inputs[mine], method.data.test_set.targets[mine])
        for client in range(5)
        if len(mine := tests.of_client(client)) > 0
    ]
    assert method.newest["personal/matched/without_samples"] == 5 - len(of_each)
    assert method.newest["personal/matched/sample_mean"] == pytest.approx(float(torch.cat(of_each).mean()), abs=1e-12)
    assert method.newest["test/accuracy"] == pytest.approx(float(torch.stack([e.mean() for e in of_each]).mean()), abs=1e-12)


def test_the_global_model_is_shown_where_there_is_one(run):
    """FedPer has none: neither its accuracy nor its classes'. Ditto has both kinds; FedAvg's names stay as they are."""
    watching = [PerClassAccuracy(1, clients_every=1), RoundForgetting(1, clients_every=1)]
    personal, both, plain = (run(method, callbacks=copy.deepcopy(watching)).newest for method in (FedPer, Ditto, FedAvg))
    assert not {name for name in personal if "global" in name or name.startswith("class_accuracy/")}
    assert "forgetting/round" not in personal
    assert "forgetting/local_mean" in personal
    assert {"val/global_accuracy", "test/global_accuracy", "class_accuracy/0", "forgetting/round"} <= both.keys()
    assert both["test/global_accuracy"] == plain["test/accuracy"]
    assert both["test/accuracy"] == both["personal/matched/mean"] != both["test/global_accuracy"]
    assert not {name for name in plain if "global" in name or name.startswith("personal")}


def test_the_cohort_is_measured_around_its_fit(run):
    """On validation parts: of each client its head on the body it receives, and its whole net after the local steps."""
    one, two = run(FedPer, rounds=2), run(FedPer, rounds=3)
    before = [hits(personal_net(one, k), *part(one.data, one.data.shards.validation_indices(k))).mean() for k in COHORTS[2]]
    assert two.logged["personal/cohort_before"][3] == pytest.approx(float(torch.stack(before).mean()), abs=1e-12)
    of_each = []
    for client in COHORTS[2]:
        net = local_fit(one, personal_net(one, client), client)
        of_each.append(hits(net, *part(one.data, one.data.shards.validation_indices(client))))
    after = torch.stack([each.mean() for each in of_each])
    expected = {
        "": after.mean(),
        "_sample_mean": torch.cat(of_each).mean(),
        "_std": ((after - after.mean()) ** 2).mean().sqrt(),
        "_worst_decile": after.min(),
        "_min": after.min(),
    }
    logged = {name: two.logged[f"personal/cohort_after{name}"][3] for name in expected}
    assert logged == pytest.approx({name: float(value) for name, value in expected.items()}, abs=1e-12)


def local_fit(method, net, client, steps=2, rate=None, trained=lambda name: True):
    """Full-batch steps of the method's optimizer on a copy."""
    net = copy.deepcopy(net).train()
    for name, weight in net.named_parameters():
        weight.requires_grad_(trained(name))
    optimizer = method.optimizer([weight for weight in net.parameters() if weight.requires_grad])
    inputs, targets = part(method.data, method.data.shards.train_indices(client))
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(net(inputs), targets).backward()
        optimizer.step()
    return net


def test_what_a_client_forgot_since_its_last_visit(run):
    """Accuracy of its present model less that at the end of its last visit, mean over the four that had one."""
    runs = [run(FedPer, rounds=rounds) for rounds in (1, 2, 3)]
    at_end = {}
    for round, cohort in enumerate(COHORTS, start=1):
        for client in cohort:
            start = personal_net(runs[round - 2], client) if round > 1 else new_net()
            data = runs[0].data
            net = local_fit(runs[0], start, client)
            at_end[client] = hits(net, *part(data, data.shards.validation_indices(client))).mean()
    last = runs[2]
    now = {k: hits(personal_net(last, k), *part(last.data, last.data.shards.validation_indices(k))).mean() for k in at_end}
    expected = torch.stack([now[client] - then for client, then in at_end.items()]).mean()
    assert last.logged["forgetting/personal_since_visit"][3] == pytest.approx(float(expected), abs=1e-12)


def test_visits_that_were_not_measured_do_not_count(run, fit):
    """Measured in round 1 alone: of its cohort client 1 came again in round 2, 0 and 2 in round 3."""
    method = FedPer(new_net(), local_steps=2)
    personal = PersonalAccuracy(rounds=[1])
    fit(method, new_data(), 3, precision="64-true", callbacks=[personal])
    assert personal.state_dict()["last_visit"] == {}
    assert personal.state_dict()["visited"] == {0, 1, 2, 3}


def test_new_clients_are_fine_tuned(run, fit):
    """Client 4 never came: the newest body with the initial head, and what three steps make of it."""
    method = FedPer(new_net(), local_steps=2, engine="sequential")
    fit(method, new_data(), 3, precision="64-true", callbacks=[PersonalAccuracy(every=1, fine_tuning_steps=3)])
    samples = part(method.data, method.data.shards.validation_indices(4))
    before, tuned = personal_net(method, 4), local_fit(method, personal_net(method, 4), 4, steps=3)
    for name, net in (("new_clients_mean", before), ("new_clients_fine_tuned_mean", tuned)):
        expected = float(hits(net, *samples).mean())
        assert method.newest[f"personal/validation/{name}"] == pytest.approx(expected, abs=1e-12)


def test_new_clients_of_ditto_are_fine_tuned_from_the_global_model(fit):
    """Until then client 4 has the initial one: deployed, it begins at w_T, as Ditto's steps on v from there would."""
    method = Ditto(new_net(), local_steps=2, engine="sequential")
    fit(method, new_data(), 3, precision="64-true", callbacks=[PersonalAccuracy(every=1, fine_tuning_steps=3)])
    samples = part(method.data, method.data.shards.validation_indices(4))

    def loss(net):
        return F.cross_entropy(net.eval()(samples[0]), samples[1]).item()

    score = partial(method.evaluation.personal_scores, method.trainer)
    assert float(score(["val"])["val"].loss[4]) == pytest.approx(loss(new_net()), abs=1e-12)
    for steps, net in ((0, method.net), (3, local_fit(method, method.net, 4, steps=3))):
        tuning = FineTuning(method, method.data, 3, 0, steps, new={4})
        assert float(score(["val"], [4], tuning)["val"].loss[4]) == pytest.approx(loss(net), abs=1e-12)


def test_statistics_of_new_clients_are_those_of_their_samples(fit):
    """FedBN: client 4 begins with mean and variance of its 14 training samples, read in batches of 7, and tunes from there."""
    method = FedBN(new_net(), local_steps=2, engine="sequential")
    data = new_data(eval_batch_size=7)
    fit(method, data, 3, precision="64-true", callbacks=[PersonalAccuracy(every=1, fine_tuning_steps=3)])
    held = data.shards.train_indices(4)
    assert len(held) == 14
    begun = personal_net(method, 4)
    inputs = [begun.features[0](part(data, indices)[0]).detach() for indices in held.split(7)]
    begun.features[1].running_mean = torch.stack([x.mean(dim=0) for x in inputs]).mean(dim=0)
    begun.features[1].running_var = torch.stack([x.var(dim=0) for x in inputs]).mean(dim=0)
    samples = part(data, data.shards.validation_indices(4))
    tuned = local_fit(method, begun, 4, steps=3)
    losses = [F.cross_entropy(net.eval()(samples[0]), samples[1]).item() for net in (begun, tuned)]
    for steps, loss in zip((0, 3), losses):
        tuning = FineTuning(method, data, 3, 0, steps, new={4})
        scores = method.evaluation.personal_scores(method.trainer, ["val"], [4], tuning)["val"]
        assert float(scores.loss[4]) == pytest.approx(loss, abs=1e-12)
    accuracy = [float(hits(net, *samples).mean()) for net in (begun, tuned)]
    names = [f"personal/validation/new_clients_{name}" for name in ("mean", "fine_tuned_mean")]
    assert [method.newest[name] for name in names] == pytest.approx(accuracy, abs=1e-12)


@pytest.mark.parametrize(("kind", "fine_tune"), [(FedAvg, True), (FedBABU, False)])
def test_all_clients_fine_tune_the_global_model(fit, kind, fine_tune):
    """Two epochs of one batch each at the end, on all weights, FedBABU's head among them; the global model stays."""
    method = kind(new_net(), local_steps=2, engine="sequential")
    personal = PersonalAccuracy(fine_tune=fine_tune, fine_tuning_epochs=2)
    fit(method, new_data(), 3, precision="64-true", callbacks=[personal])
    untouched = kind(new_net(), local_steps=2, engine="sequential")
    fit(untouched, new_data(), 3, precision="64-true")
    for name, value in untouched.net.state_dict().items():
        assert torch.equal(method.net.state_dict()[name], value), name
    parts = [part(method.data, method.data.shards.validation_indices(client)) for client in range(5)]
    before = torch.stack([hits(method.net, *samples).mean() for samples in parts])
    tuned = [local_fit(method, method.net, client) for client in range(5)]
    after = torch.stack([hits(net, *samples).mean() for net, samples in zip(tuned, parts)])
    assert method.newest["personal/validation/mean"] == pytest.approx(float(before.mean()), abs=1e-12)
    assert method.newest["personal/validation/fine_tuned_mean"] == pytest.approx(float(after.mean()), abs=1e-12)
    assert method.newest["personal/validation/fine_tuned_worst_decile"] == pytest.approx(float(worst_decile(after)), abs=1e-12)


def test_for_fedavg_nothing_is_kept_or_logged(fit):
    """No model is kept for it either."""
    personal, method = PersonalAccuracy(every=1), FedAvg(new_net(), local_steps=2)
    fit(method, new_data(), 3, precision="64-true", callbacks=[personal])
    assert not personal.wants_models(1)
    assert not {name for name in method.newest if name.startswith("personal/")}


@pytest.mark.parametrize("method", [FedPer, Ditto, LocalOnly])
def test_validate_and_test_ask_the_clients_models(run, tmp_path, method):
    """From a checkpoint, in another object: what the fit said last."""
    trained = run(method)
    trained.trainer_after.save_checkpoint(tmp_path / "3.ckpt")
    for command, name in (("validate", "val"), ("test", "test")):
        trainer = pl.Trainer(accelerator="cpu", precision="64-true", logger=False, enable_progress_bar=False)
        fresh = method(new_net(), local_steps=2)
        getattr(trainer, command)(fresh, datamodule=new_data(), ckpt_path=tmp_path / "3.ckpt")
        scores = {f"{name}/accuracy", *([f"{name}/global_accuracy"] if method is Ditto else [])}
        expected = {score: trained.newest[score] for score in scores}
        assert {score: float(trainer.callback_metrics[score]) for score in scores} == pytest.approx(expected, abs=1e-6)


def test_client_forgetting_begins_with_a_clients_personal_model(run, monkeypatch):
    """F_ki = Acc_k(w^i after its fit) - Acc_k(the model that i used before it), in round 3."""
    written = {}
    monkeypatch.setattr(
        "fl_lightning.callbacks.client_forgetting.log_tensors",
        lambda trainer, tensors, round: written.update({(name, round): tensor for name, tensor in tensors.items()}),
    )
    one = run(FedPer, rounds=2)
    run(FedPer, rounds=3, callbacks=[ClientForgetting(every=1)])
    parts = [part(one.data, one.data.shards.validation_indices(client)) for client in COHORTS[2]]
    for name, nets in (
        ("before", [personal_net(one, client) for client in COHORTS[2]]),
        ("after", [local_fit(one, personal_net(one, client), client) for client in COHORTS[2]]),
    ):
        expected = torch.stack([torch.stack([hits(net, *samples).mean() for samples in parts]) for net in nets])
        torch.testing.assert_close(written[f"clients/accuracy_{name}", 3], expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("method", [FedRep, Ditto, LocalOnly])
@pytest.mark.one_in(3)
def test_every_engine_measures_alike(run, method, engine):
    """All that is logged, of steps that are the same to rounding."""
    expected, actual = run(method), run(method, engine=engine)
    assert actual.newest == pytest.approx(expected.newest, abs=1e-9)


def test_a_run_in_two_parts_logs_what_one_in_one_does(run, fit, tmp_path):
    whole = run(FedPer)
    first = FedPer(new_net(), engine="sequential", local_steps=2)
    trainer = fit(first, new_data(), 1, precision="64-true", callbacks=[PersonalAccuracy(every=1)])
    trainer.save_checkpoint(tmp_path / "1.ckpt")
    second = FedPer(new_net(), engine="sequential", local_steps=2)
    callbacks = [PersonalAccuracy(every=1)]
    fit(second, new_data(), 3, precision="64-true", callbacks=callbacks, ckpt_path=tmp_path / "1.ckpt")
    assert {name: value for name, value in second.newest.items() if name in whole.newest} == whole.newest


def test_prediction_and_single_nets_are_refused_without_a_global_model(fit, tmp_path):
    """One line each."""
    trainer = fit(FedPer(new_net(), local_steps=2), new_data(), 1, precision="64-true")
    trainer.save_checkpoint(tmp_path / "1.ckpt")
    with pytest.raises(ValueError, match="model is FedPer, whose clients keep parts of the net, so that there is no global"):
        pl.Trainer(accelerator="cpu", precision="64-true", logger=False).predict(
            FedPer(new_net()), datamodule=new_data(), ckpt_path=tmp_path / "1.ckpt"
        )
    with pytest.raises(ValueError, match="the clients of FedPer keep parts of the net: a checkpoint has no single one"):
        FedPer.load_from_checkpoint(tmp_path / "1.ckpt", net=new_net())
    # The server's head was never trained, whatever the method is called.
    said = "ckpt_path is of a run with FedPer, in which clients keep parts of the net, but FedAvg here would use the server's"
    with pytest.raises(ValueError, match=said):
        FedAvg.load_from_checkpoint(tmp_path / "1.ckpt", net=new_net())
    for evaluate in ("validate", "predict"):
        trainer = pl.Trainer(accelerator="cpu", precision="64-true", logger=False)
        with pytest.raises(ValueError, match=said):
            getattr(trainer, evaluate)(FedAvg(new_net()), datamodule=new_data(), ckpt_path=tmp_path / "1.ckpt")


def test_a_method_that_is_loaded_without_its_clients_evaluates_none(fit, tmp_path):
    """They would all have the initial models."""
    method = Ditto(new_net(), local_steps=2)
    fit(method, new_data(), 1, precision="64-true").save_checkpoint(tmp_path / "1.ckpt")
    loaded = Ditto.load_from_checkpoint(tmp_path / "1.ckpt", net=new_net())
    trainer = pl.Trainer(accelerator="cpu", precision="64-true", logger=False)
    with pytest.raises(ValueError, match="trainer.validate evaluates clients' models, but the method was loaded without their"):
        trainer.validate(loaded, datamodule=new_data())
    trainer.validate(loaded, datamodule=new_data(), ckpt_path=tmp_path / "1.ckpt")
    assert trainer.callback_metrics["val/accuracy"] == pytest.approx(method.newest["val/accuracy"])


def test_of_many_new_clients_some_are_measured(fit):
    """Two of the four that never came, the same in every run of a seed."""
    means = []
    for new_clients in (2, 2, 4):
        method, personal = FedPer(new_net(), local_steps=2), PersonalAccuracy(every=0, new_clients=new_clients)
        fit(method, new_data(cohorts=[[0]]), 1, precision="64-true", callbacks=[personal])
        means.append(method.newest["personal/validation/new_clients_mean"])
        parts = [part(method.data, method.data.shards.validation_indices(client)) for client in range(1, 5)]
        of_each = [float(hits(personal_net(method, client), *samples).mean()) for client, samples in enumerate(parts, start=1)]
    assert means[0] == means[1]
    assert means[0] in [pytest.approx((of_each[i] + of_each[j]) / 2) for i in range(4) for j in range(i)]
    assert means[2] == pytest.approx(sum(of_each) / 4)


@pytest.mark.parametrize("name", ["every", "fine_tuning_epochs", "fine_tuning_steps", "new_clients"])
def test_negative_numbers_are_refused(name):
    with pytest.raises(ValueError, match=f"callbacks.personal_accuracy.{name} is -1, must be at least 0"):
        PersonalAccuracy(**{name: -1})
