"""A tiny federation, and FedAvg on it as a plain loop, in which each method's test writes its equations down."""

import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from declared_by_tests import needs_of
from torch import Tensor, nn

from fl_lightning import FederatedModule, methods
from fl_lightning.callbacks import FederatedCallback
from fl_lightning.data import ClientSampler, FederatedDataModule, from_arrays
from fl_lightning.losses import CrossEntropy, Loss, TruncatedCrossEntropy
from fl_lightning.protocol import ClientState, pack

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


class Tied(nn.Module):
    """A weight that counts twice: in one layer that has two names, in two layers, or once more outside its layer.

    Args:
        how: ``names``, ``layers`` or ``outside``.
    """

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.first, self.middle = how, nn.Linear(3, 4), nn.Linear(4, 4)
        self.again = self.middle if how == "names" else nn.Linear(4, 4)
        if how == "layers":
            self.again.weight = self.middle.weight
        self.classifier = nn.Linear(4, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        logits = self.classifier(self.again(self.middle(self.first(inputs)).tanh()).tanh())
        return F.linear(logits.tanh(), self.classifier.weight) if self.how == "outside" else logits


class FirstOutput(Loss):
    """The first output, for the gradient (1, 0, 0, 0) by the bias of the classifier, whatever the weights and the samples."""

    uses_label_counts = False

    def __call__(self, logits: Tensor, target: Tensor, label_counts: Tensor) -> Tensor:
        return logits[:, 0]


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

    num_clients, cohorts, batch_size, shard_sizes = len(SIZES), COHORTS, BATCH_SIZE, SIZES
    rounds = list(enumerate(COHORTS, start=1))
    first_output = FirstOutput()

    def __init__(self, fit: Callable, optimizer: str = "sgd", truncated: bool = False) -> None:
        self._fit, self.truncated = fit, truncated
        self.optimizer = OPTIMIZERS[optimizer]
        self.data = self.new_data()
        self.data.setup()
        self.data.to(torch.device("cpu"), torch.float64)

    def new_data(self, public_size: int = 0, **settings: object) -> FederatedDataModule:
        """With public samples, these follow those of the clients."""
        generator = torch.Generator().manual_seed(5)
        owners = [*zip(CLASSES, SIZES), (CLASSES[4], public_size)]
        targets = torch.tensor([classes[i % len(classes)] for classes, size in owners for i in range(size)])
        inputs = torch.randn(len(targets), 3, generator=generator, dtype=torch.float64)
        inputs[:, 0] += targets
        clients = [part.tolist() for part in torch.arange(sum(SIZES)).split(SIZES)]
        settings = {"batch_size": BATCH_SIZE, "cohorts": COHORTS, "classes": list("abcd"), **settings}
        return from_arrays(inputs, targets, clients, public_size=public_size, **settings)

    def new_net(self, norm: bool = True) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            return TinyNet(norm).double()

    def train(
        self,
        method: type[FederatedModule],
        data: FederatedDataModule | None = None,
        norm: bool = True,
        rounds: int | None = None,
        precision: str = "64-true",
        ckpt_path: Path | None = None,
        watch: Sequence[FederatedCallback] = (),
        **settings: object,
    ) -> FederatedModule:
        """A method after its rounds, by default all that the data names cohorts for, with their reports as ``reports``."""
        data, reports = data or self.new_data(), Reports()
        if not {"local_steps", "local_epochs"} & settings.keys():
            settings["local_epochs"] = EPOCHS
        loss = TruncatedCrossEntropy() if self.truncated else CrossEntropy()
        common = {"loss": loss, "optimizer": self.optimizer, "learning_rate_decay": DECAY, "engine": "sequential"}
        net = self.new_net(norm).to(torch.float64 if precision == "64-true" else torch.float32)
        trained = method(net, **{**common, **settings})
        self._fit(trained, data, rounds or len(data.cohorts), ckpt_path, precision=precision, callbacks=[*watch, reports])
        trained.reports = reports.rounds
        return trained

    def train_any(
        self,
        name: str,
        personal: Sequence[str] = (),
        poisoned: int | Sequence[int] = (),
        cohorts: Sequence[Sequence[int]] | None = COHORTS,
        client_sampler: ClientSampler | None = None,
        **settings: object,
    ) -> FederatedModule:
        """A public method by name, with the data and the net that it needs.

        Args:
            client_sampler: instead of cohorts, which are None.
            personal: patterns of the weights that stay with the client.
            poisoned: a client, or several, whose samples are infinite.
        """
        data_settings, method_settings = needs_of(name)
        data = self.new_data(cohorts=cohorts, client_sampler=client_sampler, **data_settings)
        data.setup()
        for client in [poisoned] if isinstance(poisoned, int) else poisoned:
            data.train_set.inputs[data.shards.train_indices(client)] = float("inf")
        method = getattr(methods, name)
        if personal:  # by another name: the command line would not know which of two is meant
            method = type(f"Personal{name}", (method,), {"personal": personal})
        settings = {**method_settings, **settings}
        if not {"local_steps", "local_epochs"} & settings.keys():
            settings["local_epochs"] = 1
        return self.train(method, data, **settings)

    # For plain loops ------------------------------------------------------------------------------------------------

    def rate(self, round: int) -> float:
        """Of the clients' optimizer in a round."""
        return self.optimizer([nn.Parameter(torch.zeros(1))]).param_groups[0]["lr"] * DECAY ** (round - 1)

    def num_steps(self, client: int) -> int:
        return EPOCHS * -(-SIZES[client] // BATCH_SIZE)

    def length(self, client: int, round: int) -> float:
        """Of a visit's steps along gradients of 1: the rate times their number, or times the sum of ``v <- momentum v + 1``."""
        momentum = self.optimizer([nn.Parameter(torch.zeros(1))]).defaults.get("momentum", 0.0)
        total = velocity = 0.0
        for _ in range(self.num_steps(client)):
            velocity = momentum * velocity + 1
            total += velocity
        return total * self.rate(round)

    def batches(self, client: int, round: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Of a visit, in order."""
        for batch in self.data.client_batches().batches(client, round, self.num_steps(client)):
            yield batch.inputs, batch.targets

    def shard(self, client: int) -> tuple[Tensor, Tensor]:
        """All training samples of a client."""
        indices = self.data.shards.train_indices(client)
        return self.data.train_set.inputs[indices], self.data.train_set.targets[indices]

    def losses(self, logits: Tensor, targets: Tensor, client: int) -> Tensor:
        """``log sum_c exp f_c - f_y`` over all classes or, for TCE, the client's classes; one value a sample."""
        counted = CLASSES[client] if self.truncated else [0, 1, 2, 3]
        # Exactly 0 for a single class, whose rounding errors Adam and signs would make large.
        return logits[:, counted].logsumexp(dim=1) - logits[torch.arange(len(targets)), targets]

    def visit(
        self,
        net: nn.Module,
        client: int,
        round: int,
        objective: Callable[[nn.Module, nn.Module, int, Tensor, Tensor], Tensor] | None = None,
        correct: Callable[[int, str, Tensor], Tensor] = lambda client, name, gradient: gradient,
    ) -> nn.Module:
        """A client's net after its local steps from ``net``, which is left alone.

        Args:
            objective: what a step minimises, from the local and the received net, client, inputs and targets; by default the
                mean loss.
            correct: from a client, a weight's name and its gradient to what the optimizer gets.
        """
        local = copy.deepcopy(net).train()
        optimizer = self.optimizer(local.parameters())
        optimizer.param_groups[0]["lr"] = self.rate(round)
        for inputs, targets in self.batches(client, round):
            if objective is None:
                value = self.losses(local(inputs), targets, client).mean()
            else:
                value = objective(local, net, client, inputs, targets)
            gradients = torch.autograd.grad(value, list(local.parameters()))
            for (name, weight), gradient in zip(local.named_parameters(), gradients):
                weight.grad = correct(client, name, gradient)
            optimizer.step()
        return local

    def visit_along(
        self,
        net: nn.Module,
        client: int,
        round: int,
        direction: Callable[[nn.Module, nn.Module, int, Tensor, Tensor], Sequence[Tensor]],
    ) -> nn.Module:
        """A client's net after its local steps from ``net``, whose optimizer gets other gradients than those of an objective.

        Args:
            direction: from the local and the received net, client, inputs and targets to a tensor for each weight.
        """
        local = copy.deepcopy(net).train()
        optimizer = self.optimizer(local.parameters())
        optimizer.param_groups[0]["lr"] = self.rate(round)
        for inputs, targets in self.batches(client, round):
            for weight, gradient in zip(local.parameters(), direction(local, net, client, inputs, targets), strict=True):
                weight.grad = gradient
            optimizer.step()
        return local

    def fisher(self, net: nn.Module, client: int) -> dict[str, Tensor]:
        """Mean over samples of the squared gradient of a sample's loss, in evaluation mode, one sample after another."""
        net = copy.deepcopy(net).eval()
        inputs, targets = self.shard(client)
        total = {name: torch.zeros_like(weight) for name, weight in net.named_parameters()}
        for i in range(len(targets)):
            loss = self.losses(net(inputs[i : i + 1]), targets[i : i + 1], client).sum()
            for name, gradient in zip(total, torch.autograd.grad(loss, list(net.parameters()))):
                total[name] += gradient**2 / len(targets)
        return total

    def gradient(self, net: nn.Module, client: int, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """Of the mean loss, by the net's weights."""
        loss = self.losses(net(inputs), targets, client).mean()
        return [gradient.detach() for gradient in torch.autograd.grad(loss, list(net.parameters()))]

    def sharp_gradient(self, net: nn.Module, client: int, inputs: Tensor, targets: Tensor, rho: float) -> list[Tensor]:
        """The gradient at ``w + rho g / ||g||``, of a copy: running statistics of the net follow the pass at w alone."""
        gradients = self.gradient(net, client, inputs, targets)
        length = torch.cat([gradient.flatten() for gradient in gradients]).norm() + 1e-12  # 0 for a single class
        above = copy.deepcopy(net)
        with torch.no_grad():
            for weight, gradient in zip(above.parameters(), gradients):
                weight += rho * gradient / length
        return self.gradient(above, client, inputs, targets)

    def rounds_with_momentum(
        self, alpha: float, gradient: Callable[[nn.Module, nn.Module, int, Tensor, Tensor], Sequence[Tensor]], uniform: bool
    ) -> nn.Module:
        """FedAvg along ``alpha g + (1 - alpha) D``; D is the mean of ``(x - y) / (a eta)`` over the last cohort, 0 at first.

        Args:
            gradient: from the local and the received net, client, inputs and targets to g.
        """
        net = self.new_net()
        mean = [torch.zeros_like(weight) for weight in net.parameters()]
        for round, cohort in self.rounds:

            def direction(*local, mean=mean):
                return [alpha * g + (1 - alpha) * d for g, d in zip(gradient(*local), mean, strict=True)]

            locals = {client: self.visit_along(net, client, round, direction) for client in cohort}
            sizes = {client: 1 if uniform else SIZES[client] for client in cohort}
            mean = [torch.zeros_like(weight) for weight in net.parameters()]
            for client, local in locals.items():
                share, length = sizes[client] / sum(sizes.values()), self.length(client, round)
                for d, x, y in zip(mean, net.parameters(), local.parameters(), strict=True):
                    d += share * (x - y).detach() / length
            net.load_state_dict(self.mean(locals, uniform=uniform))
        return net

    def steps_of_sgd(
        self, net: nn.Module, client: int, round: int, direction: Callable[[str, Tensor, Tensor], Tensor]
    ) -> nn.Module:
        """A client's net after plain steps of its rate along ``direction(name, weight, gradient)``, from ``net``."""
        local = copy.deepcopy(net).train()
        for inputs, targets in self.batches(client, round):
            loss = self.losses(local(inputs), targets, client).mean()
            gradients = torch.autograd.grad(loss, list(local.parameters()))
            with torch.no_grad():
                for (name, weight), gradient in zip(local.named_parameters(), gradients):
                    weight -= self.rate(round) * direction(name, weight.clone(), gradient)
        return local

    def in_phases(self, net: nn.Module, client: int, round: int, phases: list[tuple[str, int]]) -> nn.Module:
        """A client's net after so many steps on each part alone, by optimizers that have one part each."""
        local = copy.deepcopy(net).train()
        parts = [part for part, steps in phases for _ in range(steps)]
        optimizers = {part: self.optimizer(getattr(local, part).parameters()) for part in dict(phases)}
        for part, (inputs, targets) in zip(parts, self.batches(client, round), strict=True):
            optimizers[part].param_groups[0]["lr"] = self.rate(round)
            local.zero_grad()
            self.losses(local(inputs), targets, client).mean().backward()
            optimizers[part].step()
        return local

    def rounds_with_personal_parts(
        self, is_personal: Callable[[str], bool], visit: Callable[[nn.Module, int, int], nn.Module] | None = None
    ) -> tuple[nn.Module, dict[int, dict[str, Tensor]]]:
        """FedAvg of what is not personal: the server's net, and by client what stays with it, the initial values at first."""
        net, personal = self.new_net(), {}
        for round, cohort in self.rounds:
            locals = {}
            for client in cohort:
                start = self.new_net()
                start.load_state_dict({**net.state_dict(), **personal.get(client, {})})
                locals[client] = (visit or self.visit)(start, client, round)
                personal[client] = {name: value for name, value in locals[client].state_dict().items() if is_personal(name)}
            shared = {name: value for name, value in self.mean(locals).items() if not is_personal(name)}
            net.load_state_dict({**net.state_dict(), **shared})
        return net, personal

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

    def assert_states(self, method: FederatedModule, expected: dict[int, dict[str, Any]], atol: float = 1e-9) -> None:
        """What the method keeps at each client, and nothing else; clients that never took part have none."""
        assert sorted(method.stored.states.clients()) == sorted(expected) == [0, 1, 2, 3]
        for client, kept in expected.items():
            self.assert_same_state(method.stored.states.read(client), ClientState(method=kept), atol)

    def assert_kept(self, method: FederatedModule, expected: dict[int, dict[str, Tensor]]) -> None:
        """The weights and buffers that stay with each client, and nothing else."""
        assert sorted(method.stored.states.clients()) == sorted(expected) == [0, 1, 2, 3]
        for client, kept in expected.items():
            self.assert_same_state(method.stored.states.read(client), ClientState(weights=kept))

    def assert_personal(self, method: FederatedModule, client: int, expected: nn.Module) -> None:
        """The model that a client uses, with what it shares as the server has it now."""
        shared = {name: tensor.detach() for name, tensor in (*method.net.named_parameters(), *method.net.named_buffers())}
        model = method.personal_model(shared, method.stored.states.read(client))
        self.assert_same(model, dict((*expected.named_parameters(), *expected.named_buffers())))

    def assert_same_state(self, actual: ClientState, expected: ClientState, atol: float = 1e-9) -> None:
        """All parts of what a client keeps, within ``atol``; integers exactly."""
        torch.testing.assert_close(pack(actual), pack(expected), atol=atol, rtol=0)

    def assert_moved(self, net: nn.Module) -> None:
        """Every weight is far from where it began."""
        for name, weight in self.new_net("features.1.weight" in dict(net.named_parameters())).named_parameters():
            assert (net.get_parameter(name) - weight).abs().max() > 1e-3, name


@pytest.fixture
def tiny(fit, request) -> Tiny:
    """The federation; a parameter such as ``momentum`` or ``adam tce`` names the local optimizer and the loss."""
    words = getattr(request, "param", "sgd").split()
    return Tiny(fit, words[0], truncated="tce" in words[1:])


@pytest.fixture(params=["names", "layers", "outside"])
def tied(tiny, monkeypatch, request) -> Tiny:
    """The federation with a net of class :class:`Tied`."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = Tied(request.param).double()
    monkeypatch.setattr(tiny, "new_net", lambda norm=False: copy.deepcopy(net))
    return tiny
