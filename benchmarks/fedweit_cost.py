"""What FedWeIT costs: ``python -m benchmarks.fedweit_cost round|memory [OUT.json]``.

``round``: a round of FedWeIT to one of FedProx with the same steps, LeNet, from the second task on, where clients build on each
other's tasks. ``memory``: a hundred clients and ten tasks: what clients and server hold to the model size that is reported, and
how long a checkpoint takes.
"""

import json
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import lightning.pytorch as pl
import torch
from torch.utils._pytree import tree_leaves

from benchmarks.report import circumstances
from benchmarks.trainer_settings import trainer_settings
from benchmarks.workloads import random_images
from fl_lightning import FederatedModule, FedProx
from fl_lightning.data import Arrays, FederatedDataModule
from fl_lightning.models import LeNet
from fl_lightning.protocol.client_state import num_bytes
from fl_lightning.tasks import FedWeIT, TaskLearner, TaskStream, WeightedTransfer

ROUNDS_PER_TASK, REPETITIONS, MIB = 3, 3, 2**20
SPARSE = 0.011  # l1 at which these short tasks leave about as much of A as twenty rounds on Overlapped-CIFAR-100 do


class RoundTimes(pl.Callback):
    """Seconds of the processor that each round takes."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self.start = process_time()

    def on_train_batch_end(self, *_: Any) -> None:
        self.seconds.append(process_time() - self.start)


def train(
    fitted: FederatedModule, num_clients: int, num_tasks: int, images_per_task: int, *callbacks: pl.Callback
) -> pl.Trainer:
    """All tasks of five classes each, on random images."""
    labels = torch.arange(num_clients * num_tasks * images_per_task) % (5 * num_tasks)
    data = FederatedDataModule(
        Arrays(random_images(len(labels)), labels),
        num_clients=num_clients,
        clients_per_round=num_clients,
        batch_size=100,
        tasks=TaskStream(classes_per_task=5),
    )
    with TemporaryDirectory() as folder:
        settings = trainer_settings(analysis=False, folder=folder)
        settings["callbacks"].extend(callbacks)
        trainer = pl.Trainer(max_steps=10**6, accelerator="cpu", **settings)
        trainer.fit(fitted, datamodule=data)
    return trainer


def method(kind: type[FederatedModule], learner: type[TaskLearner], **settings: Any) -> FederatedModule:
    """As in the paper's configs, one epoch a round."""
    tasks = learner(**{"evaluate_every": 10**6, "rounds_per_task": ROUNDS_PER_TASK, **settings})
    common = {"local_epochs": 1, "engine": "sequential", "server_weighting": "uniform"}
    return kind(LeNet, optimizer=lambda weights: torch.optim.Adam(weights, lr=1e-3 / 3), tasks=tasks, **common)


def round_times() -> dict[str, Any]:
    """Both methods in turns: seconds of the processor for rounds of the second and third task but those that end one."""
    samples: dict[str, list[float]] = {"FedProx": [], "FedWeIT": []}
    for _ in range(REPETITIONS):
        for kind, learner, settings in ((FedProx, TaskLearner, {}), (FedWeIT, WeightedTransfer, {"l1": SPARSE})):
            times = RoundTimes()
            train(method(kind, learner, **settings), 3, 3, 400, times)
            inside = [s for i, s in enumerate(times.seconds) if i >= ROUNDS_PER_TASK and (i + 1) % ROUNDS_PER_TASK]
            samples[kind.__name__] += inside
    seconds = {name: median(values) for name, values in samples.items()}
    return {**seconds, "ratio": seconds["FedWeIT"] / seconds["FedProx"], "samples": samples}


class Held(pl.Callback):
    """What is held after each round, in MiB, by part, in addition to the model size that is reported."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, float]] = []

    def on_train_batch_end(self, trainer: pl.Trainer, module: FedWeIT, *_: Any) -> None:
        states = module.stored.states.checkpoint()["states"].values()
        held = {
            "clients": sum(map(num_bytes, states)) / MIB,
            "knowledge base": sum(part.nbytes for part in tree_leaves(module.tasks.knowledge_base)) / MIB,
            "reported": 4 * int(module.tasks.model_values.sum()) / MIB,
        }
        held["ratio"] = (held["clients"] + held["knowledge base"]) / held["reported"]
        self.rounds.append({name: round(value, 3) for name, value in held.items()})
        print(self.rounds[-1], flush=True)


def memory() -> dict[str, Any]:
    """Two rounds a task, in the midst and at the end; clients build on four others, as in the paper's cohorts of five."""
    held, fedweit = Held(), method(FedWeIT, WeightedTransfer, rounds_per_task=2, l1=SPARSE, num_foreign=4)
    trainer = train(fedweit, 100, 10, 20, held)
    with TemporaryDirectory() as folder:
        path, start = Path(folder, "last.ckpt"), perf_counter()
        trainer.save_checkpoint(path)
        seconds, size = perf_counter() - start, path.stat().st_size / MIB
    return {"rounds": held.rounds, "checkpoint, s": seconds, "checkpoint, MiB": size}


if __name__ == "__main__":
    measures = {"round": round_times, "memory": memory}
    if len(sys.argv) < 2 or sys.argv[1] not in measures:
        sys.exit("usage: python -m benchmarks.fedweit_cost round|memory [OUT.json]")
    about = circumstances(torch.get_num_threads())
    text = json.dumps({**about, **measures[sys.argv[1]]()}, indent=1)
    print(text)
    for out in sys.argv[2:]:
        Path(out).write_text(text + "\n", encoding="utf-8")
