"""TaskLearner: FedAvg on task streams against a plain loop, who takes part, how tasks end, and what is refused."""

import math
from pathlib import Path

import pytest
import torch
from pairs import Pair
from torch import nn
from torch.nn import functional as F

from fl_lightning.losses import CalibratedCrossEntropy
from fl_lightning.methods import FedAvg, FedProx, LocalOnly
from fl_lightning.protocol import Visit
from fl_lightning.robustness import LabelFlip
from fl_lightning.tasks import APD, EWC, FedWeIT, SingleTask, TaskLearner, TaskStream, WeightedTransfer
from fl_lightning.tasks.clock import Clock

# Against a plain loop -------------------------------------------------------------------------------------------------


def test_all_tasks_equal_a_plain_loop(tiny):
    """Six rounds: bodies averaged, heads fresh in each task and kept, accuracies of every task seen, on all tasks seen."""
    method, expected = tiny.train(TaskLearner), tiny.plain()
    tiny.assert_plain(method, expected)
    tiny.assert_moved(expected.server, tiny.body)
    assert method.tasks.clocks.position.tolist() == [3, 3, 3]
    assert len(method.seen.rounds) == 6


@pytest.mark.parametrize("train_unsampled", [False, True])
def test_cohorts_of_a_part_of_the_clients(tiny, train_unsampled):
    """Who is not sampled rests, or trains from its weights, unheard. A task ends with a client's last visit in it."""
    data = tiny.new_data(cohorts=tiny.cohorts)
    method = tiny.train(TaskLearner, data, train_unsampled=train_unsampled)
    tiny.assert_plain(method, tiny.plain(cohorts=tiny.cohorts, train_unsampled=train_unsampled))
    weights = 8 * sum(tiny.weights[name].numel() for name in tiny.body)
    for report, cohort in zip(method.seen.rounds, tiny.cohorts, strict=True):
        assert report.clients == ([0, 1, 2] if train_unsampled else cohort)
        assert report.bytes_up == report.bytes_down == weights * len(cohort)
        assert report.num_updates == len(cohort)


def test_a_cohort_of_the_method(tiny):
    """The data module would draw all: the method says who comes, and when a client comes last."""

    class Choosing(FedAvg):
        def cohort(self, round):
            return [Visit(client) for client in tiny.cohorts[round - 1]]

    method = tiny.train(Pair(Choosing, TaskLearner), rounds=len(tiny.cohorts))
    tiny.assert_plain(method, tiny.plain(cohorts=tiny.cohorts))
    assert [sorted(method.stored.states.read(client).tasks) for client in range(3)] == [[0, 1, 2]] * 3


def test_a_task_that_a_client_never_comes_to_is_left_out(tiny):
    """Client 2 pauses in the second task: nothing is kept of it nor measured, and the third begins afresh."""
    cohorts = [[0, 1, 2], [0, 1], [0, 1], [0, 1], [0, 2], [1, 2]]
    method = tiny.train(TaskLearner, tiny.new_data(cohorts=cohorts))
    tiny.assert_plain(method, tiny.plain(cohorts=cohorts))
    assert method.stored.states.read(2).tasks.keys() == {0, 2}
    measured = ~method.tasks.task_accuracy[2].isnan()
    assert measured.tolist() == [[True, False, False], [False, False, False], [True, False, True]]


@pytest.mark.parametrize("learner", [TaskLearner, EWC, APD])
def test_a_task_that_is_over_for_a_client_cannot_be_gone_on_with(tiny, tmp_path, learner):
    """Client 2 had its last visit in round 1 of its first task; more visits, on resume, would end it twice."""
    cohorts = [[0, 1, 2], [0, 1], [0, 1, 2]]
    tiny.train(learner, tiny.new_data(cohorts=cohorts), rounds=1).trainer.save_checkpoint(tmp_path / "1.ckpt")
    with pytest.raises(ValueError, match=r"^data.cohorts names client 2 in round 2, but .* name it from its next task on"):
        tiny.train(learner, tiny.new_data(cohorts=[[0, 1, 2]] * 3), ckpt_path=tmp_path / "1.ckpt")


def test_cohorts_by_name_may_end_before_the_tasks_do(tiny):
    """Nobody looks for visits that have no cohort."""
    method = tiny.train(TaskLearner, tiny.new_data(cohorts=tiny.cohorts[:3]))
    assert method.tasks.clocks.position.tolist() == [1, 1, 1]


