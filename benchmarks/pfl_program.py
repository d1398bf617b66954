"""pfl-research (Apple's pfl): its simulated backend in one process, as its documentation sets it up."""

from collections.abc import Callable
from time import perf_counter

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from benchmarks.protocol import ENDLESS, Driver, option_parser
from benchmarks.workloads import Workload, load


class Classifier(nn.Module):
    """A net with the two methods that pfl asks for."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.net(inputs), targets)

    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, Weighted]:
        """Asked in the first round, which is not timed, and never again."""
        return {"loss": Weighted(self.loss(inputs, targets).item() * len(inputs), len(inputs))}


class ScheduledUsers:
    """The cohorts of our schedule, in the form of pfl's federated dataset."""

    def __init__(self, workload: Workload) -> None:
        self.workload, self.inputs = workload, workload.normalised_inputs()

    def start(self, round: int) -> None:
        """Draw a round's schedule."""
        schedule = self.workload.schedule(round)
        self.samples = {client: torch.cat(batches) for client, batches in schedule}
        self.users = iter(self.samples)

    def next_user(self) -> int:
        return next(self.users)

    def dataset(self, user: int) -> PyTorchTensorDataset:
        """A client's batches of all local epochs, one after another; pfl cuts them apart again."""
        indices = self.samples[user]
        return PyTorchTensorDataset((self.inputs[indices], self.workload.targets[indices]), user_id=str(user))


class RoundTimer(TrainingProcessCallback):
    """Plays a round whenever the driver asks for one."""

    def __init__(self, users: ScheduledUsers, net: nn.Module) -> None:
        self.users, self.net, self.driver = users, net, Driver()

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self.driver.say(ready=True)
        if not self._wait(round=1):
            raise SystemExit
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.driver.say(seconds=perf_counter() - self.start)
        return not self._wait(round=central_iteration + 2), Metrics()

    def _wait(self, round: int) -> bool:
        goes_on = self.driver.asks_for_round(self.net.state_dict)
        self.users.start(round)
        self.start = perf_counter()
        return goes_on


def training(workload: Workload) -> Callable[[], object]:
    """Everything but the start."""
    net, users = workload.build_net(), ScheduledUsers(workload)
    model = PyTorchModel(Classifier(net), torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    dataset = FederatedDataset(users.dataset, users.next_user)
    return lambda: FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=ENDLESS,
            evaluation_frequency=ENDLESS,
            train_cohort_size=workload.cohort_size,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=dataset, val_data=dataset, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(
            local_batch_size=workload.batch_size, local_num_epochs=1, local_learning_rate=workload.learning_rate
        ),
        callbacks=[RoundTimer(users, net)],
        send_metrics_to_platform=False,
    )


def main() -> None:
    """Play the rounds that the driver asks for, in pfl's training loop."""
    options = option_parser(__doc__).parse_args()
    torch.set_num_threads(options.threads)
    training(load(options.workload))()


if __name__ == "__main__":
    main()
