"""The same tiny run on the CPU and on the pretended GPU."""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from class_names import embeddings_of
from declared_by_tests import needs_without_net
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from fl_lightning import FederatedModule, methods
from fl_lightning import tasks as learners
from fl_lightning.data import Arrays, Dirichlet, FederatedDataModule, Joined, RandomCrop, RandomHorizontalFlip
from fl_lightning.engines.engine_choice import ENGINES
from fl_lightning.engines.rounds import run_round
from fl_lightning.engines.run_context import RunContext
from fl_lightning.losses import CrossEntropy, TruncatedCrossEntropy
from fl_lightning.protocol import pack
from pretended.counts import Counts, counting
from pretended.machine import pretended_gpu
from pretended.tensor import values

_IS_REAL = "FL_LIGHTNING_REAL_GPU" in os.environ
_ROUNDING = 1e-4  # of float32 on a real GPU, whose kernels add in another order

# What some methods cannot do without, of the data and of the rest, where it is not what their tests declare.
NEEDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "FedSGD": ({"batch_size": None}, {"local_epochs": 1, "local_steps": None}),
    "FedDF": ({"public_size": 10}, {"distillation_steps": 2}),
    "Flashback": ({"public_size": 8}, {}),
    "FedReg": ({}, {"num_perturbations": 2, "optimizer": lambda weights: torch.optim.SGD(weights, lr=0.05)}),
}

OF_LEARNERS: dict[str, dict[str, Any]] = {
    **{name: {"memory": 4} for name in ("ICaRL", "GLFC", "Replay")},
    "MFCL": {"generator_steps": 2, "generator_batch": 8, "noise": 8},
    "TARGET": {"warm_up": 1, "kept_rounds": 1, "synthesis_batch": 8, "generated": 4, "student_steps": 2, "student_rate": 0.01},
}
OF_LEARNERS["LANDER"] = {
    **OF_LEARNERS["TARGET"],
    "embeddings": embeddings_of("0123"),
    "generator_steps": 2,
    "rounds_per_task": 2,
}


