"""FederatedStrategy: several processes share a cohort."""

import torch
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry


class FederatedStrategy(DDPStrategy):
    """Every process sees the same cohort, fits its share of it and adds its sums to the others' once a round.

    Launchers, process groups and reductions are those of Lightning's ``DDPStrategy``. Its wrapper around the module is not
    used: gradients belong to clients and are never averaged over processes.
    """

    strategy_name = "federated"

    def configure_ddp(self) -> None:
        """Leave the module bare; start all processes from the weights of the first."""
        for tensor in self.lightning_module.state_dict().values():
            torch.distributed.broadcast(tensor, src=0)


StrategyRegistry.register("federated", FederatedStrategy, description="Processes share a cohort of clients")
