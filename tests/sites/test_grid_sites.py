"""A server and its sites in one process, through Flower's records and messages: the bits of a simulation."""

import io
import json
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Client
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from time import sleep
from unittest.mock import Mock

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="the extra flower is not installed")

from flwr.app import Array, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from lightning.pytorch.callbacks import ModelCheckpoint
from pretended import pretended_gpu, values
from visits_elsewhere import GoesOn

import fl_lightning
from fl_lightning.callbacks import (
    ClientForgetting,
    FeatureDrift,
    HeadByClass,
    LabelCounts,
    PerClassAccuracy,
    PersonalAccuracy,
    PseudoDataFisher,
)
from fl_lightning.data import Digits, Dirichlet, FederatedDataModule, Natural, Source, from_arrays
from fl_lightning.engines.flower import connected
from fl_lightning.losses import TruncatedCrossEntropy
from fl_lightning.models import CNN2, MLP
from fl_lightning.module import FederatedModule
from fl_lightning.privacy import DPSGD
from fl_lightning.protocol import ClientState, Reply, Request, RoundReport, pack, unpack
from fl_lightning.run.common_settings import common_settings, differences
from fl_lightning.run.round_callback import RoundCallback
from fl_lightning.sites.grid_sites import GridSites
from fl_lightning.sites.link import receive, records_of, send, socket_of, values_of
from fl_lightning.sites.own_samples import own_data
from fl_lightning.sites.records import from_records, to_records
from fl_lightning.sites.site import Site, serve
from fl_lightning.sites.site_states import SiteStates

METHODS = {  # with the arguments of each
    "FedAvg": {},
    "SCAFFOLD": {},
    "FedProx": {"mu": 0.1, "loss": TruncatedCrossEntropy()},
    "FedReg": {},
    "FedPer": {},
    "Ditto": {},
}
CLIENTS, CPU = 4, torch.device("cpu")


class SomeGrid:
    """Nodes in this process, one a site, which answer at once. Messages and records are Flower's.

    Messages of a kind and a node that are in ``silent`` are not answered, those in ``broken`` with an error.
    """

    def __init__(self, sites: dict[int, Site]) -> None:
        self.sites = sites
        self.silent: set[tuple[str, int]] = set()
        self.broken: set[tuple[str, int]] = set()
        self.kinds: list[str] = []  # of all messages
        self._answers: dict[str, Message] = {}
        self._number = 0

    def get_node_ids(self):
        return list(self.sites)

    def push_messages(self, messages):
        return [self._push(message) for message in messages]

    def _push(self, message):
        if message.metadata.dst_node_id not in self.sites:
            return None
        self._number += 1
        number, node = str(self._number), message.metadata.dst_node_id
        message.metadata.__dict__["_message_id"] = number
        self.kinds.append(kind := message.metadata.message_type)
        if (kind, node) in self.broken:
            self._answers[number] = Message(Error(1, "the disk of the site is full"), reply_to=message)
        elif (kind, node) not in self.silent:
            self._answers[number] = self._answer(self.sites[node], kind, message)
        return number

    def _answer(self, site, kind, message):
        try:
            return Message(site.answer(kind, message.content), reply_to=message)
        except ValueError as error:
            return Message(Error(1, f"{type(error)}:<'{error}'>"), reply_to=message)  # as Flower writes it

    def pull_messages(self, numbers):
        return [self._answers.pop(number) for number in numbers if number in self._answers]


def make(name: str, engine: str = "sequential", net=MLP, **settings) -> FederatedModule:
    given = {"local_steps": 3, "optimizer": partial(torch.optim.SGD, lr=0.05), **METHODS.get(name, {}), **settings}
    return getattr(fl_lightning, name)(net, engine=engine, **given)


def digits(**settings) -> FederatedDataModule:
    return FederatedDataModule(
        "digits",
        num_clients=CLIENTS,
        clients_per_round=3,
        **{"batch_size": 16, "partition": Dirichlet(1.0), "val_fraction": 0.0, "monitor_test": 0, **settings},
    )