def needs(name: str | type[FederatedModule]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of the data and of the method; the net here suits all."""
    if str(name) in NEEDS:
        return NEEDS[str(name)]
    return needs_without_net(str(name))


def has_device(name: str) -> AbstractContextManager[None]:
    """A block with a device; ``gpu`` is the pretended one, unless ``FL_LIGHTNING_REAL_GPU`` is set."""
    return pretended_gpu() if name == "gpu" and not _IS_REAL else nullcontext()


class Net(nn.Module):
    """A convolution, a norm and a classifier; smooth, so that no kink magnifies rounding."""

    def __init__(self, norm: str, num_classes: int) -> None:
        super().__init__()
        layer = nn.GroupNorm(2, 4) if norm == "group" else nn.BatchNorm2d(4)
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3, bias=norm == "group"), layer, nn.Tanh(), nn.Flatten())
        self.classifier = nn.Linear(4 * 9, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))


def new_net(norm: str = "group", num_classes: int = 4) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Net(norm, num_classes)


def new_data(num_classes: int = 4, samples: int = 60, domains: Sequence[str] = (), **settings: Any) -> FederatedDataModule:
    """Images of 3 x 5 x 5, four clients of which three come in a round."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (samples + 24, 3, 5, 5), dtype=torch.uint8, generator=generator)
    targets = torch.arange(samples + 24) % num_classes
    source = Arrays(images[:samples], targets[:samples], images[samples:], targets[samples:])
    if domains:
        source = Joined(dict.fromkeys(domains, source), size=5)
    common = {
        "num_clients": 4,
        "clients_per_round": 3,
        "batch_size": 4,
        "partition": Dirichlet(alpha=5.0),
        "val_fraction": 0.2,
        "monitor_test": 1,
        "augment": [RandomCrop(padding=1), RandomHorizontalFlip()],
        "eval_batch_size": 16,
        "num_workers": 0,
    }
    return FederatedDataModule(source, **{**common, **settings})


def new_method(
    name: str | type[FederatedModule], norm: str = "group", num_classes: int = 4, **settings: Any
) -> FederatedModule:
    """A method by its public name, that of a learner of tasks behind it, or a class."""
    name, _, learner = name.partition(" ") if isinstance(name, str) else (name, "", "")
    kind = (getattr(methods, name, None) or getattr(learners, name)) if isinstance(name, str) else name
    common = {
        "loss": TruncatedCrossEntropy(),
        "local_steps": 2,
        "optimizer": lambda weights: torch.optim.SGD(weights, lr=0.05, momentum=0.9),
    }
    if kind is learners.FedWeIT or learner:
        of_learner = {"rounds_per_task": 1, **OF_LEARNERS.get(learner, {})}
        common["tasks"] = getattr(learners, learner or "WeightedTransfer")(**of_learner)
    if learner == "GLFC":  # has losses of its own
        common["loss"] = CrossEntropy()
    needed = needs(name)[1]
    return kind(new_net(norm, num_classes), **{**common, **needed, **settings})


def fit(
    device: str,
    name: str | type[FederatedModule] = "FedAvg",
    data: dict[str, Any] | None = None,
    rounds: int = 2,
    watch: Sequence[pl.Callback] = (),
    precision: str = "32-true",
    ckpt_path: Path | None = None,
    save: Path | None = None,
    logger: Any = False,
    **settings: Any,
) -> FederatedModule:
    """A method after a run under Lightning on ``cpu`` or ``gpu``."""
    with has_device(device):
        trained = new_method(name, **settings)
        trainer = pl.Trainer(
            max_steps=rounds,
            max_epochs=-1,
            accelerator=device,
            devices=1,
            precision=precision,
            callbacks=list(watch),
            logger=logger,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            val_check_interval=1,
            check_val_every_n_epoch=None,
            num_sanity_val_steps=0,
            log_every_n_steps=1,
        )
        built = new_data(**{**needs(name)[0], **(data or {})})
        trainer.fit(trained, datamodule=built, ckpt_path=ckpt_path)
        if save is not None:
            trainer.save_checkpoint(save)
    return trained


def loop(
    device: str,
    name: str | type[FederatedModule] = "FedAvg",
    engine: str = "sequential",
    rounds: int = 2,
    data: dict[str, Any] | None = None,
    **settings: Any,
) -> tuple[FederatedModule, Counts]:
    """A method after rounds without a trainer on ``cpu`` or ``gpu``, and the counts of the last round."""
    with has_device(device):
        where = torch.device("cuda", 0) if device == "gpu" else torch.device("cpu")
        built = new_data(**{**needs(name)[0], **(data or {})})
        method = new_method(name, **settings)
        built.setup()
        method.join(built)
        built.to(where, torch.float32)
        method.to(where)
        context = RunContext(where)
        method.stored.states = context.states
        runs = ENGINES[engine](method, context)
        for round in range(1, rounds + 1):
            with counting() as counts:
                run_round(method, runs, round)
    return method, counts


def assert_same(actual: FederatedModule, expected: FederatedModule, atol: float = 1e-6) -> None:
    """Weights, buffers, what the server and the clients keep, and the newest of all scalars."""
    ends = [_end(method) for method in (actual, expected)]
    atol = max(atol, _ROUNDING) if _IS_REAL else atol
    assert ends[0].keys() == ends[1].keys()
    for name, value in ends[1].items():
        torch.testing.assert_close(
            ends[0][name], value, atol=atol, rtol=0, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}"
        )


def _end(method: FederatedModule) -> dict[str, Any]:
    states = {client: pack(method.stored.states.read(client)) for client in sorted(method.stored.states.clients())}
    scalars = {name: value for name, value in method.newest.items() if not name.startswith("time/")}
    return tree_map_only(Tensor, Tensor.cpu, values({**method.state_dict(), "client states": states, "scalars": scalars}))


def both(watch: Callable[[], Sequence[pl.Callback]] = tuple, atol: float = 1e-6, **settings: Any) -> FederatedModule:
    """The method after a fit on the GPU, which ends as one on the CPU, whose clients come one after another."""
    gpu = fit("gpu", watch=watch(), **settings)
    assert_same(gpu, fit("cpu", watch=watch(), **{**settings, "engine": "sequential"}), atol)
    return gpu
