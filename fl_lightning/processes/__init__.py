"""Several processes that share a round: the strategy, the group, processes that died, errors of a device."""
