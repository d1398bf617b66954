"""LANDER: a client's step, the choice of a task's model and the server's synthesis against their equations in plain loops."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from class_names import embeddings_of
from generator_by_hand import PLAN, PlainAdam, batch_norm, moments, normal, plain_divergence, plain_images
from torch import nn

from fl_lightning.callbacks import FederatedCallback
from fl_lightning.data import Devices, Samples
from fl_lightning.data.prepared_samples import Preparation
from fl_lightning.functional.random_streams import torch_stream
from fl_lightning.tasks import LANDER, ClassLearner
from fl_lightning.tasks.classes.anchored_synthesis import AnchoredSynthesis, even_classes
from fl_lightning.tasks.classes.generator import AnchoredGenerator
from fl_lightning.tasks.classes.synthesis import SynthesisPlan, SynthesisTask

T, ANCHOR, RADIUS = 3.0, 2.0, 0.1
FILE = embeddings_of("abcdef")
SMALL = {**PLAN, "generated": 3, "embeddings": FILE}
PROJECTION = ("anchor_projection.weight", "anchor_projection.bias")


class Rounds(FederatedCallback):
    """Keeps the model, the synthesised images and the lowest loss with which every round begins or ends."""

    def __init__(self) -> None:
        super().__init__()
        self.models, self.images, self.lowest = {}, {}, {}

    def on_round_start(self, trainer, module, round):
        self.models[round] = {name: weight.detach().clone() for name, weight in module.net.named_parameters()}
        self.images[round] = module.tasks.synthesised.clone()

    def on_round_end(self, trainer, module, round, report):
        self.lowest[round] = float(module.tasks.lowest_loss)


class Models(FederatedCallback):
    """Keeps the weights with which round 1 begins."""

    def on_round_start(self, trainer, module, round):
        self.first = {name: weight.detach().clone() for name, weight in module.net.named_parameters()}


def rows_of(names):
    """Of the file, by hand."""
    with np.load(FILE) as archive:
        held = dict(zip(archive["classes"].tolist(), archive["embeddings"]))
    return torch.tensor(np.array([held[name] for name in names]))


def projected(arriving, weights, inputs):
    return arriving.features(weights, inputs) @ weights[PROJECTION[0]].T + weights[PROJECTION[1]]


def squared_mean(difference):
    """Over samples and the width, by counting."""
    return sum(number**2 for row in difference for number in row) / difference.numel()


def plain_run(arriving, seen, anchors, pre, cur, anchor_weight=ANCHOR, radius=RADIUS, cohorts=None):
    """All rounds; the images are those that the run had, all else is written out. Gives the weights and the lowest losses."""
    start = SimpleNamespace(teacher={}, losses={}, models={}, lowest={})

    def new_net():
        net = type(arriving).new_net(arriving)
        net.anchor_projection = nn.Linear(3, anchors.shape[1]).double()
        for name, weight in net.named_parameters():
            weight.data.copy_(seen.models[1][name])
        return net

    def objective(visit, weights, inputs, targets):
        far = squared_mean(projected(arriving, weights, inputs) - anchors[targets]) - radius
        loss = arriving.new_loss(visit, weights, inputs, targets) + anchor_weight * (far if far > 0 else 0 * far)
        if visit.position > 0:
            u, v = math.log(visit.seen / 2 + 1) / math.log(2), (visit.first / visit.seen) ** 0.5
            loss = cur * (1 + 1 / u) / v * loss + pre * u * v * kept(visit, weights)
        start.models.setdefault(visit.round, visit.received)
        start.losses.setdefault(visit.round, []).append(loss.item())
        return loss

    def kept(visit, weights):
        if pre == 0:
            return 0.0
        stream, order = torch_stream(0, visit.round, visit.client, "order of synthesised images"), []
        while len(order) < 3 * (visit.step + 1):
            order += torch.randperm(8, generator=stream).tolist()
        images = seen.images[visit.round][order[3 * visit.step : 3 * visit.step + 3]].double() / 255
        p, q = ((arriving.logits(of, images)[:, : visit.first] / T).exp() for of in (start.teacher, weights))
        p, q = p / p.sum(dim=1, keepdim=True), q / q.sum(dim=1, keepdim=True)
        distilled = -sum(p[b, c] * q[b, c].log() for b in range(3) for c in range(visit.first)) / 3
        return distilled + squared_mean(projected(arriving, weights, images) - projected(arriving, start.teacher, images))

    def after_task(visit, weights):
        rounds = [visit.round - 1, visit.round]
        means = {round: sum(start.losses[round]) / len(start.losses[round]) for round in rounds}
        start.lowest[visit.round] = min(means.values())
        best = start.models[min(rounds, key=means.get)]
        weights.update({name: weight.clone() for name, weight in best.items()})
        start.teacher.update(weights)

    plain = type(arriving)(None)
    plain.new_net = new_net
    return plain.plain(objective, after_task=after_task, cohorts=cohorts), start.lowest


@pytest.mark.parametrize(("pre", "cur", "anchor_weight", "radius"), [(0.7, 0.6, ANCHOR, RADIUS), (0.0, 0.6, 0.0, RADIUS)])
def test_all_tasks_equal_the_equations(arriving, pre, cur, anchor_weight, radius):
    """Loss, its weights by numbers of classes, and the model of the round with the lowest loss; also without extras."""
    seen = Rounds()
    settings = {"distillation": pre, "present": cur, "temperature": T, "anchor_weight": anchor_weight, "radius": radius}
    trained = arriving.train(LANDER, callbacks=[seen], **{**SMALL, **settings})
    anchors = rows_of(trained.data.classes)
    torch.testing.assert_close(trained.tasks.embeddings, anchors, atol=0, rtol=0)
    expected, lowest = plain_run(arriving, seen, anchors, pre, cur, anchor_weight, radius)
    arriving.assert_same(trained.net, expected)
    assert {round: seen.lowest[round] for round in lowest} == pytest.approx(lowest, abs=1e-9)
    assert bool(seen.images[6].any()) == (pre > 0)


def test_a_cohort_with_few_steps_is_no_better_for_it(arriving):
    """One client in a task's first round, then all: the lowest loss of a step decides, not the lowest sum over an epoch."""
    cohorts, seen = [[2], [0, 1, 2]] * 3, Rounds()
    settings = {**SMALL, "distillation": 0.0, "present": 0.6, "anchor_weight": ANCHOR, "radius": RADIUS}
    trained = arriving.train(LANDER, arriving.new_data(cohorts=cohorts), callbacks=[seen], **settings)
    expected, lowest = plain_run(arriving, seen, rows_of(trained.data.classes), 0.0, 0.6, cohorts=cohorts)
    arriving.assert_same(trained.net, expected)
    assert {round: seen.lowest[round] for round in lowest} == pytest.approx(lowest, abs=1e-9)


