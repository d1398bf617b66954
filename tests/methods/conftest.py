"""A tiny federation, and FedAvg on it as a plain loop, in which each method's test writes its equations down."""

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

from fl_lightning import FederatedModule
from fl_lightning.callbacks import FederatedCallback
from fl_lightning.data import FederatedDataModule, from_arrays
from fl_lightning.losses import CrossEntropy, TruncatedCrossEntropy

# Client 1 comes in every round, client 0 pauses for one, client 4 never comes.
COHORTS = [[0, 1, 3], [1, 2], [0, 1]]
SIZES, BATCH_SIZE, EPOCHS = [6, 10, 7, 4, 9], 4, 2  # 4, 6, 4, 2 and 6 local steps, short batches among them
CLASSES = [[0, 1], [1, 2, 3], [0, 2], [3], [0, 1, 2, 3]]  # of each client, out of four
DECAY = 0.9  # of the clients' rate, from round to round

OPTIMIZERS = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.2),
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9, weight_decay=0.02),
    "adam": lambda weights: torch.optim.Adam(weights, lr=0.02),
}


class TinyNet(nn.Module):
    """Features and a classifier, with or without BatchNorm between them; smooth, so that no kink magnifies rounding."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        # Before BatchNorm a bias would have a gradient of rounding errors alone, whose sign means nothing.
        layers = [nn.Linear(3, 5, bias=False), nn.BatchNorm1d(5)] if norm else [nn.Linear(3, 5)]
        self.features = nn.Sequential(*layers, nn.Tanh())
        self.classifier = nn.Linear(5, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.classifier(self.features(inputs))


class Reports(FederatedCallback):
    """Keeps the report of every round."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds = []

    def on_round_end(self, trainer, module, round, report):
        self.rounds.append(report)


