"""Fine-tuning on classes that arrive against a plain loop with a head that grows, its clock, and what is refused."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from pairs import Pair

from fl_lightning import SCAFFOLD, FedAvg, FedCurv, FedDyn, FedProx
from fl_lightning.callbacks import FederatedCallback, RunSummary
from fl_lightning.data import IID, Arrays, Dataset, Partition, Samples
from fl_lightning.engines import engine_choice
from fl_lightning.engines.engine_choice import by_rule
from fl_lightning.engines.rounds import run_round
from fl_lightning.engines.run_context import RunContext
from fl_lightning.engines.sequential import SequentialEngine
from fl_lightning.losses import TruncatedCrossEntropy, WeightedCrossEntropy
from fl_lightning.methods import FedACG, FedDisco
from fl_lightning.methods.feddisco import disco_weights
from fl_lightning.privacy import DPSGD
from fl_lightning.tasks import (
    EWC,
    GLFC,
    L2SP,
    ClassLearner,
    ClassStream,
    DomainStream,
    ICaRL,
    LwF,
    ServerEWC,
    TaskStream,
)

MU = 0.3


@pytest.mark.parametrize("softmax_over", ["new", "seen"])
def test_fine_tuning_equals_a_head_that_grows(arriving, softmax_over):
    """New rows drawn when their task begins; losses among the new classes, or all seen."""
    trained = arriving.train(ClassLearner, softmax_over=softmax_over)
    objective = arriving.new_loss if softmax_over == "new" else arriving.seen_loss
    arriving.assert_same(trained.net, arriving.plain(objective))


def test_cohorts_that_differ(arriving):
    trained = arriving.train(ClassLearner, arriving.new_data(cohorts=arriving.cohorts))
    arriving.assert_same(trained.net, arriving.plain(arriving.new_loss, cohorts=arriving.cohorts))


def test_fedprox_pulls_all_rows(arriving):
    def objective(visit, weights, inputs, targets):
        pull = sum(((weights[name] - visit.received[name]) ** 2).sum() for name in weights)
        return arriving.new_loss(visit, weights, inputs, targets) + MU / 2 * pull

    arriving.assert_same(arriving.train(Pair(FedProx, ClassLearner), mu=MU).net, arriving.plain(objective))


def test_feddisco_weighs_the_labels_of_the_present_task(arriving):
    """The same clients take part in every round, but the labels that they have change with the task."""
    seen, expected = {}, {}

    class Noting(FedDisco):
        def update_weight(self, client):
            sizes = [self.data.num_train(k) for k in range(arriving.num_clients)]
            weights = disco_weights(sizes, self.data.train_label_counts, self.a, self.b)
            expected[client.round, client.index] = weights[client.index]
            seen[client.round, client.index] = super().update_weight(client)
            return seen[client.round, client.index]

    arriving.train(Pair(Noting, ClassLearner))
    assert seen == expected
    assert len({weight for (_, client), weight in seen.items() if client == 0}) == arriving.num_tasks


def test_joint_training(arriving):
    """Clients keep the samples of all tasks so far."""
    tasks = ClassStream(num_tasks=3, cumulative=True)
    trained = arriving.train(ClassLearner, arriving.new_data(tasks), softmax_over="seen")
    arriving.assert_same(trained.net, arriving.plain(arriving.seen_loss, arriving.ready_data(tasks=tasks)))


@pytest.mark.parametrize(("method", "plain"), [(ClassLearner, FedAvg), (Pair(FedProx, ClassLearner), FedProx)])
@pytest.mark.parametrize("softmax_over", ["new", "seen"])
def test_one_task_is_the_method_without_tasks(arriving, method, plain, softmax_over):
    """Bit for bit."""
    one = ClassStream(num_tasks=1, class_order="labels")
    trained = arriving.train(method, arriving.new_data(one), rounds=2, softmax_over=softmax_over)
    arriving.assert_same(trained.net, arriving.train(plain, arriving.new_data(None), rounds=2).net, atol=0)


class Strided(Partition):
    """The same samples for the same labels, whatever the seed."""

    def __call__(self, labels, num_clients, seed):
        return [torch.arange(len(labels))[client::num_clients] for client in range(num_clients)]


def test_identical_domains_are_one_long_run(arriving):
    """Two domains of the same samples, dealt alike: FedAvg on one of them for all rounds, with whole shards as batches."""
    inputs = torch.randn(36, 2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    targets = torch.arange(36) % 3

    def train(method, domains, tasks):
        count = len(domains)
        part = Samples(inputs.repeat(count, 1, 1, 1), torch.cat([targets + 3 * domain for domain in range(count)]))
        names = tuple(f"{domain}/{label}" for domain in domains for label in "abc")
        data = arriving.new_data(tasks, partition=Strided(), batch_size=None)
        data.source.load = lambda root: Dataset(part, part, names, sources=tuple(name[0] for name in names))
        net = arriving.new_net()
        net.classifier = torch.nn.utils.skip_init(torch.nn.Linear, 3, 3, dtype=torch.float64)
        for weight in net.classifier.parameters():
            torch.nn.init.constant_(weight, 0.1)
        return arriving.train(method, data, net, rounds=4).net

    arriving.assert_same(train(ClassLearner, "xy", DomainStream()), train(FedAvg, "x", None), atol=1e-12)


def test_old_rows_stay_where_new_classes_compete_alone(arriving):
    """And move where all classes seen do; rows not seen have no part in either."""
    for softmax_over in ("new", "seen"):
        after = arriving.train(ClassLearner, softmax_over=softmax_over).seen.weights
        for name in arriving.head:
            moved = (after[-1][name][:4] - after[3][name][:4]).abs().max()
            assert moved < 1e-14 if softmax_over == "new" else moved > 1e-3
            assert torch.equal(after[3][name][4:], after[0][name][4:])


def test_the_net_says_nothing_of_classes_not_seen(arriving):
    trained = arriving.train(ClassLearner)
    for round, logits in enumerate(trained.seen.logits, start=1):
        count = 2 * ((round + 1) // 2)
        assert logits.isfinite().all(dim=0).tolist() == [True] * count + [False] * (6 - count)
        assert len(logits) == 11 * count
    assert int(trained.net.num_seen) == 6


@pytest.mark.parametrize("kind", [SimpleNamespace, tuple])
def test_nets_that_return_more_than_logits(arriving, kind):
    """As those of Hugging Face do: the run of the same net with logits alone."""

    class Returning(torch.nn.Module):
        def __init__(self, more):
            super().__init__()
            torch.manual_seed(0)
            self.features, self.classifier = torch.nn.Flatten(), torch.nn.Linear(18, 6)
            self.more = more

        def forward(self, images):
            logits = self.classifier(self.features(images))
            if not self.more:
                return logits
            return (logits, images) if kind is tuple else SimpleNamespace(logits=logits, images=images)

    more, plain = (arriving.train(ClassLearner, net=Returning(more).double()) for more in (True, False))
    arriving.assert_same(more.net, plain.net, atol=0)


def test_weight_decay_does_not_shrink_rows_before_their_task(arriving):
    """Under a decay that would leave nothing of them, the last task's rows are as drawn when it begins."""

    def heavy(weights):
        return torch.optim.SGD(weights, lr=0.1, weight_decay=5.0)

    trained = arriving.train(ClassLearner, rounds=4, optimizer=heavy)
    assert trained.net.classifier.weight[4:].abs().max() < 1e-2
    begun = arriving.train(ClassLearner, rounds=5, optimizer=lambda weights: torch.optim.SGD(weights, lr=0.0, weight_decay=5.0))
    bound = 3**-0.5
    assert 0.1 * bound < begun.net.classifier.weight[4:].abs().max() <= bound


