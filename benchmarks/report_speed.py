"""How long ``fl-lightning report`` takes: ``python -m benchmarks.report_speed FOLDER [RUNS] [ROUNDS]``.

Writes 200 runs of 4,000 rounds below FOLDER, with the scalars of a run that is evaluated every fourth round, then reports them.
"""

import resource
import sys
import time
from pathlib import Path

import numpy as np
import yaml

from fl_lightning.callbacks import RecordLogger
from fl_lightning.report.commands import report

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
    record = RecordLogger(folder)
    for round in range(1, rounds + 1):
        record.log_metrics(dict(zip(EVERY_ROUND, values[round], strict=False)), round)
        if round % 4 == 0:
            record.log_metrics(dict(zip(EVALUATED, values[round], strict=True)), round)
    record.finalize("success")


def main(folder: Path, runs: int = 200, rounds: int = 4000) -> None:
    """Write the runs that are not there yet, report them, and print seconds and memory."""
    for number in range(runs):
        if not (folder / "runs" / f"run_{number}").exists():
            write_run(folder / "runs" / f"run_{number}", number, rounds)
    start, cpu = time.perf_counter(), time.process_time()
    report([folder / "runs"], out=folder / "report")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    seconds = time.perf_counter() - start
    print(f"{seconds:.0f} s, of which {time.process_time() - cpu:.0f} s on a core; {peak:.2f} GiB at most")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
