"""FederatedStrategy: several processes share a cohort."""

import os
import signal
import threading
import traceback
from contextlib import nullcontext
from datetime import timedelta
from io import BytesIO
from typing import Any

import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.utilities.distributed import _init_dist_connection
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher, _SubprocessScriptLauncher
from lightning.pytorch.utilities.exceptions import SIGTERMException

from fl_lightning.checks import check_range, first_line
from fl_lightning.processes.peer_watch import PeerLost, PeerWatch, accept, connect, ending_with_first, listen, tell_first
from fl_lightning.processes.process_group import ProcessGroup
from fl_lightning.processes.torchrun_store import await_all, group_store, num_started


class FederatedStrategy(DDPStrategy):
    """Every process sees the same cohort, fits its share of it and adds its sums to the others' once a round.

    Launchers, process groups and reductions are those of Lightning's ``DDPStrategy``. Its wrapper around the module is not
    used: gradients belong to clients and are never averaged over processes. Only the first process reads checkpoints, and
    sends them to the others. When a process dies, fails or freezes, all others end with one line that names it.

    Args:
        peer_timeout: seconds without a sign of life from another process after which it counts as gone, at least 5. The signs
            come from a thread, not from the rounds: a client's visit can take any time.
        timeout: maximum wait for another process in one exchange; longer than any client's visit.

    Raises:
        ValueError: if ``peer_timeout`` is below 5, or there are more processes on CPU than the machine has cores.
    """

    strategy_name = "federated"

    def __init__(self, peer_timeout: float = 30.0, timeout: timedelta = timedelta(days=1), **kwargs: Any) -> None:
        super().__init__(timeout=timeout, **kwargs)
        check_range("trainer.strategy.peer_timeout", peer_timeout, at_least=5, hint="seconds")
        self.peer_timeout = peer_timeout
        self._peers: PeerWatch | None = None

    def _configure_launcher(self) -> None:
        """Refuse to start more processes than the machine has cores."""
        starts_them = self.cluster_environment is not None and not self.cluster_environment.creates_processes_externally
        cores = os.cpu_count() or 1
        if starts_them and self.root_device.type == "cpu" and self.num_processes > cores:
            raise ValueError(
                f"trainer.devices is {self.num_processes}, but this machine has {cores} cores: on CPU give at most one process "
                "a core"
            )
        if starts_them:
            tell_first()
        super()._configure_launcher()

    def setup_distributed(self) -> None:
        """Join the other processes, and from here on end with them.

        Raises:
            ConnectionError: if one failed before.
        """
        if not torch.distributed.is_initialized():
            await_all()
            self._join_group_of_torchrun()
        with ending_with_first() if self._was_started() else nullcontext():
            super().setup_distributed()
            if self.world_size > 1 and self._peers is None:
                self._replace_observer()
                self._peers = PeerWatch(self.global_rank, self._links(), self.peer_timeout, self._end_children)

    def _join_group_of_torchrun(self) -> None:
        """Join with a store of only this restart: in torch's, the addresses from before the restart would still be found."""
        if num_started() > 1 and self.cluster_environment is not None:
            _init_dist_connection(
                self.cluster_environment,
                self._get_process_group_backend(),
                store=group_store(self._timeout),
                timeout=self._timeout,
                device_id=self.root_device if self.root_device.type != "cpu" else None,
            )

    def _was_started(self) -> bool:
        """Whether Lightning's launcher in the first process of this machine started this one."""
        launcher = self.launcher
        starts_others = isinstance(launcher, _SubprocessScriptLauncher | _MultiProcessingLauncher) and bool(launcher.procs)
        return isinstance(self.cluster_environment, LightningEnvironment) and self.local_rank > 0 and not starts_others

    def _replace_observer(self) -> None:
        """End Lightning's thread that observes the processes it started: it would kill the first one without a message."""
        if isinstance(self.launcher, _SubprocessScriptLauncher):
            observed = self.launcher.procs
            self.launcher.procs = [*observed]
            observed.clear()

    def _links(self) -> dict[int, Any]:
        address = self.cluster_environment.main_address  # pyright: ignore[reportOptionalMemberAccess]
        group = ProcessGroup(self, self.global_rank, self.world_size)
        if self.is_global_zero:
            server, port, word = listen(address)
            group.broadcast((port, word))
            return accept(server, word, self.world_size, self.peer_timeout)
        port, word = group.broadcast(None)
        return connect(address, port, word, self.global_rank, self.peer_timeout)

    def _end_children(self) -> None:
        if self.launcher is not None:
            self.launcher.kill(signal.SIGKILL)

    def on_train_start(self) -> None:
        """Let SIGTERM raise at once, as Ctrl-C does: Lightning's handler waits for processes that can be gone or at work."""
        in_main_thread = threading.current_thread() is threading.main_thread()
        if self._peers is not None and in_main_thread and not isinstance(self.cluster_environment, SLURMEnvironment):
            signal.signal(signal.SIGTERM, self._raise_sigterm)

    def _raise_sigterm(self, *_: Any) -> None:
        if self._peers is None or not self._peers.is_ending:
            raise SIGTERMException

    def configure_ddp(self) -> None:
        """Do not wrap the module; start all processes from the weights of the first."""
        for tensor in self.lightning_module.state_dict().values():  # pyright: ignore[reportOptionalMemberAccess]
            torch.distributed.broadcast(tensor, src=0)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """The checkpoint that the first process reads, in every process: the others need no access to the file."""
        checkpoint = super().load_checkpoint(checkpoint_path, weights_only=weights_only) if self.is_global_zero else {}
        if self.world_size == 1:
            return checkpoint
        file = BytesIO()  # of the checkpoint's own format, which holds no code
        if self.is_global_zero:
            torch.save(checkpoint, file)
        # Through the machine's memory: that of a GPU can be too small for all clients' states.
        group = None if torch.distributed.get_backend() == "gloo" else torch.distributed.new_group(backend="gloo")
        size = ProcessGroup(self, self.global_rank, self.world_size).broadcast(file.tell())
        sent = torch.empty(size, dtype=torch.uint8)
        if self.is_global_zero:
            sent = torch.frombuffer(file.getbuffer(), dtype=torch.uint8)
        torch.distributed.broadcast(sent, 0, group)  # pyright: ignore[reportArgumentType]
        return checkpoint if self.is_global_zero else torch.load(BytesIO(sent.numpy().data), weights_only=True)

    def on_exception(self, exception: BaseException) -> None:
        """Tell the other processes, or raise their error if an exchange with them failed.

        Raises:
            PeerLost: if another process is gone, and this exception is only the consequence.
        """
        super().on_exception(exception)
        if self._peers is None:
            self._end_children()  # which would wait for this process to join
            return
        if isinstance(exception, PeerLost):
            return
        self._peers.raise_if_lost(2 * self.peer_timeout if _comes_from_an_exchange(exception) else 0)
        if isinstance(exception, SIGTERMException):
            self._peers.stop(signal.SIGTERM)
        elif isinstance(exception, KeyboardInterrupt):
            self._peers.stop(signal.SIGINT)
        else:
            self._peers.fail(first_line(exception))

    def stop_others(self, number: signal.Signals) -> None:
        """A signal stops this process: stop the others too."""
        if self._peers is not None:
            self._peers.stop(number)

    def teardown(self) -> None:
        if self._peers is not None:
            self._peers.leave()
            self._peers = None
        super().teardown()


def _comes_from_an_exchange(exception: BaseException) -> bool:
    """Whether an error was raised in torch's exchange between processes, as when a connection breaks."""
    frames = traceback.walk_tb(exception.__traceback__)
    return isinstance(exception, RuntimeError) and any(
        frame.f_globals.get("__name__", "").startswith("torch.distributed") for frame, _ in frames
    )


StrategyRegistry.register("federated", FederatedStrategy, description="Processes share a cohort of clients")