def blurry_loss(arriving, data, distillation, softmax_over):
    """Cross entropy among the classes of the tasks so far and those that the client has met, or among the new ones and those
    that the client has; by LwF to the model before."""
    labels, teachers = data.train_set.targets, {}

    def held(client, position):
        return {int(labels[i]) for i in data.shards.train_indices(3 * client + position)}

    def columns(client, position):
        if softmax_over == "new":
            return sorted({2 * position, 2 * position + 1} | held(client, position))
        return sorted({*range(2 * position + 2)}.union(*(held(client, seen) for seen in range(position + 1))))

    def objective(visit, weights, inputs, targets):
        competing = columns(visit.client, visit.position)
        logits = arriving.logits(weights, inputs)
        loss = arriving.cross_entropy(logits[:, competing], torch.tensor([competing.index(c) for c in targets.tolist()]))
        if visit.position > 0 and distillation > 0:
            old = slice(2 * visit.position)
            said = (arriving.logits(teachers[visit.position - 1], inputs)[:, old] / 2).softmax(dim=1)
            loss = loss - distillation * (said * (logits[:, old] / 2).log_softmax(dim=1)).sum(dim=1).mean()
        return loss

    def after_task(visit, weights):
        teachers[visit.position] = weights

    return objective, after_task


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("softmax_over", ["seen", "new"])
@pytest.mark.parametrize(("method", "distillation"), [(ClassLearner, 0.0), (LwF, 3.0)])
@pytest.mark.one_in(3)
def test_classes_that_leaked_compete_at_clients_that_have_met_them(arriving, engine, method, distillation, softmax_over):
    """Few have: the head, what is seen and what is distilled go by the order of tasks."""
    tasks = ClassStream(num_tasks=3, blurry=0.15)
    data = arriving.ready_data(tasks=tasks)
    leaked = {tuple(data.class_streams.leaked_classes(client, position)) for client in range(3) for position in range(3)}
    assert len(leaked) > 2
    assert () in leaked
    objective, after_task = blurry_loss(arriving, data, distillation, softmax_over)
    trained = arriving.train(method, arriving.new_data(tasks), softmax_over=softmax_over, engine=engine)
    arriving.assert_same(trained.net, arriving.plain(objective, data, after_task=after_task, whole_head=True))