class Tiny:
    """Five clients in float64, three rounds; :meth:`train` runs a method, the rest is for loops that do without the package.

    All that these loops take from it is the data module, which says who holds what and serves the batches.

    Args:
        fit: fits a method.
        optimizer: key of ``OPTIMIZERS``.
        truncated: whether clients minimise TCE, else cross entropy.
    """

    num_clients, rounds, batch_size, shard_sizes = len(SIZES), list(enumerate(COHORTS, start=1)), BATCH_SIZE, SIZES

    def __init__(self, fit: Callable, optimizer: str = "sgd", truncated: bool = False) -> None:
        self._fit, self.truncated = fit, truncated
        self.optimizer = OPTIMIZERS[optimizer]
        self.data = self.new_data()
        self.data.setup()
        self.data.to(torch.device("cpu"), torch.float64)

    def new_data(self, **settings: object) -> FederatedDataModule:
        generator = torch.Generator().manual_seed(5)
        inputs = torch.randn(sum(SIZES), 3, generator=generator, dtype=torch.float64)
        targets = torch.cat([torch.tensor(own * size)[:size] for own, size in zip(CLASSES, SIZES)])
        inputs[:, 0] += targets
        clients = [part.tolist() for part in torch.arange(sum(SIZES)).split(SIZES)]
        settings = {"batch_size": BATCH_SIZE, "cohorts": COHORTS, "classes": list("abcd"), **settings}
        return from_arrays(inputs, targets, clients, **settings)

    def new_net(self, norm: bool = True) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            return TinyNet(norm).double()

    def train(
        self, method: type[FederatedModule], data: FederatedDataModule | None = None, norm: bool = True, **settings: object
    ) -> FederatedModule:
        """A method after its rounds, with their reports as ``reports``."""
        data, reports = data or self.new_data(), Reports()
        if not {"local_steps", "local_epochs"} & settings.keys():
            settings["local_epochs"] = EPOCHS
        loss = TruncatedCrossEntropy() if self.truncated else CrossEntropy()
        common = {"loss": loss, "optimizer": self.optimizer, "learning_rate_decay": DECAY, "engine": "sequential"}
        trained = method(self.new_net(norm), **{**common, **settings})
        self._fit(trained, data, len(data.cohorts), precision="64-true", callbacks=[reports])
        trained.reports = reports.rounds
        return trained

    # For plain loops ------------------------------------------------------------------------------------------------

    def rate(self, round: int) -> float:
        """Of the clients' optimizer in a round."""
        return self.optimizer([nn.Parameter(torch.zeros(1))]).param_groups[0]["lr"] * DECAY ** (round - 1)

    def num_steps(self, client: int) -> int:
        return EPOCHS * -(-SIZES[client] // BATCH_SIZE)

    def batches(self, client: int, round: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Of a visit, in order."""
        for batch in self.data.batches(client, round, self.num_steps(client)):
            yield batch.inputs, batch.targets

    def shard(self, client: int) -> tuple[Tensor, Tensor]:
        """All training samples of a client."""
        indices = self.data.shards.train_indices(client)
        return self.data.train_set.inputs[indices], self.data.train_set.targets[indices]

    def losses(self, logits: Tensor, targets: Tensor, client: int) -> Tensor:
        """``log sum_c exp f_c - f_y`` over all classes or, for TCE, the client's own; one value a sample."""
        counted = CLASSES[client] if self.truncated else range(4)
        return logits[:, list(counted)].exp().sum(dim=1).log() - logits[torch.arange(len(targets)), targets]

    def visit(
        self,
        net: nn.Module,
        client: int,
        round: int,
        objective: Callable[[nn.Module, Tensor, Tensor], Tensor] | None = None,
        correct: Callable[[str, Tensor], Tensor] = lambda name, gradient: gradient,
    ) -> nn.Module:
        """A client's net after its local steps from ``net``, which is left alone.

        Args:
            objective: what a step minimises, from the net, inputs and targets; the mean loss by default.
            correct: from a weight's name and gradient to what the optimizer gets.
        """
        local = copy.deepcopy(net).train()
        optimizer = self.optimizer(local.parameters())
        optimizer.param_groups[0]["lr"] = self.rate(round)
        for inputs, targets in self.batches(client, round):
            if objective is None:
                value = self.losses(local(inputs), targets, client).mean()
            else:
                value = objective(local, inputs, targets)
            gradients = torch.autograd.grad(value, list(local.parameters()))
            for (name, weight), gradient in zip(local.named_parameters(), gradients):
                weight.grad = correct(name, gradient)
            optimizer.step()
        return local

    def mean(self, locals: dict[int, nn.Module], uniform: bool = False) -> dict[str, Tensor]:
        """``sum_k p_k w_k`` of nets by client, weights and buffers; counters are truncated."""
        total = sum(1 if uniform else SIZES[client] for client in locals)
        means = {}
        for name, value in next(iter(locals.values())).state_dict().items():
            mean = sum((1 if uniform else SIZES[k]) * net.state_dict()[name].double() for k, net in locals.items()) / total
            means[name] = mean if value.is_floating_point() else (mean + 1e-9).floor().to(value.dtype)
        return means

    # Comparisons ----------------------------------------------------------------------------------------------------

    def assert_same(self, actual: nn.Module | dict[str, Tensor], expected: nn.Module | dict[str, Tensor], atol: float = 1e-9):
        """Weights and buffers by name, within ``atol``; integers exactly."""
        actual, expected = (part.state_dict() if isinstance(part, nn.Module) else part for part in (actual, expected))
        assert actual.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(
                actual[name].detach(), value.detach(), atol=atol, rtol=0, msg=lambda text, name=name: f"{name}: {text}"
            )

    def assert_moved(self, net: nn.Module) -> None:
        """Every weight is far from where it began."""
        for name, weight in self.new_net("features.1.weight" in dict(net.named_parameters())).named_parameters():
            assert (net.get_parameter(name) - weight).abs().max() > 1e-3, name


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The nets are tiny."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture
def tiny(fit, request) -> Tiny:
    """The federation; a parameter such as ``momentum`` or ``adam tce`` names the local optimizer and the loss."""
    words = getattr(request, "param", "sgd").split()
    return Tiny(fit, words[0], truncated="tce" in words[1:])
