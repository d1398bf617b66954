"""How the global model and personal models are evaluated, and how numbers reach the loggers."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from fl_lightning.data import FederatedDataModule
from fl_lightning.data.samples import type_name
from fl_lightning.exchange import Batch, EvaluationName, predict_in_batches
from fl_lightning.exchange.cohort import Inputs
from fl_lightning.metrics import ClassScores, PersonalScores, Scores
from fl_lightning.training.device_errors import FEWER_AT_A_TIME, saying_what_to_change
from fl_lightning.training.personal_evaluation import Adapt


class EvaluatedModule(LightningModule):
    """The half of :class:`FederatedModule` that looks at models: validation, test and predict.

    Evaluation is on plain logits, in evaluation mode, in large batches, and exact over any number of processes. Where clients
    keep personal models, accuracy and loss are the means over clients of these, each on its client's samples. The global
    model's are then called ``global_accuracy`` and ``global_loss``, and are absent where there is no global model.
    """

    net: nn.Module
    data: FederatedDataModule
    given_arguments: dict[str, Any]
    keeps_models: bool
    has_global_model: bool

    def __init__(self) -> None:
        super().__init__()
        self.config_settings: dict[str, Any] = {}  # key of the command line -> value, of the config that this was built by
        self.evaluations: dict[str, Scores] = {}  # the newest scores of "val" and "test", of the global model
        self.personal_evaluations: dict[EvaluationName, PersonalScores] = {}  # likewise of personal models
        self.evaluated_round = -1  # the newest round of a fit that was evaluated
        self.newest: dict[str, float] = {}  # every scalar that log_round saw, by name, its newest value

    def built_by(self, settings: dict[str, Any]) -> None:
        """Name the settings of the config that this and its data were built by, as the command line does."""
        self.config_settings = settings

    def predict_logits(self, inputs: Inputs) -> Tensor:
        """Logits (samples, classes) of the global model in evaluation mode."""
        return predict_in_batches(self.net, self.data.eval_batch_size, inputs)

    def log_round(self, metrics: Mapping[str, Tensor | float], round: int) -> None:
        """Log scalars to every logger with the round as their step, in one transfer from the device; kept in ``newest``."""
        if not metrics:
            return
        tensors = {name: value.double() for name, value in metrics.items() if isinstance(value, Tensor)}
        read = dict(zip(tensors, torch.stack(list(tensors.values())).tolist(), strict=True)) if tensors else {}
        numbers = {name: read[name] if name in read else float(value) for name, value in metrics.items()}
        self.newest.update(numbers)
        for logger in self.trainer.loggers:
            logger.log_metrics(numbers, step=round)

    def personal_scores(
        self, names: Sequence[EvaluationName], clients: Sequence[int] | None = None, adapt: Adapt | None = None
    ) -> dict[EvaluationName, PersonalScores]:
        """Scores of personal models on their validation or test parts; every process must call it.

        Args:
            names: of the parts.
            clients: whose models are asked; the others count as without samples. None: all.
            adapt: changes a copy of a client's model first, such as :class:`~fl_lightning.training.fine_tuning.FineTuning`.
        """
        raise NotImplementedError

    @property
    def evaluated(self) -> list[str]:
        """What was evaluated last, of ``val`` and ``test``."""
        return list({**self.evaluations, **self.personal_evaluations})

    def setup(self, stage: str) -> None:
        # A plain dict: as submodules the counts would be cast to the net's precision.
        self.scores = {name: ClassScores(len(self.data.classes)) for name in get_args(EvaluationName)}

    def check_outputs(self) -> None:
        """Check that there are classes to tell apart, and that the net takes the data and has one output a class.

        Raises:
            ValueError: if it has not.
        """
        num_classes, weight = len(self.data.classes), next(self.net.parameters())
        if num_classes == 1:
            raise ValueError(
                f"data.source has the single class {self.data.classes[0]!r}, and nothing to tell it from: check data.root "
                "and the labels, or name all classes"
            )
        inputs = self.data.first_inputs(1).to(weight.device)
        if inputs.is_floating_point():
            inputs = inputs.to(weight.dtype)
        try:
            outputs = self._outputs(inputs)
        except torch.OutOfMemoryError:  # which says nothing of the net
            raise
        except (RuntimeError, AssertionError, IndexError, TypeError) as error:
            given, cure = f"of shape {self.data.input_shape}", "choose one that fits the data"
            if self.data.samples.inputs_are_whole:
                given, cure = f"{given} and type {type_name(inputs)}", f"{cure}, or give floats"
            raise ValueError(f"model.net cannot take inputs {given} ({error}): {cure}") from error
        if not isinstance(outputs, Tensor):
            logits = ", such as its logits" if hasattr(outputs, "logits") else ""
            raise ValueError(
                f"model.net gives {type(outputs).__name__}, must be a tensor of logits (samples, classes): wrap it in a net "
                f"whose forward returns the tensor{logits}"
            )
        if outputs.shape != (1, num_classes):
            raise ValueError(
                f"model.net gives outputs of shape {tuple(outputs.shape[1:])}, the data has {num_classes} classes: "
                "build it with that many outputs"
            )

    @torch.no_grad()
    def _outputs(self, inputs: Tensor) -> object:
        """What the net gives in evaluation mode, which may be anything; its mode is put back."""
        training = self.net.training
        self.net.eval()
        outputs = self.net(inputs)
        self.net.train(training)
        return outputs

    @saying_what_to_change("the samples of data.source", "set data.storage: stream")
    def place_data(self) -> None:
        """Move the data to where the net is."""
        self.data.to(self.device, next(self.net.parameters()).dtype)

    def evaluation_is_missing(self) -> bool:
        """Whether a fit starts at a round whose evaluation is due and not done: 0, or one that a checkpoint was before."""
        round = self.trainer.global_step
        return (round == 0 or self.validates_after(round)) and self.evaluated_round < round

    def validates_after(self, round: int) -> bool:
        """Whether ``trainer.val_check_interval`` has the model evaluated after a round."""
        every = self.trainer.val_check_batch
        return isinstance(every, int) and round % every == 0

    def evaluate_now(self) -> None:
        """Evaluate outside Lightning's turn, by the steps that Lightning takes during a fit."""
        trainer = self.trainer
        if trainer.limit_val_batches == 0 or not self.data.evaluation.names:
            return
        trainer.validating = True
        trainer.fit_loop.epoch_loop.val_loop.run()
        trainer.training = True

    @saying_what_to_change("evaluation", FEWER_AT_A_TIME)
    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        if self.has_global_model:
            self.scores[self.data.evaluation.names[dataloader_idx]].update(self.net(batch.inputs), batch.targets)

    @saying_what_to_change("evaluation", FEWER_AT_A_TIME)
    def test_step(self, batch: Batch, batch_idx: int) -> None:
        if self.has_global_model:
            self.scores["test"].update(self.net(batch.inputs), batch.targets)

    @saying_what_to_change("evaluation", FEWER_AT_A_TIME)
    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Class probabilities (B, C)."""
        return self.net(batch.inputs).softmax(dim=-1)

    def on_validation_epoch_start(self) -> None:
        self.place_data()
        self._start_scores()

    def on_test_epoch_start(self) -> None:
        self.place_data()
        self._start_scores()

    def on_predict_epoch_start(self) -> None:
        if not self.has_global_model:
            raise ValueError(
                f"model is {type(self).__name__}, whose clients keep parts of the net, so that there is no global model to "
                "predict with: test evaluates the clients'"
            )
        self.place_data()

    def on_validation_epoch_end(self) -> None:
        due = {"val": True, "test": self.data.test_is_due()}
        self._log_scores([name for name in self.data.evaluation.names if due[name]])

    def on_test_epoch_end(self) -> None:
        self._log_scores(["test"])

    def _start_scores(self) -> None:
        """Reset, then count an empty batch: a process that has no batch still takes part in the sum."""
        for score in self.scores.values():
            score.to(self.device).reset()
            empty = torch.zeros(0, len(self.data.classes), device=self.device)
            score.update(empty, torch.zeros(0, dtype=torch.int64, device=self.device))

    def _log_scores(self, names: Sequence[EvaluationName]) -> None:
        if self.trainer.sanity_checking:
            return
        of_global = [name for name in names if self.has_global_model and (name == "val" or self.data.evaluation.has_test)]
        self.evaluations = {name: self.scores[name].compute() for name in of_global}
        self.personal_evaluations = self.personal_scores(names) if self.keeps_models else {}
        prefix = "global_" if self.keeps_models else ""
        scalars = ("accuracy", "loss")
        metrics = {f"{n}/{prefix}{key}": getattr(scores, key) for n, scores in self.evaluations.items() for key in scalars}
        for name, personal in self.personal_evaluations.items():
            metrics |= {f"{name}/{key}": getattr(personal, key).nanmean() for key in scalars}
        # Already summed over the processes, hence no sync. In a fit, loggers get the round as their step.
        fitting = self.trainer.state.fn == "fit"
        self.log_dict({name: value.float() for name, value in metrics.items()}, logger=not fitting)
        if fitting:
            self.evaluated_round = self.trainer.global_step
            self.log_round(metrics, self.trainer.global_step)
