"""ReferenceAccuracy and WiseFT against models that are fitted, mixed and asked by a plain loop, and SomeClasses."""

import copy
import re
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EMAWeightAveraging
from options import NO_PICTURES
from torch import nn

from fl_lightning import FedAvg, FederatedDataModule, FedPer, Trainer
from fl_lightning.callbacks import FederatedCallback, ReferenceAccuracy, WiseFT
from fl_lightning.data import IID, Arrays, Digits, Joined, SomeClasses
from fl_lightning.models import MLP
from fl_lightning.objectives import NextToken, Regression
from fl_lightning.tasks import PretrainedEWC

OLD, NEW = SomeClasses("digits", first=5), SomeClasses("digits", first=5, without=True)


def federation(**settings):
    return FederatedDataModule(NEW, num_clients=4, clients_per_round=2, batch_size=16, val_fraction=0.0, **settings)


def fitted(method, data, *callbacks, rounds=2):
    trainer = Trainer(max_steps=rounds, accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[*callbacks])
    trainer.fit(method, datamodule=data)
    return trainer


class Kept(FederatedCallback):
    """The global weights before each round, and all scalars by round."""

    def __init__(self):
        super().__init__()
        self.nets = []

    def on_round_start(self, trainer, module, round):
        self.nets.append(copy.deepcopy(module.net))


