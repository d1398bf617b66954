"""What is measured: each function runs some programs and gives a table."""

import copy
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import matmul, reference_loop
from benchmarks.methods import METHODS
from benchmarks.programs import PROGRAMS, ROOT, Program, ProgramFailed, environment, interleave, running
from benchmarks.protocol import Weights
from benchmarks.workloads import Workload, load
from fl_lightning.attacks import Inversion, Inverter, Observation, PixelRange
from fl_lightning.losses import CrossEntropy

_ANALYSIS = {"all off": PROGRAMS["ours"], "analysis on": f"{PROGRAMS['ours']} --analysis"}
_PROCESSES = {"one process": PROGRAMS["ours"], "two processes": f"{PROGRAMS['ours']} --processes 2"}
_POPULATIONS = ("W5-1000", "W5-10000", "W5-100000", "W5-1000000")
Samples = dict[str, list[dict[str, Any]]]  # by program, what each round measured
_FIRST_ROUND = 100  # from which on memory may not grow
_STARTS = 5
_DEFENCES = ("FedAvg+DPSGD", "FedReg+MG")
COMPARED = [name for name in METHODS if name not in ("FedAvg", *_DEFENCES)]
_ATTACK_ITERATIONS = 32_000
_METHODS_AT_A_TIME = 4  # programs that wait hold their memory
_WARM_UP = 12  # rounds, in which 19 of 20 clients are visited: memory for what one keeps is new at its first visit


@dataclass
class Table:
    """Rows with the same columns, remarks on them, and every number they were made from."""

    title: str
    rows: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)
    samples: dict[str, Any] = field(default_factory=dict)


def compare(name: str, options: Namespace) -> Table:
    """All programs on one workload, against the reference loop."""
    workload = load(name)
    rounds = options.rounds or workload.rounds
    chosen = ["reference", *(program for program in options.programs if program != "reference")]
    with running({program: PROGRAMS[program] for program in chosen}, name, options.threads) as programs:
        warm_up = interleave(programs, 1)
        distances = distances_from_first({key: programs[key] for key in programs if key != "matmul"})
        interleave(programs, options.warm_up - 1)
        samples = interleave(programs, rounds, workload.turn)
        peaks = {key: program.quit() for key, program in programs.items()}
    flops, seconds = round_flops(workload), {program: median_of(samples[program]) for program in samples}
    ratios = {program: ratios_to(samples["reference"], samples[program]) for program in samples}
    rows = [
        {
            "program": program,
            "s a round": seconds[program],
            "to reference": median(ratios[program]),
            "half of the rounds": spread(ratios[program]),
            "GFLOP/s": flops / seconds[program] / 1e9,
            "distance": distances[program],
            "peak MiB": peaks[program],
        }
        for program in samples
        if program != "matmul"
    ]
    protocol = f"{rounds} rounds in turns of {workload.turn}, {options.threads} threads"
    notes = [f"Medians of {protocol}, {flops / 1e9:.4g} GFLOP a round.", *_remarks(samples, flops)]
    return Table(f"{name}: all programs", rows, notes, {"warm-up": warm_up, "rounds": samples})


def methods(options: Namespace) -> Table:
    """Every method against FedAvg, which takes part in each group's turns, and against the passes that it needs."""
    names, size = options.methods, _METHODS_AT_A_TIME
    groups = [("FedAvg", *names[first : first + size]) for first in range(0, len(names), size)]
    return _against_passes("Methods", groups, options)


def defences(options: Namespace) -> Table:
    """What privacy costs: DP-SGD against FedAvg, modified gradients against FedReg."""
    return _against_passes("Defences", [(name.split("+")[0], name) for name in _DEFENCES], options)


def _against_passes(title: str, groups: Sequence[tuple[str, ...]], options: Namespace) -> Table:
    """The methods of each group against its first and against the passes that they need."""
    workload, rows, samples = load("methods"), [], {}
    rounds = options.rounds or workload.rounds
    for first, *group in groups:
        commands = {name: f"{PROGRAMS['ours']} --engine sequential --method {name}" for name in (first, *group)}
        with running(commands, "methods", options.threads) as programs:
            interleave(programs, max(options.warm_up, _WARM_UP))
            measured = interleave(programs, rounds)
            peaks = {name: program.quit() for name, program in programs.items()}
        for name in group:
            cost, last = METHODS[name], measured[name][-1]
            ratios = ratios_to(measured[first], measured[name])
            needed = cost.passes(workload) / METHODS[first].passes(workload)
            rows.append(
                {
                    "method": name,
                    "s a round": median_of(measured[name]),
                    "compared with": first,
                    "ratio": median(ratios),
                    "half of the rounds": spread(ratios),
                    "passes needed": needed,
                    "above them": median(ratios) / needed - 1,
                    "client keeps (nets)": last["client_state"],
                    "server keeps (nets)": last["server_state"],
                    "expected": f"{cost.client_state}, {cost.server_state}",
                    "peak MiB above": peaks[name] - peaks[first],
                }
            )
        samples |= {f"{name} ({', '.join(group)})": measured[name] for name in measured}
    together = "; ".join(", ".join(group) for group in groups)
    note = f"Medians of {rounds} rounds in turns of 1, {options.threads} threads. Side by side: {together}."
    return Table(title, rows, [note], samples)


