"""What a round costs, counted and not timed: operators, waits for the device, transfers to it, and memory."""

import gc
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from fl_lightning import FedAvg
from fl_lightning.data import RandomCrop, from_arrays
from fl_lightning.engines import sums
from fl_lightning.engines.engine_choice import ENGINES
from fl_lightning.models import MLP

WAITS = ("aten::_local_scalar_dense", "aten::item", "aten::is_nonzero", "aten::nonzero", "aten::masked_select", "aten::unique2")


class PersonalHead(FedAvg):
    personal = ("classifier.*",)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


@pytest.fixture
def started(fit):
    """A method after one round, its engine warm; clients have 6 samples in batches of 3 unless told otherwise."""

    def start(engine, num_clients, epochs, method=FedAvg, width=7, sizes=None, **settings):
        sizes = sizes or [6] * num_clients
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randint(0, 256, (sum(sizes), 2, 6, 6), generator=generator, dtype=torch.uint8)
        clients = [part.tolist() for part in torch.arange(sum(sizes)).split(sizes)]
        data = from_arrays(inputs, torch.arange(sum(sizes)) % 4, clients, batch_size=3, monitor_test=0, **settings)
        net = MLP((2, 6, 6), 4, (width,))
        built = method(net, optimizer=momentum, engine=engine, local_epochs=epochs)
        fit(built, data, 1)
        return built

    return start


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Sums ask no more than where the answer is on a device."""
    monkeypatch.setattr(sums, "are_known_to_count", lambda counted: False)


class Operators(TorchDispatchMode):
    """Counts the operators that run in a block, by name."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        self.counts[str(operator)] += 1
        return operator(*arguments, **(options or {}))


def num_operators(method):
    """Operators of a round's local fits and their sums."""
    with Operators() as operators:
        method.engine.rehearse(1, method.cohort(1))
    return operators.counts.total()


def profiled(method, **settings):
    """The profiler of a round's local fits and their sums."""
    method.engine.rehearse(1, method.cohort(1))
    with profile(activities=[ProfilerActivity.CPU], **settings) as profiler:
        method.engine.rehearse(1, method.cohort(1))
    return profiler


def num_calls(method):
    """Calls of operators in a round's local fits and their sums, nested ones too, by name.

    They are counted as they were recorded: the profiler's events take ten times as long to be made.
    """
    return Counter(event.name() for event in profiled(method).profiler.kineto_results.events())


def test_stacked_clients_cost_no_operators(started):
    """40 clients side by side take exactly as many calls as 20: no loop over clients is left."""
    assert num_operators(started("vectorized", 40, 2)) == num_operators(started("vectorized", 20, 2))


def test_a_stacked_step_costs_a_few_plain_ones(started):
    """A step more of 20 clients takes at most 4 times the calls of a plain step of one, its batch included (measured: 3.3)."""
    more = [num_operators(started("vectorized", 20, epochs)) for epochs in (1, 2, 3)]
    assert more[2] - more[1] == more[1] - more[0]
    assert (more[1] - more[0]) / 2 <= 4 * operators_of_a_plain_step()


