"""TARGET: a client's step and the synthesis at the server against their equations in plain loops."""

import math

import pytest
import torch
from generator_by_hand import PLAN, PlainAdam, batch_norm, moments, plain_divergence, plain_images
from torch import nn

from fl_lightning.callbacks import FederatedCallback
from fl_lightning.data import RandomCrop, RandomHorizontalFlip, Samples
from fl_lightning.data.prepared_samples import Preparation
from fl_lightning.functional import boundary_loss, moment_distance
from fl_lightning.functional.random_streams import torch_stream
from fl_lightning.tasks import TARGET, ClassLearner
from fl_lightning.tasks.classes.meta_synthesis import MetaSynthesis
from fl_lightning.tasks.classes.synthesis import SynthesisPlan, SynthesisTask, cycled_order

ALPHA, T = 1.5, 3.0
SMALL = {**PLAN, "generated": 3}


class Images(FederatedCallback):
    """Keeps the synthesised images of every round."""

    def __init__(self) -> None:
        super().__init__()
        self.by_round = {}

    def on_round_start(self, trainer, module, round):
        self.by_round[round] = module.tasks.synthesised.clone()


def test_all_tasks_equal_the_equation(arriving):
    """``CE_new - alpha/B' sum_b sum_{c<o} p_bc log q_bc`` with p and q on the next images of an order that goes round."""
    seen, teacher = Images(), {}
    trained = arriving.train(TARGET, distillation=ALPHA, temperature=T, callbacks=[seen], **SMALL)

    def objective(visit, weights, inputs, targets):
        loss = arriving.new_loss(visit, weights, inputs, targets)
        if visit.position == 0:
            return loss
        stream, order = torch_stream(0, visit.round, visit.client, "order of synthesised images"), []
        while len(order) < 3 * (visit.step + 1):
            order += torch.randperm(8, generator=stream).tolist()
        images = seen.by_round[visit.round][order[3 * visit.step : 3 * visit.step + 3]].double() / 255
        p, q = ((arriving.logits(of, images)[:, : visit.first] / T).exp() for of in (teacher, weights))
        p, q = p / p.sum(dim=1, keepdim=True), q / q.sum(dim=1, keepdim=True)
        return loss - ALPHA * sum(p[b, c] * q[b, c].log() for b in range(3) for c in range(visit.first)) / 3

    expected = arriving.plain(objective, after_task=lambda visit, weights: teacher.update(weights))
    arriving.assert_same(trained.net, expected)


def test_without_distillation_it_is_fine_tuning(arriving):
    """Bit for bit, without synthesis; with it the model and the images go down from the second task on."""
    plain, off, on = (
        arriving.train(method, **settings)
        for method, settings in ((ClassLearner, {}), (TARGET, {"distillation": 0.0, **SMALL}), (TARGET, SMALL))
    )
    arriving.assert_same(off.net, plain.net, atol=0)
    assert not off.tasks.synthesised.any()
    more = [[a.bytes_down - b.bytes_down for a, b in zip(run.seen.rounds, plain.seen.rounds)] for run in (off, on)]
    each = plain.seen.rounds[0].bytes_down + 3 * 8 * 2 * 3 * 3  # of three clients; 8 images of a byte a value
    assert more == [[0] * 6, [0, 0, *[each] * 4]]


def test_synthesis_is_between_tasks_alone(arriving):
    seen = Images()
    arriving.train(TARGET, callbacks=[seen], **SMALL)
    same = [torch.equal(seen.by_round[round], seen.by_round[round + 1]) for round in range(1, 6)]
    assert same == [True, False, True, False, True]


def test_what_does_not_fit_is_refused(arriving):
    for settings, message in (
        ({"distillation": -1.0}, "model.tasks.distillation is -1.0, must be at least 0: 0 distils nothing"),
        ({"temperature": 0.0}, "model.tasks.temperature is 0.0, must be above 0: the paper uses 2"),
        ({"generated": 0}, "model.tasks.generated is 0, must be at least 1"),
        ({"synthesis_batch": 1}, "model.tasks.synthesis_batch is 1, must be at least 2: BatchNorm needs two"),
        ({"student_rate": 0.0}, "model.tasks.student_rate is 0.0, must be above 0"),
        ({"kept_rounds": 0}, "model.tasks.kept_rounds is 0, must be at least 1"),
        ({"warm_up": -1}, "model.tasks.warm_up is -1, must be at least 0"),
        ({"boundary": "both"}, "model.tasks.boundary is 'both', must be one of agree, disagree"),
        ({"meta": "none"}, "model.tasks.meta is 'none', must be one of maml, reptile"),
    ):
        with pytest.raises(ValueError) as error:
            TARGET(**settings)
        assert str(error.value) == message