def test_the_rate_decays_from_round_to_round_where_that_is_asked_for(tiny):
    """``learning_rate_decay`` of every method: factors 1, .5, .25 on the clients' rate."""
    method = tiny.train(TaskLearner, learning_rate_decay=0.5, rounds=3)
    assert [method.client_learning_rate(round, 0) for round in (1, 2, 3)] == [1.0, 0.5, 0.25]


# Clocks ---------------------------------------------------------------------------------------------------------------


def test_a_clock_by_hand():
    """Patience 2, divisor 3: two rounds without a new best divide the rate, equal is not new, and the count starts again."""
    clock, factors = Clock(), []
    for loss in [1.0, 0.9, 0.9, 1.1, 0.95, 0.8, 0.85, 0.85, 0.8, 0.8, 0.8]:
        clock = clock.tick(loss, patience=2, divisor=3.0)
        factors.append(round(1 / clock.factor))
        assert Clock.from_tensor(clock.to_tensor(torch.device("cpu"))) == clock
    assert factors == [1, 1, 1, 3, 3, 3, 3, 9, 9, 27, 27]
    assert clock.best == 0.8


class Scripted(TaskLearner):
    """Validation losses come from a script: from client and round."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.validation_loss = lambda net, client, position: self.script(client.index, client.round)


def test_what_steers_rates_are_the_validation_samples(tiny):
    """After one round: the mean cross entropy of each client's model on them, by a loop's network."""
    method = tiny.train(TaskLearner, rounds=1)
    for client in range(3):
        state = method.stored.states.read(client)
        weights = {name: state.weights[name] for name in (*tiny.body, *tiny.head)}
        loss = {part: float(tiny.loss(weights, *tiny.samples(client, 0, part))) for part in ("validation", "test")}
        assert float(state.method["tasks"]["clock"][1]) == pytest.approx(loss["validation"], abs=1e-9)
        assert loss["validation"] != pytest.approx(loss["test"], abs=1e-3)


def test_labels_of_hostile_clients_are_flipped_in_local_steps_only(tiny):
    """The margins of FedLC in validation are those of a client's true classes."""
    hostile = LabelFlip(0.9)
    method = tiny.train(TaskLearner, rounds=1, loss=CalibratedCrossEntropy(), hostile=hostile)
    for client in hostile.clients(3, method.seed):
        state, counts = method.stored.states.read(client), method.data.label_counts[client]
        inputs, targets = tiny.samples(client, 0, "validation")
        margins = counts.double() ** -0.25
        logits = tiny.logits({name: state.weights[name] for name in (*tiny.body, *tiny.head)}, inputs) - margins
        assert not torch.equal(counts, counts.flip(0))
        assert float(state.method["tasks"]["clock"][1]) == pytest.approx(float(F.cross_entropy(logits, targets)), abs=1e-9)


def test_all_change_tasks_together_once_every_rate_is_too_small(tiny):
    """Of .1, the second division by 2 falls below .04; patience 1. In the first task clients 0 and 1 get there in round 3 and
    wait for client 2, which had a new best in round 3, until round 4. Then all losses fall: tasks take all 5 rounds."""

    class Two(Scripted):
        @staticmethod
        def script(client, round):
            better = (client == 2 and round == 3) or round > 4
            return -float(round) if better or round == 1 else 0.0

    settings = {"rounds_per_task": 5, "patience": 1, "rate_divisor": 2.0, "smallest_rate": 0.04}
    method = tiny.train(Two, rounds=10, **settings)
    assert [report.clients for report in method.seen.rounds] == [[0, 1, 2]] * 3 + [[2]] + [[0, 1, 2]] * 6
    assert method.seen.positions == [[0, 0, 0]] * 4 + [[1, 1, 1]] * 5 + [[2, 2, 2]]
    for client in range(3):
        assert method.stored.states.read(client).tasks.keys() == {0, 1}


def test_each_goes_on_by_itself(tiny):
    """Asynchronous, R = 3: client 0 is through a task after two rounds, by its rate, the others after three. It ends first."""

    class Hasty(Scripted):
        @staticmethod
        def script(client, round):
            return 0.0 if client == 0 else -float(round)

    settings = {"rounds_per_task": 3, "patience": 1, "rate_divisor": 4.0, "smallest_rate": 0.03, "schedule": "asynchronous"}
    method = tiny.train(Hasty, **settings)
    assert [report.clients for report in method.seen.rounds] == [[0, 1, 2]] * 6 + [[1, 2]] * 3
    assert [positions[0] for positions in method.seen.positions] == [0, 0, 1, 1, 2, 2, 3, 3, 3]
    assert [positions[1] for positions in method.seen.positions] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert method.tasks.clocks.rate_factor.tolist() == [1.0] * 3
    measured = ~method.tasks.task_accuracy.isnan()
    assert torch.equal(measured, torch.ones(3, 3).tril().bool().expand(3, 3, 3))