class FitModels(FederatedCallback):
    """Which classes the models of the cohort can say of test samples after their fits, and the net's buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.said, self.seen = [], []

    def wants_models(self, round):
        return True

    def on_cohort_fit_end(self, trainer, module, round, models):
        self.said.append(models.predict(module.data.evaluation.test_inputs()).isfinite().flatten(0, -2).all(dim=0).tolist())

    def on_round_end(self, trainer, module, round, report):
        self.seen.append(int(module.net.num_seen))


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
@pytest.mark.parametrize("method", [ClassLearner, ServerEWC, Pair(FedCurv, ClassLearner), GLFC, ICaRL])
@pytest.mark.one_in(3)
def test_blurry_borders_end_in_numbers(arriving, method, engine, tmp_path):
    """Validation samples of all tasks so far, without classes to come, of which nobody says anything; resumed, bit for bit."""
    settings = {"memory": 9} if method in (GLFC, ICaRL) else {}
    settings |= {"softmax_over": "seen", "engine": engine}
    tasks, models = ClassStream(num_tasks=3, blurry=0.3), FitModels()
    data = arriving.new_data(tasks, val_fraction=0.2)
    trained = arriving.train(method, data, callbacks=[models], checkpoints=tmp_path, **settings)
    assert models.seen == [2, 2, 4, 4, 6, 6]
    assert models.said == [[True] * seen + [False] * (6 - seen) for seen in models.seen]
    for round, logits in enumerate(trained.seen.logits):
        assert len(logits) == 11 * models.seen[round]
    assert all(weight.isfinite().all() for weight in trained.net.parameters())
    data.present_shards.go_to([1] * 3)
    rows = [3 * client + task for client in range(3) for task in range(2)]
    held = torch.cat([data.present_shards.shards.validation_indices(row) for row in rows])
    targets = data.evaluation.validation_samples([0, 1, 2])[1]
    assert sorted(targets.tolist()) == sorted(label for label in data.train_set.targets[held].tolist() if label < 4)
    assert len(targets) < len(held)
    again = arriving.new_data(tasks, val_fraction=0.2)
    resumed = arriving.train(method, again, ckpt_path=tmp_path / "step=3.ckpt", callbacks=[FitModels()], **settings)
    arriving.assert_same(resumed.net, trained.net, atol=0)


@pytest.mark.parametrize(("blurry", "said"), [(0.0, ()), (0.2, ("the classes that a client holds",))])
def test_blurry_borders_let_updates_tell_who_holds_what(arriving, blurry, said):
    """The classes that compete are those of the task, or those that the client holds, which DP-SGD does not hide."""
    trained = arriving.train(ClassLearner, arriving.new_data(ClassStream(3, blurry=blurry)), rounds=1, privacy=DPSGD(1.0))
    assert trained.released_without_noise == said


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_rows_of_a_frozen_head_are_drawn_for_all(arriving, engine):
    """Clients train the body against the rows of the present task."""

    def objective(visit, weights, inputs, targets):
        head = {name: weights[name].detach() for name in arriving.head}
        return arriving.new_loss(visit, {**weights, **head}, inputs, targets) + 0 * sum(weights[n].sum() for n in arriving.head)

    net = arriving.new_net()
    net.classifier.requires_grad_(False)
    arriving.assert_same(arriving.train(ClassLearner, net=net, engine=engine).net, arriving.plain(objective))


def test_every_task_has_a_captured_program(arriving, monkeypatch):
    """Visits of one step look alike, but a CUDA graph repeats the columns of the task in which it was recorded."""
    monkeypatch.setattr(torch, "compile", lambda step, **_: step)
    trained = arriving.train(ClassLearner, engine="captured", local_steps=1)
    programs = trained.engine._working.programs.values()
    assert sorted(program.phases.task for program in programs) == [0, 1, 2]
    choices = []
    for most in (6, 5):  # two a task, as a learner can keep states
        monkeypatch.setattr(engine_choice, "MOST_PROGRAMS", most)
        choices.append(by_rule(trained, RunContext(torch.device("cuda", 0)), [1]))
    assert choices == [("captured", "on a GPU a visit is one program"), None]  # None: one to be measured


def test_a_run_ends_after_its_last_task(arriving, capsys):
    trained = arriving.train(ClassLearner, rounds=100, callbacks=[RunSummary()])
    assert "Ended after round 6 of 100: all tasks are learned\n" in capsys.readouterr().out
    assert len(trained.seen.rounds) == 6
    assert trained.tasks.is_over


def test_any_local_loss(arriving):
    """TCE among the new classes of a client, which in the first task of one class has no gradient at all."""

    def objective(visit, weights, inputs, targets):
        logits = arriving.logits(weights, inputs)
        absent = visit.data.label_counts[visit.client][: visit.seen] == 0
        return arriving.cross_entropy(logits.masked_fill(absent, float("-inf")), targets)

    trained = arriving.train(ClassLearner, loss=TruncatedCrossEntropy())
    arriving.assert_same(trained.net, arriving.plain(objective))


def loop(method, data, rounds, *_, **__):
    """In the place of a trainer's fit."""
    data.setup()
    data.to(torch.device("cpu"), torch.float64)
    method.join(data)
    method.double()  # as a trainer's precision 64-true does
    engine = SequentialEngine(method, RunContext())
    for round in range(1, rounds + 1):
        run_round(method, engine, round)


