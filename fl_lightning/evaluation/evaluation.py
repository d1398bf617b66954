"""Evaluation of the global model and of personal models."""

from collections.abc import Callable, Mapping, Sequence
from typing import get_args

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.checks import ArgumentError
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.datamodule import test_is_due
from fl_lightning.functional.many_tensors import copy_all
from fl_lightning.functional.stateless import tensors_of
from fl_lightning.functional.transfers import to_device
from fl_lightning.metrics import ClassScores, PersonalScores, Scores
from fl_lightning.models.federated_net import copied_net
from fl_lightning.processes.device_errors import FEWER_AT_A_TIME, saying_what_to_change
from fl_lightning.processes.process_group import ProcessGroup
from fl_lightning.protocol import Batch, EvaluationName, NetInputs
from fl_lightning.run.stored_states import StoredStates
from fl_lightning.run.trainer_settings import averages_of, data_of, keep_counts
from fl_lightning.state.client_states import ClientStates

Adapt = Callable[[nn.Module, int], None]  # changes a copy of a client's model, as fine-tuning does


class Evaluation(Callback):
    """Scores a method's models on the batches of Lightning's validation and test, logs the scores and keeps the newest.

    Evaluation is on plain logits, in evaluation mode, in large batches, and exact over any number of processes. If clients keep
    personal models, accuracy and loss are means over clients of these models, each on its client's samples. The global model's
    are then called ``global_accuracy`` and ``global_loss``, and are absent if there is no global model.
    """

    def __init__(
        self, method: FederatedAlgorithm, stored: StoredStates, log: Callable[[Mapping[str, Tensor | float], int], None]
    ) -> None:
        self._method, self._stored, self._log = method, stored, log
        self._counts: dict[EvaluationName, ClassScores] = {}
        self.scores: dict[EvaluationName, Scores] = {}  # the newest of the global model
        self.personal: dict[EvaluationName, PersonalScores] = {}  # the newest of personal models
        self.round = -1  # the newest one of a fit after which models were evaluated

    @property
    def names(self) -> list[EvaluationName]:
        """The parts of the last evaluation, of ``val`` and ``test``."""
        return list({**self.scores, **self.personal})

    def follows(self, trainer: Trainer, round: int) -> bool:
        """Whether ``trainer.val_check_interval`` asks for an evaluation after a round, and there are samples for it."""
        every = trainer.val_check_batch
        return isinstance(every, int) and round % every == 0 and has_evaluations(trainer)

    def is_missing(self, trainer: Trainer) -> bool:
        """Whether a fit starts at a round with an evaluation that is due: 0, or that of a checkpoint written before it."""
        round = trainer.global_step
        return (round == 0 or self.follows(trainer, round)) and self.round < round

    def run_now(self, trainer: Trainer) -> None:
        """Evaluate outside Lightning's turn, by the steps that Lightning takes during a fit."""
        if not has_evaluations(trainer):
            return
        trainer.validating = True
        trainer.fit_loop.epoch_loop.val_loop.run()
        trainer.training = True

    @saying_what_to_change("evaluation", FEWER_AT_A_TIME)
    def count(self, name: EvaluationName, batch: Batch) -> None:
        """Count a batch of a part, if there is a global model."""
        check_batch(batch)
        if self._method.has_global_model:
            self._counts[name].update(self._method.net(batch.inputs), batch.targets)

    @saying_what_to_change("evaluation of personal models", FEWER_AT_A_TIME)
    def personal_scores(
        self,
        trainer: Trainer,
        names: Sequence[EvaluationName],
        clients: Sequence[int] | None = None,
        adapt: Adapt | None = None,
    ) -> dict[EvaluationName, PersonalScores]:
        """Scores of personal models on their validation or test parts; every process must call it.

        Args:
            names: of the parts.
            clients: clients to evaluate; the others count as without samples. None: all.
            adapt: changes a copy of a client's model first, such as :class:`~fl_lightning.evaluation.fine_tuning.FineTuning`.
        """
        data, ranks = data_of(trainer), ProcessGroup.of(trainer)
        models = PersonalModels(self._method, data, self._stored.states, ranks.rank, ranks.size)
        with trainer.precision_plugin.val_step_context():
            counts = models.count(names, range(data.num_clients) if clients is None else clients, adapt)
        counts = ranks.sum(counts)
        return {name: PersonalScores.of_counts(counts[row]) for row, name in enumerate(names)}

    # Lightning's hooks ----------------------------------------------------------------------------------------------

    def on_validation_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Begin to count anew, with an empty batch first: a process without batches still takes part in the sum."""
        self.place_data(trainer)
        data, device = data_of(trainer), next(self._method.net.parameters()).device
        objective, num_units = data.objective, len(data.classes)
        self._counts = {name: ClassScores(num_units, objective).to(device) for name in get_args(EvaluationName)}
        no_targets = data.samples.dataset.train.targets[:0].to(device)
        no_outputs = torch.zeros(objective.output_shape(no_targets, num_units), device=device)
        for counts in self._counts.values():
            counts.update(no_outputs, no_targets)

    on_test_epoch_start = on_validation_epoch_start  # pyright: ignore[reportAssignmentType]

    def on_predict_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        if not self._method.has_global_model:
            raise ValueError(
                f"model is {type(self._method).__name__}, whose clients keep parts of the net, so that there is no global "
                "model to predict with: test evaluates the clients'"
            )
        if not (objective := data_of(trainer).objective).tells_classes:
            raise ValueError(
                f"predict writes probabilities of classes, but data.source has {objective!r}: use the net of "
                "FederatedModule.load_from_checkpoint"
            )
        self.place_data(trainer)

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, *_: object) -> None:
        """Only weights of the net have an average: what counts, such as tasks and classes seen, is that of the newest round."""
        for average in averages_of(trainer):
            keep_counts(average, module)

    def on_validation_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        data = data_of(trainer)
        due = {"val": True, "test": test_is_due(data)}
        self._end(trainer, module, [name for name in data.evaluation.names if due[name]])

    def on_test_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        self._end(trainer, module, ["test"])

    # ----------------------------------------------------------------------------------------------------------------

    @saying_what_to_change("the samples of data.source", "set data.storage: stream")
    def place_data(self, trainer: Trainer) -> None:
        """Move the data to the net's device, and client states to the place where they are read."""
        weight = next(self._method.net.parameters())
        data_of(trainer).to(weight.device, weight.dtype)
        self._stored.open_for_evaluation(trainer)

    def _end(self, trainer: Trainer, module: LightningModule, names: Sequence[EvaluationName]) -> None:
        if trainer.sanity_checking:
            return
        keeps_models, has_test = self._method.keeps_models, data_of(trainer).evaluation.has_test
        has_global = self._method.has_global_model
        of_global: list[EvaluationName] = [name for name in names if has_global and (name == "val" or has_test)]
        self.scores = {name: self._counts[name].compute() for name in of_global}
        self.personal = self.personal_scores(trainer, names) if keeps_models else {}
        prefix = "global_" if keeps_models else ""
        scalars = ("accuracy", "loss")
        metrics = {f"{n}/{prefix}{key}": getattr(scores, key) for n, scores in self.scores.items() for key in scalars}
        objective = data_of(trainer).objective
        for n, scores in self.scores.items():
            further = objective.also(scores.loss)
            if taken := sorted(further.keys() & {*scalars}):
                raise ArgumentError(f"{type(objective).__name__}.also", f"has {taken[0]!r}, which is logged anyway: rename it")
            metrics |= {f"{n}/{prefix}{key}": value for key, value in further.items()}
        for name, personal in self.personal.items():
            metrics |= {f"{name}/{key}": getattr(personal, key).nanmean() for key in scalars}
        # Already summed over the processes, hence no sync. In a fit, loggers get the round as their step.
        fitting = trainer.state.fn == "fit"
        module.log_dict({name: value.float() for name, value in metrics.items()}, logger=not fitting)
        if fitting:
            self.round = trainer.global_step
            self._log(metrics, trainer.global_step)


