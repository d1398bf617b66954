"""Flower's simulation: a ServerApp and a ClientApp, whose clients run in Ray actors.

One node for each member of a cohort, and the server tells each which client to be: faster for Flower than a node for every
client, since its simulation polls all nodes all the time.
"""

import logging
from time import perf_counter

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.flower_client import app as client_app
from benchmarks.protocol import ENDLESS, Driver, option_parser
from benchmarks.workloads import Workload, load


class ScheduledFedAvg(FedAvg):
    """FedAvg with our cohorts, whose rounds wait for the driver."""

    def __init__(self, workload: Workload, threads_per_actor: int) -> None:
        super().__init__(fraction_evaluate=0.0, min_available_nodes=workload.cohort_size)
        self.workload, self.threads_per_actor, self.driver = workload, threads_per_actor, Driver()

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        """The global weights for every client of the round."""
        common = {"workload": self.workload.name, "threads": self.threads_per_actor, "round": server_round}
        visits = [ConfigRecord({**common, "client": client}) for client in self.workload.cohort(server_round)]
        contents = [RecordDict({"arrays": arrays, "config": visit}) for visit in visits]
        return [Message(content, node, "train") for content, node in zip(contents, grid.get_node_ids(), strict=True)]

    def between_rounds(self, round: int, arrays: ArrayRecord) -> None:
        """What Flower takes for an evaluation: its last act in a round, and its first before round 1."""
        self.driver.say(**({"ready": True} if round == 0 else {"seconds": perf_counter() - self.start_time}))
        if not self.driver.asks_for_round(arrays.to_torch_state_dict):
            raise SystemExit
        self.start_time = perf_counter()


def main() -> None:
    """Play the rounds that the driver asks for, in a simulation."""
    parser = option_parser(__doc__)
    # Two actors of one thread beat one of two.
    parser.add_argument("--actors", type=int, default=2, help="processes that run clients and share the threads")
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    workload, threads_per_actor = load(options.workload), options.threads // options.actors
    strategy, server_app = ScheduledFedAvg(workload, threads_per_actor), ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        arrays = ArrayRecord(workload.build_net().state_dict())
        strategy.start(grid, arrays, num_rounds=ENDLESS, evaluate_fn=strategy.between_rounds)

    ray = {"init_args": {"num_cpus": options.threads}, "client_resources": {"num_cpus": threads_per_actor, "num_gpus": 0.0}}
    run_simulation(server_app, client_app, num_supernodes=workload.cohort_size, backend_config=ray)


if __name__ == "__main__":
    main()