@pytest.mark.parametrize("method", [ClassLearner, LwF, ServerEWC])
def test_without_a_trainer_tasks_follow_each_other_too(arriving, method):
    """To rounding: a fit has the weights of convolutions in another order of memory."""
    fitted, by_hand = arriving.train(method), type(arriving)(loop).train(method)
    assert by_hand.tasks.task == fitted.tasks.task == 2
    for name, tensor in fitted.state_dict().items():
        torch.testing.assert_close(by_hand.state_dict()[name], tensor, rtol=0, atol=1e-12, msg=name)


@pytest.mark.parametrize("with_trainer", [True, False])
def test_what_does_not_fit_together_is_refused(arriving, with_trainer):
    """One line with the key, the value and the cure, before the first round, whoever runs it."""

    class OnStreams(FedAvg):
        def __init__(self, net, **common):
            super().__init__(net, tasks=EWC(), **common)

    class WithL2SP(FedAvg):
        def __init__(self, net, **common):
            super().__init__(net, tasks=L2SP(), **common)

    class KeepsFeatures(FedAvg):
        def __init__(self, net, **common):
            super().__init__(net, tasks=ClassLearner(), **common)
            self.personal = ("features.*",)

    arriving = arriving if with_trainer else type(arriving)(loop)
    for method, tasks, message in (
        (FedAvg, ClassStream(3), "data.tasks is ClassStream(3 tasks), but FedAvg learns no tasks: set model.tasks, such as to "
         "ClassLearner or ServerEWC, or data.tasks to null"),
        (OnStreams, ClassStream(3), "model.tasks is EWC, which learns other tasks, but data.tasks is ClassStream(3 tasks): set "
         "model.tasks, such as to ClassLearner or ServerEWC, or data.tasks to null"),
        (ClassLearner, None, "data.tasks is null, but ClassLearner learns classes as they arrive: give data.tasks a "
         "ClassStream"),
        (WithL2SP, ClassStream(3), "model.tasks is L2SP, which learns no tasks, but data.tasks is ClassStream(3 tasks): set "
         "model.tasks, such as to ClassLearner or ServerEWC, or data.tasks to null"),
        (ClassLearner, TaskStream(classes_per_task=2), "model.tasks is ClassLearner, which learns other tasks, but data.tasks "
         "is TaskStream(by=classes, tasks_per_client=None): set model.tasks, such as to TaskLearner or EWC, or data.tasks to "
         "null"),
        (ClassLearner, ClassStream(3, cumulative=True), "model.tasks.softmax_over is new, but data.tasks is ClassStream(3 "
         "tasks, cumulative), whose tasks have samples of earlier ones' classes: set it to seen"),
    ):  # fmt: skip
        with pytest.raises(ValueError) as error:
            arriving.train(method, arriving.new_data(tasks))
        assert str(error.value) == message

    weighted = WeightedCrossEntropy([1.0, 2.0, 1.0, 2.0, 1.0, 2.0])
    with pytest.raises(ValueError, match=r"^model.loss is Weighted.*, but which classes compete .*: leave class_weights out"):
        arriving.train(ClassLearner, loss=weighted)
    with pytest.raises(ValueError, match=r"^model.personal is \['features.\*'\], but ClassLearner evaluates one model"):
        arriving.train(KeepsFeatures)
    nameless = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(18, 6)).double()
    with pytest.raises(
        ValueError, match=r"^model.net Sequential has .* none of .*, which gets a row .*: set model.class_layer$"
    ):
        arriving.train(ClassLearner, net=nameless)


