"""What the set-up of many clients costs: ``python -m benchmarks.set_up PARTITION CLIENTS``, two samples a client."""

import argparse
import ctypes
from time import process_time

import torch

from benchmarks.memory import resident_mib
from benchmarks.workloads import random_labels
from fl_lightning import data
from fl_lightning.data import Arrays, FederatedDataModule


def main() -> None:
    """Set the clients up on one thread; print the seconds of the processor and the memory held at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("partition", help="a class of fl_lightning.data, such as IID")
    parser.add_argument("clients", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    count = 2 * options.clients
    owners = torch.arange(count) % options.clients
    source = Arrays(torch.zeros(count, 1), random_labels(count), torch.zeros(100, 1), random_labels(100), owners=owners)
    settings = {"num_clients": options.clients, "clients_per_round": 10, "val_fraction": 0.0}
    before, start = resident_mib(), process_time()
    module = FederatedDataModule(source, partition=getattr(data, options.partition)(), **settings)
    module.setup()
    seconds = process_time() - start
    ctypes.CDLL(None).malloc_trim(0)  # glibc keeps what was freed
    print(f"{options.partition}, {options.clients:,} clients: {seconds:.2f} s, {resident_mib() - before:.0f} MiB")


if __name__ == "__main__":
    main()
