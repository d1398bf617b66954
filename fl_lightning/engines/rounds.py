"""A round without a trainer."""

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.engines.engine import Engine
from fl_lightning.functional.random_streams import seeded_layers
from fl_lightning.protocol import RoundReport


def run_round(method: FederatedAlgorithm, engine: Engine, round: int) -> RoundReport:
    """One communication round: the cohort's local fits, the server's step, and the clients' new states.

    The weights are those of a fit; with convolutions they agree to rounding, because a fit changes their memory order. The
    caller must undo a step that makes the model non-finite.

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
