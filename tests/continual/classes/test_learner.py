"""Fine-tuning on classes that arrive against a plain loop with a head that grows, its clock, and what is refused."""

import pytest
import torch

from fl_lightning import FedAvg, FedProx
from fl_lightning.continual import (
    ClassStream,
    DomainStream,
    FedAvgOnClasses,
    FedAvgOnTasks,
    FedLwF,
    FedProxOnClasses,
    ServerEWC,
    TaskStream,
)
from fl_lightning.data import IID, Arrays, Dataset, Partition, Samples
from fl_lightning.engines.rounds import run_round
from fl_lightning.engines.run_context import RunContext
from fl_lightning.engines.sequential import SequentialEngine
from fl_lightning.losses import TruncatedCrossEntropy

MU = 0.3


@pytest.mark.parametrize("softmax_over", ["new", "seen"])
def test_fine_tuning_equals_a_head_that_grows(arriving, softmax_over):
    """New rows drawn when their task begins; losses among the new classes, or all seen."""
    trained = arriving.train(FedAvgOnClasses, softmax_over=softmax_over)
    objective = arriving.new_loss if softmax_over == "new" else arriving.seen_loss
    arriving.assert_same(trained.net, arriving.plain(objective))


def test_cohorts_that_differ(arriving):
    trained = arriving.train(FedAvgOnClasses, arriving.new_data(cohorts=arriving.cohorts))
    arriving.assert_same(trained.net, arriving.plain(arriving.new_loss, cohorts=arriving.cohorts))


def test_fedprox_pulls_all_rows(arriving):
    def objective(visit, weights, inputs, targets):
        pull = sum(((weights[name] - visit.received[name]) ** 2).sum() for name in weights)
        return arriving.new_loss(visit, weights, inputs, targets) + MU / 2 * pull

    arriving.assert_same(arriving.train(FedProxOnClasses, mu=MU).net, arriving.plain(objective))


def test_joint_training(arriving):
    """Clients keep the samples of all tasks so far."""
    tasks = ClassStream(num_tasks=3, cumulative=True)
    trained = arriving.train(FedAvgOnClasses, arriving.new_data(tasks), softmax_over="seen")
    arriving.assert_same(trained.net, arriving.plain(arriving.seen_loss, arriving.ready_data(tasks=tasks)))


@pytest.mark.parametrize(("method", "plain"), [(FedAvgOnClasses, FedAvg), (FedProxOnClasses, FedProx)])
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

    arriving.assert_same(train(FedAvgOnClasses, "xy", DomainStream()), train(FedAvg, "x", None), atol=1e-12)


def test_old_rows_stay_where_new_classes_compete_alone(arriving):
    """And move where all classes seen do; rows not seen have no part in either."""
    for softmax_over in ("new", "seen"):
        after = arriving.train(FedAvgOnClasses, softmax_over=softmax_over).seen.weights
        for name in arriving.head:
            moved = (after[-1][name][:4] - after[3][name][:4]).abs().max()
            assert moved < 1e-14 if softmax_over == "new" else moved > 1e-3
            assert torch.equal(after[3][name][4:], after[0][name][4:])


