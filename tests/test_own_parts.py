"""Losses, sources, augmentations, samplers, rules, hostile clients, learners, objectives and callbacks: mistakes are named."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fl_lightning import FedAvg, FederatedDataModule, Trainer
from fl_lightning.callbacks import FederatedCallback
from fl_lightning.data import Augmentation, ClientSampler, Dataset, Partition, Samples, Source, from_arrays
from fl_lightning.losses import Loss, TruncatedCrossEntropy
from fl_lightning.methods import FedDecorr
from fl_lightning.models import MLP
from fl_lightning.objectives import Regression, SingleLabel
from fl_lightning.robustness import Aggregation, Hostile
from fl_lightning.tasks import EWC, TaskLearner, TaskStream

QUIET = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_checkpointing": False}


def fit(method=FedAvg, callbacks=(), data=(), rounds=1, **settings):
    module = method(MLP, local_steps=2, **settings)
    digits = FederatedDataModule("digits", **{"num_clients": 4, "clients_per_round": 2, "batch_size": 10, **dict(data)})
    Trainer(max_steps=rounds, callbacks=[*callbacks], **QUIET).fit(module, datamodule=digits)
    return module


# Losses -----------------------------------------------------------------------------------------------------------------


class Relative(Loss):
    def __call__(self, logits, target, label_counts):
        losses = F.cross_entropy(logits, target, reduction="none")
        return losses / losses.mean()


class Centred(Loss):
    def __call__(self, logits, target, label_counts):
        return F.cross_entropy(logits - logits.mean(dim=0), target, reduction="none")


class MeanForAll(Loss):
    def __call__(self, logits, target, label_counts):
        return F.cross_entropy(logits, target).expand(len(target))


class Noisy(Loss):
    """Draws, so two values of a sample differ whatever its batch is."""

    def __call__(self, logits, target, label_counts):
        return F.cross_entropy(logits + 0.01 * torch.randn_like(logits), target, reduction="none")


class AllPairs(Loss):
    needs_classes = False

    def __call__(self, outputs, target, label_counts):
        return (outputs - target).square().mean(dim=1)  # (B, 1) less (B,) is (B, B)


@pytest.mark.parametrize("loss", [Relative, Centred, MeanForAll])
def test_a_loss_in_which_samples_see_each_other_is_refused(loss):
    with pytest.raises(
        ValueError, match=rf"^model.loss is {loss.__name__}, which gives a sample [\d.-]+ in a batch and [\d.-]+ by"
    ):
        fit(loss=loss())
    fit(FedDecorr, loss=loss())  # which declares it


@pytest.mark.parametrize("loss", [Noisy(), TruncatedCrossEntropy(), torch.nn.CrossEntropyLoss(label_smoothing=0.1)])
def test_other_losses_are_taken(loss):
    fit(loss=loss, engine="sequential")


def test_a_regression_over_all_pairs_is_refused():
    inputs, targets = torch.randn(20, 3), torch.arange(20.0)
    data = from_arrays(inputs, targets, [range(10), range(10, 20)], objective=Regression(), batch_size=5)
    trainer = Trainer(max_steps=1, **QUIET)
    with pytest.raises(ValueError, match="^model.loss is AllPairs, which gives a sample"):
        trainer.fit(FedAvg(torch.nn.Linear(3, 1), loss=AllPairs(), local_steps=1), datamodule=data)


# Samplers ---------------------------------------------------------------------------------------------------------------


class Mask(ClientSampler):
    def cohort(self, round, num_clients, size, seed):
        return [True, False]


class TensorMask(ClientSampler):
    def cohort(self, round, num_clients, size, seed):
        return torch.tensor([True, False])


class Counts(ClientSampler):
    def __init__(self):
        self.counter = itertools.count()

    def cohort(self, round, num_clients, size, seed):
        return [next(self.counter) % num_clients]


class Unseeded(ClientSampler):
    def cohort(self, round, num_clients, size, seed):
        return np.random.choice(num_clients, size, replace=False)


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (Mask, r"data.client_sampler Mask names \[True, False\] in round 1, must name clients between 0 and 39"),
        (TensorMask, r"data.client_sampler TensorMask names tensor\(\[ True, False\]\) in round 1, must name clients"),
        (Counts, "data.client_sampler Counts draws other clients when it is asked for round 1 again: draw from round and seed"),
        (Unseeded, "data.client_sampler Unseeded draws other clients when it is asked for round 1 again"),
    ],
)
def test_a_sampler_names_the_same_clients_each_time(sampler, message):
    with pytest.raises(ValueError, match=message):
        FederatedDataModule("digits", num_clients=40, clients_per_round=4, client_sampler=sampler())


# Partitions, sources and optimizers ------------------------------------------------------------------------------------


def partition(give):
    return type("Deals", (Partition,), {"__call__": lambda self, labels, num_clients, seed: give(len(labels))})()


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda n: None, "data.partition Deals gives NoneType, must give a list with the samples of each client"),
        (lambda n: (range(n), []).__iter__(), "data.partition Deals gives tuple_iterator, must give a list"),
        (lambda n: {0: [0], 1: [1]}, "data.partition Deals gives dict, must give a list"),
        (lambda n: [{0}, {1}], "data.partition Deals gives a client set, must give a tensor of indices of samples"),
        (lambda n: ["ab", "cd"], "data.partition Deals gives a client str, must give a tensor of indices of samples"),
    ],
)
def test_what_a_partition_gives_is_checked(give, message):
    data = FederatedDataModule("digits", num_clients=2, clients_per_round=2, partition=partition(give))
    with pytest.raises(ValueError, match=message):
        data.setup()


def test_a_partition_may_give_arrays_and_lists():
    def shards(give):
        data = FederatedDataModule("digits", num_clients=2, clients_per_round=2, partition=partition(give))
        data.setup()
        return data.shards.train_indices(0).tolist(), data.shards.train_indices(1).tolist()

    expected = shards(lambda n: [torch.arange(0, n, 2), torch.arange(1, n, 2)])
    assert shards(lambda n: [np.arange(0, n, 2), [*range(1, n, 2)]]) == expected


@pytest.mark.parametrize("loaded", [None, ([], [])])
def test_a_source_loads_a_dataset(loaded):
    class Mine(Source):
        def load(self, root):
            return loaded

    with pytest.raises(
        ValueError, match=f"^data.source Mine loads {type(loaded).__name__}, must load a fl_lightning.data.Dataset"
    ):
        FederatedDataModule(Mine()).setup()


@pytest.mark.parametrize(
    ("change", "objective", "message"),
    [
        (Tensor.float, SingleLabel(), r"of type torch\.float32, must be torch\.int64 for SingleLabel: convert them"),
        (Tensor.int, SingleLabel(), r"of type torch\.int32, must be torch\.int64 for SingleLabel: convert them"),
        (Tensor.numpy, SingleLabel(), "of type ndarray, must be a tensor: convert them"),
        (Tensor.double, Regression(), r"of type torch\.float64, must be torch\.float32 for Regression: convert them"),
    ],
)
def test_targets_have_the_type_of_their_objective(change, objective, message):
    labels = torch.arange(10) % 2
    test = Samples(torch.zeros(0, 3), labels[:0].to(change(labels).dtype) if change is not Tensor.numpy else labels[:0])
    with pytest.raises(ValueError, match=f"^data.source gives training targets {message}$"):
        Dataset(Samples(torch.zeros(10, 3), change(labels)), test, ("0", "1"), objective=objective)


def augmentation(change, for_evaluation=lambda images: images):
    methods = {"__call__": lambda self, images, draws: change(images), "evaluate": lambda self, images: for_evaluation(images)}
    return type("Mine", (Augmentation,), methods)()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([list], r"returns a value of type list, must be a tensor of as many images as it is given, \(16, 1, 8, 8\)"),
        ([lambda images: images[:3]], r"returns \(3, 1, 8, 8\), must be a tensor of as many images as it is given"),
        ([lambda images: images[..., :6]], r"\(1, 8, 6\) for training and \(1, 8, 8\) for evaluation: override evaluate, too"),
        ([lambda images: images / 255], "returns floats up to 1 for images from 0 to 255: keep that scale"),
        ([lambda images: images, lambda images: images / 255], "returns floats up to 1 for images from 0 to 255"),
    ],
)
def test_what_an_augmentation_gives_is_checked(changes, message):
    data = FederatedDataModule("digits", num_clients=20, augment=[augmentation(*changes)])
    with pytest.raises(ValueError, match=f"^data.augment Mine .*{message}"):
        data.setup()


def test_an_augmentation_may_give_floats_and_another_shape_in_training_and_evaluation():
    cut = augmentation(lambda images: images[..., :6].float(), lambda images: images[..., 1:7].float())
    assert fit(data={"augment": [cut]}).net.features[1].in_features == 48


def test_an_optimizer_is_returned():
    with pytest.raises(ValueError, match=r"^model.optimizer builds NoneType, must build an optimizer of torch: return it"):
        fit(optimizer=lambda weights: None)


# Rules and hostile clients ----------------------------------------------------------------------------------------------


def rule(combine):
    return type("Rule", (Aggregation,), {"combine": lambda self, changes, measured: combine(changes)})()


@pytest.mark.parametrize(
    ("combine", "message"),
    [
        (lambda changes: {name: changes[name].median(dim=0) for name in changes}, "as median, must be a tensor"),
        (lambda changes: {name: changes[name] for name in changes}, r"of shape \(2, \d+\), must be \(\d+,\): without the"),
        (lambda changes: {}, "must return a dict with exactly the names that it is given"),
        (lambda changes: None, "must return a dict with exactly the names that it is given"),
    ],
)
def test_what_a_rule_gives_is_checked(combine, message):
    with pytest.raises(ValueError, match=rf"^Rule.combine .*{message}"):
        fit(aggregation=rule(combine))


def test_hostile_clients_that_would_attack_nothing_are_refused():
    with pytest.raises(TypeError, match="Doubles.changes is not called while corrupts_uploads is False: set it to True there"):

        class Doubles(Hostile):
            def changes(self, own, honest):
                return 2 * own

    class Misspelt(Hostile):
        def change(self, own, honest):
            return 2 * own

    with pytest.raises(ValueError, match="^model.hostile is Misspelt, which attacks nothing: give LabelFlip,"):
        Misspelt()

    class Bare(Hostile):
        flips_labels = True

        def __init__(self):
            self.share = 0.5

    with pytest.raises(ValueError, match=r"^Bare.__init__ does not call super\(\).__init__\(fraction\): call it first"):
        fit(hostile=Bare())


# Learners of tasks ------------------------------------------------------------------------------------------------------


def test_a_learner_that_leaves_out_what_its_base_does_is_refused():
    with pytest.raises(
        TypeError, match=r"Forgets.end_task leaves out what TaskLearner does there: call super\(\).end_task\(\)"
    ):

        class Forgets(TaskLearner):
            def end_task(self, net, client, position):
                client.state["ended"] = torch.ones(())

    class Remembers(TaskLearner):
        def end_task(self, net, client, position):
            super().end_task(net, client, position)
            client.state["ended"] = torch.ones(())


def test_a_misspelt_hook_of_a_learner_is_warned_of():
    with pytest.warns(
        UserWarning, match="Misspelt.client_penalti is not a hook, so no run reads it: did you mean client_penalty"
    ):

        class Misspelt(EWC):
            def client_penalti(self, net, client): ...


@pytest.mark.parametrize(("value", "what"), [(None, "None"), (3.5, "a value of type float")])
def test_a_penalty_without_a_gradient_is_refused(value, what):
    class Learns(TaskLearner):
        def client_penalty(self, net, client):
            return value

    class Method(FedAvg):
        def client_penalty(self, net, client):
            return value

    with pytest.raises(ValueError, match=rf"^Method.client_penalty returns {what}, must return a tensor of the weights, or 0"):
        fit(Method)
    with pytest.raises(ValueError, match=rf"^Learns.client_penalty returns {what}, must return a tensor of the weights, or 0"):
        fit(tasks=Learns(rounds_per_task=1), data={"tasks": TaskStream(classes_per_task=5)})


# Objectives and callbacks -----------------------------------------------------------------------------------------------


def test_an_objective_does_not_replace_what_is_logged():
    class Replaces(Regression):
        def also(self, loss):
            return {"loss": loss * 0}

    data = from_arrays(torch.randn(20, 3), torch.arange(20.0), [range(20)], objective=Replaces(), val_fraction=0.2)
    trainer = Trainer(max_steps=1, **QUIET)
    with pytest.raises(ValueError, match="^Replaces.also has 'loss', which is logged anyway: rename it"):
        trainer.fit(FedAvg(torch.nn.Linear(3, 1), local_steps=1), datamodule=data)


def test_what_a_callback_keeps_begins_anew_in_a_second_fit():
    class Keeps(FederatedCallback):
        kept = ("nested", "total")

        def __init__(self):
            super().__init__()
            self.nested, self.total = {"rounds": []}, torch.zeros(())

        def on_round_end(self, trainer, module, round, report):
            self.nested["rounds"].append(round)
            self.total += 1

    callback = Keeps()
    for _ in range(2):
        fit(callbacks=[callback], rounds=2)
        assert callback.nested == {"rounds": [1, 2]}
        assert callback.total == 2