@pytest.mark.parametrize("cut_by", ["local_steps", "devices"])
def test_the_loss_is_of_the_steps_that_were_taken(arriving, cut_by, tmp_path):
    """Two steps of each client, fewer than an epoch has: the mean of what the clients report."""
    path = tmp_path / "speeds.csv"
    path.write_text("client,samples_per_second,download,upload\n" + "".join(f"{k},1,1e9,1e9\n" for k in range(3)))
    slow = {"devices": Devices(str(path), deadline=15.0, partial_work=True)} if cut_by == "devices" else {}
    data, seen = arriving.new_data(**slow), Rounds()
    steps = {"local_steps": 2} if cut_by == "local_steps" else {}
    trained = arriving.train(LANDER, data, rounds=1, callbacks=[seen], **steps, **SMALL)
    assert min(data.steps_per_epoch(client) for client in range(3)) > 2
    losses = trained.seen.rounds[0].losses
    assert seen.lowest[1] == pytest.approx(sum(losses) / 3, abs=1e-12)


def test_the_first_round_without_an_anchor_is_fine_tuning(arriving):
    """Bit for bit; nothing moves the projection but the rounding of the mean over clients."""
    plain, seen = arriving.train(ClassLearner, rounds=1), Rounds()
    off = arriving.train(LANDER, rounds=1, anchor_weight=0.0, callbacks=[seen], **SMALL)
    net = dict(off.net.named_parameters())
    for name, weight in plain.net.named_parameters():
        assert torch.equal(net[name], weight), name
    for name in PROJECTION:
        torch.testing.assert_close(net[name].detach(), seen.models[1][name], atol=1e-15, rtol=0)


