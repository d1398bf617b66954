"""A round with no trainer around it."""

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.engines.engine import Engine
from fl_lightning.functional.random_streams import seeded_layers
from fl_lightning.protocol import RoundReport


def run_round(method: FederatedAlgorithm, engine: Engine, round: int) -> RoundReport:
    """One communication round: the cohort's local fits, the server's step, and what clients keep.

    The weights are those of a fit, to rounding where the net has convolutions, whose memory order a fit changes. Undoing a step
    that makes the model non-finite is left to the caller.

    Args:
        method: has joined a federation.
        engine: of that method.
        round: counted from 1.
    """
    fit = engine.run(round, method.begin_round(round), keep_models=False)
    with engine.context.precision(), seeded_layers(engine.seed, round, -1, "server", engine.context.device):
        method.server_step(engine.hooks.aggregate(fit.reduced) if fit.report.num_updates > 0 else None)
        engine.hooks.end_round(fit.probes)
    engine.context.states.commit(round, fit.kept, fit.cleared)
    return fit.report
