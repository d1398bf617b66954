"""A site: one client of a federation, which makes visits from a server's requests with its own samples."""

import json
import os
import warnings
from dataclasses import replace
from multiprocessing.connection import Listener
from pathlib import Path

import torch
from flwr.app import RecordDict

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.data import FederatedDataModule
from fl_lightning.engines.flower import model_of
from fl_lightning.engines.run_context import RunContext
from fl_lightning.engines.sequential import SequentialEngine
from fl_lightning.functional.aggregation import State
from fl_lightning.module import FederatedModule, channels_last
from fl_lightning.protocol import Accuracy, Evaluation, Packed, Reply, Request, pack, predict_in_batches, unpack
from fl_lightning.run.common_settings import common_settings, differences
from fl_lightning.sites.link import receive, records_of, send, socket_of, values_of
from fl_lightning.sites.records import from_records, to_records
from fl_lightning.sites.site_states import SiteStates


class Site:
    """One client at its own site.

    Args:
        method: the method, as built by the server's config.
        data: the data module; only the samples of ``client`` are used.
        client: its index in the federation, from 0.
        folder: folder of the client's states.
        device: device on which the client is trained.
    """

    def __init__(
        self, method: FederatedModule, data: FederatedDataModule, client: int, folder: Path, device: torch.device
    ) -> None:
        data.setup("fit")
        FederatedAlgorithm.join(method, data)  # without the server's schedule, which has no part in a visit
        channels_last(method.to(device).net)
        weight = next(method.net.parameters())
        data.to(weight.device, weight.dtype)
        self.method, self.data, self.client = method, data, client
        self._engine = SequentialEngine(method, RunContext(device))
        self._states = SiteStates(folder / "states")
        self._common = common_settings(method, data)

    def answer(self, kind: str, message: RecordDict) -> RecordDict:
        """The reply to a message of the server.

        Args:
            kind: ``query`` for facts of the client, ``train`` for a visit, or ``evaluate``.
            message: has the server's settings as ``common``, and but for a query a packed :class:`Request` or
                :class:`Evaluation`.

        Raises:
            ValueError: if a visit or an evaluation is not for this client, or of a server with other settings.
        """
        line = differences(json.loads(values_of(message)["common"]), self._common)
        refusal = f"the site of client {self.client} has other settings than the server: {line}" if line else ""
        if kind == "query":
            facts = {"client": self.client, "num_train": self.data.num_train(self.client)}
            return records_of({**facts, "refusal": refusal} if refusal else facts)
        if refusal:  # also of a process that was started again in mid-run
            raise ValueError(refusal)
        return {"train": self._visit, "evaluate": self._evaluate}[kind](from_records(message))

    def _visit(self, packed: Packed) -> RecordDict:
        device = self.method.device
        request = unpack(Request, {path: tensor.to(device) for path, tensor in packed.items()})
        self._check_client(request.client)
        stamp = request.state
        state = self._states.read(stamp).map(lambda tensor: tensor.to(device))
        reply = self._engine.visit(replace(request, state=state))
        model = self._unsent(reply) if request.returns_model else {}
        return to_records(pack(replace(reply, state=self._states.write(request.round, reply.state, stamp), model=model)))

    def _unsent(self, reply: Reply) -> State:
        """Weights and buffers of the client's model that its upload does not have as they are."""
        model, sent = self._engine.used_model(self._engine.working_state, reply.state), model_of(reply)
        return {name: tensor for name, tensor in model.items() if name not in sent or not tensor.equal(sent[name])}

    def _evaluate(self, packed: Packed) -> RecordDict:
        request = unpack(Evaluation, packed)
        self._check_client(request.client)
        inputs, targets, owner = self.data.evaluation.validation_samples([self.client])
        self._engine.load({name: tensor.to(self.method.device) for name, tensor in request.model.items()})
        logits = predict_in_batches(self._engine.net, self.data.eval_batch_size, inputs)
        return to_records(pack(Accuracy(self.data.objective.score_by_owner(logits, targets, owner, 1))))

    def _check_client(self, client: int) -> None:
        if client != self.client:
            raise ValueError(f"a request for client {client} came to the site of client {self.client}")


def serve(site: Site, folder: Path) -> None:
    """Answer the messages that Flower's ClientApp brings to the socket in a site's folder, one after another, until stopped.

    Raises:
        ValueError: if the path of the folder is too long.
    """
    path = socket_of(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    Path(path).unlink(missing_ok=True)  # of a process that was killed
    with Listener(path, family="AF_UNIX") as listener:
        os.chmod(path, 0o600)
        while True:
            with listener.accept() as connection:
                try:
                    kind, message = connection.recv_bytes().decode(), receive(connection)
                    try:
                        reply = site.answer(kind, message)
                    except Exception as error:  # the server gets it as a line; the next visit can go well
                        reply = records_of({"error": " ".join(str(error).split()) or type(error).__name__})
                    send(connection, reply)
                except (EOFError, BrokenPipeError, ConnectionResetError):  # of a ClientApp that was stopped
                    continue
                except (ValueError, TypeError) as error:
                    warnings.warn(f"a message at {path} did not come from a ClientApp and is ignored: {error}", stacklevel=1)