def test_the_net_says_nothing_of_classes_not_seen(arriving):
    trained = arriving.train(FedAvgOnClasses)
    for round, logits in enumerate(trained.seen.logits, start=1):
        count = 2 * ((round + 1) // 2)
        assert logits.isfinite().all(dim=0).tolist() == [True] * count + [False] * (6 - count)
        assert len(logits) == 11 * count
    assert int(trained.net.num_seen) == 6


def test_weight_decay_does_not_shrink_rows_before_their_task(arriving):
    """Under a decay that would leave nothing of them, the last task's rows are as drawn when it begins."""

    def heavy(weights):
        return torch.optim.SGD(weights, lr=0.1, weight_decay=5.0)

    trained = arriving.train(FedAvgOnClasses, rounds=4, optimizer=heavy)
    assert trained.net.classifier.weight[4:].abs().max() < 1e-2
    begun = arriving.train(
        FedAvgOnClasses, rounds=5, optimizer=lambda weights: torch.optim.SGD(weights, lr=0.0, weight_decay=5.0)
    )
    bound = 3**-0.5
    assert 0.1 * bound < begun.net.classifier.weight[4:].abs().max() <= bound


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_rows_of_a_frozen_head_are_drawn_for_all(arriving, engine):
    """Clients train the body against the rows of the present task."""

    def objective(visit, weights, inputs, targets):
        head = {name: weights[name].detach() for name in arriving.head}
        return arriving.new_loss(visit, {**weights, **head}, inputs, targets) + 0 * sum(weights[n].sum() for n in arriving.head)

    net = arriving.new_net()
    net.classifier.requires_grad_(False)
    arriving.assert_same(arriving.train(FedAvgOnClasses, net=net, engine=engine).net, arriving.plain(objective))


def test_a_run_ends_after_its_last_task(arriving):
    trained = arriving.train(FedAvgOnClasses, rounds=100)
    assert len(trained.seen.rounds) == 6
    assert trained.is_over


def test_any_local_loss(arriving):
    """TCE among the new classes of a client, which in the first task of one class has no gradient at all."""

    def objective(visit, weights, inputs, targets):
        logits = arriving.logits(weights, inputs)
        absent = visit.data.label_counts[visit.client][: visit.seen] == 0
        return arriving.cross_entropy(logits.masked_fill(absent, float("-inf")), targets)

    trained = arriving.train(FedAvgOnClasses, loss=TruncatedCrossEntropy())
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


@pytest.mark.parametrize("method", [FedAvgOnClasses, FedLwF, ServerEWC])
def test_without_a_trainer_tasks_follow_each_other_too(arriving, method):
    """To rounding: a fit has the weights of convolutions in another order of memory."""
    fitted, by_hand = arriving.train(method), type(arriving)(loop).train(method)
    assert by_hand.task == fitted.task == 2
    for name, tensor in fitted.state_dict().items():
        torch.testing.assert_close(by_hand.state_dict()[name], tensor, rtol=0, atol=1e-12, msg=name)


@pytest.mark.parametrize("with_trainer", [True, False])
def test_what_does_not_fit_together_is_refused(arriving, with_trainer):
    """One line with the key, the value and the cure, before the first round, whoever runs it."""
    arriving = arriving if with_trainer else type(arriving)(loop)
    for method, tasks, message in (
        (FedAvg, ClassStream(3), "data.tasks is ClassStream(3 tasks), but FedAvg learns no tasks: use a method of fl_lightning."
         "continual, such as FedAvgOnClasses, or set data.tasks to null"),
        (FedAvgOnTasks, ClassStream(3), "data.tasks is ClassStream(3 tasks), but FedAvgOnTasks learns other tasks: use a "
         "method of fl_lightning.continual, such as FedAvgOnClasses, or set data.tasks to null"),
        (FedAvgOnClasses, None, "data.tasks is null, but FedAvgOnClasses learns classes as they arrive: give data.tasks a "
         "ClassStream"),
        (FedAvgOnClasses, TaskStream(classes_per_task=2), "data.tasks is TaskStream(by=classes, tasks_per_client=None), but "
         "FedAvgOnClasses learns classes as they arrive: give data.tasks a ClassStream"),
        (FedAvgOnClasses, ClassStream(3, cumulative=True), "model.softmax_over is new, but data.tasks is ClassStream(3 tasks, "
         "cumulative), whose tasks have samples of earlier ones' classes: set it to seen"),
        (FedAvgOnClasses, ClassStream(3, blurry=0.1), "model.softmax_over is new, but data.tasks is ClassStream(3 tasks, "
         "blurry=0.1), whose tasks have samples of earlier ones' classes: set it to seen"),
    ):  # fmt: skip
        with pytest.raises(ValueError) as error:
            arriving.train(method, arriving.new_data(tasks))
        assert str(error.value) == message

    class KeepsFeatures(FedAvgOnClasses):
        personal = ("features.*",)

    with pytest.raises(ValueError, match=r"^model.personal is \['features.\*'\], but KeepsFeatures evaluates one model"):
        arriving.train(KeepsFeatures)
    nameless = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(18, 6)).double()
    with pytest.raises(ValueError, match=r"^model.net is Sequential, whose classifier is missing, must be a linear layer with"):
        arriving.train(FedAvgOnClasses, net=nameless)


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
        arriving.train(FedAvgOnClasses, data, net)
    assert str(error.value) == (
        "data.batch_size is 4, which gives client 0 in task 2 a batch of one sample, but BatchNorm in model.net needs more: "
        "choose another batch size, or a net without"
    )


@pytest.mark.parametrize(("before", "tasks"), [(FedAvg, None), (FedAvgOnClasses, ClassStream(num_tasks=3))])
def test_a_run_from_old_weights_begins_with_the_first_task(arriving, tmp_path, before, tasks):
    """Old weights of all six classes, of which the first task's two are seen; in the second task two rows are drawn."""
    arriving.train(before, arriving.new_data(tasks), rounds=5, checkpoints=tmp_path)
    method = arriving.train(FedAvgOnClasses, initial_weights=str(tmp_path / "step=5.ckpt"), rounds=3)
    first, third = (logits.isfinite().all(dim=0).tolist() for logits in method.seen.logits[::2])
    assert first == [True] * 2 + [False] * 4
    assert third == [True] * 4 + [False] * 2
    old = torch.load(tmp_path / "step=5.ckpt")["state_dict"]["net.classifier.bias"]
    changed = ~method.net.classifier.bias.detach().isclose(old, rtol=1e-12, atol=0)  # a mean of equal rows rounds
    assert changed.tolist() == [True] * 4 + [False] * 2


def test_a_checkpoint_of_other_tasks_is_refused(arriving, tmp_path):
    arriving.train(FedAvgOnClasses, rounds=1, checkpoints=tmp_path)
    other = arriving.new_data(ClassStream(num_tasks=2))
    with pytest.raises(ValueError, match=r"^ckpt_path holds a run on other tasks: data.tasks is .* there and .* here"):
        arriving.train(FedAvgOnClasses, other, ckpt_path=tmp_path / "step=1.ckpt")
