"""Unlearning and ProjectedAscent against nets that are asked, averaged and moved by plain loops."""

import copy

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback, EarlyStopping

from fl_lightning import Ditto, FedAvg, FederatedDataModule, FedPer, Trainer
from fl_lightning.callbacks import FederatedCallback, ProjectedAscent, Unlearning
from fl_lightning.data import Arrays
from fl_lightning.models import MLP
from fl_lightning.privacy import DPSGD

CLIENT, RADIUS = 2, 0.5


def federation(**settings):
    return FederatedDataModule("digits", **{"num_clients": 4, "clients_per_round": 4, "batch_size": 30, **settings})


def fitted(*callbacks, method=None, data=None, rounds=2, precision="32-true", **settings):
    method = FedAvg(MLP, local_steps=3, **settings) if method is None else method
    quiet = {"logger": False, "enable_checkpointing": False, "accelerator": "cpu", "precision": precision}
    Trainer(max_steps=rounds, callbacks=[*callbacks], **quiet).fit(method, datamodule=federation() if data is None else data)
    return method


class Kept(FederatedCallback):
    """The clients' models of the last cohort, as vectors, and all scalars by round."""

    def __init__(self):
        super().__init__()
        self.logged = {}

    def wants_models(self, round):
        return True

    def on_train_start(self, trainer, module):
        log = module.log_round
        module.log_round = lambda new, round: self.logged.setdefault(round, {}).update(new) or log(new, round)

    def on_cohort_fit_end(self, trainer, module, round, models):
        flat = models.evaluate(lambda net: torch.cat([weight.flatten() for _, weight in net.named_parameters()]))
        self.models = dict(zip(models.clients, flat))


def samples(data, client, part="train"):
    indices = getattr(data.shards, f"{part}_indices")(client)
    return data.preparation.for_evaluation(data.train_set.inputs[indices]), data.train_set.targets[indices]


def accuracy(net, inputs, targets):
    with torch.no_grad():
        return float((net.eval()(inputs).argmax(dim=1) == targets).double().mean())


def vector(net):
    return torch.cat([weight.detach().flatten() for weight in net.parameters()])


def test_what_is_measured_is_what_a_loop_finds(tmp_path):
    """Before round 1 and after the last, with the distance from another run's net."""
    other = fitted(rounds=1)
    torch.save(other.net.state_dict(), tmp_path / "other.pt")
    kept = Kept()
    method = fitted(kept, Unlearning(CLIENT, str(tmp_path / "other.pt"), every=2))
    begun, data = FedAvg(MLP, local_steps=3), method.data
    begun.join(data)
    assert [round for round, values in kept.logged.items() if "unlearning/distance" in values] == [0, 2]
    for round, net in ((0, begun.net), (2, method.net)):
        logged = kept.logged[round]
        assert float(logged["unlearning/forget_accuracy"]) == pytest.approx(accuracy(net, *samples(data, CLIENT)))
        rest = [samples(data, client) for client in range(4) if client != CLIENT]
        rest = [torch.cat(part) for part in zip(*rest)]
        assert float(logged["unlearning/rest_accuracy"]) == pytest.approx(accuracy(net, *rest))
        assert float(logged["unlearning/distance"]) == pytest.approx(float((vector(net) - vector(other.net)).norm()), rel=1e-5)
        losses = []
        for inputs, targets in (
            samples(data, CLIENT),
            (data.preparation.for_evaluation(data.test_set.inputs), data.test_set.targets),
        ):
            with torch.no_grad():
                losses.append((F.cross_entropy(net.eval()(inputs).double(), targets, reduction="none"), targets))
        (members, labels), (others, other_labels) = losses
        means = []
        for loss, label in zip(members, labels):
            pairs = others[other_labels == label]
            means.append(float((loss < pairs).double().mean() + (loss == pairs).double().mean() / 2))
        assert float(logged["unlearning/membership_auc"]) == pytest.approx(sum(means) / len(means), abs=1e-3)


class Ends(Callback):
    """After round 2, as with max_time."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        trainer.should_stop = trainer.global_step == 2


def test_the_last_round_of_a_run_that_ends_early_is_measured():
    kept = Kept()
    fitted(kept, Unlearning(CLIENT, every=10), Ends(), rounds=9)
    assert [round for round, values in kept.logged.items() if "unlearning/rest_accuracy" in values] == [0, 2]


def test_reduced_precision():
    """The ascent is in full precision, from the mean of weights that are in full precision."""
    kept, ascent = Kept(), ProjectedAscent(CLIENT, 1e-4, epochs=1)
    fitted(kept, ascent, precision="bf16-mixed", server_weighting="uniform")
    mean = sum(kept.models[client] for client in range(4) if client != CLIENT) / 3
    assert (vector(ascent.erased) - mean).norm() < 2e-4


@pytest.mark.parametrize("weighting", ["n_weighted", "uniform"])
def test_the_erased_net_is_that_of_a_loop(weighting):
    """Two passes of ascent with momentum 0.9 from the other clients' mean, projected onto the ball after each step."""
    kept, ascent = Kept(), ProjectedAscent(CLIENT, RADIUS, epochs=2, until=0.0, learning_rate=0.02)
    method = fitted(kept, ascent, server_weighting=weighting)
    data, others = method.data, [client for client in range(4) if client != CLIENT]
    counts = [data.num_train(client) if weighting == "n_weighted" else 1 for client in others]
    reference = sum(count * kept.models[client] for count, client in zip(counts, others)) / sum(counts)
    net = copy.deepcopy(method.net)
    speed, steps, projections = torch.zeros_like(reference), 0, 0
    torch.nn.utils.vector_to_parameters(reference.clone(), net.parameters())
    for epoch in (1, 2):
        for batch in data.client_batches().epoch(CLIENT, epoch, "projected ascent"):
            real = slice(None) if batch.real is None else batch.real
            loss = F.cross_entropy(net(batch.inputs[real]), batch.targets[real])
            gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, [*net.parameters()])])
            gradient = gradient * min(1.0, 5 / float(gradient.norm()))
            speed = 0.9 * speed + gradient
            moved = vector(net) + 0.02 * speed - reference
            if moved.norm() > RADIUS:
                moved, projections = moved * RADIUS / moved.norm(), projections + 1
            torch.nn.utils.vector_to_parameters(reference + moved, net.parameters())
            steps += 1
    assert 0 < projections < steps
    torch.testing.assert_close(vector(ascent.erased), vector(net), atol=1e-5, rtol=1e-4)
    assert kept.logged[2]["ascent/steps"] == steps
    assert float(kept.logged[2]["ascent/distance"]) == pytest.approx(RADIUS, rel=1e-3)
    assert float(kept.logged[2]["ascent/accuracy"]) == pytest.approx(accuracy(net, *samples(data, CLIENT, "validation")))


