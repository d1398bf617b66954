"""What checkpoints hold of a run, and what is taken from them: by a fit that goes on, by evaluation, and without a trainer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer

from fl_lightning.data import FederatedDataModule
from fl_lightning.data.scaling import check_same_inputs, recorded_inputs
from fl_lightning.exchange import Needs
from fl_lightning.state.checkpoint import LAYOUT, check_whole, has_present_layout, read_checkpoint
from fl_lightning.state.client_states import ClientStates, MemoryStates
from fl_lightning.training.evaluation import EvaluatedModule
from fl_lightning.training.lost_rounds import LostRounds
from fl_lightning.training.round_callback import round_callbacks
from fl_lightning.training.run_settings import Settings, check_net_settings, check_settings, run_settings
from fl_lightning.training.stored_states import check_saved_states, open_client_states, saved_client_states
from fl_lightning.training.warm_start import check_same_net, with_present_server_states


class CheckpointedModule(EvaluatedModule):
    """The part of :class:`FederatedModule` that outlives a process.

    A checkpoint holds in addition to Lightning's part: clients' states, how far rounds and evaluations are, and what the run
    was made with, to which a fit that goes on is held.
    """

    needs: Needs
    make_net: Callable[[tuple[int, ...], int], None]

    def __init__(self) -> None:
        super().__init__()
        self.client_states: ClientStates = MemoryStates()  # what clients keep between visits, for clients that took part
        self.tuned_engine: str | None = None  # what engine="tune" measured as the fastest
        self.began_from: dict[str, Any] | None = None  # of initial_weights: the file, and the round of its run
        self._lost_rounds = LostRounds()
        self._settings: Settings = {}  # of the fit
        self._restored_states: dict[str, Any] | None = None  # what a checkpoint holds, until there is a store for it

    def open_client_states(self, kind: str, folder: Path | None) -> None:
        """Have a store of clients' states, with those that a checkpoint holds; all processes call it.

        Args:
            kind: ``memory`` or ``disk``.
            folder: where this run alone writes, if somebody says so.
        """
        self.client_states = open_client_states(self.trainer, kind, folder, self._restored_states)
        self._restored_states = None

    def place_data(self) -> None:
        super().place_data()
        if self._restored_states is not None and self.trainer.state.fn != "fit":
            self.open_client_states("memory", None)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["federated"] = {
            "layout": LAYOUT,
            "client_states": saved_client_states(self.trainer, self.client_states),
            "settings": self._settings,
            "began_from": self.began_from,
            "inputs": self.data.samples.input_record._asdict(),
            "tuned_engine": self.tuned_engine,
            "newest": self.newest,
            "evaluated_round": self.evaluated_round,
            "rounds_without_update": self._lost_rounds.count,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        fitting = self._trainer is not None and self.trainer.state.fn == "fit"
        if fitting:
            self._check_goes_on(checkpoint)
        elif not has_present_layout(checkpoint):
            checkpoint["state_dict"] = with_present_server_states(checkpoint["state_dict"], self.state_dict())
        cure = "use the model options of that run"
        check_same_net(checkpoint["state_dict"], self.state_dict(), "ckpt_path", cure)
        saved = checkpoint["federated"]
        if self._trainer is not None and not fitting:
            check_net_settings(saved.get("settings"), self)
            if saved.get("inputs") is not None:  # earlier versions did not store them
                check_same_inputs(recorded_inputs(checkpoint), self.data.samples.input_record)
        if fitting or (self._trainer is not None and self.keeps_models):
            check_saved_states(saved["client_states"], self.data.num_clients)
            self._restored_states = saved["client_states"]
        self.tuned_engine, self.newest = saved["tuned_engine"], saved["newest"]
        self.evaluated_round = saved["evaluated_round"]
        self._lost_rounds = LostRounds(saved["rounds_without_update"])
        self.began_from = saved.get("began_from")

    def restore_weights(self, checkpoint: dict[str, Any]) -> None:
        """Take over the global weights of a checkpoint without a trainer, in evaluation mode.

        Raises:
            ValueError: if the checkpoint is of another net, or clients keep separate models.
        """
        if self.needs.task_streams:
            raise ValueError(f"the clients of {type(self).__name__} keep separate models: a checkpoint has no single net")
        if not hasattr(self, "net"):
            inputs = recorded_inputs(checkpoint)
            self.make_net(tuple(inputs.net_shape), len(inputs.classes))
        self.configure_model()
        if not self.has_global_model:
            raise ValueError(
                f"the clients of {type(self).__name__} keep parts of the net: a checkpoint has no single one; test evaluates"
                " theirs"
            )
        self.on_load_checkpoint(checkpoint)
        for name, weight in self.state_dict(keep_vars=True).items():
            weight.data = weight.data.to(checkpoint["state_dict"][name].dtype)  # that of the run's precision
        self.load_state_dict(checkpoint["state_dict"])
        self.eval()

    def check_goes_on(self, trainer: Trainer, data: FederatedDataModule, ckpt_path: str) -> None:
        """Whether a fit from a checkpoint would be more of the run that wrote it, without one.

        Raises:
            ValueError: naming each setting that differs.
        """
        self.trainer = trainer
        trainer.datamodule = data  # pyright: ignore[reportAttributeAccessIssue]
        data.setup("fit")
        self.configure_model()
        self._check_goes_on(read_checkpoint(ckpt_path))

    def _check_goes_on(self, checkpoint: dict[str, Any]) -> None:
        """Whether a fit from a checkpoint would be more of the run that wrote it."""
        check_whole(checkpoint)
        rounds = checkpoint["global_step"]
        if not any(watcher.only_looks for watcher in round_callbacks(self.trainer)):
            check_settings(checkpoint["federated"]["settings"], run_settings(self), rounds)
        if rounds > self.trainer.max_steps:
            raise ValueError(
                f"trainer.max_steps is {self.trainer.max_steps}, but the run of ckpt_path has {rounds} rounds already: raise it"
            )
