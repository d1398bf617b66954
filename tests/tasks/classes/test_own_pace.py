"""Clients that move to a new task at different times, and clients that join: against a plain loop, and what stays the same."""

import pytest

from fl_lightning.callbacks import PrivacyBudget
from fl_lightning.data import SometimesThere, Trace
from fl_lightning.privacy import UserLevelDP
from fl_lightning.tasks import MFCL, ClassLearner, ClassStream, ICaRL, LwF, Replay

GROWING = [[0], [0], [0, 1], [0, 1], [0, 1, 2], [0, 1, 2]]  # one client joins at each of three tasks of two rounds


def own_pace(**settings):
    """Half of those that are there move, at least one: at the last task one of two, and the third client is new."""
    return ClassStream(num_tasks=3, **{"moving": 0.5, "joining": 1, **settings})


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_all_tasks_equal_a_plain_loop(arriving, engine):
    """Cross entropy among all classes seen; all that have joined take part."""
    trained = arriving.train(ClassLearner, arriving.new_data(own_pace()), softmax_over="seen", engine=engine)
    expected = arriving.plain(arriving.seen_loss, arriving.ready_data(tasks=own_pace()), cohorts=GROWING)
    arriving.assert_same(trained.net, expected)
    assert [report.clients for report in trained.seen.rounds] == GROWING


def test_all_clients_moving_and_none_joining_is_the_stream_without(arriving):
    """Bit for bit."""
    streams = (ClassStream(num_tasks=3), ClassStream(num_tasks=3, moving=1.0, joining=0))
    one, other = (arriving.train(ClassLearner, arriving.new_data(tasks), softmax_over="seen") for tasks in streams)
    arriving.assert_same(one.net, other.net, atol=0)


@pytest.mark.parametrize("method", [Replay, ICaRL])
def test_a_resumed_run_ends_as_one_that_was_never_stopped(arriving, method, tmp_path):
    """Between two tasks, where a client joins that is alone in the next round, and within one: bit for bit."""
    settings, cohorts = {"softmax_over": "seen", "memory": 8}, [[0], [0], [0, 1], [1], [2], [0, 2]]
    whole = arriving.train(method, arriving.new_data(own_pace(), cohorts=cohorts), checkpoints=tmp_path, **settings)
    for rounds in (4, 5):
        data, ckpt_path = arriving.new_data(own_pace(), cohorts=cohorts), tmp_path / f"step={rounds}.ckpt"
        resumed = arriving.train(method, data, ckpt_path=ckpt_path, **settings)
        arriving.assert_same(resumed.net, whole.net, atol=0)


def test_each_sample_is_offered_to_the_memory_once(arriving):
    """A client that stays with its samples remembers them when it leaves them, or the run ends."""
    data = arriving.new_data(own_pace(joining=0))
    trained = arriving.train(Replay, data, memory=8)
    stayed = 0
    for client in range(3):
        rows = {tuple(data.shards.train_indices(3 * client + position).tolist()) for position in range(3)}
        stayed += 3 - len(rows)
        assert int(trained.stored.states.read(client).method["tasks"]["met"].sum()) == sum(map(len, rows))
    assert stayed == 4  # of three clients one moves, twice


def test_cohorts_are_of_those_that_have_joined(arriving):
    """``clients_per_round``, or all where fewer are there; under privacy by client the sampling rate follows."""
    data = arriving.new_data(own_pace(), clients_per_round=2)
    trained = arriving.train(ClassLearner, data, softmax_over="seen")
    cohorts = [report.clients for report in trained.seen.rounds]
    assert cohorts[:4] == [[0], [0], [0, 1], [0, 1]]
    assert [len(cohort) for cohort in cohorts[4:]] == [2, 2]
    there = [trained.data.participation.among(trained.tasks.num_there(round)) for round in range(1, 7)]
    assert [(drawn.size, drawn.num_clients) for drawn in there] == [(1, 1)] * 2 + [(2, 2)] * 2 + [(2, 3)] * 2


def test_clients_that_have_not_joined_do_not_count_as_there(arriving, tmp_path):
    """By probabilities and by a file; a client that has not joined has no batch, also where all samples are one."""
    (tmp_path / "trace.csv").write_text("0,1,1,1,1,0,1\n1,1,1,1,0,1,1\n2,1,1,1,1,1,0\n")
    drawn = [[0], [0], [0, 1], [0], [1, 2], [0, 1]]
    for sampler, expected in ((SometimesThere([1.0, 1.0, 1.0]), GROWING), (Trace(str(tmp_path / "trace.csv")), drawn)):
        data = arriving.new_data(own_pace(), clients_per_round=3, client_sampler=sampler, batch_size=None)
        trained = arriving.train(ClassLearner, data, softmax_over="seen")
        assert [report.clients for report in trained.seen.rounds] == expected


def test_privacy_by_client_knows_how_many_are_there(arriving):
    """A round spends what its sampling rate says: that of one client of one, of two, and of three."""
    privacy, rates = UserLevelDP(noise_multiplier=1.0), {}
    charges = privacy.charges
    privacy.charges = lambda *args: rates.update({len(rates) + 1: charges(*args)[-1][0]}) or charges(*args)
    data = arriving.new_data(ClassStream(num_tasks=3, joining=1), clients_per_round=1)
    arriving.train(ClassLearner, data, privacy=privacy, server_weighting="uniform", callbacks=[PrivacyBudget()])
    assert rates == {1: 1, 2: 1, 3: 1 / 2, 4: 1 / 2, 5: 1 / 3, 6: 1 / 3}


@pytest.mark.parametrize(
    ("method", "data", "message"),
    [
        (ClassLearner, {"tasks": own_pace()}, "model.tasks.softmax_over is new, but data.tasks is ClassStream(3 tasks, moving="
         "0.5, joining=1), whose tasks have samples of earlier ones' classes: set it to seen"),
        (MFCL, {"tasks": own_pace()}, "data.tasks is ClassStream(3 tasks, moving=0.5, joining=1), whose tasks have samples of "
         "earlier ones' classes, but MFCL's loss on real samples is among the new ones: use another learner, such as LwF "
         "with model.tasks.softmax_over seen"),
        (LwF, {"tasks": own_pace(moving=1.0), "cohorts": [[0], [0], [0, 1], [2]]}, "data.cohorts names client 2 in round 4, "
         "must name clients between 0 and 1, each once and at least one"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(arriving, method, data, message):
    """Before the first round."""
    with pytest.raises(ValueError) as error:
        arriving.train(method, arriving.new_data(**data), rounds=4)
    assert str(error.value) == message
