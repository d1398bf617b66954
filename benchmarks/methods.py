"""What each method costs: the passes through the net that its equations ask for, and what it keeps."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.workloads import Workload
from fl_lightning.privacy import DPSGD

_BACKWARD = 2  # forward passes that a backward pass takes: one for the weights' gradients, one for the inputs'
_GRADIENT = 1 + _BACKWARD
_INPUT_GRADIENT = 2  # forward, and backward for only the inputs
_DISTILLATION_STEPS, _DISTILLATION_BATCH = 40, 128


@dataclass(frozen=True)
class Cost:
    """Forward passes of single samples in a round from the second on, for a client of n samples and E epochs."""

    per_step_sample: int = _GRADIENT  # for each sample of a local step
    per_sample: int = 0  # for each of the client's samples, once a round
    at_server: Callable[[Workload], int] = lambda workload: 0
    client_state: int = 0  # what is kept, in nets
    server_state: int = 0  # also in nets
    settings: dict[str, Any] = field(default_factory=dict)  # of the method
    needs_public: bool = False  # whether the server has samples

    def passes(self, workload: Workload) -> int:
        """Of a whole round."""
        samples = workload.num_samples[0] * workload.cohort_size
        return samples * (workload.local_epochs * self.per_step_sample + self.per_sample) + self.at_server(workload)


def _distil_feddf(workload: Workload) -> int:
    """Every teacher on the public samples, then the student's steps."""
    return workload.cohort_size * workload.num_public + _GRADIENT * _DISTILLATION_STEPS * _DISTILLATION_BATCH


def _distil_flashback(workload: Workload) -> int:
    """Every teacher and the global model of before on the public samples, then one epoch of the student."""
    return (workload.cohort_size + 1 + _GRADIENT) * workload.num_public


METHODS: dict[str, Cost] = {
    "FedAvg": Cost(),
    "FedProx": Cost(),
    "SCAFFOLD": Cost(client_state=1, server_state=1),
    "FedNova": Cost(),
    "FedDyn": Cost(client_state=1, server_state=1),
    "FedGMA": Cost(),
    "FedNTD": Cost(per_step_sample=_GRADIENT + 1),
    "MOON": Cost(per_step_sample=_GRADIENT + 2, client_state=1),
    "FedCurv": Cost(per_sample=_GRADIENT, client_state=2, server_state=2),
    # Three gradients a step; ten steps each towards pseudo and perturbed data, and the labels of the former.
    "FedReg": Cost(per_step_sample=3 * _GRADIENT, per_sample=2 * 10 * _INPUT_GRADIENT + 1),
    # For each sample forward, backward for the norms, the sample's gradients in it, and backward for the clipped sum.
    "FedAvg+DPSGD": Cost(per_step_sample=_GRADIENT + _BACKWARD, settings={"privacy": DPSGD(noise_multiplier=0.1)}),
    # One gradient more a step, on the batch's pseudo data.
    "FedReg+MG": Cost(
        per_step_sample=4 * _GRADIENT,
        per_sample=2 * 10 * _INPUT_GRADIENT + 1,
        settings={"modified_gradients": True},
    ),
    "FedDF": Cost(at_server=_distil_feddf, settings={"distillation_steps": _DISTILLATION_STEPS}, needs_public=True),
    "Flashback": Cost(per_step_sample=_GRADIENT + 1, at_server=_distil_flashback, needs_public=True),
}