def sites_of(name: str, folder: Path, net=MLP, **settings) -> dict[int, Site]:
    """By node; nodes are numbered in another order than clients."""
    sites = (Site(make(name, net=net), digits(**settings), k, folder / str(k), CPU) for k in range(CLIENTS))
    return {100 - site.client: site for site in sites}


@pytest.fixture(autouse=True)
def _in_a_run(monkeypatch):
    """As in a process of Flower's, which puts these numbers into messages."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Reports(RoundCallback):
    """Keeps the report of each round."""

    def __init__(self) -> None:
        self.reports: list[RoundReport] = []

    def on_round_end(self, trainer, module, round, report):
        self.reports.append(report)


@pytest.fixture
def run(fit):
    """Fit a method, over a grid or simulated; returns it with the reports of its rounds."""

    def fitted(name, grid=None, rounds=4, deadline=30.0, data=None, callbacks=(), method=None, **settings):
        method, reports = make(name, "sequential" if grid is None else "flower", **(method or {})), Reports()
        settings = {"limit_val_batches": 0, "callbacks": [reports, *callbacks], **settings}
        with nullcontext() if grid is None else connected(GridSites(grid, deadline)):
            fit(method, data or digits(), rounds, **settings)
        return method, reports.reports

    return fitted


def same(one: FederatedModule, other: FederatedModule) -> None:
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.one_in(2)
def test_weights_are_those_of_the_simulation(name, run, tmp_path):
    """Every bit of the weights, and losses, bytes and norms of each round, with clients that come again."""
    method, reports = run(name, SomeGrid(sites_of(name, tmp_path)))
    simulated, expected = run(name)
    same(method, simulated)
    assert reports == expected
    assert min(report.bytes_up for report in reports) > 0
    kept = name in ("SCAFFOLD", "FedPer", "Ditto")
    assert any(tmp_path.rglob("states/*/*.pt")) == kept


ON_DATA_OF_SERVER = {"FedDF", "FedDisco", "Flashback"}  # refused
OF_OWN_STEPS = {"FedSGD"}  # one, of all samples


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*fl_lightning.methods.__all__} - METHODS.keys() - ON_DATA_OF_SERVER - OF_OWN_STEPS))
def test_every_other_method_has_the_bits_of_the_simulation(name, run, tmp_path):
    method, reports = run(name, SomeGrid(sites_of(name, tmp_path)), rounds=3)
    simulated, expected = run(name, rounds=3)
    same(method, simulated)
    assert reports == expected


def test_a_client_that_goes_on_from_its_own_weights_gets_what_it_has_not_kept(run, tmp_path, monkeypatch):
    """Its biases; all weights if it receives, or has not been visited before."""
    monkeypatch.setattr(fl_lightning, "GoesOn", GoesOn, raising=False)
    grid, sent = SomeGrid(sites_of("GoesOn", tmp_path)), []
    push = grid._push

    def pushed(message):
        if message.metadata.message_type == "train":
            sent.append(unpack(Request, from_records(message.content)))
        return push(message)

    grid._push = pushed
    method, reports = run("GoesOn", grid)
    simulated, expected = run("GoesOn")
    same(method, simulated)
    assert reports == expected
    visited, names = set(), {name for name, _ in method.net.named_parameters()}
    biases = {name for name in names if "bias" in name}
    for request in sent:
        assert request.weights.keys() == (names if request.receives or request.client not in visited else biases)
        visited.add(request.client)
    assert any(request.weights.keys() == biases for request in sent)


def test_convolutions_are_stored_as_in_the_simulation(fit, tmp_path):
    """With channels last, which another kernel adds up in another order. A data module serves both, one after the other."""
    method, simulated = (make("FedAvg", engine, net=CNN2) for engine in ("flower", "sequential"))
    data = digits(val_fraction=0.2)
    with connected(GridSites(SomeGrid(sites_of("FedAvg", tmp_path, net=CNN2, val_fraction=0.2)), 30.0)):
        fit(method, data, 2, limit_val_batches=0)
    assert "val" not in data.evaluation.names
    fit(simulated, data, 2, limit_val_batches=0)
    assert "val" in data.evaluation.names
    same(method, simulated)


@pytest.fixture
def logged(monkeypatch):
    """The tensors that callbacks log, by name and round."""
    seen = {}
    for module in ("client_forgetting", "per_class_accuracy"):
        add = lambda trainer, tensors, round: seen.update({(name, round): tensor for name, tensor in tensors.items()})  # noqa: E731
        monkeypatch.setattr(f"fl_lightning.callbacks.{module}.log_tensors", add)
    return seen


@pytest.mark.parametrize("name", ["FedAvg", "SCAFFOLD", "FedReg"])
def test_client_forgetting_is_that_of_the_simulation(name, run, logged, tmp_path, capsys):
    """F_ki of each round in every bit, measured at the sites; said before the first message, with their number."""
    grid = SomeGrid(sites_of(name, tmp_path, val_fraction=0.3))
    callbacks = [ClientForgetting(every=2, at_sites=True), PerClassAccuracy(every=0, clients_every=2)]
    given = {"callbacks": callbacks, "limit_val_batches": 1.0}
    run(name, grid, data=digits(val_fraction=0.3, monitor_test=1), **given)
    assert "at the sites: 24 messages in 2 rounds, K x (K + 1) for K clients, with a model of 0.0" in capsys.readouterr().out
    assert grid.kinds.count("evaluate") == 2 * 12
    ours = dict(logged)
    logged.clear()
    run(name, data=digits(val_fraction=0.3, monitor_test=1), **given)
    assert ours.keys() == logged.keys() >= {("clients/accuracy_after", 2), ("clients/class_accuracy", 4)}
    for key, tensor in logged.items():
        torch.testing.assert_close(ours[key], tensor, rtol=0, atol=0, msg=str(key))


def test_client_forgetting_goes_on_without_a_site(run, logged, tmp_path):
    """One that does not answer has no column; one that made no visit has no row either."""
    grid = SomeGrid(sites_of("FedAvg", tmp_path, val_fraction=0.3))
    grid.silent = {("train", 100 - 1), ("evaluate", 100 - 2)}
    data = digits(val_fraction=0.3, cohorts=[[0, 1, 2]])
    with pytest.warns(UserWarning, match="client forgetting of round 1 is without the data of client 2: its site sent no"):
        run("FedAvg", grid, 1, 1.0, data=data, callbacks=[ClientForgetting(every=1, at_sites=True)])
    assert logged["clients/cohort", 1].tolist() == [0, 2]
    assert logged["clients/accuracy_after", 1].isnan().tolist() == [[False, True]] * 2


def test_a_site_that_was_ahead_follows_a_resumed_server(run, fit, tmp_path):
    """The server goes back to round 2 of 4; the sites' states of rounds 3 and 4 do not count."""
    grid, checkpoints = SomeGrid(sites_of("SCAFFOLD", tmp_path / "sites")), tmp_path / "checkpoints"
    saver = ModelCheckpoint(checkpoints, "{step}", every_n_train_steps=2, save_top_k=-1)
    method, _ = run("SCAFFOLD", grid, callbacks=[saver], enable_checkpointing=True)
    resumed = make("SCAFFOLD", "flower")
    with connected(GridSites(grid, 30.0)):
        fit(resumed, digits(), 4, ckpt_path=checkpoints / "step=2.ckpt", limit_val_batches=0)
    same(resumed, method)