def asked(net, dataset, data):
    """Accuracy and mean cross entropy on the test samples of a dataset."""
    with torch.no_grad():
        logits = net.eval()(data.preparation.for_evaluation(dataset.test.inputs))
    loss = nn.functional.cross_entropy(logits.double(), dataset.test.targets)
    return (logits.argmax(dim=1) == dataset.test.targets).double().mean(), loss


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_what_is_asked_is_what_a_loop_finds(engine, monkeypatch):
    """The global model before and after each round, and the clients' models of round 2."""
    logged = {}
    data, kept = federation(), Kept()
    method = FedAvg(MLP, engine=engine, local_steps=3, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    log = method.log_round
    monkeypatch.setattr(method, "log_round", lambda new, round: logged.setdefault(round, {}).update(new) or log(new, round))
    fitted(method, data, kept, ReferenceAccuracy({"old": OLD, "new": NEW}, every=2))
    for name, source in (("old", OLD), ("new", NEW)):
        dataset = source.load(Path())
        for round, net in ((0, kept.nets[0]), (2, method.net)):
            accuracy, loss = asked(net, dataset, data)
            assert float(logged[round][f"reference/{name}/accuracy"]) == pytest.approx(float(accuracy))
            assert float(logged[round][f"reference/{name}/loss"]) == pytest.approx(float(loss), rel=1e-5)
        after = []
        for client in data.cohort(2):
            net = copy.deepcopy(kept.nets[1]).train()
            for batch in data.client_batches().batches(client, 2, 3):
                loss = nn.functional.cross_entropy(net(batch.inputs), batch.targets)
                for weight, gradient in zip(net.parameters(), torch.autograd.grad(loss, [*net.parameters()])):
                    weight.data -= 0.1 * gradient
            after.append(asked(net, dataset, data)[0])
        mean, before = torch.stack(after).mean(), asked(kept.nets[1], dataset, data)[0]
        assert float(logged[2][f"reference/{name}/cohort_accuracy"]) == pytest.approx(float(mean))
        assert float(logged[2][f"forgetting/reference_{name}"]) == pytest.approx(float(mean - before))
    assert "reference/old/cohort_accuracy" not in logged[1]


def test_a_run_with_it_ends_in_the_same_weights():
    """It looks and changes nothing."""
    with_it, without = FedAvg(MLP, local_steps=2), FedAvg(MLP, local_steps=2)
    fitted(with_it, federation(), ReferenceAccuracy({"old": OLD}, every=1))
    fitted(without, federation())
    for one, other in zip(with_it.net.parameters(), without.net.parameters()):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ReferenceAccuracy({}), "ReferenceAccuracy.sets is empty"),
        (lambda: ReferenceAccuracy({"a/b": OLD}), "ReferenceAccuracy.sets has 'a/b', must be one word"),
        (
            lambda: fitted(FedAvg(MLP), federation(), ReferenceAccuracy({"x": Arrays(torch.zeros(1, 1), [0])})),
            "sets has x, which has no test sample",
        ),
        (
            lambda: fitted(
                FedAvg(MLP), federation(), ReferenceAccuracy({"x": Arrays(*[torch.zeros(2, 1), ["cat", "dog"]] * 2)})
            ),
            "sets has x, with the class cat, which data.source lacks",
        ),
        (
            lambda: fitted(FedAvg(MLP), federation(), ReferenceAccuracy({"x": Arrays(*[torch.zeros(2, 1), [0, 1]] * 2)})),
            r"sets has x, with samples of shape \[1\] and type float32, must be \[1, 8, 8\] and uint8",
        ),
        (
            lambda: fitted(FedAvg(MLP), federation(), ReferenceAccuracy({"x": SomeClasses("digits", first=10)})),
            "^ReferenceAccuracy.sets has x: data.source.first is 10, must be between 1 and 9$",
        ),
        (
            lambda: fitted(FedPer(MLP), federation(), ReferenceAccuracy({"old": OLD})),
            "model is FedPer, whose clients keep parts",
        ),
        (lambda: SomeClasses("digits"), "data.source.first is None and data.source.names is None: give one"),
        (lambda: SomeClasses("digits", first=10).load(Path()), "data.source.first is 10, must be between 1 and 9"),
        (lambda: SomeClasses("digits", names=["cat"]).load(Path()), "data.source.names has cat, which is not a class"),
        (
            lambda: SomeClasses(Arrays(torch.zeros(2, 1), [0.1, 0.2], objective=Regression()), first=1).load(Path()),
            r"^data.source is SomeClasses, which goes by classes, but data.source.source has Regression\(.*: use it without",
        ),
    ],
)
def test_what_cannot_be_asked_is_refused(make, message):
    """In one line, before round 1."""
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def texts(tokens, **largest):
    """Twelve texts of four tokens for nets that have ``tokens``; the last of a part begins with its largest id, or 29."""
    ids = torch.arange(60).reshape(12, 5) % 30
    train, test, targets = ids[:, :-1].clone(), ids[:, :-1].clone(), ids[:, 1:]
    train[-1, 0], test[-1, 0] = largest.get("train", 29), largest.get("test", 29)
    return Arrays(train, targets, test, targets, objective=NextToken(num_tokens=tokens))


def read(source, tasks=None, *callbacks):
    net = nn.Sequential(OrderedDict([("body", nn.Embedding(30, 8)), ("head", nn.Linear(8, 30))]))
    data = FederatedDataModule(texts(30), num_clients=2, clients_per_round=2, partition=IID(), val_fraction=0.0)
    fitted(FedAvg(net, local_steps=1, tasks=tasks), data, *callbacks, rounds=1)


@pytest.mark.parametrize("where", ["set", "learner"])
def test_token_ids_beyond_the_net_are_refused(where):
    """Of what the federation does not train on, too, before round 1."""
    use = {
        "set": lambda source: read(source, None, ReferenceAccuracy({"old": source})),
        "learner": lambda source: read(source, PretrainedEWC(source)),
    }[where]
    what = {"set": "ReferenceAccuracy.sets has old", "learner": "model.tasks.source is Arrays"}[where]
    read_part, other = ("test", "train") if where == "set" else ("train", "test")
    use(texts(30))
    with pytest.raises(
        ValueError, match=f"^{what}, with targets for 40 outputs of a net, data.source for 30: give both the same$"
    ):
        use(texts(40))
    with pytest.raises(
        ValueError, match=f"^{what} has the token 33, which is beyond the embeddings of model.net: use the net's"
    ):
        use(texts(30, **{read_part: 33}))
    use(texts(30, **{other: 33}))  # which is not read