def test_it_ends_below_the_accuracy_and_the_run_is_the_same():
    """The first step below ``until`` is the last one; the run's weights are those without the callbacks."""
    kept, ascent = Kept(), ProjectedAscent(CLIENT, 100.0, epochs=50, until=0.3, learning_rate=0.1)
    method, without = fitted(kept, ascent, Unlearning(CLIENT), rounds=20), fitted(rounds=20)
    assert all(map(torch.equal, method.net.parameters(), without.net.parameters()))
    assert float(kept.logged[20]["ascent/accuracy"]) < 0.3 < accuracy(method.net, *samples(method.data, CLIENT, "validation"))
    assert kept.logged[20]["ascent/steps"] < 50 * method.data.steps_per_epoch(CLIENT)


def test_a_client_outside_of_the_last_round_starts_from_the_global_net():
    """Which is then the mean of the others' models."""
    kept, ascent = Kept(), ProjectedAscent(CLIENT, 1e-6)
    method = fitted(kept, ascent, data=federation(cohorts=[[0, CLIENT], [1, 3]], clients_per_round=1))
    assert (vector(ascent.erased) - vector(method.net)).norm() < 1e-4


def test_a_client_of_a_last_round_without_others_starts_from_what_it_received():
    """Not from the global model of the round, which is its own."""
    method = fitted(ascent := ProjectedAscent(CLIENT, 1e-6), data=federation(cohorts=[[0, 1], [CLIENT]], clients_per_round=1))
    received = fitted(data=federation(cohorts=[[0, 1]], clients_per_round=1), rounds=1)
    assert (vector(ascent.erased) - vector(received.net)).norm() < 1e-4 < (vector(method.net) - vector(received.net)).norm()


def test_an_ascent_of_a_second_fit_starts_from_that_fits_net():
    """Not from the models of the first, which had the client in its last round."""
    ascent, method = ProjectedAscent(CLIENT, 1e-6), None
    for cohorts in ([[0, CLIENT]], [[1, 3]]):
        method = fitted(ascent, data=federation(cohorts=cohorts, clients_per_round=1), rounds=1)
    assert (vector(ascent.erased) - vector(method.net)).norm() < 1e-4


def one_set(**settings):
    return FederatedDataModule(Arrays(torch.zeros(8, 3), [0, 1] * 4), num_clients=2, clients_per_round=2, **settings)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fitted(Unlearning(4)), "Unlearning.client is 4, must be one of several clients, between 0 and 3"),
        (lambda: fitted(Unlearning(0), data=federation(num_clients=1, clients_per_round=1)), "Unlearning.client is 0"),
        (lambda: fitted(Unlearning(0), method=FedPer(MLP)), "Unlearning: model is FedPer, whose clients keep parts"),
        (lambda: fitted(Unlearning(0), data=one_set()), "Unlearning compares losses with test samples"),
        (lambda: ProjectedAscent(0, 0.0), r"ProjectedAscent.radius is 0\.0"),
        (lambda: ProjectedAscent(0, 1.0, until=1.0), r"ProjectedAscent.until is 1\.0"),
        (lambda: ProjectedAscent(0, 1.0, epochs=0), "ProjectedAscent.epochs is 0"),
        (lambda: ProjectedAscent(0, 1.0, learning_rate=0.0), r"ProjectedAscent.learning_rate is 0\.0"),
        (lambda: fitted(ProjectedAscent(0, 1.0), data=federation(val_fraction=0.0)), "ProjectedAscent stops by validation"),
        (lambda: fitted(ProjectedAscent(0, 1.0), method=Ditto(MLP)), "clients of Ditto use models of their own: leave it out"),
        (lambda: fitted(ProjectedAscent(0, 1.0), privacy=DPSGD(1.0)), "ProjectedAscent: model.privacy is .*adds no noise"),
        (
            lambda: fitted(ProjectedAscent(0, 1.0), EarlyStopping("val/accuracy")),
            "ProjectedAscent begins from the models of round 2, before which EarlyStopping can end the run: leave that out",
        ),
    ],
)
def test_what_cannot_be_forgotten_is_refused(make, message):
    """In one line, before round 1."""
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_another_net_and_a_missing_file_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="Unlearning: retrained"):
        fitted(Unlearning(CLIENT, str(tmp_path / "none.pt")))
    torch.save(torch.nn.Linear(2, 2).state_dict(), tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r"Unlearning: retrained is .*other\.pt, which holds another net"):
        fitted(Unlearning(CLIENT, str(tmp_path / "other.pt")))