def test_a_state_that_is_gone_is_named(run, tmp_path):
    grid = SomeGrid(sites_of("SCAFFOLD", tmp_path))
    site = grid.sites[100]
    stamp = site._states.write(3, ClientState(method={"variate": {"w": torch.ones(2)}}), ClientState())
    assert site._states.read(stamp).method["variate"]["w"].tolist() == [1, 1]
    path = next(tmp_path.rglob("states/*/*.pt"))
    path.write_bytes(path.read_bytes().replace(b"variate", b"variant"))
    with pytest.raises(ValueError, match=r"00000003\.pt, the client's state .*, cannot be read: its bytes .*: put it back"):
        site._states.read(stamp)
    path.unlink()
    with pytest.raises(ValueError, match=r"00000003\.pt, the client's state .*, does not exist: put it back, resume"):
        site._states.read(stamp)


def test_a_state_that_is_not_finite_counts_as_such(tmp_path):
    stamp = SiteStates(tmp_path).write(1, ClientState(method={"v": torch.tensor([torch.inf])}), ClientState())
    assert stamp.method["stamp"].isnan().all()


def test_an_error_at_a_site_is_said_as_the_site_says_it(run, tmp_path):
    """Without what Flower puts around it."""
    grid = SomeGrid(sites_of("SCAFFOLD", tmp_path))
    grid.sites[100]._states.read = Mock(side_effect=ValueError("a/state.pt cannot be read: it's gone"))
    with pytest.warns(UserWarning, match="round 1 is without client 0: a/state.pt cannot be read: it's gone$"):
        run("SCAFFOLD", grid, 1, data=digits(cohorts=[[0, 1, 2]]))


