"""What holds for the synthesis at the server, whichever learner uses it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from class_names import embeddings_of
from generator_by_hand import PLAN
from tiny_runs import six_classes
from torch import nn

from fl_lightning.callbacks import FederatedCallback
from fl_lightning.data import RandomCrop, RandomHorizontalFlip, Samples
from fl_lightning.tasks import LANDER, TARGET

SMALL = {TARGET: {**PLAN, "generated": 3}, LANDER: {**PLAN, "generated": 3, "embeddings": embeddings_of("abcdef")}}


@pytest.mark.parametrize("learner", SMALL)
def test_engines_agree_on_augmented_images(arriving, learner):
    """Crops and mirrors are drawn by the image's position in the visit, for clients with different numbers of steps."""
    augment = (RandomCrop(1), RandomHorizontalFlip())
    one, many, plain = (
        arriving.train(learner, arriving.new_data(augment=changes), rounds=4, engine=engine, **SMALL[learner])
        for engine, changes in (("sequential", augment), ("vectorized", augment), ("sequential", ()))
    )
    arriving.assert_same(many.net, one.net, atol=1e-10)
    assert (one.net.classifier.weight - plain.net.classifier.weight).abs().max() > 1e-4


@pytest.mark.parametrize("learner", SMALL)
def test_draws_are_those_of_seed_and_task(arriving, learner):
    """Those of the generator and of the student with dropout, whatever the global generator has drawn before."""

    class Drawing(FederatedCallback):
        def on_round_end(self, trainer, module, round, report):
            torch.rand(1)

    images, settings = [], {**SMALL[learner], "generator_steps": 5, "student_rate": 0.2}  # so that dropout shows
    for callbacks in ([], [Drawing()]):
        net = arriving.new_net()
        net.features.append(nn.Dropout())
        images.append(arriving.train(learner, net=net, rounds=3, callbacks=callbacks, **settings).tasks.synthesised)
    assert torch.equal(*images)


@pytest.mark.parametrize("learner", SMALL)
def test_a_synthesis_that_is_not_finite_ends_the_run(arriving, learner):
    """In one line, before the first round of the next task."""

    class Planted(FederatedCallback):
        begun = ()

        def on_round_start(self, trainer, module, round):
            self.begun = (*self.begun, round)

        def on_round_end(self, trainer, module, round, report):
            if round == 2:
                module.net.classifier.weight.data[0] = float("nan")

    planted = Planted()
    with pytest.raises(FloatingPointError) as error:
        arriving.train(learner, callbacks=[planted], **SMALL[learner])
    assert str(error.value) == (
        f"the synthesis of {learner.__name__} is not finite after task 1: lower model.tasks.student_rate or "
        "model.tasks.generator_rate, or use a learner without a generator, such as LwF"
    )
    assert planted.begun == (1, 2)


@pytest.mark.parametrize("learner", SMALL)
def test_images_of_another_range_are_refused(arriving, learner):
    source = six_classes(unit=True)
    whole = source.load(Path())
    source.load = lambda root: replace(whole, train=Samples(3 * whole.train.inputs - 1, whole.train.targets))
    with pytest.raises(
        ValueError, match=rf"floats from -\S+ to [12]\S*, .* but {learner.__name__} makes images from 0 to 1: gi"
    ):
        arriving.train(learner, arriving.new_data(source=source), **SMALL[learner])