def test_features_within_the_radius_are_free(arriving):
    """A radius that holds all is the same as no anchor, bit for bit."""
    free, wide = (arriving.train(LANDER, rounds=1, **SMALL, **s) for s in ({"anchor_weight": 0.0}, {"radius": 1e6}))
    arriving.assert_same(wide.net, free.net, atol=0)


class Reduced:
    """A round's loss, mean over steps."""

    names = ("first_epoch_loss",)

    def __init__(self, loss):
        self.loss = torch.tensor(loss, dtype=torch.float64)

    def mean(self, name):
        return {"mean": self.loss}


def test_a_task_ends_with_the_best_model_that_was_sent(arriving):
    """Losses 3, 1, 2 of the models 10, 20, 30 in three rounds: 20; the first of equal ones; without any loss the last, 40."""
    tasks = arriving.train(LANDER, rounds=1, **{**SMALL, "rounds_per_task": 3}).tasks
    weight = tasks.method.net.classifier.weight.data
    for losses, expected in (((3.0, 1.0, 2.0), 20.0), ((1.0, 1.0, 2.0), 10.0), ((-5.0, None, -6.0), 30.0), ((None,) * 3, 40.0)):
        for count in (tasks.clocks.rounds_in_task, tasks.measured_rounds):  # as when a task begins
            count.zero_()
        tasks.clocks.read()
        for model, loss in zip((10.0, 20.0, 30.0), losses):
            weight.fill_(model)
            if loss is not None:
                tasks.receive(Reduced(loss))
            weight.fill_(40.0)
            tasks.end_round([])
        assert weight.unique().tolist() == [expected]


def test_the_loss_is_of_the_first_epoch(arriving):
    """A second epoch adds nothing."""
    one, two = Rounds(), Rounds()
    for seen, epochs in ((one, 1), (two, 2)):
        arriving.train(LANDER, rounds=1, local_epochs=epochs, callbacks=[seen], **SMALL)
    assert one.lowest[1] == two.lowest[1] > 0


def test_what_goes_up_and_down(arriving):
    """A number of 8 bytes and the projection more than in fine-tuning; from the second task on also model and images."""
    plain, on = (arriving.train(method, **settings) for method, settings in ((ClassLearner, {}), (LANDER, SMALL)))
    projection = 8 * (3 * 4 + 4)
    up = [a.bytes_up - b.bytes_up for a, b in zip(on.seen.rounds, plain.seen.rounds)]
    assert up == [3 * (projection + 8)] * 6
    down = [a.bytes_down - b.bytes_down for a, b in zip(on.seen.rounds, plain.seen.rounds)]
    images, model = 3 * 8 * 2 * 3 * 3, plain.seen.rounds[0].bytes_down + 3 * projection
    assert down == [3 * projection] * 2 + [3 * projection + model + images] * 4


def test_clients_keep_nothing(arriving):
    trained = arriving.train(LANDER, rounds=3, **SMALL)
    assert [trained.stored.states.read(client).method for client in range(3)] == [{}] * 3


def test_what_does_not_fit_is_refused(arriving):
    for settings, message in (
        ({"distillation": -1.0}, "model.tasks.distillation is -1.0, must be at least 0: 0 distils nothing"),
        ({"present": 0.0}, "model.tasks.present is 0.0, must be above 0: the authors' code has 0.2"),
        ({"anchor_weight": -1.0}, "model.tasks.anchor_weight is -1.0, must be at least 0: 0 leaves features free"),
        ({"radius": float("nan")}, "model.tasks.radius is nan, must be at least 0: the authors' code has 0.015"),
        ({"generated": 0}, "model.tasks.generated is 0, must be at least 1"),
        (
            {"rounds_per_task": 1},
            "model.tasks.rounds_per_task is 1, must be at least 2: a task ends with a model that was sent in one of its "
            "rounds, and the first sends the former task's",
        ),
        ({"student_rate": 0.0}, "model.tasks.student_rate is 0.0, must be above 0"),
    ):
        with pytest.raises(ValueError) as error:
            LANDER(FILE, **settings)
        assert str(error.value) == message


