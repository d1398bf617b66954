"""The ServerApp of a federation: ``fl-lightning fit`` with clients at the sites of Flower's grid."""

import time
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fl_lightning.command_line import cli
from fl_lightning.engines.flower import connected
from fl_lightning.sites.grid_sites import GridSites

_UPLOADED = 1.0  # seconds: Flower uploads what an app prints every .2 s, and drops what comes after its end


def server_app(config: Path) -> ServerApp:
    """A ServerApp that fits a config.

    Its ``run_config`` has ``deadline``, in seconds, and ``resume``, whether the run goes on from its last checkpoint. After the
    line of a fit that fails, the app ends with a :class:`SystemExit`.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        options = ["--ckpt_path", "last"] if context.run_config["resume"] else []
        with connected(GridSites(grid, float(context.run_config["deadline"]))):
            code = cli.main(["fit", "--config", str(config), "--model.engine", "flower", *options])
        if code != 0:
            time.sleep(_UPLOADED)
            raise SystemExit(code)

    return app