def test_only_the_newest_states_are_kept(tmp_path):
    states, stamp = SiteStates(tmp_path), ClientState()
    for round in range(1, 31):
        stamp = states.write(round, ClientState(method={"v": torch.full((1,), float(round))}), stamp)
    assert float(states.read(stamp).method["v"]) == 30
    assert sorted(int(path.stem) for path in tmp_path.rglob("*.pt")) == list(range(11, 31))


def test_a_site_that_never_answers_is_left_out(run, tmp_path):
    """After the deadline; the round goes on with the mean of the others, which a plain loop gives too."""
    grid, data = SomeGrid(sites_of("FedAvg", tmp_path)), digits(cohorts=[[0, 1, 2]])
    grid.silent = {("train", 100 - 1)}
    with pytest.warns(UserWarning, match="round 1 is without client 1: its site sent no reply within 1 s"):
        method, reports = run("FedAvg", grid, 1, 1.0, data=data)
    assert (reports[0].nonfinite, reports[0].num_updates) == ([1], 2)
    alone, _ = run("FedAvg", rounds=1, data=digits(cohorts=[[0, 2]]))
    same(method, alone)


def test_a_site_with_an_error_is_left_out_and_named(run, tmp_path):
    grid, data = SomeGrid(sites_of("FedAvg", tmp_path)), digits(cohorts=[[0, 1, 2]])
    grid.broken = {("train", 100 - 2)}
    with pytest.warns(UserWarning, match="round 1 is without client 2: the disk of the site is full"):
        _, reports = run("FedAvg", grid, 1, data=data)
    assert reports[0].nonfinite == [2]


def test_a_client_whose_node_is_gone_is_left_out(run, tmp_path):
    """Flower does not take its message: the round does not wait."""
    grid = SomeGrid(sites_of("FedAvg", tmp_path))

    class Goes(RoundCallback):
        def on_round_end(self, trainer, module, round, report):
            grid.sites.pop(100, None)

    with pytest.warns(UserWarning, match="round 2 is without client 0: its SuperNode is not connected"):
        _, reports = run("FedAvg", grid, 2, callbacks=[Goes()], data=digits(cohorts=[[0, 1, 2], [0, 1, 2]]))
    assert [report.nonfinite for report in reports] == [[], [0]]


