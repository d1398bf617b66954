"""Several processes that share a round: the strategy, the group, dead processes, device errors."""
