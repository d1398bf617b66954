"""The numbers of a finished run by which studies and benchmarks compare."""

import math

import numpy as np

from fl_lightning.functional.accuracy_curves import final_accuracy
from fl_lightning.report.costs import simulated_seconds, time_of_rounds
from fl_lightning.report.forgetting import mean_after_first
from fl_lightning.report.runs import Run
from fl_lightning.sweep.run_folder import final_metrics

WALL_SECONDS, PROCESSOR_SECONDS = "seconds", "processor_seconds"  # of the rounds by the clock; of the run's processes
CHANCE = "class_accuracy/times_chance"  # of the final model: its accuracy, the mean over classes, times their number
LOWEST, UNKNOWN = "class_accuracy/lowest", "class_accuracy/unknown"  # of final accuracies of classes; how many are below .1
_KNOWN = 0.1
# Of probes, of single clients, and of nets that are made after the last round.
_LAST_VALUES = ("head/", "drift/", "cka/", "events/", "tasks/accuracy_of_client/", "ccvr/", "wise_ft/")
_MEGABYTE = 1e6


def run_scalars(run: Run) -> dict[str, float]:
    """The numbers at the end of a run, those of probes included, its costs, and means over rounds of its forgetting.

    ``reference/NAME/lost`` is the accuracy on a reference set before round 1 less that at the end.
    """
    results, log = run.results, run.log.scalars
    means = {f"{name}/mean": mean_after_first(run, name) for name in log if name.startswith("forgetting/")}
    ends = {name: float(curve.values[-1]) for name, curve in log.items() if name.startswith(_LAST_VALUES)}
    reached = {f"rounds_to/{target}": number for target, number in results["rounds_to_target"].items() if number is not None}
    curves = [curve for name, curve in log.items() if name.startswith("class_accuracy/")]
    last = [curve.values[-1] for curve in curves]
    spread = {"class_accuracy/sd": float(np.std(last)), CHANCE: float(np.sum(last))} if curves else {}
    if final := [final_accuracy(curve.by_round()) for curve in curves if curve.rounds[-1] > 0]:
        spread |= {LOWEST: min(final), UNKNOWN: float(sum(accuracy < _KNOWN for accuracy in final))}
    lost = {
        f"{name.removesuffix('/accuracy')}/lost": float(curve.values[0] - curve.values[-1])
        for name, curve in log.items()
        if name.startswith("reference/") and name.endswith("/accuracy")
    }
    costs = {"MB_up": results["bytes_up"] / _MEGABYTE, "MB_down": results["bytes_down"] / _MEGABYTE}
    times = {"rounds": results["rounds"], WALL_SECONDS: round(time_of_rounds(run)[1], 1)}
    costs["simulated_seconds"] = simulated_seconds(run)
    measured = {**final_metrics(results), **ends, **means, **reached, **spread, **lost, **costs, **times}
    return {name: value for name, value in measured.items() if math.isfinite(value)}