def test_a_site_that_comes_back_as_another_node_is_found(run, tmp_path):
    grid = SomeGrid(sites_of("SCAFFOLD", tmp_path))

    class ComesBack(RoundCallback):
        def on_round_end(self, trainer, module, round, report):
            if round == 2:
                grid.sites[7] = grid.sites.pop(100)

    data = [digits(cohorts=[[0, 1], [0, 1], [1, 2], [0, 1]]) for _ in range(2)]
    method, _ = run("SCAFFOLD", grid, callbacks=[ComesBack()], data=data[0])
    same(method, run("SCAFFOLD", data=data[1])[0])


def test_a_site_that_comes_back_with_other_settings_is_left_out(run, tmp_path):
    """Behind the same node, which is not asked for its settings again."""
    grid, data = SomeGrid(sites_of("FedAvg", tmp_path)), digits(cohorts=[[0, 1, 2], [0, 1, 2]])

    class OtherFolder(RoundCallback):
        def on_round_end(self, trainer, module, round, report):
            grid.sites[100 - 1] = Site(make("FedAvg", local_steps=2), digits(), 1, tmp_path / "1", CPU)

    words = "round 2 is without client 1: the site of client 1 has other settings than the server: model.local_steps is 2, 3 at"
    with pytest.warns(UserWarning, match=words):
        _, reports = run("FedAvg", grid, 2, callbacks=[OtherFolder()], data=data)
    assert [report.nonfinite for report in reports] == [[], [1]]


def test_other_frozen_weights_at_a_site_are_refused(run, tmp_path):
    """They are not sent: sites do not read model.initial_weights, and would train another net than the server's."""
    torch.save(MLP((1, 8, 8), 10).state_dict(), tmp_path / "net.pt")
    method = {"trained": ["classifier.*"], "initial_weights": str(tmp_path / "net.pt")}
    sites = (Site(make("FedAvg", **method), digits(), k, tmp_path / str(k), CPU) for k in range(CLIENTS))
    with pytest.raises(ValueError, match="has other settings than the server: frozen weights of model.net is"):
        run("FedAvg", SomeGrid({100 - site.client: site for site in sites}), method=method)


def test_a_client_without_a_site_is_named(run, tmp_path):
    sites = sites_of("FedAvg", tmp_path)
    del sites[100 - 3]
    with pytest.raises(ValueError, match="deadline is 0.5 s, but clients 3 have no site yet: start their sites"):
        run("FedAvg", SomeGrid(sites), deadline=0.5)


def test_two_sites_of_one_client_are_named(run, tmp_path):
    """Both are connected; the run goes on with the newer one."""
    sites = sites_of("FedAvg", tmp_path)
    sites[50] = Site(make("FedAvg"), digits(), 1, tmp_path / "second", CPU)
    with pytest.warns(UserWarning, match="client 1 has two SuperNodes, and the newer one gets its messages: see that each"):
        run("FedAvg", SomeGrid(sites))


def test_classes_that_a_site_lacks_are_named(tmp_path):
    site = Site(make("FedAvg"), digits(), 1, tmp_path, CPU)
    common = common_settings(site.method, site.data)
    common = {**common, "classes of the samples": [*map(str, range(1, 10)), "ten"]}
    facts = values_of(site.answer("query", records_of({"common": json.dumps(common)})))
    assert facts["refusal"] == (
        "the site of client 1 has other settings than the server: classes of the samples lack ten and add 0: give the site the "
        "server's classes; in an image folder, one without samples has an empty folder"
    )


def test_other_settings_at_a_site_are_refused(run, tmp_path):
    """Another method, other samples, another shape: before round 1, each by its name."""
    for name, site, words in (
        ("method", Site(make("SCAFFOLD"), digits(), 1, tmp_path, CPU), "model is SCAFFOLD, FedAvg at the server"),
        ("batch", Site(make("FedAvg"), digits(batch_size=8), 1, tmp_path, CPU), "data.batch_size is 8, 16 at the server"),
        ("net", Site(make("FedAvg", net=partial(MLP, hidden=[7])), digits(), 1, tmp_path, CPU), "model.net is"),
        ("shape", Site(make("FedAvg"), other_shape(), 1, tmp_path, CPU), r"shape of the samples is \[5\], \[1, 8, 8\] at"),
    ):
        grid = SomeGrid({**sites_of("FedAvg", tmp_path / name), 99: site})
        with pytest.raises(ValueError, match=f"the site of client 1 has other settings than the server: .*{words}"):
            run("FedAvg", grid)


