"""What holds for every method: clients that are not finite, heads that stay at home, runs in two parts."""

import copy

import pytest
import torch
from declared_by_tests import changes, keeps_head, learns_one_class, needs_of, shares_body
from torch.optim.lr_scheduler import LambdaLR

from fl_lightning import methods
from fl_lightning.callbacks import FederatedCallback
from fl_lightning.data import ClientSampler
from fl_lightning.run.server_step import UndoableStep


def assert_same_end(tiny, actual, expected):
    """Bit for bit: the model, what the server keeps in addition to it, and the clients' states."""
    tiny.assert_same(actual.state_dict(), expected.state_dict(), atol=0)
    assert sorted(actual.stored.states.clients()) == sorted(expected.stored.states.clients())
    for client in expected.stored.states.clients():
        tiny.assert_same_state(actual.stored.states.read(client), expected.stored.states.read(client), atol=0)


class Ends(FederatedCallback):
    """Keeps what each round ends with: the net, all that the server has, what client 0 has, the clients' states."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds = []

    def on_train_batch_end(self, trainer, module, *_):
        states = module.stored.states
        every, first = {client: states.read(client) for client in states.clients()}, list(states.read(0).tensors())
        self.rounds.append(copy.deepcopy((module.net.state_dict(), dict(module.state_dict()), first, every)))


class Save(FederatedCallback):
    """A checkpoint after round 1."""

    def __init__(self, path) -> None:
        super().__init__()
        self.path = path

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 1:
            trainer.save_checkpoint(self.path)


# FedDisco weighs a client by its share of the cohort as drawn.
@pytest.mark.parametrize("name", [name for name in methods.__all__ if name != "FedDisco"])
@pytest.mark.one_in(4)
def test_a_client_that_is_not_finite_leaves_no_trace(tiny, name):
    """Infinite samples at client 3, in two of three rounds: the run ends as one that client 3 never took part in."""
    poisoned = tiny.train_any(name, poisoned=3, cohorts=[[0, 1, 3], [1, 2, 3], [0, 1]])
    assert [report.nonfinite for report in poisoned.reports] == [[3], [3], []]
    assert_same_end(tiny, poisoned, tiny.train_any(name, cohorts=[[0, 1], [1, 2], [0, 1]]))
    assert 3 not in poisoned.stored.states.clients()


# Clients of LocalOnly send nothing: those that are finite keep what they learned.
@pytest.mark.parametrize("name", [name for name in methods.__all__ if name != "LocalOnly"])
@pytest.mark.one_in(4)
def test_a_round_that_loses_more_than_half_does_no_harm(tiny, name):
    """Two of the three clients of round 2 are not finite: model and states of round 1 stand after it, and round 3 trains on."""
    ends = Ends()
    tiny.train_any(name, poisoned=(2, 3), cohorts=[[0, 1], [1, 2, 3], [0, 1]], watch=[ends])
    (first, *_, states), (second, *before, kept), (_, *after, _) = ends.rounds
    tiny.assert_same(second, first, atol=0)
    assert sorted(kept) == sorted(states)
    for client, state in states.items():
        tiny.assert_same_state(kept[client], state, atol=0)
    for name, value in after[0].items():
        assert value.isfinite().all(), name
    pairs = zip(*([*everything.values(), *of_client] for everything, of_client in (before, after)), strict=True)
    assert any(not torch.equal(*pair) for pair in pairs)


@pytest.mark.parametrize("name", methods.__all__)
@pytest.mark.one_in(4)
def test_a_rate_of_0_loses_no_round(tiny, name):
    """A schedule that is 0 in round 2: all clients of all rounds count, with finite weights and states."""
    method = tiny.train_any(name, client_lr_scheduler=lambda one: LambdaLR(one, lambda past: float(past != 1)))
    assert [report.nonfinite for report in method.reports] == [[], [], []]
    of_clients = [tensor for client in range(4) for tensor in method.stored.states.read(client).tensors()]
    assert all(tensor.isfinite().all() for tensor in (*method.state_dict().values(), *of_clients))


class NobodyTwice(ClientSampler):
    """In rounds 1 and 3 of four."""

    may_be_empty, num_rounds = True, 4

    def cohort(self, round, num_clients, size, seed):
        return [] if round % 2 else [0, 1]


@pytest.mark.parametrize("name", [name for name in methods.__all__ if not changes(name, "cohort")])
@pytest.mark.one_in(4)
def test_a_round_of_nobody_is_a_lost_one(tiny, name):
    """The first round and a later one: the run ends as one in which their only client was not finite."""
    empty = tiny.train_any(name, cohorts=None, client_sampler=NobodyTwice(), rounds=4)
    assert [report.clients for report in empty.reports] == [[], [0, 1], [], [0, 1]]
    assert_same_end(tiny, empty, tiny.train_any(name, poisoned=3, cohorts=[[3], [0, 1], [3], [0, 1]]))


@pytest.mark.filterwarnings("ignore:round 2")
@pytest.mark.parametrize("name", methods.__all__)
@pytest.mark.one_in(4)
def test_a_round_that_is_undone_leaves_no_trace(tiny, monkeypatch, name):
    """Whatever its clients sent: the run ends as one whose round 2 has no finite update."""
    lost = tiny.train_any(name, poisoned=3, cohorts=[[0, 1], [3], [0, 1]])
    monkeypatch.setattr(UndoableStep, "is_sound", lambda step: step.is_undone or step._module.trainer.global_step != 2)
    undone = tiny.train_any(name, cohorts=[[0, 1], [1, 2], [0, 1]])
    assert [report.undone for report in undone.reports] == [False, True, False]
    assert_same_end(tiny, undone, lost)


@pytest.mark.parametrize("name", [name for name in methods.__all__ if shares_body(name) and keeps_head(name)])
@pytest.mark.one_in(4)
def test_a_head_stays_at_home(tiny, name):
    """No client touches the global classifier; each keeps its head, and the bodies are averaged all the same."""
    method = tiny.train_any(name, personal=("classifier.*",))
    start = tiny.new_net(norm=needs_of(name)[1].get("norm", True))
    tiny.assert_same(method.net.classifier, start.classifier, atol=0)
    assert (method.net.features[0].weight - start.features[0].weight).abs().max() > 1e-3
    heads = [method.stored.states.read(client).weights["classifier.weight"] for client in range(4)]
    if not learns_one_class(name):
        last = heads.pop()  # client 3 has one class
        assert torch.equal(last, start.classifier.weight)
    for i, head in enumerate(heads):
        assert head.isfinite().all()
        assert (head - start.classifier.weight).abs().max() > 1e-3
        assert not any(torch.equal(head, other) for other in heads[:i])
    assert not any("classifier" in buffer for buffer, _ in method.server_states.named_buffers())


@pytest.mark.parametrize("name", methods.__all__)
@pytest.mark.one_in(4)
def test_a_run_in_two_parts_ends_as_one_in_one(tiny, tmp_path, name):
    """A checkpoint after round 1, with the server's and the clients' states in it, and two more rounds: the same bits."""
    whole = tiny.train_any(name, watch=[Save(tmp_path / "1.ckpt")])
    assert_same_end(tiny, tiny.train_any(name, ckpt_path=tmp_path / "1.ckpt"), whole)


@pytest.mark.parametrize("name", methods.__all__)
@pytest.mark.one_in(4)
def test_a_trained_net_is_loaded_without_data(tiny, tmp_path, name):
    """Without what the server keeps for its data. Where clients keep parts of the net, there is no single one."""
    method = tiny.train_any(name, watch=[Save(tmp_path / "1.ckpt")])
    settings = {"norm": True, **needs_of(name)[1]}
    given = {"net": tiny.new_net(settings.pop("norm")), **settings}
    if not method.has_global_model:
        with pytest.raises(ValueError, match=f"the clients of {name} keep parts of the net: a checkpoint has no single one"):
            type(method).load_from_checkpoint(tmp_path / "1.ckpt", **given)
        return
    stored = torch.load(tmp_path / "1.ckpt", weights_only=True)["state_dict"]
    loaded = type(method).load_from_checkpoint(tmp_path / "1.ckpt", **given)
    tiny.assert_same(loaded.net.state_dict(), {name: stored[f"net.{name}"] for name in method.net.state_dict()}, atol=0)


@pytest.mark.parametrize("name", methods.__all__)
@pytest.mark.one_in(4)
def test_an_evaluation_changes_nothing(tiny, name):
    """Lightning configures the model anew for it: a checkpoint that is saved afterwards is that of the fit."""
    data_settings, settings = needs_of(name)
    test = {"test_inputs": torch.randn(4, 3, dtype=torch.float64), "test_targets": torch.arange(4)}
    method = tiny.train(getattr(methods, name), tiny.new_data(**test, **data_settings), **settings)
    before = copy.deepcopy(method.state_dict())
    method.trainer.test(method, method.data, verbose=False)
    tiny.assert_same(method.state_dict(), before, atol=0)


def two_rates(weights):
    first, *others = weights
    return torch.optim.SGD([{"params": [first], "lr": 0.3}, {"params": others}], lr=0.05)


def two_momenta(weights):
    first, *others = weights
    return torch.optim.SGD([{"params": [first]}, {"params": others, "momentum": 0.9}], lr=0.05)


@pytest.mark.parametrize(
    ("name", "optimizer", "message"),
    [
        *((name, two_rates, "lr 0.3 and 0.05") for name in ("SCAFFOLD", "FedCM", "FedReg", "Ditto", "APFL")),
        *((name, two_momenta, "momentum 0 and 0.9") for name in ("SCAFFOLD", "FedCM", "FedReg", "FedNova")),
    ],
)
def test_groups_that_a_method_would_take_for_one_are_refused(tiny, name, optimizer, message):
    """These divide by the rate of the steps, or by how often a gradient counts."""
    with pytest.raises(ValueError, match=f"^model.optimizer has groups with {message}, but {name} counts with one value"):
        tiny.train_any(name, optimizer=optimizer)


def test_groups_of_several_rates_are_fine_where_no_rate_is_counted_with(tiny):
    for name, more in {"FedAvg": {}, "FedNova": {}, "Ditto": {"personal_learning_rate": 0.1}}.items():
        tiny.train_any(name, optimizer=two_rates, **more)
