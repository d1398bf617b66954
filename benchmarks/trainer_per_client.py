"""One ``Trainer.fit`` a client: what people write who have a Lightning module and want to federate it."""

import copy
import logging
import warnings

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from benchmarks.protocol import Weights, option_parser, play_on_demand
from benchmarks.workloads import Schedule, Workload, load


class LocalModule(pl.LightningModule):
    """A client's copy of the net."""

    def __init__(self, net: nn.Module, learning_rate: float) -> None:
        super().__init__()
        self.net, self.learning_rate = net, learning_rate

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        return F.cross_entropy(self.net(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.learning_rate)


def fit_client(workload: Workload, inputs: Tensor, net: nn.Module, batches: list[Tensor]) -> Weights:
    """The weights of a client after its visit."""
    local = LocalModule(copy.deepcopy(net), workload.learning_rate)
    trainer = pl.Trainer(
        max_epochs=1,  # the batches of all local epochs, one after another
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    # Batches made beforehand in place of single samples to be collated: faster, and it plays our schedule.
    trainer.fit(local, DataLoader([(inputs[indices], workload.targets[indices]) for indices in batches], batch_size=None))
    return local.net.state_dict()


def play_round(workload: Workload, inputs: Tensor, net: nn.Module, schedule: Schedule) -> None:
    """One round of federated averaging over the clients' weights."""
    mean = {name: torch.zeros_like(value) for name, value in net.state_dict().items()}
    total = sum(workload.num_samples[client] for client, _ in schedule)
    for client, batches in schedule:
        for name, value in fit_client(workload, inputs, net, batches).items():
            mean[name].add_(value, alpha=workload.num_samples[client] / total)
    net.load_state_dict(mean)


def main() -> None:
    """Play the rounds that the driver asks for, by a fit a client."""
    options = option_parser(__doc__).parse_args()
    torch.set_num_threads(options.threads)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    workload = load(options.workload)
    net, inputs = workload.build_net(), workload.normalised_inputs()
    play_on_demand(workload, net.state_dict, lambda schedule: play_round(workload, inputs, net, schedule))


if __name__ == "__main__":
    main()