@pytest.mark.parametrize(
    ("server", "site", "shown"),
    [
        ("a" * 99 + "1" + "b" * 99, "a" * 99 + "2" + "b" * 99, f"...{'a' * 30}2{'b' * 29}..., ...{'a' * 30}1{'b' * 29}..."),
        ("1" + "b" * 99, "2", f"2, 1{'b' * 59}..."),
        ("a" * 100, "a" * 70, f"...{'a' * 30}, ...{'a' * 60}"),
    ],
)
def test_long_values_are_cut_where_they_are_alike(server, site, shown):
    other_folder = "give the site the folder of fl-lightning federation init that the server runs"
    assert differences({"model.net": server}, {"model.net": site}) == f"model.net is {shown} at the server: {other_folder}"


def test_a_site_of_another_version_is_refused(tmp_path):
    site = Site(make("FedAvg"), digits(), 1, tmp_path, CPU)
    common = {**common_settings(site.method, site.data), "the version of fl-lightning": "0.0.9"}
    facts = values_of(site.answer("query", records_of({"common": json.dumps(common)})))
    assert facts["refusal"].startswith(
        "the site of client 1 has other settings than the server: the version of fl-lightning is "
        f"{fl_lightning.__version__}, 0.0.9 at the server: install the server's version at the site"
    )


def test_a_round_without_most_of_its_sites_is_lost(run, tmp_path):
    """The weights stay; at the end of the run a line says where to look, and not at the learning rate first."""
    grid, data = SomeGrid(sites_of("FedAvg", tmp_path)), digits(cohorts=[[0, 1, 2]] * 2)
    grid.broken, before = {("train", 100 - 0), ("train", 100 - 2)}, {}

    class Begins(RoundCallback):
        def on_round_start(self, trainer, module, round):
            before.setdefault("weights", deepcopy(module.net.state_dict()))

    with pytest.warns(
        UserWarning, match=r"round 1 is lost: fewer than half of the clients sent a finite update \(clients 0, 2\)"
    ):
        method, reports = run("FedAvg", grid, 2, data=data, callbacks=[Begins()])
    assert [report.lost for report in reports] == [True, True]
    torch.testing.assert_close(method.net.state_dict(), before["weights"], rtol=0, atol=0)
    with pytest.raises(FloatingPointError, match="^the last 2 rounds had no effect, .*: look at the sites of clie"):
        method.lost_rounds.check_end()


def other_shape() -> FederatedDataModule:
    inputs, targets = torch.rand(80, 5), torch.arange(80) % 10
    return from_arrays(inputs, targets, clients=torch.arange(80).chunk(CLIENTS), batch_size=16, val_fraction=0.0)


