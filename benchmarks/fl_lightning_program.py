"""fl-lightning itself: a Lightning fit whose training steps are rounds."""

import logging
import warnings
from collections.abc import Callable
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities import rank_zero_only

import fl_lightning
from benchmarks.memory import resident_mib
from benchmarks.methods import METHODS
from benchmarks.protocol import ENDLESS, Driver, option_parser
from benchmarks.trainer_settings import trainer_settings
from benchmarks.workloads import Workload, load, random_images, random_labels
from fl_lightning import FederatedDataModule, FederatedModule
from fl_lightning.protocol.client_state import num_bytes

_TEST_SAMPLES = 10_000


class RoundTimer(pl.Callback):
    """Plays a round whenever the driver asks for one, and times it from then until the new global weights are there.

    What Lightning does between two training steps counts as part of the second, validation as well. Of several processes the
    first speaks for all.
    """

    def __init__(self) -> None:
        self.driver = Driver() if rank_zero_only.rank == 0 else None

    def on_train_start(self, trainer: pl.Trainer, module: FederatedModule) -> None:
        self._say(ready=True)
        self._wait(trainer, module)

    def on_train_batch_start(self, trainer: pl.Trainer, module: FederatedModule, batch: int, batch_idx: int) -> None:
        if batch_idx == 0:
            module.engine.run = self._timed(module.engine.run)

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: FederatedModule, outputs: None, batch: int, batch_idx: int
    ) -> None:
        seconds = perf_counter() - self.start
        self._say(seconds=seconds, engine_seconds=self.engine_seconds, resident_mib=resident_mib(), **kept(module))
        self._wait(trainer, module)

    def _say(self, **facts: Any) -> None:
        if self.driver is not None:
            self.driver.say(**facts)

    def _wait(self, trainer: pl.Trainer, module: FederatedModule) -> None:
        goes_on = self.driver is not None and self.driver.asks_for_round(module.net.state_dict)
        if not trainer.strategy.broadcast(goes_on):
            trainer.should_stop = True
        self.start = perf_counter()

    def _timed(self, run: Callable) -> Callable:
        def timed(*arguments: Any, **options: Any) -> Any:
            start = perf_counter()
            result = run(*arguments, **options)
            self.engine_seconds = perf_counter() - start
            return result

        return timed


def kept(method: FederatedModule) -> dict[str, float]:
    """What a client and the server keep between rounds in addition to the global model, in nets."""
    size = num_bytes(dict(method.net.named_parameters()))
    clients = method.stored.states.clients()
    state = method.stored.states.read(clients[0]).num_bytes() if clients else 0
    server = num_bytes(dict(method.named_buffers(recurse=False))) + num_bytes(dict(method.server_states.named_buffers()))
    return {"client_state": state / size, "server_state": server / size}


def data_module(workload: Workload, public_size: int) -> FederatedDataModule:
    """The workload's data; W6 has a validation part and a test set, whether they are looked at or not."""
    if workload.name != "W6":
        return workload.data_module(public_size=public_size)
    test = {"test_inputs": random_images(_TEST_SAMPLES, seed=1), "test_targets": random_labels(_TEST_SAMPLES, seed=1)}
    return workload.data_module(val_fraction=0.1, monitor_test=10, **test)


def main() -> None:
    """Play the rounds that the driver asks for, by a fit."""
    parser = option_parser(__doc__)
    parser.add_argument("--method", choices=METHODS, default="FedAvg", help="%(choices)s")
    parser.add_argument("--engine", default="auto", help="auto, sequential, vectorized or captured")
    parser.add_argument("--processes", type=int, default=1, help="that share a cohort")
    parser.add_argument("--analysis", action="store_true", help="with callbacks, logger, validation and test set")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    workload = load(options.workload)
    cost = METHODS[options.method]
    method = getattr(fl_lightning, options.method.split("+")[0])(
        workload.build_net(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=workload.learning_rate),
        local_steps=workload.local_steps,
        local_epochs=workload.local_epochs,
        engine=options.engine,
        **cost.settings,
    )
    processes = {"strategy": "federated", "devices": options.processes} if options.processes > 1 else {}
    with TemporaryDirectory() as folder:
        settings = trainer_settings(options.analysis, folder)
        settings["callbacks"].append(RoundTimer())
        trainer = pl.Trainer(max_steps=ENDLESS, accelerator="cpu", **settings, **processes)
        trainer.fit(method, datamodule=data_module(workload, workload.num_public if cost.needs_public else 0))


if __name__ == "__main__":
    main()