def test_sequential_costs_are_linear_in_clients_and_steps(started):
    """calls = fixed + clients * (visit + steps * step), a step at most twice a plain one (measured: 1.9), a visit 120 more."""
    counts = {
        (clients, steps): num_operators(started("sequential", clients, steps // 2))
        for clients, steps in ((10, 2), (20, 2), (10, 4), (10, 6))
    }
    assert counts[10, 6] - counts[10, 4] == counts[10, 4] - counts[10, 2]
    step = (counts[10, 4] - counts[10, 2]) / 20
    visit = (counts[20, 2] - counts[10, 2]) / 10 - 2 * step
    fixed = counts[10, 2] - 10 * (visit + 2 * step)
    assert step <= 2 * operators_of_a_plain_step()
    assert visit <= 120
    assert fixed <= 10


def operators_of_a_plain_step():
    net, inputs, targets = MLP((2, 6, 6), 4, (7,)), torch.randn(3, 2, 6, 6), torch.tensor([0, 1, 2])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=True)
    for _ in range(2):  # the first step makes the momentum
        with Operators() as operators:
            optimizer.zero_grad()
            F.cross_entropy(net(inputs), targets).backward()
            optimizer.step()
    return operators.counts.total()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("method", [FedAvg, PersonalHead])
@pytest.mark.one_in(3)
def test_local_fits_wait_for_nothing(started, as_on_a_gpu, monkeypatch, engine, method):
    """Ragged shards, augmentation, filled batches: no ``.item()``, no shape that depends on values, nothing brought over."""
    built = started(engine, 5, 2, method=method, sizes=[2, 4, 7, 12, 5], augment=[RandomCrop(1)])
    for name in ("tolist", "numpy", "cpu"):
        monkeypatch.setattr(torch.Tensor, name, lambda *_, name=name: pytest.fail(f"Tensor.{name} in a local fit"))
    counts = num_calls(built)
    assert {name: counts[name] for name in WAITS if counts[name]} == {}


class Waits(FedAvg):
    def client_loss(self, net, batch, client):
        loss = super().client_loss(net, batch, client)
        return loss / loss.sum().item()


def test_the_count_sees_a_wait(started, as_on_a_gpu):
    """Two clients, two steps each, one ``.item()`` a step."""
    counts = num_calls(started("sequential", 2, 1, Waits))
    assert counts["aten::_local_scalar_dense"] == 4


@pytest.mark.parametrize("engine", ENGINES)
def test_a_round_is_one_transfer(started, monkeypatch, engine):
    """``Engine.run`` reads one tensor, the rows of its report."""
    built, read = started(engine, 5, 1), []
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: read.append(tuple(self.shape)) or tolist(self))
    report = built.engine.run(1, built.cohort(1), keep_models=False).report
    assert read == [(5, 3)]
    assert report.num_updates == 5


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_brings_no_numbers_to_the_device(started, engine):
    """A tensor made of Python numbers is a transfer that waits on a GPU: as many of them for 8 steps as for 2."""
    transfers = [num_calls(started(engine, 4, epochs))["aten::lift_fresh"] for epochs in (1, 4)]
    assert transfers[0] == transfers[1]


def allocated(method):
    """Bytes that operators newly allocate in a round's local fits, in copies of the net."""
    net = sum(weight.numel() * weight.element_size() for weight in method.net.parameters())
    return sum(max(event.self_cpu_memory_usage, 0) for event in profiled(method, profile_memory=True).events()) / net


def test_sequential_allocates_gradients_and_little_else(started):
    """In copies of a net far larger than its activations: 1 a step, the gradients, and 6 a visit.

    Those of a visit are what the sum converts to float64, which counts 2, and the change, whose norm is taken in float64; of
    large weights a block at a time.
    """
    copies = {
        (clients, steps): allocated(started("sequential", clients, steps // 2, width=512))
        for clients, steps in ((4, 2), (8, 2), (4, 4))
    }
    step = (copies[4, 4] - copies[4, 2]) / 8
    visit = (copies[8, 2] - copies[4, 2]) / 4 - 2 * step
    assert step < 1.3
    assert visit < 6.5


@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_no_round_leaves_tensors_behind(started, engine):
    """As many live bytes after six more rounds of a warm engine as after two."""
    method = started(engine, 6, 1, PersonalHead, width=64)
    gc.collect()
    gc.freeze()  # what there is counts no more, among it all that other tests have left
    live = []
    for rounds in (2, 6):
        for _ in range(rounds):
            method.engine.run(1, method.cohort(1), keep_models=False)
        live.append(live_bytes())
    assert live[0] == live[1]


def live_bytes():
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter)]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def test_a_captured_step_is_compiled_once(fit):
    """For all rounds, and all clients of ragged shards: one more graph would cost seconds."""
    graphs = []
    for rounds, sizes in ((3, [3, 5, 7]), (2, [3, 5, 7, 8, 10, 11])):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        clients = [part.tolist() for part in torch.arange(sum(sizes)).split(sizes)]
        data = from_arrays(torch.randn(sum(sizes), 4), torch.arange(sum(sizes)) % 3, clients, batch_size=4, monitor_test=0)
        fit(FedAvg(lambda shape, classes: MLP(shape, classes, (5,)), engine="captured"), data, rounds)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs == [1, 1]