@pytest.mark.parametrize(
    ("settings", "trainer", "words"),
    [
        ({"data": {"public_size": 10}}, {}, "FedAvg with data.public_size 10 needs public samples at every site"),
        ({"name": "FedDisco"}, {}, "FedDisco weighs a client by the label counts of others, which stay at their sites: use"),
        ({}, {"precision": "64-true"}, "trainer.precision is 64-true, which sites do not follow: set it to 32-true"),
        ({"name": "FedPer"}, {"limit_val_batches": 1.0}, "the personal models of FedPer stay at the sites"),
        ({}, {"callbacks": [ClientForgetting(every=2)]}, "callbacks.client_forgetting reads clients' samples or label counts"),
        (
            {"name": "FedPer"},
            {"callbacks": [ClientForgetting(every=2, at_sites=True)]},
            "callbacks.client_forgetting asks for the personal models of FedPer, which stay at the sites",
        ),
        ({}, {"callbacks": [LabelCounts(every=2)]}, "callbacks.label_counts reads clients' samples or label counts"),
        (
            {},
            {"callbacks": [FeatureDrift(every=2)]},
            "FeatureDrift of trainer.callbacks reads clients' samples or label counts",
        ),
        ({}, {"callbacks": [HeadByClass(every=2)]}, "HeadByClass of trainer.callbacks reads clients' samples or label counts"),
        ({"name": "FedReg"}, {"callbacks": [PseudoDataFisher(every=2)]}, "PseudoDataFisher of trainer.callbacks reads"),
        (
            {},
            {"callbacks": [PersonalAccuracy(fine_tune=True)]},
            "callbacks.personal_accuracy reads .*: set fine_tuning_epochs to",
        ),
        ({"name": "FedBABU"}, {"callbacks": [PersonalAccuracy()]}, "callbacks.personal_accuracy reads clients' samples"),
        ({"method": {"privacy": DPSGD(noise_multiplier=1.0)}}, {}, "model.privacy draws its noise from"),
    ],
)
def test_what_cannot_cross_is_refused(settings, trainer, words, fit):
    """Before any site is asked."""
    method = make(settings.get("name", "FedAvg"), "flower", **settings.get("method", {}))
    with (
        connected(GridSites(SomeGrid({}), 30.0)),
        pytest.raises(ValueError, match=f"model.engine is flower, and {words}"),
    ):
        fit(method, digits(**settings.get("data", {})), 2, **{"limit_val_batches": 0, **trainer})


def test_flower_needs_a_server_app(fit):
    with pytest.raises(ValueError, match="model.engine is flower, which only runs in Flower's ServerApp: write one with"):
        fit(make("FedAvg", "flower"), digits(), 1, limit_val_batches=0)


def test_all_samples_of_a_site_are_its_clients(tmp_path):
    """Those of its own source, whatever the partition of the server's config."""
    data = own_data(2)("digits", num_clients=CLIENTS, clients_per_round=2, val_fraction=0.1, test_fraction=0.2)
    site = Site(make("FedAvg"), data, 2, tmp_path, CPU)
    whole = len(site.data.train_set)
    validation, tests = whole - int(0.9 * whole), whole - int(0.8 * whole)
    assert site.data.num_train(2) == whole - validation - tests
    assert len(site.data.shards.validation_indices(2)) == validation
    assert site.data.shards.test_start.diff().tolist() == [0, 0, tests, 0]
    assert [site.data.num_train(client) for client in (0, 1, 3)] == [0, 0, 0]
    fitted = torch.cat([site.data.shards.train, site.data.shards.validation])
    assert site.data.label_counts[2].equal(site.data.train_set.targets[fitted].bincount(minlength=10))
    assert sorted([*fitted.tolist(), *site.data.shards.test.tolist()]) == [*range(whole)]


def test_a_site_on_a_gpu_answers_as_one_on_a_cpu(tmp_path):
    """In the second visit with a state and a broadcast, which come from the CPU."""

    def replies(folder, device):
        site = Site(make("SCAFFOLD"), digits(), 2, folder, device)
        variate = {name: torch.full(weight.shape, 0.01) for name, weight in site.method.net.named_parameters()}
        common, state = json.dumps(common_settings(site.method, site.data)), ClientState()
        for round in (1, 2):
            request = pack(Request(round, 2, seed=0, broadcast={"variate": variate}, state=state))
            reply = from_records(site.answer("train", to_records(request, common=common)))
            state = unpack(Reply, reply).state
            yield {path: tensor for path, tensor in reply.items() if "stamp" not in path}

    on_cpu = [*replies(tmp_path / "cpu", CPU)]
    with pretended_gpu():
        on_gpu = [*replies(tmp_path / "gpu", torch.device("cuda", 0))]
    for here, there in zip(on_cpu, on_gpu, strict=True):
        assert here.keys() == there.keys()
        for path, tensor in here.items():
            torch.testing.assert_close(values(there[path]), tensor, msg=path)