def test_a_batch_of_one_sample_in_a_later_task_is_refused_before_training(arriving):
    """The second task's 17 samples are four batches of 4 and one sample; the first task's 16 are batches of 4 alone."""
    targets = torch.tensor([0, 1] * 8 + [2, 3] * 8 + [2])
    inputs = torch.randn(37, 2, 3, 3, dtype=torch.float64)
    source = Arrays(inputs[:33], targets, inputs[33:], torch.arange(4), classes=list("abcd"))
    stream = ClassStream(num_tasks=2, class_order="labels")
    data = arriving.new_data(stream, source=source, num_clients=1, clients_per_round=1, partition=IID(), batch_size=4)
    net = arriving.new_net()
    net.features.append(torch.nn.BatchNorm1d(3).double())
    net.classifier = torch.nn.Linear(3, 4).double()
    with pytest.raises(ValueError) as error:
        arriving.train(ClassLearner, data, net)
    assert str(error.value) == (
        "data.batch_size is 4, which gives client 0 in task 2 a batch of one sample, but BatchNorm in model.net needs more: "
        "choose another batch size, or a net without it"
    )


@pytest.mark.parametrize(("before", "tasks"), [(FedAvg, None), (ClassLearner, ClassStream(num_tasks=3))])
def test_a_run_from_old_weights_begins_with_the_first_task(arriving, tmp_path, before, tasks):
    """Old weights of all six classes, of which the first task's two are kept; in the second task two rows are drawn."""
    arriving.train(before, arriving.new_data(tasks), rounds=5, checkpoints=tmp_path)
    method = arriving.train(ClassLearner, initial_weights=str(tmp_path / "step=5.ckpt"), rounds=3)
    first, third = (logits.isfinite().all(dim=0).tolist() for logits in method.seen.logits[::2])
    assert first == [True] * 2 + [False] * 4
    assert third == [True] * 4 + [False] * 2
    assert method.net.classifier.bias.ne(0).tolist() == [True] * 4 + [False] * 2


@pytest.mark.parametrize("method", [SCAFFOLD, FedACG, FedDyn])
def test_states_have_nothing_of_rows_to_come(arriving, method):
    """Weight decay would move these rows, and what server and clients keep of their changes would move the new ones."""
    optimizer = partial(torch.optim.SGD, lr=0.1, weight_decay=0.1)
    trained = arriving.train(Pair(method, ClassLearner), optimizer=optimizer, rounds=2)
    states = [trained.server_states.tensors(kind) for kind in trained.server_zeros]
    states += [tensors for client in range(3) for tensors in trained.stored.states.read(client).method.values()]
    assert states
    for tensors in (dict(trained.net.named_parameters()), *states):
        for name in arriving.head:
            assert tensors[name][:2].any(), name
            assert not tensors[name][2:].any(), name


def test_a_checkpoint_of_other_tasks_is_refused(arriving, tmp_path):
    arriving.train(ClassLearner, rounds=1, checkpoints=tmp_path)
    other = arriving.new_data(ClassStream(num_tasks=2))
    with pytest.raises(ValueError, match=r"^ckpt_path is of a run with other settings: .*data.tasks.num_tasks is 2, 3 in the"):
        arriving.train(ClassLearner, other, ckpt_path=tmp_path / "step=1.ckpt")


def test_other_tasks_are_not_evaluated(arriving, tmp_path):
    """The labels of a net count its classes in their order of arrival."""
    method = arriving.train(ClassLearner, rounds=1, checkpoints=tmp_path)
    given = {"ckpt_path": tmp_path / "step=1.ckpt", "verbose": False}
    method.trainer.test(method, method.data, **given)
    other = arriving.train(ClassLearner, arriving.new_data(ClassStream(num_tasks=2)), rounds=1)
    with pytest.raises(ValueError, match=r"^ckpt_path is of a run with .* other tasks: data.tasks.num_tasks is 2, 3 in"):
        other.trainer.test(other, other.data, **given)
