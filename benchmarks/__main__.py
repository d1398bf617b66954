"""``python -m benchmarks`` from the root of the repository: everything, hours; with options a part of it."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks.check import check
from benchmarks.headline import headline
from benchmarks.measurements import (
    COMPARED,
    Table,
    analysis_share,
    attack,
    compare,
    defences,
    memory_growth,
    methods,
    population_growth,
    start_up,
    two_processes,
)
from benchmarks.programs import PROGRAMS, ProgramFailed
from benchmarks.real_federation import flower
from benchmarks.report import circumstances, markdown, write_json
from benchmarks.rules import rules
from benchmarks.run_on_gpu import run_on_gpu
from fl_lightning.checks import check_range

MEASUREMENTS: dict[str, Callable[[Namespace], Table]] = {
    **{name: partial(compare, name) for name in ("W1", "W2", "W3", "W4")},
    "W5": population_growth,
    "W6": analysis_share,
    "two-processes": two_processes,
    "memory": memory_growth,
    "start-up": start_up,
    "methods": methods,
    "defences": defences,
    "attack": attack,
    "rules": rules,
    "flower": flower,
}

_QUIET = 0.5  # processes that want to run, averaged over a minute


def parse_options() -> Namespace:
    """The command line."""
    parser = ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--workloads", nargs="+", choices=MEASUREMENTS, default=list(MEASUREMENTS), metavar="NAME", help="%(choices)s"
    )
    parser.add_argument(
        "--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS), metavar="NAME", help="of W1 to W4: %(choices)s"
    )
    parser.add_argument(
        "--methods", nargs="+", choices=COMPARED, default=COMPARED, metavar="NAME", help="of methods: %(choices)s"
    )
    parser.add_argument("--rounds", type=int, help="that are timed, iterations of the attack; by default those of a workload")
    parser.add_argument("--warm-up", type=int, default=1, help="rounds before those that are timed")
    parser.add_argument("--memory-rounds", type=int, default=10_000, help="of the measurement of memory")
    parser.add_argument("--threads", type=int, default=2, help="of every program")
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results.json"), help="file for all samples, which is overwritten"
    )
    parser.add_argument("--check", action="store_true", help="instead of all else, a few ratios against their limits")
    parser.add_argument("--gpu", action="store_true", help="instead of all else, the rounds of cifar10_tce.yaml on one GPU")
    parser.add_argument("--headline", action="store_true", help="with --gpu: engines, device tests, full runs, in pieces")
    parser.add_argument("--minutes", type=float, default=10, help="of --headline, which resumes when it is run again")
    parser.add_argument("--runs", type=Path, default=Path("runs/headline"), help="folder of the full runs of --headline")
    parser.add_argument("--data.source", metavar="SOURCE", help="how --headline reads CIFAR-10; default that of its configs")
    parser.add_argument("--data.root", metavar="DIR", help="its folder")
    parser.add_argument("--engine", default="auto", help="of --gpu")
    parser.add_argument("--analysis", action="store_true", help="with --gpu: evaluation, callbacks and logger as in the config")
    options = parser.parse_args()
    given = {name: getattr(options, name) for name in ("data.source", "data.root")}
    options.data = [f"--{name}={value}" for name, value in given.items() if value is not None]
    return options


def main() -> None:
    """Measure what the command line asks for; each table is printed and added to the JSON file."""
    options = parse_options()
    if options.headline and not options.gpu:
        sys.exit("benchmarks --headline: it is measured on a GPU: give --gpu too")
    if options.gpu and not torch.cuda.is_available():
        sys.exit("benchmarks --gpu: there is no CUDA device here")
    if options.headline:
        sys.exit(run_headline(options))
    about, tables = circumstances(options.threads), []
    print(f"{about['command']}\n{about['processor']}, {about['versions']}\n", flush=True)
    if about["load before"] > _QUIET:
        # A busy neighbour makes rounds far longer: threads that wait for each other stall.
        print(f"the load is {about['load before']:.2f}: these numbers will be worth nothing, wait for quiet", file=sys.stderr)
    if options.check:
        table, holds = check(options)
        print(markdown(table))
        write_json(options.out, about, [table])
        sys.exit(0 if holds else 1)
    measurements = {"gpu": run_on_gpu} if options.gpu else {name: MEASUREMENTS[name] for name in options.workloads}
    for name, measure in measurements.items():
        try:
            tables.append(measure(options))
        except ProgramFailed as failure:
            print(f"given up: {name}: {failure}", file=sys.stderr)
            continue
        print(markdown(tables[-1]), flush=True)
        write_json(options.out, about, tables)  # after every table: a long run may be cut off


def run_headline(options: Namespace) -> int:
    """The exit code; what does not fit is one line."""
    try:
        check_range("--minutes", options.minutes, at_least=0)
        return headline(options)
    except (OSError, ValueError) as error:
        print(f"benchmarks --gpu --headline: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    main()
