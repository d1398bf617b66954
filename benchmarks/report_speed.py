"""How long ``fl-lightning report`` takes: ``python -m benchmarks.report_speed FOLDER [RUNS] [ROUNDS]``.

Writes 200 runs of 4,000 rounds below FOLDER, with the scalars of a run that is evaluated every fourth round, then reports them.
"""

import resource
import sys
import time
from pathlib import Path

import numpy as np
import yaml
from torch.utils.tensorboard import SummaryWriter

from fl_lightning.command_line.report import run

EVERY_ROUND = [f"train/{name}" for name in ("loss", "nonfinite_clients")]
EVERY_ROUND += [f"communication/{name}" for name in ("down", "up", "total_down", "total_up")]
EVALUATED = [f"{part}/{name}" for part in ("test", "val") for name in ("accuracy", "loss")]
EVALUATED += ["forgetting/every_4", *(f"class_accuracy/{label}" for label in range(10))]
SEEDS, ALPHAS, RATES = 5, (0.1, 1.0), (0.01, 0.03, 0.1, 0.3)


def write_run(folder: Path, number: int, rounds: int) -> None:
    """One run of a grid of methods, alphas and rates, five seeds each, with random values."""
    group, seed = divmod(number, SEEDS)
    method, setting = divmod(group, len(ALPHAS) * len(RATES))
    alpha, rate = ALPHAS[setting % len(ALPHAS)], RATES[setting // len(ALPHAS)]
    config = {
        "seed_everything": seed,
        "trainer": {"max_steps": rounds},
        "model": {"class_path": f"methods.Method{method}", "init_args": {"optimizer": {"lr": rate}}},
        "data": {"source": "digits", "partition": {"alpha": alpha}},
    }
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    values = np.random.default_rng(number).random((rounds + 1, len(EVALUATED)))
    with SummaryWriter(folder) as writer:
        for round in range(1, rounds + 1):
            for name, value in zip(EVERY_ROUND, values[round], strict=False):
                writer.add_scalar(name, value, round)
            for name, value in zip(EVALUATED, values[round], strict=True) if round % 4 == 0 else ():
                writer.add_scalar(name, value, round)


def main(folder: Path, runs: int = 200, rounds: int = 4000) -> None:
    """Write the runs that are not there yet, report them, and print seconds and memory."""
    for number in range(runs):
        if not (folder / "runs" / f"run_{number}").exists():
            write_run(folder / "runs" / f"run_{number}", number, rounds)
    start, cpu = time.perf_counter(), time.process_time()
    run([str(folder / "runs"), "--out", str(folder / "report")])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    seconds = time.perf_counter() - start
    print(f"{seconds:.0f} s, of which {time.process_time() - cpu:.0f} s on a core; {peak:.2f} GiB at most")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
