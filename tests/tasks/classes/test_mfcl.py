"""MFCL: a client's step against its equations in a plain loop, and the generator's loss."""

import copy
import math

import pytest
import torch
from torch import nn

from fl_lightning.callbacks import FederatedCallback
from fl_lightning.functional import class_imbalance, gaussian_divergence, roughness
from fl_lightning.functional.random_streams import torch_stream
from fl_lightning.tasks import MFCL, ClassLearner

KD, FT, SMALL = 0.4, 0.7, {"generator_steps": 2, "generator_batch": 4, "generated": 2, "noise": 3}


class Generators(FederatedCallback):
    """Keeps the generator of every round, in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.by_round = {}

    def on_round_start(self, trainer, module, round):
        self.by_round[round] = copy.deepcopy(module.tasks.generator).eval()


def test_all_tasks_equal_the_equations(arriving):
    """New classes on real samples; the head alone on both kinds; the teacher's head on features of both models."""
    generators, teacher = Generators(), {}
    trained = arriving.train(MFCL, distillation=KD, head_weight=FT, callbacks=[generators], **SMALL)

    def images(visit):
        stream = torch_stream(0, visit.round, visit.client, "generated samples")
        draws = [torch.randn(2, 3, generator=stream, dtype=torch.float64) for _ in range(visit.step + 1)]
        with torch.no_grad():
            return generators.by_round[visit.round](draws[-1])

    def objective(visit, weights, inputs, targets):
        value = arriving.new_loss(visit, weights, inputs, targets)
        if visit.position == 0:
            return value
        generated = images(visit)
        both = torch.cat([inputs, generated])
        labels = torch.cat([targets, arriving.logits(teacher, generated).argmax(dim=1)])
        features, former = arriving.features(weights, both), arriving.features(teacher, both)
        head = arriving.cross_entropy(features.detach() @ weights["classifier.weight"].T + weights["classifier.bias"], labels)
        P, bias = teacher["classifier.weight"], teacher["classifier.bias"]
        kept = (((features @ P.T + bias) - (former @ P.T + bias)) ** 2).sum() / visit.first / len(both)
        return value + FT * head + KD * kept

    def after_task(visit, weights):
        teacher.update({name: weight.detach() for name, weight in weights.items()})

    arriving.assert_same(trained.net, arriving.plain(objective, after_task=after_task))


def test_without_its_terms_it_is_fine_tuning(arriving):
    """Bit for bit; nothing more is sent, and no generator trained."""
    none = {"distillation": 0.0, "head_weight": 0.0, **SMALL}
    plain, off, begun = (
        arriving.train(method, rounds=rounds, **settings)
        for method, rounds, settings in ((ClassLearner, 6, {}), (MFCL, 6, none), (MFCL, 1, none))
    )
    arriving.assert_same(off.tasks.generator, begun.tasks.generator, atol=0)
    arriving.assert_same(off.net, plain.net, atol=0)
    assert [report.bytes_down for report in off.seen.rounds] == [report.bytes_down for report in plain.seen.rounds]


def test_the_generator_learns_between_tasks_alone(arriving):
    generators = Generators()
    arriving.train(MFCL, callbacks=[generators], **SMALL)
    same = [
        torch.equal(generators.by_round[round].linear.weight, generators.by_round[round + 1].linear.weight)
        for round in range(1, 6)
    ]
    assert same == [True, False, True, False, True]


@pytest.mark.parametrize("planted_in", ["linear.weight", "normalise.running_var"])
def test_a_generator_that_is_not_finite_ends_the_run(arriving, planted_in):
    """In one line, before the first round of the next task: its images would lose every client's update."""

    class Planted(FederatedCallback):
        def on_round_end(self, trainer, module, round, report):
            if round == 2:
                module.tasks.generator.state_dict()[planted_in].view(-1)[0] = float("nan")

    generators = Generators()
    with pytest.raises(FloatingPointError) as error:
        arriving.train(MFCL, callbacks=[Planted(), generators], **SMALL)
    assert str(error.value) == (
        "the generator of MFCL is not finite after task 1: lower model.tasks.statistics_weight, or use a learner without a "
        "generator, such as LwF"
    )
    assert sorted(generators.by_round) == [1, 2]


