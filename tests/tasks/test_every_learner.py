"""What holds for every method on task streams: runs in two parts, engines, clients that are not finite, processes."""

import pytest
import torch
from pairs import LEARNERS, Pair, pair_of

from fl_lightning.engines.cohort_share import Rows
from fl_lightning.engines.sums import Sums
from fl_lightning.methods import FedAvg
from fl_lightning.protocol import Gathered, Reply, Weighted
from fl_lightning.run.server_step import UndoableStep
from fl_lightning.tasks import APD, EWC, FedWeIT, SingleTask, SynapticIntelligence, TaskLearner

# Of other methods those with the most state; every other pair is tried in test_composition.
FEDERATED = [f"FedAvg {learner}" for learner in LEARNERS]
FEDERATED += [
    "FedProx EWC",
    "FedProx APD",
    "SCAFFOLD TaskLearner",
    "SCAFFOLD APD",
    "FedCurv TaskLearner",
    "FedCurv EWC",
    "FedWeIT",
]
OTHER_NETS = {"adaptive": False, "num_foreign": 1, "mask": False}
LOCAL = [f"LocalOnly {learner}" for learner in ["SingleTask", *LEARNERS] if learner != "TaskLearner"]
NAMES = FEDERATED + LOCAL


def adam(weights):
    return torch.optim.Adam(weights, lr=0.02)


def method_of(name):
    """With a weaker l2 than that of the papers, which with SGD at this rate would drive weights apart."""
    return weaker(pair_of(name))


def weaker(pair):
    settings = {"l2": 1.0, "l1": 0.02} if issubclass(pair.learner, APD) else {}
    return lambda net, **others: pair(net, **{**settings, **others})


# In two parts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.one_in(3)
def test_a_run_in_two_parts_ends_as_one_in_one(tiny, tmp_path, name):
    """From a checkpoint in the middle of the second task, some clients trained without the server: the same bits in the end."""
    settings = {"optimizer": adam, "train_unsampled": True}
    whole, resumed = (
        tiny.train(method_of(name), tiny.new_data(cohorts=tiny.cohorts), checkpoints=folder, ckpt_path=path, **settings)
        for folder, path in ((tmp_path, None), (None, tmp_path / "step=3.ckpt"))
    )
    tiny.assert_same_end(resumed, whole)
    assert resumed.seen.positions == [[1, 1, 1], [2, 2, 2], [2, 2, 2]]


@pytest.mark.parametrize("name", ["FedAvg TaskLearner", "FedWeIT"])
@pytest.mark.slow
def test_clients_at_several_tasks_go_on_from_there(tiny, tmp_path, name):
    """Asynchronous clients, two a round, whose rates fall when their losses do not; cut after rounds 1, 3 and 4."""
    settings = {"schedule": "asynchronous", "patience": 1, "rate_divisor": 2.0, "smallest_rate": 0.05, "rounds_per_task": 3}
    whole = tiny.train(method_of(name), tiny.new_data(clients_per_round=2), checkpoints=tmp_path, **settings)
    assert len(set(map(tuple, whole.seen.positions))) > 5
    for cut in (1, 3, 4):
        path = tmp_path / f"step={cut}.ckpt"
        resumed = tiny.train(method_of(name), tiny.new_data(clients_per_round=2), ckpt_path=path, **settings)
        tiny.assert_same_end(resumed, whole)


@pytest.mark.parametrize("name", ["FedAvg TaskLearner", "FedWeIT", "LocalOnly EWC"])
def test_a_run_that_is_over_does_not_go_on(tiny, tmp_path, name):
    """Resumed, it trains no round more and ends as it was, whole shards as batches and an engine to be chosen too."""
    over = tiny.train(method_of(name), tiny.new_data(batch_size=None), tiny.new_linear_net())
    over.trainer.save_checkpoint(tmp_path / "end.ckpt")
    data, net = tiny.new_data(batch_size=None), tiny.new_linear_net()
    again = tiny.train(method_of(name), data, net, ckpt_path=tmp_path / "end.ckpt", engine="auto")
    assert again.seen.rounds == []
    again.after_undo()  # of a first round without an update
    tiny.assert_same_end(again, over)


