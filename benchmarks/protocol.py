"""How a benchmarked program talks with the driver that times it: a line in on stdin, a line of JSON out on stdout.

Once it has prepared, a program says ``{"ready": true}``. Then ``go`` is one round, answered by ``{"seconds": ...}``;
``save PATH`` writes the global weights; ``quit`` is answered by ``{"peak_memory_mib": ...}`` and ends the program.
"""

import json
import os
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from benchmarks.memory import peak_memory_mib
from benchmarks.workloads import Schedule, Workload

Weights = dict[str, Tensor]
ENDLESS = 10**9  # rounds of a program, until the driver ends it


class Driver:
    """The other end of stdin and stdout, as a benchmarked program sees it."""

    def __init__(self) -> None:
        # Whatever a framework prints must not mix with the answers: for all other code stdout becomes stderr.
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def say(self, **facts: Any) -> None:
        """Send facts to the driver, as one line of JSON."""
        print(json.dumps(facts), file=self._answers, flush=True)

    def asks_for_round(self, weights: Callable[[], Weights]) -> bool:
        """Wait for the driver's word: True for one more round, False for the end."""
        for line in iter(sys.stdin.readline, ""):
            command, _, path = line.strip().partition(" ")
            if command == "go":
                return True
            if command == "quit":
                break
            if command == "save":
                torch.save({name: value.detach().float().clone() for name, value in weights().items()}, path)
                self.say(saved=path)
        self.say(peak_memory_mib=peak_memory_mib())
        return False


def option_parser(description: str | None) -> ArgumentParser:
    """The options that every program has."""
    parser = ArgumentParser(description=description)
    parser.add_argument("--workload", required=True, help="name in benchmarks/workloads.py")
    parser.add_argument("--threads", type=int, default=2, help="of torch, in every process of the program")
    return parser


def play_on_demand(workload: Workload, weights: Callable[[], Weights], play_round: Callable[[Schedule], None]) -> None:
    """Serve a program that is a plain loop. What a round draws at random is ready before the clock starts."""
    driver = Driver()
    driver.say(ready=True)
    round = 1
    while driver.asks_for_round(weights):
        schedule = workload.schedule(round)
        start = perf_counter()
        play_round(schedule)
        driver.say(seconds=perf_counter() - start)
        round += 1
