"""Every method runs in a plain loop with no trainer."""

from functools import partial

import pytest
import torch
from class_names import embeddings_of
from pairs import Pair, paired

from fl_lightning import FedAvg, FedReg, methods, tasks
from fl_lightning.data import from_arrays
from fl_lightning.engines.captured import CapturedEngine
from fl_lightning.engines.rounds import run_round
from fl_lightning.engines.run_context import RunContext
from fl_lightning.engines.sequential import SequentialEngine
from fl_lightning.engines.vectorized import VectorizedEngine
from fl_lightning.privacy import DPSGD
from fl_lightning.protocol import ClientBatches, DataNeeds, Federation, Learner, PublicSamples


class Site:
    """What a protocol names, as our data module has it, and nothing else; what it gives out is held to its protocol too."""

    def __init__(self, data, protocol=Federation, without=()):
        self._data = data
        names = [name for part in protocol.__mro__[:-1] for name in vars(part)]
        self._members = {name for name in names if not name.startswith("_")} - {*without}

    def __getattr__(self, name):
        if name not in self._members:
            raise AttributeError(f"a site has no {name}")
        if name == "client_batches":
            return lambda *args: Site(self._data.client_batches(*args), ClientBatches)
        return Site(self._data.public, PublicSamples) if name == "public" else getattr(self._data, name)

    def __len__(self):
        return len(self._data)


def loop(method, data, rounds, ckpt_path, callbacks, engine=SequentialEngine, **_):
    """In the place of a trainer's fit, at a site."""
    data.setup()
    data.to(torch.device("cpu"), torch.float64)
    method.join(Site(data))
    method.double()  # as a trainer's precision 64-true does
    engine = engine(method, RunContext())
    callbacks[0].rounds = [run_round(method, engine, round) for round in range(1, rounds + 1)]


@pytest.mark.parametrize("name", methods.__all__)
@pytest.mark.one_in(4)
def test_the_weights_are_those_of_a_fit(tiny, name):
    """All that the net and the server hold, bit for bit, and the reports of the rounds; from what the protocol names alone."""
    fitted, by_hand = tiny.train_any(name), type(tiny)(loop).train_any(name)
    assert by_hand.reports == fitted.reports
    for key, tensor in fitted.state_dict().items():
        assert torch.equal(by_hand.state_dict()[key], tensor), key


@pytest.mark.parametrize("engine", [VectorizedEngine, pytest.param(CapturedEngine, marks=pytest.mark.slow)])
def test_every_engine_runs_at_a_site(tiny, engine):
    fitted, at_a_site = tiny.train_any("SCAFFOLD"), type(tiny)(partial(loop, engine=engine)).train_any("SCAFFOLD")
    tiny.assert_same(at_a_site.net, fitted.net)


@pytest.mark.parametrize("name", ["FedDF", "Flashback"])
def test_a_site_without_public_samples_is_refused_by_what_needs_them(tiny, name):
    with pytest.raises(ValueError, match=f"^{name} needs public, which Site does not have: join a FederatedDataModule"):
        getattr(methods, name)(tiny.new_net(norm=False)).join(Site(tiny.data, without=["public"]))


LEARNERS = [
    kind for name in tasks.__all__ if issubclass(kind := getattr(tasks, name), Learner) and kind.needs.data != DataNeeds()
]


@pytest.mark.parametrize("pair", [*map(paired, LEARNERS), Pair(methods.FedProx, tasks.EWC)], ids=str)
def test_a_site_is_refused_by_every_learner_of_tasks(tiny, pair):
    """The protocol does not have tasks."""
    needed = {"embeddings": embeddings_of("ab")} if pair.learner is tasks.LANDER else {}
    with pytest.raises(ValueError, match=f"^{pair.method.__name__} needs tasks, which Site does not have: join a Fed"):
        pair(tiny.new_net(norm=False), **needed).join(Site(tiny.data))


def test_whole_numbers_at_a_site_are_refused_by_fedreg(tiny):
    """It asks a sample for its type: of token ids there are no gradients."""
    tokens = from_arrays(torch.arange(12).reshape(6, 2), torch.arange(6) % 2, [[0, 1, 2], [3, 4, 5]])
    tokens.setup()
    with pytest.raises(ValueError, match="data.source gives whole numbers that are not images"):
        FedReg(tiny.new_net(norm=False)).join(Site(tokens))


@pytest.mark.parametrize(
    ("name", "given"),
    [("privacy", DPSGD(1.0)), ("lr_scheduler", partial(torch.optim.lr_scheduler.StepLR, step_size=9))],
)
def test_what_a_trainer_alone_carries_out_is_refused(tiny, name, given):
    """Noise and schedules would silently be left out."""
    method = FedAvg(tiny.new_net(), **{name: given})
    with pytest.raises(ValueError, match=f"^model.{name} is .*, but acts only in the fit of a trainer: leave it out$"):
        method.join(tiny.data)