@pytest.mark.parametrize(
    ("method", "settings"),
    [(Pair(FedAvg, TaskLearner), {}), *((FedWeIT, {name: value}) for name, value in OTHER_NETS.items())],
)
def test_knowledge_of_another_net_is_refused(tiny, tmp_path, method, settings):
    """One line that names the option: a checkpoint of FedWeIT with all its parts."""
    tiny.train(FedWeIT, rounds=3).trainer.save_checkpoint(tmp_path / "3.ckpt")
    option = next(iter(settings), "")
    message = rf"^ckpt_path is of a run with other settings: .*model\.tasks\.?{option} is .* in the run"
    with pytest.raises(ValueError, match=message):
        tiny.train(method, ckpt_path=tmp_path / "3.ckpt", **settings)


# Engines ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.one_in(3)
def test_the_engines_agree(tiny, name):
    """One client after another and stacked, in cohorts of a part of the clients: the same to rounding, and the same bytes."""
    one, other = (
        tiny.train(method_of(name), tiny.new_data(cohorts=tiny.cohorts), engine=engine, optimizer=adam, train_unsampled=True)
        for engine in ("sequential", "vectorized")
    )
    tiny.assert_same_end(one, other, atol=1e-8)
    for mine, theirs in zip(one.seen.rounds, other.seen.rounds, strict=True):
        assert (mine.clients, mine.bytes_down, mine.bytes_up) == (theirs.clients, theirs.bytes_down, theirs.bytes_up)
        assert mine.losses == pytest.approx(theirs.losses, abs=1e-8)


@pytest.mark.parametrize("learner", [EWC, SynapticIntelligence])
def test_a_penalty_matters_from_the_second_task_on(tiny, learner):
    """Before, and with ``penalty`` 0 throughout, FedAvg with it is FedAvg with TaskLearner, bit for bit."""
    for rounds, settings, smallest in ((2, {}, 0.0), (6, {"penalty": 0.0}, 0.0), (6, {}, 1e-4)):
        plain, held = tiny.train(TaskLearner, rounds=rounds), tiny.train(learner, rounds=rounds, **settings)
        apart = (held.net.hidden.weight - plain.net.hidden.weight).abs().max()
        assert apart == 0 if smallest == 0 else apart > smallest


# Clients that are not finite ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FEDERATED)
@pytest.mark.one_in(3)
def test_a_client_that_is_not_finite_leaves_no_trace(tiny, name):
    """Infinite samples at client 2, in three of four rounds: the run ends as one that it never took part in."""
    cohorts = [[0, 1, 2], [0, 1], [0, 2], [1, 2]]
    without = [[client for client in cohort if client != 2] for cohort in cohorts]
    settings = {"num_foreign": 2} if name == "FedWeIT" else {}
    poisoned = tiny.train(method_of(name), tiny.new_data(cohorts=cohorts), poisoned=2, **settings)
    assert [report.nonfinite for report in poisoned.seen.rounds] == [[2], [], [2], [2]]
    tiny.assert_same_end(poisoned, tiny.train(method_of(name), tiny.new_data(cohorts=without), **settings))
    assert 2 not in poisoned.stored.states.clients()


@pytest.mark.filterwarnings("ignore:round 2")
@pytest.mark.parametrize("name", FEDERATED)
@pytest.mark.one_in(3)
def test_a_round_that_is_undone_leaves_no_trace(tiny, monkeypatch, name):
    """The last one of a task: the run ends as one in which everyone sent NaN there, knowledge base and clocks too."""
    cohorts, method = [[0, 1, 2], [0, 1], [0, 1, 2], [0, 2]], pair_of(name).method
    client_result = method.client_result

    def nothing_finite(self, net, client):
        upload = client_result(self, net, client)
        bad = {"bad": Weighted({"bad": torch.full((1,), float("nan"))}, 1.0)}
        return {**upload, **bad} if client.round == 2 else upload

    with monkeypatch.context() as patch:
        patch.setattr(method, "client_result", nothing_finite)
        lost = tiny.train(method_of(name), tiny.new_data(cohorts=cohorts))
    monkeypatch.setattr(UndoableStep, "is_sound", lambda step: step.is_undone or step._module.trainer.global_step != 2)
    undone = tiny.train(method_of(name), tiny.new_data(cohorts=cohorts))
    assert [report.undone for report in undone.seen.rounds] == [False, True, False, False]
    tiny.assert_same_end(undone, lost)


