"""What the programs train: data, nets and schedules, the same for all of them.

Images and labels are random: the arithmetic is that of real ones, and nothing has to be downloaded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial

import torch
from torch import Tensor, nn

from fl_lightning.data import FederatedDataModule, from_arrays
from fl_lightning.models import CNN2, MLP, ResNet18

Schedule = list[tuple[int, list[Tensor]]]  # a round: each client of the cohort with the sample indices of each of its steps

_SEED = 0
_IMAGE, _NUM_CLASSES = (3, 32, 32), 10
_MEAN, _STD = (0.5, 0.5, 0.5), (0.29, 0.29, 0.29)  # of uniform pixels in [0, 1]


@dataclass(frozen=True)
class Workload:
    """A federation whose clients hold equally many samples, one after another."""

    name: str
    inputs: Tensor  # (n, 3, 32, 32) uint8 or (n, features) float32
    targets: Tensor  # (n,) class indices
    num_clients: int
    cohort_size: int  # clients a round
    batch_size: int
    learning_rate: float
    net: Callable[[], nn.Module]
    local_steps: int | None = None  # steps of a visit, or
    local_epochs: int | None = None  # passes over the client's samples
    rounds: int = 7  # that are timed unless asked otherwise
    turn: int = 1  # rounds in a row of one program, before it is the next one's turn
    num_public: int = 0  # samples that no client holds

    @property
    def num_samples(self) -> list[int]:
        """Samples of each client."""
        return [(len(self.inputs) - self.num_public) // self.num_clients] * self.num_clients

    def build_net(self) -> nn.Module:
        """The net with its initial weights, the same at every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            return self.net()

    def normalised_inputs(self) -> Tensor:
        """The inputs as the net takes them, float32, with the very bits of our program's batches.

        Programs other than ours keep all images so, four times the memory and no arithmetic a batch: faster for them. The bits
        matter: an input that is off by its last one flips a max pooling somewhere, and the weights of W1 differ by 4e-5.
        """
        data = self.data_module()
        data.setup()
        normalised = torch.empty(self.inputs.shape)
        for raw, part in zip(self.inputs.split(1024), normalised.split(1024), strict=True):  # no second copy of everything
            part.copy_(data.preparation.normalise(raw))
        return normalised

    def data_module(self, inputs: Tensor | None = None, **settings: object) -> FederatedDataModule:
        """The data as our program takes it."""
        inputs, size = self.inputs if inputs is None else inputs, self.num_samples[0]
        if inputs.dtype == torch.uint8:
            settings |= {"mean": _MEAN, "std": _STD}
        clients = [range(client * size, (client + 1) * size) for client in range(self.num_clients)]
        settings |= {"clients_per_round": self.cohort_size, "batch_size": self.batch_size, "seed": _SEED}
        return from_arrays(inputs, self.targets, clients, **settings)

    @cached_property
    def _indices(self) -> FederatedDataModule:
        """Our data module over samples that are their index: what it serves is what it draws."""
        data = self.data_module(torch.arange(len(self.inputs), dtype=torch.float64)[:, None])
        data.setup()
        data.to(torch.device("cpu"), torch.float64)
        return data

    def batches(self, client: int, round: int) -> list[Tensor]:
        """The sample indices of each step of a client's visit."""
        steps = self.local_steps or self.local_epochs * self._indices.steps_per_epoch(client)
        return [batch.inputs[:, 0].long() for batch in self._indices.client_batches().batches(client, round, steps)]

    def cohort(self, round: int) -> list[int]:
        """The clients of a round, counted from 1."""
        return self._indices.cohort(round)

    def schedule(self, round: int) -> Schedule:
        """Exactly what our program draws for a round, so that all programs end in the same weights."""
        return [(client, self.batches(client, round)) for client in self.cohort(round)]


@cache
def load(name: str) -> Workload:
    """A workload by name."""
    return WORKLOADS[name](name)


def random_images(count: int, seed: int = _SEED) -> Tensor:
    """Images (count, 3, 32, 32), uint8."""
    return torch.randint(0, 256, (count, *_IMAGE), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def random_labels(count: int, seed: int = _SEED) -> Tensor:
    """Class indices (count,)."""
    return torch.randint(0, _NUM_CLASSES, (count,), generator=torch.Generator().manual_seed(seed + 1))


def _images(
    name: str, num_clients: int, samples_per_client: int, net: Callable, num_public: int = 0, **settings: object
) -> Workload:
    images, labels = (make(num_clients * samples_per_client + num_public) for make in (random_images, random_labels))
    net = partial(net, _IMAGE, _NUM_CLASSES)
    return Workload(name, images, labels, num_clients, net=net, num_public=num_public, **settings)


def _vectors(name: str, num_clients: int) -> Workload:
    """Ten samples of 64 features a client, one step on all of them."""
    inputs = torch.randn(10 * num_clients, 64, generator=torch.Generator().manual_seed(_SEED))
    labels, net = random_labels(len(inputs)), partial(MLP, (64,), _NUM_CLASSES, hidden=(64,))
    return Workload(name, inputs, labels, num_clients, 100, 10, 0.1, net, local_epochs=1, rounds=60, turn=20)


_three_steps = partial(_images, num_clients=100, cohort_size=10, batch_size=64, local_steps=3)

WORKLOADS: dict[str, Callable[[str], Workload]] = {
    "W1": partial(_three_steps, samples_per_client=450, net=CNN2, learning_rate=0.1),
    "W2": partial(_vectors, num_clients=1_000),
    "W3": partial(_three_steps, samples_per_client=450, net=partial(ResNet18, norm="group"), learning_rate=0.01, rounds=3),
    "W4": partial(
        _images,
        num_clients=10_000,
        samples_per_client=5,
        net=CNN2,
        cohort_size=100,
        batch_size=5,
        local_epochs=5,
        learning_rate=0.1,
    ),
    **{f"W5-{count}": partial(_vectors, num_clients=count) for count in (1_000, 10_000, 100_000, 1_000_000)},
    # For the methods other than FedAvg: a few epochs on a small shard, as their papers train.
    "methods": partial(
        _images,
        num_clients=20,
        samples_per_client=100,
        net=CNN2,
        cohort_size=5,
        batch_size=50,
        local_epochs=5,
        learning_rate=0.01,
        rounds=5,
        num_public=1000,
    ),
    # As W1, with a tenth of each client's samples for validation, which leaves it 450 to train on.
    "W6": partial(_three_steps, samples_per_client=500, net=CNN2, learning_rate=0.1, rounds=100),
}