class WrittenByMany(Source):
    """Digits, of which each is one of seven writers', in the test set too."""

    def load(self, root):
        data = Digits().load(root)
        return replace(data, owners=torch.arange(len(data.train)) % 7, test_owners=torch.arange(len(data.test)) % 7)


def test_a_site_owns_samples_of_all_writers(tmp_path):
    """The partition by writers in the server's config is that of the simulation."""
    data = own_data(1)(WrittenByMany(), num_clients=CLIENTS, clients_per_round=2, partition=Natural(), val_fraction=0.1)
    site = Site(make("FedAvg"), data, 1, tmp_path, CPU)
    assert site.data.num_train(1) == int(0.9 * len(site.data.train_set))
    assert [site.data.num_train(client) for client in (0, 2, 3)] == [0, 0, 0]


def test_requests_of_other_clients_are_refused(tmp_path):
    site = Site(make("FedAvg"), digits(), 2, tmp_path, CPU)
    request = to_records(pack(Request(1, 1, seed=0)), common=json.dumps(common_settings(site.method, site.data)))
    with pytest.raises(ValueError, match="a request for client 1 came to the site of client 2"):
        site.answer("train", request)


def over_the_link(records: RecordDict) -> RecordDict:
    """As it comes out of a site's socket."""
    here, there = Pipe()
    send(here, records)
    return receive(there)


def test_tensors_in_records_keep_their_bits():
    """Of each type that a message has, with and without dimensions, on both ways between server and site."""
    tensors = {
        "a/b.weight": torch.randn(2, 3),
        "transposed": torch.randn(2, 3).T,
        "channels last": torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
        "every other": torch.arange(8)[::2],
        "flag": torch.tensor(True),
        "steps": torch.tensor(2**53 + 1),
        "weight": torch.tensor(1 / 3, dtype=torch.float64),
        "not a number": torch.tensor(torch.nan, dtype=torch.float64),
        "loss": torch.tensor([torch.nan], dtype=torch.float64),
        "scale": torch.tensor(0.1),
        "half": torch.tensor([-0.0, 0.1], dtype=torch.float16),
        "nothing/~": torch.empty(0, dtype=torch.uint8),
        "double": torch.randn(3, dtype=torch.float64),
    }
    records = over_the_link(to_records(tensors, common="text"))
    assert values_of(records)["common"] == "text"
    there = from_records(records)
    assert there.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (there[name].dtype, there[name].shape) == (tensor.dtype, tensor.shape), name
        assert there[name].numpy().tobytes() == tensor.numpy().tobytes(), name


def test_a_type_that_numpy_lacks_is_refused():
    with pytest.raises(TypeError, match="BFloat16"):
        to_records({"weight": torch.ones(2, dtype=torch.bfloat16)})


def test_code_in_an_array_is_refused(tmp_path):
    """An array of Python objects is a pickle, which would run when it is loaded."""
    file = io.BytesIO()
    np.save(file, np.array([tmp_path], dtype=object), allow_pickle=True)
    records = over_the_link(records_of({}, {"weight": Array("object", (1,), "numpy.ndarray", file.getvalue())}))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        from_records(records)


def test_a_message_of_another_program_does_not_end_a_site():
    """The next one is answered."""

    class Echo:
        def answer(self, kind, message):
            return records_of({"kind": kind})

    with TemporaryDirectory(dir="/tmp") as folder:  # pytest's own are too long for the path of a socket
        Thread(target=serve, args=(Echo(), Path(folder)), daemon=True).start()
        address = socket_of(Path(folder))
        while not Path(address).exists():
            sleep(0.01)
        with Client(address, family="AF_UNIX") as stranger:
            stranger.send_bytes(b"query")
            stranger.send_bytes(b"not json")
        with Client(address, family="AF_UNIX") as client:
            client.send_bytes(b"query")
            send(client, records_of({}))
            assert values_of(receive(client)) == {"kind": "query"}