def test_the_rate_falls_within_a_task_and_is_whole_again(tiny):
    """Losses that never fall, patience 1, divisor 2: what a client's optimizer gets in two tasks of three rounds."""

    class Watched(Scripted):
        rates = []

        @staticmethod
        def script(client, round):
            return 0.0

        def probe(self, net, client):
            if client.index == 1:
                self.rates.append(client.learning_rate)
            return super().probe(net, client)

    tiny.train(Watched, rounds=6, rounds_per_task=3, patience=1, rate_divisor=2.0)
    # The first loss is a new best. One visit more is the rehearsal before the first round.
    assert Watched.rates[-6:] == pytest.approx([0.1, 0.1, 0.05] * 2)


@pytest.mark.parametrize("train_unsampled", [False, True])
def test_asynchronous_clients_count_the_rounds_that_they_trained_in(tiny, train_unsampled):
    """R = 2 visits to a task. Client 2 comes to three of six rounds."""
    data = tiny.new_data(cohorts=[[0, 1, 2], [0, 1], [0, 1], [0, 1, 2], [0, 1], [0, 1, 2]])
    method = tiny.train(TaskLearner, data, schedule="asynchronous", train_unsampled=train_unsampled)
    assert method.tasks.clocks.position.tolist() == ([3, 3, 3] if train_unsampled else [3, 3, 1])
    assert method.tasks.clocks.rounds_in_task[2] == (0 if train_unsampled else 1)


@pytest.mark.parametrize("kind", [FedAvg, FedWeIT])
def test_clocks_tick_for_those_who_took_part(tiny, kind):
    """Client 0, though the server would choose client 1 once it has stepped."""

    class GoesByServer(kind):
        last_step = 0

        def server_step(self, update):
            super().server_step(update)
            self.last_step = self.round

        def sampled_clients(self, round):
            return [0] if self.last_step < round else [1]

    learner = WeightedTransfer if kind is FedWeIT else TaskLearner
    method = tiny.train(Pair(GoesByServer, learner), rounds=1, schedule="asynchronous", rounds_per_task=2)
    assert method.tasks.clocks.rounds_in_task.tolist() == [1, 0, 0]
    assert kind is FedAvg or method.tasks.served.tolist() == [0, -1, -1]


def test_max_steps_is_a_bound(tiny):
    """Four of six rounds."""
    method = tiny.train(TaskLearner, rounds=4)
    assert len(method.seen.rounds) == 4
    assert method.tasks.clocks.position.tolist() == [2, 2, 2]


def test_accuracies_at_other_times(tiny):
    """Evaluated every fourth round, and always when a task ends: of R = 3 rounds in 3, 4, 6, 8 and 9."""

    class Watched(TaskLearner):
        def probe(self, net, client):
            seen = super().probe(net, client)
            if client.index == 0 and not seen["task_accuracy"].isnan().all():
                self.evaluated.append(client.round)
            return seen

        evaluated = []

    tiny.train(Watched, rounds_per_task=3, evaluate_every=4)
    assert Watched.evaluated == [3, 4, 6, 8, 9]