def test_the_generators_loss(arriving):
    """Its four terms written out, on a net with BatchNorm in evaluation mode."""
    method = arriving.train(MFCL, rounds=2, **SMALL)
    norm = nn.BatchNorm2d(2).double()
    norm.running_mean[:], norm.running_var[:] = torch.tensor([0.3, -0.2]), torch.tensor([2.0, 0.5])
    teacher = nn.Sequential(norm, nn.Flatten(), nn.Linear(18, 6).double()).eval()
    images = torch.randn(5, 2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits = teacher(images)[:, :2]
    content = -sum((z / 1000 - (z / 1000).logsumexp(0))[z.argmax()] for z in logits) / 5
    p = sum(z.softmax(0) for z in logits) / 5
    balance = 1 + sum(v * v.log() for v in p) / math.log(2)
    divergence = 0
    for channel in range(2):
        values = images[:, channel].flatten()
        mean, variance = values.mean(), ((values - values.mean()) ** 2).mean() + 1e-8
        m, v = norm.running_mean[channel], norm.running_var[channel] + 1e-8
        divergence += ((variance / v).sqrt().log() - (1 - (v + (m - mean) ** 2) / variance) / 2) / 2
    expected = content + balance + 50 * divergence + 1e-3 * roughness(images)
    torch.testing.assert_close(method.tasks.generator_loss(teacher, images), expected)
    assert divergence > 0.05


def test_identities_of_the_terms():
    """Even classes give 0, one class 1; equal moments 0; a smooth image 0, a single pixel what the kernel says."""
    even = torch.full((4, 4), -30.0, dtype=torch.float64).fill_diagonal_(30.0)
    assert float(class_imbalance(even)) == pytest.approx(0, abs=1e-12)
    assert float(class_imbalance(even[:1])) == pytest.approx(1, abs=1e-12)
    mean, variance = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 0.5])
    assert gaussian_divergence(mean, variance, mean, variance) == 0
    line = [math.exp(-(((u - 2) / 2) ** 2)) for u in range(5)]
    image = torch.zeros(1, 1, 9, 9, dtype=torch.float64)
    image[0, 0, 4, 4] = 1
    kernel = {(u, v): line[u] * line[v] / sum(line) ** 2 for u in range(5) for v in range(5)}
    expected = (sum(value**2 for value in kernel.values()) - 2 * kernel[2, 2] + 1) / 81
    assert float(roughness(image)) == pytest.approx(expected)
    assert float(roughness(torch.ones(2, 3, 2, 2))) == pytest.approx(0, abs=1e-12)


def test_the_generator_is_that_of_the_paper(arriving):
    """8,423,939 parameters for CIFAR with BatchNorm's weights, eps .8 in the blocks, and images as the net takes them."""
    from fl_lightning.tasks.classes.generator import Generator

    generator = Generator((3, 32, 32))
    assert sum(weight.numel() for weight in generator.parameters()) == 8_423_939
    assert [layer.eps for layer in generator.modules() if isinstance(layer, nn.BatchNorm2d)] == [1e-5, 0.8, 0.8, 1e-5]
    for shape in ((3, 32, 32), (1, 8, 8), (2, 3, 5)):
        assert Generator(shape, noise=4)(torch.randn(2, 4)).shape == (2, *shape)


def test_what_does_not_fit_is_refused(arriving):
    for settings, message in (
        ({"distillation": -1.0}, "model.tasks.distillation is -1.0, must be at least 0: 0 distils nothing"),
        ({"generated": 0}, "model.tasks.generated is 0, must be at least 1"),
        ({"generator_batch": 1}, "model.tasks.generator_batch is 1, must be at least 2: BatchNorm needs two"),
        (
            {"softmax_over": "seen"},
            "model.tasks.softmax_over is seen, but MFCL has a loss among each, new and seen: leave it out",
        ),
    ):
        with pytest.raises(ValueError) as error:
            MFCL(**settings)
        assert str(error.value) == message


def test_a_net_that_changes_the_outputs_of_its_class_layer_is_refused(arriving):
    """Of the classes that have arrived; minus infinity of the others is the head's own."""
    net = arriving.new_net()
    net.register_forward_hook(lambda net, inputs, outputs: outputs.log_softmax(dim=1))
    with pytest.raises(ValueError) as error:
        arriving.train(MFCL, net=net)
    assert str(error.value) == (
        "model.tasks is MFCL, which calls the class layer of model.net, but TinyNet changes its outputs: let the net return "
        "them as they are, or use LwF"
    )