def _remarks(samples: Samples, flops: int) -> list[str]:
    """What else the rounds of a comparison tell; ``flops`` are those of a round."""
    remarks = ["Peak memory is that of all processes of a program and includes our package, which draws everybody's schedule."]
    if "matmul" in samples:
        rate = matmul.FLOPS / median_of(samples["matmul"])
        limit = flops / rate / median_of(samples["reference"])
        remarks.append(
            f"Matrix product in the same run: {rate / 1e9:.4g} GFLOP/s, at which the arithmetic takes {limit:.3g} of the "
            "reference's round."
        )
    for program in samples:
        if program.startswith("ours"):
            remarks.append(f"{program}: {1e3 * overhead(samples[program]):.3g} ms of a round outside the engine.")
    return remarks


def attack(options: Namespace) -> Table:
    """Gradient inversion of one image from the CIFAR net, as invert_fedreg_cifar10.yaml has it, plain and compiled."""
    torch.set_num_threads(options.threads)
    iterations = options.rounds or _ATTACK_ITERATIONS
    samples = {name: _attack_seconds(iterations, compiled) for name, compiled in (("plain", False), ("compiled", True))}
    rows = [
        {
            "step": name,
            "first iteration, s": seconds[0],
            "ms an iteration after it": 1e3 * (seconds[-1] - seconds[0]) / (iterations - 1),
            "s in all": seconds[-1],
        }
        for name, seconds in samples.items()
    ]
    return Table("Attack", rows, [f"{iterations:,} iterations, {options.threads} threads."], samples)


def _attack_seconds(iterations: int, compiled: bool) -> list[float]:
    """Seconds from the start of an attack to the end of its first iteration, and to its end."""
    workload = load("methods")
    net, inputs, targets = workload.build_net(), workload.normalised_inputs()[:1], workload.targets[:1]
    weights = dict(net.named_parameters())
    gradient = torch.autograd.grad(CrossEntropy()(net(inputs), targets, None).mean(), list(weights.values()))
    pixels = PixelRange(inputs.amin(dim=(0, 2, 3), keepdim=True), inputs.amax(dim=(0, 2, 3), keepdim=True))
    inverter = Inverter(net, CrossEntropy(), pixels, Inversion(iterations=iterations, compile=compiled))
    observation = Observation(0, dict(zip(weights, gradient, strict=True)), torch.ones(10), inputs, targets)
    seconds, start = [], perf_counter()
    inverter.invert(observation, lambda iteration, _: seconds.append(perf_counter() - start) if iteration == 0 else None)
    return [*seconds, perf_counter() - start]


def population_growth(options: Namespace) -> Table:
    """W5: W2 with 10^3 to 10^6 clients and the same cohort."""
    with running(dict.fromkeys(_POPULATIONS, PROGRAMS["ours"]), _POPULATIONS, options.threads) as programs:
        return _against_first("W5: population growth", programs, options, load("W2"), _POPULATIONS[0])


def two_processes(options: Namespace) -> Table:
    """W1 in one process and in two, one thread each."""
    with running(_PROCESSES, "W1", threads=1) as programs:
        return _against_first("W1: one thread a process", programs, options, load("W1"), next(iter(_PROCESSES)))


def _against_first(title: str, programs: dict[str, Program], options: Namespace, workload: Workload, first: str) -> Table:
    """Each program against the first one.

    Raises:
        ProgramFailed: if that one did not start.
    """
    if first not in programs:
        raise ProgramFailed(f"{first} did not start: nothing can be compared with it")
    rounds = options.rounds or workload.rounds
    warm_up, samples = interleave(programs, options.warm_up), interleave(programs, rounds, workload.turn)
    ratios = {name: ratios_to(samples[first], of_one) for name, of_one in samples.items()}
    rows = [
        {
            "": name,
            "s a round": median_of(samples[name]),
            "to first": median(of_one),
            "half of the rounds": spread(of_one),
            "rounds/s to first": 1 / median(of_one),
        }
        for name, of_one in ratios.items()
    ]
    notes = [f"Medians of {rounds} rounds in turns of {workload.turn}."]
    return Table(title, rows, notes, {"warm-up": warm_up, "rounds": samples})


def analysis_share(options: Namespace) -> Table:
    """W6: callbacks, logger, validation and test set at their default cadence, on against off, over 100 rounds."""
    rounds = options.rounds or load("W6").rounds
    with running(_ANALYSIS, "W6", options.threads) as programs:
        # What follows a round counts with the next: of rounds 2 to 101 that is all that belongs to rounds 1 to 100.
        warm_up, samples = interleave(programs, 1), interleave(programs, rounds)
    totals = {name: _totals(samples[name]) for name in samples}
    shares = {name: [one / off - 1 for one, off in zip(totals[name], totals["all off"], strict=True)] for name in samples}
    seconds = {name: sum(totals[name]) for name in samples}
    rows = [
        {"": name, "s in all": value, "share": value / seconds["all off"] - 1, "half of the tens": spread(shares[name])}
        for name, value in seconds.items()
    ]
    note = f"{rounds} rounds; *tens* are rounds 1 to 10, 11 to 20 and so on, in which everything that is watched happens once."
    return Table("W6: analysis", rows, [note], {"warm-up": warm_up, "rounds": samples})