def test_some_classes_keep_their_labels():
    """Both halves together are the whole source; owners are counted anew."""
    whole, halves = Digits().load(Path()), [source.load(Path()) for source in (OLD, NEW)]
    assert [half.classes for half in halves] == [whole.classes] * 2
    assert halves[0].train.targets.max() == 4
    assert halves[1].train.targets.min() == 5
    assert sum(len(half.train) for half in halves) == len(whole.train)
    held = whole.train.targets == 7
    named = SomeClasses("digits", names=["7"]).load(Path())
    assert torch.equal(named.train.inputs, whole.train.inputs[held])
    owned = Arrays(torch.zeros(4, 1), [0, 1, 2, 1], owners=[0, 1, 2, 3])
    assert SomeClasses(owned, names=["1"]).load(Path()).owners.tolist() == [0, 1]

    class Held(Arrays):
        """With owners of the test samples."""

        def load(self, root):
            return replace(super().load(root), test_owners=torch.tensor([3, 0, 1, -1]))

    held = Held(torch.zeros(4, 1), [0, 1, 2, 1], torch.zeros(4, 1), [1, 1, 1, 1], owners=[0, 1, 2, 3])
    assert SomeClasses(held, names=["1"]).load(Path()).test_owners.tolist() == [1, -1, 0, -1]
    several = SomeClasses(Joined({"a": Digits(), "b": Digits()}), first=2).load(Path())
    assert several.sources == ("a",) * 10 + ("b",) * 10  # of all classes


def test_it_is_an_option_of_the_command_line(main, tmp_path):
    """Its sets come from a config; the numbers are in the record, the heatmap is drawn."""
    (tmp_path / "old.yaml").write_text(
        "trainer:\n  callbacks:\n  - class_path: ReferenceAccuracy\n    init_args:\n      every: 1\n      sets:\n"
        "        old: {class_path: SomeClasses, init_args: {source: digits, first: 5}}\n"
    )
    few = ["fit", "--config", "digits_wsm.yaml", "--config", "old.yaml", "--trainer.max_steps", "2", *NO_PICTURES]
    some = "--data.source SomeClasses --data.source.source digits --data.source.first 5 --data.source.without true".split()
    code, _, error = main(*few, *some)
    assert code == 0, error
    record = next(tmp_path.rglob("record.jsonl")).read_text()
    assert "reference/old/accuracy" in record
    assert "forgetting/reference_old" in record


# WiseFT ------------------------------------------------------------------------------------------------------------------

SHARES = [0.0, 0.3, 1.0]


def logged_by(method, monkeypatch):
    logged, log = {}, method.log_round
    monkeypatch.setattr(method, "log_round", lambda new, round: logged.update(new) or log(new, round))
    return logged


def test_nets_between_start_and_end(monkeypatch):
    """``(1 - a) start + a end``, weight by weight; the run keeps its end."""
    method, other = (FedAvg(MLP, local_steps=3) for _ in range(2))
    logged, data = logged_by(method, monkeypatch), federation()
    fitted(method, data, WiseFT({"old": OLD}, SHARES))
    fitted(other, federation())
    for one, same in zip(method.net.parameters(), other.net.parameters(), strict=True):
        assert torch.equal(one, same)
    begun = FedAvg(MLP, local_steps=3)
    start = federation()
    start.setup()
    begun.join(start)
    for share in SHARES:
        net = copy.deepcopy(method.net)
        for weight, first in zip(net.parameters(), begun.net.parameters(), strict=True):
            weight.data = (1 - share) * first.data + share * weight.data
        for name, source in (("old", OLD), ("test", NEW)):
            accuracy, _ = asked(net, source.load(Path()), data)
            assert float(logged[f"wise_ft/{share:g}/{name}"]) == pytest.approx(float(accuracy)), (share, name)