# The synthesis ------------------------------------------------------------------------------------------------------


def new_net() -> nn.Sequential:
    """BatchNorm, then six classes of images of 2x3x5; with moments unlike those of images."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        net = nn.Sequential(nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(30, 6)).double()
    net[0].running_mean[:], net[0].running_var[:] = torch.tensor([0.3, 0.6]), torch.tensor([0.2, 0.05])
    return net


def new_synthesis(meta="maml", **settings) -> MetaSynthesis:
    weights = {"class_weight": 0.5, "statistics_weight": 10.0, "boundary_weight": 1.0, "student_temperature": 20.0}
    plan = SynthesisPlan(**{**PLAN, **weights, "generator_rate": 0.002, "boundary": "agree", **settings})
    stored = Samples(torch.zeros(1, 2, 3, 5, dtype=torch.float64), torch.zeros(1, dtype=torch.int64))
    preparation = Preparation(stored, (), None, None)
    preparation.to(torch.device("cpu"), torch.float64)
    return MetaSynthesis(plan, SynthesisTask("TARGET", new_net(), 4, (2, 3, 5), preparation, 7, 1), meta)


def plain_logits(w, images, statistics):
    """Of the four classes seen."""
    values = batch_norm(images, *statistics, w["0.weight"], w["0.bias"]).flatten(1)
    return (values @ w["2.weight"].T + w["2.bias"])[:, :4]


def plain_synthesis(synthesis: MetaSynthesis, meta: str, boundary: str):
    """Generator, student and images after all rounds, from the same first weights and draws."""
    G = {name: weight.detach().clone() for name, weight in synthesis.generator.named_parameters()}
    S = {name: weight.detach().clone() for name, weight in synthesis.student.named_parameters()}
    net = new_net()
    teacher = {name: weight.detach() for name, weight in net.named_parameters()}
    r_mean, r_var = net[0].running_mean, net[0].running_var
    s_mean, s_var = r_mean.clone(), r_var.clone()  # the student's
    draws, outer, velocity, stored, former = torch_stream(7, 1, -1, "synthesis"), PlainAdam(), {}, [], None
    for round in range(3):
        z = torch.randn(4, 256, generator=draws, dtype=torch.float64)
        labels = torch.randint(4, (4,), generator=draws)
        fast, inner, best = {**G, "z": z}, PlainAdam(), (math.inf, None)
        summed = dict.fromkeys(G, 0)
        rates = {name: 0.01 if name == "z" else 0.002 for name in fast}
        for _ in range(2):
            leaves = {name: weight.clone().requires_grad_() for name, weight in fast.items()}
            images = plain_images(leaves, leaves["z"])
            mean, var = moments(images)
            if former is not None:
                mean, var = 0.1 * mean + 0.9 * former[0], 0.1 * var + 0.9 * former[1]
            said = plain_logits(teacher, images, (r_mean, r_var))
            loss = 10 * ((r_var - var).pow(2).sum().sqrt() + (r_mean - mean).pow(2).sum().sqrt())
            loss = loss + 0.5 * sum(said[b].logsumexp(0) - said[b, labels[b]] for b in range(4)) / 4
            if round >= 1:
                heard = plain_logits(S, images, (s_mean, s_var))
                counts = [(heard[b].argmax() == said[b].argmax()) == (boundary == "agree") for b in range(4)]
                loss = loss - sum(value * float(count) for value, count in zip(plain_divergence(said, heard), counts)) / 4
            if loss.item() < best[0]:
                best = loss.item(), images.detach()
            gradients = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values()))))
            for name in G:
                summed[name] = summed[name] + gradients[name]
            fast = inner.move({n: w.detach() for n, w in leaves.items()}, gradients, rates)
        former = mean.detach(), var.detach()
        direction = summed if meta == "maml" else {name: 67 * (G[name] - fast[name]) for name in G}
        G = outer.move(G, direction, dict.fromkeys(G, 2 * 0.002))
        if round < 1:
            continue
        stored.append((best[1] * 255).round())
        rate = 2e-4 + (0.01 - 2e-4) * (1 + math.cos(math.pi * (round - 1) / 200)) / 2
        order = []
        while len(order) < 8:
            order += torch.randperm(4 * len(stored), generator=draws).tolist()
        for step in range(2):
            images = torch.cat(stored)[order[4 * step : 4 * step + 4]] / 255
            leaves = {name: weight.clone().requires_grad_() for name, weight in S.items()}
            mean, var = moments(images)
            s_mean, s_var = 0.9 * s_mean + 0.1 * mean, 0.9 * s_var + 0.1 * var * 60 / 59  # 4 images of 15 pixels
            said, heard = plain_logits(teacher, images, (r_mean, r_var)), plain_logits(leaves, images, (mean, var))
            loss = 400 * plain_divergence(said / 20, heard / 20).mean()
            for (name, leaf), gradient in zip(leaves.items(), torch.autograd.grad(loss, list(leaves.values()))):
                velocity[name] = 0.9 * velocity.get(name, 0) + gradient + 1e-4 * S[name]
                S[name] = leaf.detach() - rate * velocity[name]
    return G, S, torch.cat(stored)


@pytest.mark.parametrize(("meta", "boundary"), [("maml", "agree"), ("reptile", "disagree")])
def test_the_synthesis_equals_the_equations(meta, boundary):
    """Losses, Adam on the copy and its noise, meta step, best batch, student: three rounds, the first a warm-up."""
    synthesis = new_synthesis(meta=meta, boundary=boundary)
    G, S, expected = plain_synthesis(synthesis, meta, boundary)
    images = synthesis.run()
    for weights, net in ((G, synthesis.generator), (S, synthesis.student)):
        for name, weight in net.named_parameters():
            torch.testing.assert_close(weight.detach(), weights[name], atol=1e-7, rtol=1e-6, msg=name)
    assert images.shape == (8, 2, 3, 5)
    assert torch.equal(images, expected.to(torch.uint8))


def test_the_generator_and_the_student_are_those_of_the_paper():
    """2,328,899 parameters for CIFAR and values in [0, 1]; a student of its own weights, whose statistics are normal."""
    from fl_lightning.tasks.classes.generator import UnitGenerator
    from fl_lightning.tasks.classes.synthesis import _redrawn

    generator = UnitGenerator((3, 32, 32))
    assert sum(weight.numel() for weight in generator.parameters()) == 2_328_899
    assert {layer.eps for layer in generator.modules() if isinstance(layer, nn.BatchNorm2d)} == {1e-5}
    images = UnitGenerator((1, 8, 6))(torch.randn(5, 256))
    assert images.shape == (5, 1, 8, 6)
    assert 0 <= images.min() <= images.max() <= 1
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = _redrawn(nn.Sequential(nn.Conv2d(300, 100, 2), nn.BatchNorm2d(5000), nn.Linear(50, 2000)))
    deviations = [float(weight.std()) for weight in net.parameters()]
    expected = [(2 / (4 * 400)) ** 0.5, 1, 0.02, 0, (2 / 2050) ** 0.5, 1]
    assert deviations == pytest.approx(expected, rel=0.2)
    assert float(net[1].weight.mean()) == pytest.approx(1, abs=0.002)


def test_terms_of_the_loss():
    """Equal moments 0; a batch on which both models agree, and one on which they do not."""
    mean, variance = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 0.5])
    assert moment_distance(mean, variance, mean, variance) == 0
    teacher, student = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    each = plain_divergence(teacher, student)
    torch.testing.assert_close(boundary_loss(student, teacher), -each[0] / 2)
    torch.testing.assert_close(boundary_loss(student, teacher, "disagree"), -each[1] / 2)


def test_an_order_goes_round():
    order = cycled_order(5, 12, torch.Generator().manual_seed(0)).tolist()
    assert sorted(order[:5]) == sorted(order[5:10]) == list(range(5))
    assert len(order) == 12


def test_generated_images_are_prepared_as_stored_ones():
    """Those in [0, 1] are those in bytes: the same crops, mirrors and scale, with gradient."""
    stored = torch.randint(0, 256, (6, 2, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    keys, counters = torch.tensor([3, 4]), torch.arange(6).view(2, 3)
    for inputs, unit in ((stored, 255), (stored.double() / 255, 1)):
        preparation = Preparation(
            Samples(inputs, torch.zeros(6, dtype=torch.int64)), (RandomCrop(1), RandomHorizontalFlip()), [0.4, 0.5], [0.2, 0.3]
        )
        preparation.to(torch.device("cpu"), torch.float64)
        images = (inputs.double() / unit).requires_grad_()
        found = preparation.of_unit_images(images, keys, counters)
        torch.testing.assert_close(found, preparation.normalise(preparation.augmented(inputs, keys, counters)))
        found.sum().backward()
        assert images.grad.any()