@pytest.mark.filterwarnings("ignore:round")
def test_clocks_of_a_round_that_is_undone(tiny, monkeypatch):
    """All clients are done with a task in a round. Rounds 3 and 4 are undone: the third task ends with its second round."""

    class Quick(TaskLearner):
        def probe(self, net, client):
            return {**super().probe(net, client), "rate_factor": torch.tensor(0.0)}

    monkeypatch.setattr(UndoableStep, "is_sound", lambda step: step.is_undone or step._module.trainer.global_step < 3)
    run = tiny.train(Quick, schedule="asynchronous", smallest_rate=0.05, rounds_per_task=2)
    assert [report.undone for report in run.seen.rounds] == [False, False, True, True]
    assert run.tasks.clocks.position.tolist() == [3, 3, 3]


@pytest.mark.parametrize("name", LOCAL)
def test_clients_that_train_alone_do_not_notice_one_that_is_not_finite(tiny, name):
    """The others end as without it."""
    poisoned, healthy = (tiny.train(method_of(name), poisoned=client) for client in (2, None))
    assert [report.nonfinite for report in poisoned.seen.rounds] == [[2]] * 6
    assert poisoned.stored.states.clients() == [0, 1]
    for client in (0, 1):
        tiny.assert_same_state(poisoned.stored.states.read(client), healthy.stored.states.read(client))
    tiny.assert_same({"accuracy": poisoned.tasks.task_accuracy[:2]}, {"accuracy": healthy.tasks.task_accuracy[:2]}, atol=0)
    assert poisoned.tasks.task_accuracy[2].isnan().all()


def test_an_asynchronous_client_that_is_not_finite_comes_to_its_end(tiny):
    """The rounds that it spoiled count: the run ends with the others', and it has learned nothing."""
    method = tiny.train(TaskLearner, poisoned=1, schedule="asynchronous")
    assert [report.nonfinite for report in method.seen.rounds] == [[1]] * 6
    assert method.tasks.clocks.position.tolist() == [3, 3, 3]
    assert method.tasks.task_accuracy[1].isnan().all()


def test_where_nobody_sends_all_must_be_lost_to_stop_the_run(tiny):
    """More rounds than a federation goes on without an update; and ten in which no client is finite."""
    assert len(tiny.train(SingleTask, poisoned=2, rounds_per_task=4).seen.rounds) == 12
    data = tiny.new_data()
    data.setup()
    data.train_set.inputs.fill_(float("inf"))
    with pytest.raises(FloatingPointError, match="10 rounds in a row .last: clients 0, 1, 2."):
        tiny.train(SingleTask, data, rounds_per_task=4)


def breaks(name, round):
    """A method whose client 2 has a NaN in its bias after its fit in a round."""
    pair = pair_of(name)

    class Broken(pair.method):
        def client_result(self, net, client):
            if client.index == 2 and client.round == round:
                net.hidden.bias.detach().fill_(float("nan"))
            return super().client_result(net, client)

    return weaker(pair._replace(method=Broken))


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", ["FedAvg TaskLearner", "FedWeIT", "FedProx EWC", "FedProx APD"])
@pytest.mark.one_in(3)
def test_a_task_whose_last_update_is_lost_is_not_learned(tiny, name, engine):
    """Round 2 ends the first task. Client 2 goes on with the second, and nobody builds on its first."""
    method = tiny.train(breaks(name, 2), engine=engine)
    assert [report.nonfinite for report in method.seen.rounds] == [[], [2], [], [], [], []]
    assert method.stored.states.read(2).tasks.keys() == {1, 2}
    measured = ~method.tasks.task_accuracy[2].isnan()
    assert measured.tolist() == [[True, False, False], [False, True, False], [False, True, True]]
    if name == "FedWeIT":
        assert {client: sorted(tasks) for client, tasks in method.tasks.knowledge_base.items()} == {
            0: [0, 1, 2],
            1: [0, 1, 2],
            2: [1, 2],
        }
        known = {position: task.known.tolist() for position, task in method.stored.states.read(0).tasks.items()}
        assert known == {0: [], 1: [[1, 0]], 2: [[1, 1], [2, 1]]}