def _totals(samples: list[dict[str, Any]]) -> list[float]:
    """Seconds of ten rounds at a time."""
    return [sum(sample["seconds"] for sample in samples[first : first + 10]) for first in range(0, len(samples), 10)]


def memory_growth(options: Namespace) -> Table:
    """Resident memory of W2 at round 100 and at the last."""
    with running({"ours": PROGRAMS["ours"]}, "W2", options.threads) as programs:
        resident = [sample["resident_mib"] for sample in interleave(programs, options.memory_rounds)["ours"]]
    first = min(_FIRST_ROUND, len(resident))
    rows = [
        {"round": round, "resident MiB": resident[round - 1], "growth": resident[round - 1] / resident[first - 1] - 1}
        for round in (first, len(resident))
    ]
    return Table("W2: memory", rows, samples={"resident_mib_every_100_rounds": resident[first - 1 :: 100]})


def start_up(options: Namespace) -> Table:
    """From the shell to Lightning's command line imported, to our help text, and to the end of W2's first round."""
    lightning = [sys.executable, "-c", "import lightning.pytorch.cli"]
    ours_help = [str(Path(sys.executable).with_name("fl-lightning")), "--help"]
    samples: dict[str, list[float]] = {"import lightning.pytorch.cli": [], "fl-lightning --help": [], "first round of W2": []}
    for _ in range(_STARTS):
        samples["import lightning.pytorch.cli"].append(seconds_of(lightning, options.threads))
        samples["fl-lightning --help"].append(seconds_of(ours_help, options.threads))
        samples["first round of W2"].append(seconds_to_first_round(options.threads))
    medians = {name: median(values) for name, values in samples.items()}
    first, *_ = samples
    ratios = {name: [one / base for one, base in zip(samples[name], samples[first], strict=True)] for name in samples}
    rows = [
        {"": name, "s": value, "to first": median(ratios[name]), "half of the starts": spread(ratios[name])}
        for name, value in medians.items()
    ]
    return Table("Start-up", rows, [f"Medians of {_STARTS} starts."], samples)


def seconds_of(command: list[str], threads: int) -> float:
    """Time of a command from start to end."""
    start = perf_counter()
    subprocess.run(command, cwd=ROOT, env=environment(threads), check=True, capture_output=True)
    return perf_counter() - start


def seconds_to_first_round(threads: int) -> float:
    """Time from the start of our program to the end of its first round of W2."""
    start = perf_counter()
    with running({"ours": PROGRAMS["ours"]}, "W2", threads) as programs:
        programs["ours"].play_round()
        return perf_counter() - start


def median_of(samples: list[dict[str, float]]) -> float:
    """Median seconds of some rounds."""
    return median(sample["seconds"] for sample in samples)


def ratios_to(base: list[dict[str, float]], samples: list[dict[str, float]]) -> list[float]:
    """Seconds of each round to those of the other program's round of the same number, which ran close to it."""
    return [one["seconds"] / other["seconds"] for one, other in zip(samples, base, strict=True)]


def spread(ratios: list[float]) -> str:
    """The quartiles, between which half of the ratios are."""
    low, _, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    return f"{low:.3g} to {high:.3g}"


def overhead(samples: list[dict[str, float]]) -> float:
    """Median seconds of one of our rounds outside of the engine: Lightning, hooks, aggregation and the server's step."""
    return median(sample["seconds"] - sample["engine_seconds"] for sample in samples)


def distances_from_first(programs: dict[str, Program]) -> dict[str, float]:
    """Largest difference of a weight from the first program's, over the largest of the first program's weights."""
    with TemporaryDirectory() as folder:
        weights = {name: program.weights(Path(folder, "weights.pt")) for name, program in programs.items()}
    first = next(iter(weights.values()))
    return {name: _distance(first, other) for name, other in weights.items()}


def _distance(first: Weights, other: Weights) -> float:
    largest = max(value.abs().max() for value in first.values())
    return float(max((other[name] - value).abs().max() for name, value in first.items()) / largest)


def round_flops(workload: Workload) -> int:
    """Floating point operations of the reference's first round, counted without doing them."""
    net = workload.build_net().to("meta")
    data = {
        "inputs": torch.empty(workload.inputs.shape, device="meta"),
        "targets": torch.empty(workload.targets.shape, dtype=torch.int64, device="meta"),
    }
    settings = {"num_samples": workload.num_samples, "learning_rate": workload.learning_rate}
    with FlopCounterMode(display=False) as counter:
        reference_loop.play_round(net, copy.deepcopy(net), workload.schedule(1), **data, **settings)
    return counter.get_total_flops()