def has_evaluations(trainer: Trainer) -> bool:
    """Whether a fit evaluates at all: there are samples for it, which task streams evaluate themselves."""
    return trainer.limit_val_batches != 0 and len(data_of(trainer).evaluation.names) > 0


def check_batch(batch: object) -> None:
    """Check that Lightning's batch is one of the data module's.

    Raises:
        ArgumentError: if it comes from a loader that was given to the trainer.
    """
    if not isinstance(batch, Batch):
        raise ArgumentError(
            "dataloaders",
            f"gives batches of type {type(batch).__name__}, must be left out, so that the data module's are used: for samples "
            "of your own, call the method's net on inputs scaled as data.source's are",
        )


class PersonalModels:
    """Clients' personal models, one after another in one copy of the net.

    Args:
        method: the clients' method; its net holds the newest global weights.
        data: the clients' samples.
        states: the clients' states, at least those with ``client % world_size == rank``.
        rank, world_size: those of this process.
    """

    def __init__(
        self, method: FederatedAlgorithm, data: FederatedDataModule, states: ClientStates, rank: int, world_size: int
    ) -> None:
        self._method, self._data, self._states, self._rank, self._world_size = method, data, states, rank, world_size
        self._net = copied_net(method, changes=method.fine_tuned).eval()
        self._shared, self._held = tensors_of(method.net), tensors_of(self._net)
        self._device = next(iter(self._shared.values())).device

    def count(self, names: Sequence[EvaluationName], clients: Sequence[int], adapt: Adapt | None = None) -> Tensor:
        """(parts, N, 5) float64, as ``PersonalScores`` takes it, of this process's clients, 0 for all others."""
        counts = torch.zeros(len(names), self._data.num_clients, 5, dtype=torch.float64, device=self._device)
        for alike in self._with_one_model(clients, together=adapt is None):
            net = self._load(alike[0])
            if adapt is not None:
                adapt(net, alike[0])
            for row, name in enumerate(names):
                counts[row, alike] = self._count(net, name, alike)
        return counts

    def _with_one_model(self, clients: Sequence[int], together: bool) -> list[list[int]]:
        """This process's clients; those without state, which use the same model, together if requested."""
        here = [client for client in clients if client % self._world_size == self._rank]
        kept = set(self._states.clients()) if together else set(here)
        others = [client for client in here if client not in kept]
        return [[client] for client in here if client in kept] + ([others] if others else [])

    @torch.no_grad()
    def _load(self, client: int) -> nn.Module:
        """A client's personal model in evaluation mode, until the next one is loaded."""
        state = self._states.read(client).map(lambda tensor: to_device(tensor, self._device))
        model = self._method.personal_model(self._shared, state)
        copy_all([self._held[name] for name in model], list(model.values()))
        return self._net.eval()

    @torch.no_grad()
    def _count(self, net: nn.Module, name: EvaluationName, clients: Sequence[int]) -> Tensor:
        inputs, targets, owner = self._data.evaluation.client_samples(name, clients)
        size, objective = self._data.eval_batch_size, self._data.objective
        counts = torch.zeros(len(clients), 5, dtype=torch.float64, device=targets.device)
        if len(targets) == 0:  # one empty part, which many nets cannot take
            return counts
        for part, labels, whose in zip(inputs.split(size), targets.split(size), owner.split(size), strict=True):
            outputs = net(_in_fast_layout(part))
            entries, losses = objective.entries(outputs, labels), objective.losses(outputs, labels)
            counts[:, 0] += whose.bincount(minlength=len(clients))
            columns = torch.stack([entries.weights, entries.score, torch.ones_like(losses), losses], dim=1)
            counts[:, 1:].index_add_(0, whose[entries.sample], columns)
        return counts


def _in_fast_layout(inputs: NetInputs) -> NetInputs:
    """The same values; images on a CPU with their channels last, because convolutions of few samples are faster so."""
    if isinstance(inputs, Tensor) and inputs.ndim == 4 and inputs.device.type == "cpu":
        return inputs.contiguous(memory_format=torch.channels_last)
    return inputs