def test_knowledge_is_sent_again_where_its_taker_was_lost(tiny):
    """Client 2 gets what others know in round 3, which it does not survive, and then in round 4: begins there as others did."""
    lost, whole = (tiny.train(method, rounds=5) for method in (breaks("FedWeIT", 3), method_of("FedWeIT")))
    knowledge = sum(lost.tasks.knowledge_base[c][0][layer].values.numel() for c in (0, 1) for layer in ("conv", "hidden"))
    assert knowledge > 0
    assert lost.seen.rounds[2].bytes_down == whole.seen.rounds[2].bytes_down
    assert lost.stored.states.read(2).tasks[1].known.tolist() == [[0, 0], [1, 0]]
    base = sum(int(lost.net.get_parameter(f"{layer}.parametrizations.weight.original").numel()) for layer in ("conv", "hidden"))
    assert lost.seen.rounds[3].bytes_down >= 8 * knowledge
    assert lost.seen.rounds[3].bytes_down <= 8 * (knowledge + 3 * base)


def test_a_lost_round_counts_for_an_asynchronous_client(tiny):
    """Or it might never come to its end: client 2, whose round 2 is lost, goes on to its second task with the others."""
    method = tiny.train(breaks("FedAvg TaskLearner", 2), schedule="asynchronous")
    assert [report.clients for report in method.seen.rounds] == [[0, 1, 2]] * 6
    assert method.stored.states.read(2).tasks.keys() == {1, 2}


def test_what_is_gathered_decides_like_the_rest():
    """Not finite itself, it takes the client's other tensors out of the mean; finite, it is handed over by the client."""
    sums, ones = Sums(torch.device("cpu")), torch.ones(2)
    for value, counts in ((float("inf"), False), (1.0, True)):
        upload = {"weights": Weighted({"w": ones}, 1.0), "sent": Gathered({"a": torch.tensor([value])})}
        measured = Rows.of(Reply(1, 0, torch.zeros(1), upload), torch.zeros(1)).count(sums)
        assert bool(measured[0, 1]) == counts
    assert float(sums.total_weight("weights")) == 1.0
    for client, kept in ((3, {"sent": {"a": ones}}), (1, {"other": {}}), (0, {"sent": {"a": ones}})):
        sums.keep(client, kept)
    assert list(sums.gathered("sent")) == [0, 3]


# Processes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["FedWeIT", "FedProx EWC"])
@pytest.mark.slow
def test_two_processes_give_the_end_of_one(tiny, tmp_path, name):
    """Model, knowledge, clients' states and clocks in the last checkpoint; clients 0 and 1, or 1 and 2, are apart."""
    ends = []
    for num_processes in (1, 2):
        folder = tmp_path / str(num_processes)
        data = tiny.new_data(cohorts=tiny.cohorts)
        tiny.train(method_of(name), data, checkpoints=folder, num_processes=num_processes, train_unsampled=True)
        end = torch.load(folder / "step=6.ckpt", weights_only=True)
        ends.append(dict(leaves({"state_dict": end["state_dict"], **end["federated"]})))
    assert any("knowledge_base" in path for path in ends[0]) == (name == "FedWeIT")
    assert any("client_states" in path for path in ends[0])
    tiny.assert_same(ends[1], ends[0], atol=1e-10)


def leaves(tree, name=""):
    """All tensors in nested dicts, by path."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{name}/{key}")
        elif isinstance(value, torch.Tensor):
            yield f"{name}/{key}", value