CURE = "write one with numpy.savez(FILE, classes=NAMES, embeddings=NUMBERS), as docs/arriving_classes.md shows"
NAMES, NUMBERS = np.array(list("abcdef")), np.ones((6, 4))
WRONG = {
    "no such array": ({"inputs": NUMBERS}, f"which has inputs: {CURE}"),
    "one too few": ({"classes": NAMES}, f"which has classes: {CURE}"),
    "numbers for names": (
        {"classes": NUMBERS, "embeddings": NUMBERS},
        f"whose classes are float64 of shape (6, 4), not names: {CURE}",
    ),
    "fewer rows": (
        {"classes": NAMES, "embeddings": NUMBERS[:5]},
        f"whose embeddings are float64 of shape (5, 4), not a row of numbers for each of its 6 classes: {CURE}",
    ),
    "no width": (
        {"classes": NAMES, "embeddings": NUMBERS[:, :0]},
        f"whose embeddings are float64 of shape (6, 0), not a row of numbers for each of its 6 classes: {CURE}",
    ),
    "text": (
        {"classes": NAMES, "embeddings": NUMBERS.astype(str)},
        f"whose embeddings are <U32 of shape (6, 4), not a row of numbers for each of its 6 classes: {CURE}",
    ),
    "twice": ({"classes": np.array(list("abcdee")), "embeddings": NUMBERS}, "which has class e twice: leave one out"),
    "not finite": (
        {"classes": NAMES, "embeddings": np.where(NAMES[:, None] == "c", np.inf, NUMBERS)},
        "whose embedding of class c is not finite: write it again",
    ),
    "too large for float32": (
        {"classes": NAMES, "embeddings": np.where(NAMES[:, None] == "c", 1e60, NUMBERS)},
        "whose embedding of class c is not finite: write it again",
    ),
    "widths that differ": (
        {"classes": NAMES, "embeddings": np.array([[1.0]] * 5 + [[1.0, 2.0]], dtype=object)},
        "which is not an archive of plain arrays (embeddings.npy holds Python objects): save it again",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_refused_before_data_are_there(case, tmp_path):
    """In one line, with key, value and cure; Python objects in it are never made."""
    arrays, message = WRONG[case]
    path = tmp_path / "names.npz"
    np.savez(path, **arrays)
    with pytest.raises(ValueError) as error:
        LANDER(str(path))
    assert str(error.value) == f"model.tasks.embeddings is {path}, {message}"


def test_a_file_that_is_not_there_or_of_another_kind_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError) as empty:
        LANDER("")
    assert str(empty.value) == f"model.tasks.embeddings is empty: {CURE}"
    with pytest.raises(FileNotFoundError) as missing:
        LANDER("nowhere.npz")
    assert str(missing.value) == f"model.tasks.embeddings is nowhere.npz, which does not exist: {CURE}"
    path = tmp_path / "names.npz"
    path.write_text("zero,1,2")
    with pytest.raises(ValueError) as other:
        LANDER(str(path))
    assert str(other.value) == (
        f"model.tasks.embeddings is {path}, which is not an archive of plain arrays (it is a single array, or something else): "
        "save it again"
    )


def test_a_class_without_embedding_and_a_net_that_cannot_have_a_projection_are_refused_before_round_1(arriving):
    few = embeddings_of("abdef")
    with pytest.raises(ValueError) as error:
        arriving.train(LANDER, **{**SMALL, "embeddings": few})
    assert str(error.value) == (
        f"model.tasks.embeddings is {few}, which has no class c of data.source: add its embedding, under this name"
    )
    net = nn.Sequential(nn.Flatten(), nn.Linear(18, 6)).double()
    with pytest.raises(ValueError, match="^model.net is Sequential, which would run the layer that LANDER adds"):
        arriving.train(LANDER, net=net, class_layer="1", **SMALL)


def changed_file(path, change):
    """The file's names and numbers in reverse, without the class that the data lack, and with the numbers changed."""
    with np.load(FILE) as archive:
        np.savez(path, classes=archive["classes"][:0:-1], embeddings=change(archive["embeddings"][:0:-1]))
    return {**SMALL, "embeddings": str(path)}


def test_a_run_is_resumed_with_the_same_numbers_of_another_file(arriving, tmp_path):
    """The file has moved, and has other rows for what the data lack: as in one go."""
    arriving.train(LANDER, rounds=1, checkpoints=tmp_path, **SMALL)
    moved = changed_file(tmp_path / "moved.npz", lambda numbers: numbers)
    resumed = arriving.train(LANDER, rounds=3, ckpt_path=tmp_path / "step=1.ckpt", **moved)
    arriving.assert_same(resumed.net, arriving.train(LANDER, rounds=3, **SMALL).net, atol=0)


@pytest.mark.parametrize(
    "change", [lambda numbers: numbers + 1e-9, lambda numbers: numbers[::-1], lambda numbers: numbers[:, 1:]]
)
def test_a_run_is_not_resumed_with_other_numbers(arriving, change, tmp_path):
    """Also those of other classes, or fewer, in one line with the key."""
    arriving.train(LANDER, rounds=1, checkpoints=tmp_path, **SMALL)
    other = changed_file(tmp_path / "other.npz", change)
    with pytest.raises(
        ValueError, match=r"^ckpt_path is of a run with other settings: .*model\.tasks\.embeddings is tensor "
    ) as error:
        arriving.train(LANDER, rounds=2, ckpt_path=tmp_path / "step=1.ckpt", **other)
    assert "\n" not in str(error.value)
    assert "path is" not in str(error.value).removeprefix("ckpt_path is")


def test_another_learner_begins_with_the_net_of_lander(arriving, tmp_path):
    """Without the projection, and otherwise with its weights."""
    arriving.train(LANDER, rounds=1, checkpoints=tmp_path, **SMALL)
    saved = torch.load(tmp_path / "step=1.ckpt", weights_only=False)["state_dict"]
    seen = Models()
    arriving.train(ClassLearner, rounds=1, initial_weights=str(tmp_path / "step=1.ckpt"), callbacks=[seen])
    for name, weight in seen.first.items():
        assert torch.equal(weight, saved[f"net.{name}"]), name
    assert not set(PROJECTION) & seen.first.keys()


# The synthesis ------------------------------------------------------------------------------------------------------


class SmallNet(nn.Module):
    """BatchNorm, then features, six classes of images of 2x3x5 and a projection; with moments unlike those of images."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(30, 5), nn.Tanh())
        self.classifier, self.anchor_projection = nn.Linear(5, 6), nn.Linear(5, 3)

    def forward(self, inputs):
        return self.classifier(self.features(inputs))


def new_net():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        net = SmallNet().double()
    norm = net.features[0]
    norm.running_mean[:], norm.running_var[:] = torch.tensor([0.3, 0.6]), torch.tensor([0.2, 0.05])
    return net


ANCHORS = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
BATCH = 14  # of which ten share a linear layer, and four another


def new_synthesis(boundary="agree"):
    weights = {"class_weight": 0.5, "statistics_weight": 3.0, "boundary_weight": 1.0, "student_temperature": 20.0}
    plan = SynthesisPlan(**{**PLAN, **weights, "synthesis_batch": BATCH, "generator_rate": 0.002, "boundary": boundary})
    stored = Samples(torch.zeros(1, 2, 3, 5, dtype=torch.float64), torch.zeros(1, dtype=torch.int64))
    preparation = Preparation(stored, (), [0.4, 0.6], [0.25, 0.5])
    preparation.to(torch.device("cpu"), torch.float64)
    of = SynthesisTask("LANDER", new_net(), 4, (2, 3, 5), preparation, 7, 1)
    return AnchoredSynthesis(plan, of, ANCHORS, ANCHOR, RADIUS)


def anchored_images(w, embeddings):
    """The generator's images; sample b has linear layer b // 10."""
    scaled = normal(w, embeddings, "scale")
    rows = [row @ w[f"layers.{b // 10}.weight"].T + w[f"layers.{b // 10}.bias"] for b, row in enumerate(scaled)]
    return plain_images(w, torch.stack(rows))


def plain_outputs(w, inputs, statistics):
    """Logits of the four classes seen, and the projection."""
    values = batch_norm(inputs, *statistics, w["features.0.weight"], w["features.0.bias"]).flatten(1)
    features = (values @ w["features.2.weight"].T + w["features.2.bias"]).tanh()
    logits = features @ w["classifier.weight"].T + w["classifier.bias"]
    return logits[:, :4], features @ w[PROJECTION[0]].T + w[PROJECTION[1]]


def plain_synthesis(synthesis, boundary):
    """Generator with scale, student and images after all rounds, from the same first weights and draws."""
    G = {name: weight.detach().clone() for name, weight in synthesis.generator.named_parameters()}
    G["mean"], G["std"] = (torch.full((2, 1, 1), value, dtype=torch.float64) for value in (0.5, 0.2))
    S = {name: weight.detach().clone() for name, weight in synthesis.student.named_parameters()}
    net = new_net()
    teacher = {name: weight.detach() for name, weight in net.named_parameters()}
    r_mean, r_var = net.features[0].running_mean, net.features[0].running_var
    s_mean, s_var = r_mean.clone(), r_var.clone()  # the student's
    data_mean, data_std = (torch.tensor(values, dtype=torch.float64).view(2, 1, 1) for values in ([0.4, 0.6], [0.25, 0.5]))
    draws, stored, former = torch_stream(7, 1, -1, "synthesis"), [], None
    for round in range(3):
        for layer in range(2):
            G[f"layers.{layer}.weight"] = torch.randn(256, 3, generator=draws, dtype=torch.float64)
            G[f"layers.{layer}.bias"] = torch.zeros(256, dtype=torch.float64)
        labels = [0, 1, 2, 3] * 3 + torch.randint(4, (2,), generator=draws).tolist()
        inner, best = PlainAdam(), (math.inf, None)
        rates = {name: 0.01 if name in ("mean", "std") else 0.002 for name in G}
        for _ in range(2):
            leaves = {name: weight.clone().requires_grad_() for name, weight in G.items()}
            images = anchored_images(leaves, ANCHORS[labels])
            inputs = (images - leaves["mean"]) / leaves["std"]
            mean, var = moments(inputs)
            if former is not None:
                mean, var = 0.1 * mean + 0.9 * former[0], 0.1 * var + 0.9 * former[1]
            said, near = plain_outputs(teacher, inputs, (r_mean, r_var))
            loss = 3 * ((r_var - var).pow(2).sum().sqrt() + (r_mean - mean).pow(2).sum().sqrt())
            loss = loss + 0.5 * sum(said[b].logsumexp(0) - said[b, labels[b]] for b in range(BATCH)) / BATCH
            far = squared_mean(near - ANCHORS[labels]) - RADIUS
            loss = loss + ANCHOR * (far if far > 0 else 0 * far)
            if round >= 1:
                heard, _ = plain_outputs(S, inputs, (s_mean, s_var))
                counts = [(heard[b].argmax() == said[b].argmax()) == (boundary == "agree") for b in range(BATCH)]
                loss = loss - sum(value * float(count) for value, count in zip(plain_divergence(said, heard), counts)) / BATCH
            if loss.item() < best[0]:
                best = loss.item(), images.detach()
            gradients = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values()))))
            G = inner.move({n: w.detach() for n, w in leaves.items()}, gradients, rates)
        former = mean.detach(), var.detach()
        if round < 1:
            continue
        stored.append((best[1] * 255).round())
        order, velocity = [], {}
        while len(order) < 2 * 128:
            order += torch.randperm(BATCH * len(stored), generator=draws).tolist()
        for step in range(2):
            inputs = (torch.cat(stored)[order[128 * step : 128 * step + 128]] / 255 - data_mean) / data_std
            leaves = {name: weight.clone().requires_grad_() for name, weight in S.items()}
            mean_s, var_s = moments(inputs)
            count = 128 * 15
            s_mean, s_var = 0.9 * s_mean + 0.1 * mean_s, 0.9 * s_var + 0.1 * var_s * count / (count - 1)
            (said, near), (heard, own) = (
                plain_outputs(teacher, inputs, (r_mean, r_var)),
                plain_outputs(leaves, inputs, (mean_s, var_s)),
            )
            loss = 400 * plain_divergence(said / 20, heard / 20).mean() + ANCHOR * ((own - near) ** 2).mean()
            for (name, leaf), gradient in zip(leaves.items(), torch.autograd.grad(loss, list(leaves.values()))):
                velocity[name] = 0.9 * velocity.get(name, 0) + gradient + 2e-4 * S[name]
                S[name] = leaf.detach() - 0.01 * velocity[name]
    return G, S, torch.cat(stored)