def test_a_resumed_run_mixes_with_the_same_start(monkeypatch, tmp_path):
    """The start is in the checkpoint, of each of several callbacks."""
    results = []
    for parts in ([3], [1, 3]):
        for rounds in parts:
            method = FedAvg(MLP, local_steps=3)
            logged = logged_by(method, monkeypatch)
            callbacks = [WiseFT({"old": OLD}, SHARES), WiseFT({"other": OLD}, [0.5])]
            trainer = Trainer(max_steps=rounds, accelerator="cpu", logger=False, default_root_dir=tmp_path, callbacks=callbacks)
            trainer.fit(method, datamodule=federation(), ckpt_path=tmp_path / "1.ckpt" if rounds > parts[0] else None)
            trainer.save_checkpoint(tmp_path / f"{rounds}.ckpt")
        results.append({name: float(value) for name, value in logged.items() if name.startswith("wise_ft")})
    assert results[0] == results[1] != {}


@pytest.mark.parametrize("order", [1, -1])
def test_under_an_average_its_weights_are_asked(order):
    """EMA of the server's weights: a reference set with the test samples has the test accuracies, in any order of callbacks."""

    class Seen(Callback):
        def on_validation_end(self, trainer, module):
            if trainer.global_step:
                seen.append([module.newest[name] for name in ("test/accuracy", "reference/new/accuracy")])

    seen, method = [], FedAvg(MLP, local_steps=5, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    average = EMAWeightAveraging(decay=0.7)
    callbacks = [average, ReferenceAccuracy({"new": NEW}, every=1), WiseFT({"new": NEW}, [1.0]), Seen()][::order]
    settings = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "val_check_interval": 1}
    trainer = Trainer(max_steps=3, callbacks=callbacks, **settings)
    trainer.fit(method, datamodule=federation(monitor_test=1))
    assert len(seen) == 3
    assert len({test for test, _ in seen}) == 3
    assert all(test == reference for test, reference in seen)
    assert method.newest["wise_ft/1/new"] == seen[-1][0]


def test_a_resumed_run_that_began_without_has_no_accuracy_before(tmp_path, capsys):
    """The table at its end says what there is; WiseFT needs the start and is refused."""
    fitted(FedAvg(MLP, local_steps=1), federation(), rounds=1).save_checkpoint(tmp_path / "1.ckpt")
    settings = {"max_steps": 2, "accelerator": "cpu", "logger": False, "default_root_dir": tmp_path}
    trainer = Trainer(**settings, callbacks=[ReferenceAccuracy({"old": OLD})])
    trainer.fit(FedAvg(MLP, local_steps=1), datamodule=federation(), ckpt_path=tmp_path / "1.ckpt")
    assert re.search(r"│ accuracy on old +│ 0\.\d{4} +│", capsys.readouterr().out)
    trainer = Trainer(**settings, callbacks=[WiseFT({"old": OLD})])
    with pytest.raises(ValueError, match="^callback WiseFT: ckpt_path has no initial weights of it: give it to a new run, or"):
        trainer.fit(FedAvg(MLP, local_steps=1), datamodule=federation(), ckpt_path=tmp_path / "1.ckpt")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WiseFT({}), "WiseFT.sets is empty: give a source by name"),
        (lambda: WiseFT({"test": OLD}), "WiseFT.sets has test, which is the federation's own"),
        (lambda: WiseFT({"old": 3}), "^WiseFT.sets.old is 3, must be a source or the name of one: give 'digits'"),
        (lambda: WiseFT({"old": "nope"}), "^WiseFT.sets.old is 'nope', neither digits, .*: try one of "),
        (lambda: WiseFT({"old": "EMNIST"}), "^WiseFT.sets.old is EMNIST, a set of several splits"),
        (lambda: WiseFT({"old": OLD}, [1.5]), "WiseFT.shares .*1.5"),
    ],
)
def test_what_cannot_be_mixed_is_refused(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