def test_accuracies_stand_until_the_next_evaluation(tiny):
    """Every second round of five: after the third those of the second."""
    second, third = (tiny.train(TaskLearner, rounds=rounds, rounds_per_task=5, evaluate_every=2) for rounds in (2, 3))
    assert (~second.tasks.task_accuracy.isnan()).sum() == 3
    tiny.assert_same({"accuracy": third.tasks.task_accuracy}, {"accuracy": second.tasks.task_accuracy}, atol=0)


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds_per_task": 0}, "model.tasks.rounds_per_task is 0, must be at least 1"),
        ({"patience": 0}, "model.tasks.patience is 0, must be at least 1"),
        ({"evaluate_every": 0}, "model.tasks.evaluate_every is 0, must be at least 1"),
        ({"schedule": "both"}, "model.tasks.schedule is 'both', must be one of synchronous, asynchronous"),
        ({"rate_divisor": 1.0}, "model.tasks.rate_divisor is 1.0, must be above 1: the paper uses 3"),
        ({"smallest_rate": math.nan}, "model.tasks.smallest_rate is nan, must be at least 0: 0 never ends a task early"),
        ({"smallest_rate": -1.0}, "model.tasks.smallest_rate is -1.0, must be at least 0: 0 never ends a task early"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    """One line with the key, the value and what is allowed."""
    with pytest.raises(ValueError) as error:
        TaskLearner(**settings)
    assert str(error.value) == message


def test_a_method_and_data_that_do_not_match_are_refused(tiny, fit):
    """Tasks without a method that learns them, and a method that learns them without any."""
    with pytest.raises(ValueError) as error:
        tiny.train(TaskLearner, tiny.new_data(tasks=None))
    assert str(error.value) == "data.tasks is null, but TaskLearner learns tasks: give data.tasks a TaskStream"
    with pytest.raises(ValueError) as error:
        fit(FedAvg(tiny.new_net()), tiny.new_data(), 1, precision="64-true")
    assert str(error.value) == (
        "data.tasks is TaskStream(by=classes, tasks_per_client=None), but FedAvg learns no tasks: set model.tasks, such as to "
        "TaskLearner or EWC, or data.tasks to null"
    )


def test_a_smallest_rate_that_nobody_would_train_at_is_refused(tiny):
    """Every client would be done with every task before it began."""
    with pytest.raises(ValueError) as error:
        tiny.train(TaskLearner, smallest_rate=0.2)
    assert str(error.value) == (
        "model.tasks.smallest_rate is 0.2, must be at most 0.1: that is model.optimizer.lr, and below the smallest rate a "
        "client is done with its task"
    )


def test_a_net_without_a_class_layer_of_its_own_is_refused(tiny):
    """Its last layer would be shared by all tasks without a word."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(18, 2)).double()
    with pytest.raises(ValueError, match=r"^model.net has no weight that is called classifier.\*, .*: set model.class_layer$"):
        tiny.train(TaskLearner, net=net)


# Checkpoints ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "tasks", "message"),
    [
        ({"num_clients": 4, "clients_per_round": 4}, {}, "data.num_clients is 4, 3 in the run"),
        ({"seed": 1}, {}, "data.seed is 1, 0 in the run"),
        ({}, {"by": "superclasses", "table": "table.csv"}, "data.tasks.by is superclasses, classes in the run"),
        ({}, {"tasks_per_client": 1}, "data.tasks.tasks_per_client is 1, None in the run"),
        ({}, {"test_fraction": 0.3}, "data.tasks.test_fraction is 0.3, 0.2 in the run"),
    ],
)
def test_other_tasks_than_those_of_a_checkpoint_are_refused(tiny, tmp_path, monkeypatch, changed, tasks, message):
    """One line that names what differs."""
    monkeypatch.chdir(tmp_path)
    Path("table.csv").write_text("class,superclass\na,small\nb,small\nc,small\nd,big\ne,big\nf,big\n")
    net = tiny.new_linear_net(num_classes=3)
    tiny.train(TaskLearner, tiny.new_data(TaskStream(classes_per_task=3)), net, rounds=1).trainer.save_checkpoint("1.ckpt")
    other = tiny.new_data(TaskStream(**{"classes_per_task": 3, **tasks}), **changed)
    with pytest.raises(ValueError, match=f"^ckpt_path is of a run with other settings: .*{message}") as error:
        tiny.train(TaskLearner, other, net, ckpt_path="1.ckpt")
    assert "\n" not in str(error.value)


def test_other_rounds_a_task_are_refused_on_resume(tiny, tmp_path):
    """They decide what is learned when."""
    tiny.train(TaskLearner, rounds=3, rounds_per_task=5).trainer.save_checkpoint(tmp_path / "3.ckpt")
    with pytest.raises(ValueError, match=r"model.tasks.rounds_per_task is \d, 5 in the run"):
        tiny.train(TaskLearner, rounds=5, ckpt_path=tmp_path / "3.ckpt")


@pytest.mark.parametrize("method", [TaskLearner, Pair(FedProx, TaskLearner), Pair(LocalOnly, EWC)])
def test_initial_heads_are_those_of_the_net(tiny, method):
    """The global head is never touched."""
    trained = tiny.train(method, rounds=2)
    tiny.assert_same({name: trained.net.get_parameter(name) for name in tiny.head}, {n: tiny.weights[n] for n in tiny.head}, 0)


@pytest.mark.parametrize("method", [TaskLearner, SingleTask, WeightedTransfer])
def test_every_task_begins_with_a_head_of_its_own(tiny, method):
    """With the net's initial values in an order that no two clients or tasks share; FedWeIT's masks likewise, biases not."""
    starts = {}

    class Watched(method):
        def begin_task(self, net, client, position):
            super().begin_task(net, client, position)
            starts[client.index, position] = {name: tensor.clone() for name, tensor in self.per_task_tensors(net).items()}

    trained = tiny.train(Watched)
    assert len(starts) == 9
    drawn = {"classifier.weight": 9}
    if method is WeightedTransfer:
        drawn["conv.parametrizations.weight.0.mask"] = 6  # of 24 orders, two draws may well be the same
    for name, num_orders in drawn.items():
        initial = trained.net.get_parameter(name).detach()
        assert len({tuple(start[name].flatten().tolist()) for start in starts.values()}) >= num_orders
        for start in starts.values():
            assert (start[name].flatten().sort().values == initial.flatten().sort().values).all()
    if method is not TaskLearner:
        bias = trained.net.conv.bias.detach()
        assert all((start["conv.bias"] == bias).all() for start in starts.values())


def test_moments_may_outlast_a_round(tiny):
    """Against torch's Adam in a plain loop, one for each client and task; finished clients keep nothing of it."""
    settings = {"optimizer": lambda weights: torch.optim.Adam(weights, lr=0.05), "reset_adam_each_round": False}
    method = tiny.train(TaskLearner, **settings)
    server, heads, optimizers = dict(tiny.weights), {}, {}
    for round, position, cohort in tiny.rounds():
        now = {}
        for client in cohort:
            start = {**server, **heads.get((client, position), tiny.drawn_head(client, position))}
            weights, adam = optimizers.setdefault((client, position), new_adam(start))
            for name, weight in weights.items():
                weight.data.copy_(start[name])
            for batch in tiny.data.client_batches().batches(client, round, 3):
                adam.zero_grad()
                tiny.loss(weights, batch.inputs, batch.targets).backward()
                adam.step()
            now[client] = {name: weight.detach().clone() for name, weight in weights.items()}
            heads[client, position] = {name: now[client][name] for name in tiny.head}
        server |= {name: sum(weights[name] for weights in now.values()) / len(now) for name in tiny.body}
    tiny.assert_same({n: w for n, w in method.net.named_parameters() if n in tiny.body}, {n: server[n] for n in tiny.body})
    for client in range(3):
        assert not method.stored.states.read(client).moments
    reset = tiny.train(TaskLearner, **{**settings, "reset_adam_each_round": True})
    assert not torch.allclose(reset.net.conv.weight, method.net.conv.weight)


def test_moments_do_not_outlast_a_task_whose_end_was_lost(tiny):
    """Client 2's last update in the first task is not finite: it begins the second from the server's body and at rest."""

    class Broken(FedAvg):
        def client_result(self, net, client):
            if (client.index, client.round) == (2, 2):
                net.hidden.bias.detach().fill_(math.nan)
            return super().client_result(net, client)

    server, after = (tiny.train(Pair(Broken, TaskLearner), rounds=rounds, reset_adam_each_round=False) for rounds in (2, 3))
    assert server.seen.rounds[1].nonfinite == [2]
    tiny.data.present_shards.go_to([1, 1, 1])
    start = {**{n: w.detach() for n, w in server.net.named_parameters() if n in tiny.body}, **tiny.drawn_head(2, 1)}
    expected = tiny.fit(start, 2, 3, tiny.loss)
    state = after.stored.states.read(2)
    tiny.assert_same({name: state.weights[name] for name in expected}, expected)


def new_adam(start):
    weights = {name: weight.clone().requires_grad_() for name, weight in start.items()}
    return weights, torch.optim.Adam(weights.values(), lr=0.05)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda weights: torch.optim.Adam(weights, lr=0.05),
        lambda weights: torch.optim.SGD(weights, lr=0.05),
        lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9),
        lambda weights: torch.optim.Adagrad(weights, lr=0.05),
    ],
)
@pytest.mark.one_in(2)
def test_kept_moments_come_back_from_a_checkpoint(tiny, tmp_path, optimizer):
    """Stopped in the midst of a task, gone on: bit for bit. And clients that keep them are not stacked."""
    settings = {"optimizer": optimizer, "reset_adam_each_round": False}
    whole = tiny.train(TaskLearner, checkpoints=tmp_path, **settings)
    again = tiny.train(TaskLearner, ckpt_path=tmp_path / "step=3.ckpt", **settings)
    tiny.assert_same_end(again, whole)
    with pytest.raises(ValueError, match="keep their optimizer's state cannot be stacked: set model.engine: sequential"):
        tiny.train(TaskLearner, net=tiny.new_linear_net(), engine="vectorized", **settings)
    assert (
        type(tiny.train(TaskLearner, net=tiny.new_linear_net(), engine="auto", **settings).engine).__name__
        == "SequentialEngine"
    )
