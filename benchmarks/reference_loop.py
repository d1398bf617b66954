"""The reference: federated averaging written by hand in PyTorch, the arithmetic and nothing else.

Fixed by its first commit: whoever changes it shows old and new side by side.
"""

import copy
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.protocol import option_parser, play_on_demand
from benchmarks.workloads import Schedule, load


def play_round(
    net: nn.Module,
    local: nn.Module,
    schedule: Schedule,
    *,
    inputs: Tensor,
    targets: Tensor,
    num_samples: Sequence[int],
    learning_rate: float,
) -> None:
    """Train each client of ``schedule`` from ``net`` in the working copy ``local``, and load the weighted mean into ``net``.

    ``num_samples[client]`` is the client's weight.
    """
    mean = {name: torch.zeros_like(value) for name, value in net.state_dict().items()}
    total = sum(num_samples[client] for client, _ in schedule)
    for client, batches in schedule:
        local.load_state_dict(net.state_dict())
        optimizer = torch.optim.SGD(local.parameters(), lr=learning_rate)
        for indices in batches:
            optimizer.zero_grad()
            F.cross_entropy(local(inputs[indices]), targets[indices]).backward()
            optimizer.step()
        for name, value in local.state_dict().items():
            mean[name].add_(value, alpha=num_samples[client] / total)
    net.load_state_dict(mean)


def main() -> None:
    """Play the rounds that the driver asks for, one local step after another."""
    options = option_parser(__doc__).parse_args()
    torch.set_num_threads(options.threads)
    workload = load(options.workload)
    net = workload.build_net()
    local = copy.deepcopy(net)
    data = {"inputs": workload.normalised_inputs(), "targets": workload.targets}
    settings = {"num_samples": workload.num_samples, "learning_rate": workload.learning_rate}
    play_on_demand(workload, net.state_dict, lambda schedule: play_round(net, local, schedule, **data, **settings))


if __name__ == "__main__":
    main()
