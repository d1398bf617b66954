"""The ServerApp of a federation: ``fl-lightning fit`` with clients at the sites of Flower's grid."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fl_lightning.command_line import cli
from fl_lightning.engines.flower import connected
from fl_lightning.sites.grid_sites import GridSites


def server_app(config: Path) -> ServerApp:
    """A ServerApp that fits a config.

    Its ``run_config`` has ``deadline``, in seconds, and ``resume``, whether the run resumes from its last checkpoint. If the
    fit fails, it prints its line, and the app raises a :class:`RuntimeError`: after a :class:`SystemExit` Flower would wait
    a minute for the app's heartbeat.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        options = ["--ckpt_path", "last"] if context.run_config["resume"] else []
        with connected(GridSites(grid, float(context.run_config["deadline"]))):
            code = cli.main(["fit", "--config", str(config), "--model.engine", "flower", *options])
        if code != 0:
            raise RuntimeError(f"fl-lightning fit ended with exit code {code}, for the reason above")

    return app