@pytest.mark.parametrize("boundary", ["agree", "disagree"])
def test_the_synthesis_equals_the_equations(boundary):
    """Layers drawn anew, losses, Adam with the scale, best batch, student: three rounds, the first a warm-up."""
    synthesis = new_synthesis(boundary)
    G, S, expected = plain_synthesis(synthesis, boundary)
    images = synthesis.run()
    named = {**dict(synthesis.generator.named_parameters()), "mean": synthesis.mean, "std": synthesis.std}
    for weights, found in ((G, named), (S, dict(synthesis.student.named_parameters()))):
        assert weights.keys() == found.keys()
        for name, weight in found.items():
            # Adam divides small gradients by their size, with their rounding.
            torch.testing.assert_close(weight.detach(), weights[name], atol=1e-6, rtol=1e-6, msg=name)
    assert images.shape == (2 * BATCH, 2, 3, 5)
    assert torch.equal(images, expected.to(torch.uint8))


def test_the_generator_is_that_of_the_code():
    """TARGET's 2,328,899 parameters for CIFAR, BatchNorm of 512 numbers, and 26 layers of 512 x 256 with biases."""
    generator = AnchoredGenerator((3, 32, 32), 512, 256)
    assert sum(weight.numel() for weight in generator.parameters()) == 2_328_899 + 2 * 512 + 26 * (512 * 256 + 256)
    generator.redraw(torch.Generator().manual_seed(0))
    weights = torch.stack([layer.weight.detach() for layer in generator.layers])
    assert float(weights.std()) == pytest.approx(1, abs=1e-3)
    assert not any(layer.bias.any() for layer in generator.layers)
    images = generator(torch.randn(256, 512, generator=torch.Generator().manual_seed(1)))
    assert images.shape == (256, 3, 32, 32)
    assert 0 <= images.min() <= images.max() <= 1


def test_classes_are_even():
    """Seven images of three classes: each twice, and one more."""
    found = even_classes(7, 3, torch.Generator().manual_seed(0)).tolist()
    assert found[:6] == [0, 1, 2, 0, 1, 2]
    assert found[6] in (0, 1, 2)
    assert len(even_classes(2, 3, torch.Generator())) == 2


def test_a_net_that_changes_the_outputs_of_its_class_layer_is_refused(arriving):
    """Of the classes that have arrived; minus infinity of the others is the head's own."""
    net = arriving.new_net()
    net.register_forward_hook(lambda net, inputs, outputs: outputs.log_softmax(dim=1))
    with pytest.raises(ValueError) as error:
        arriving.train(LANDER, net=net, **SMALL)
    assert str(error.value) == (
        "model.tasks is LANDER, which calls the class layer of model.net, but TinyNet changes its outputs: let the net return "
        "them as they are, or use LwF"
    )
