"""ArrivingClasses: accuracy and forgetting of the global model on classes that arrive one after another."""

from collections.abc import Sequence

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from fl_lightning.callbacks.class_names import class_names, class_rounds
from fl_lightning.callbacks.federated_callback import FederatedCallback, log_figure, log_tensors
from fl_lightning.callbacks.figures import classes_after_tasks, task_confusion_table, task_table
from fl_lightning.evaluation.reference_sets import evaluated_weights
from fl_lightning.functional import (
    average_forgetting,
    backward_transfer,
    confusion_counts,
    forgetting_by_class,
    old_and_new_accuracy,
    task_confusion,
    tasks_found,
)
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import ClassProgress, predict_in_batches


class ArrivingClasses(FederatedCallback):
    """Scalars and pictures at the end of each task of a global model on the test samples of all classes seen; else nothing.

    ``tasks/accuracy`` is A_t, over samples; ``tasks/average_incremental_accuracy`` its mean over the tasks so far, the first
    one included; ``tasks/forgetting`` the largest drop of each earlier task (Chaudhry et al.), positive is forgetting, and
    ``tasks/forgetting_by_class`` the same by class (TARGET); ``tasks/backward_transfer`` the change since each task was
    learned; ``tasks/old_accuracy`` and ``tasks/new_accuracy`` that on the classes of earlier tasks and on the others;
    ``tasks/task_found`` the share of samples whose predicted class is of the sample's task, ``tasks/right_where_found`` the
    accuracy among these; ``tasks/nearest_mean_accuracy`` that of iCaRL's class means; ``task_accuracy/01``, ... that of each
    task. Pictures: ``tasks/accuracy_table``, after each task on each; ``tasks/confusion``, which task samples are taken for;
    ``tasks/classes``, the drop of each class from its best, with that and the rounds in which it came and went. Numbers of the
    pictures: the tensors ``tasks/table`` (T, T), ``tasks/class_table`` (T, C) and ``tasks/counts`` (C, C); of classes that
    arrive ``tasks/class_task`` (C,) and ``tasks/class_rounds`` (C, 2), the first and the last in which clients have samples.
    Where tasks share their classes, ``tasks/ahead`` (T,) is the accuracy on tasks that are not learned yet: in round 0 of the
    net that the run begins with, on all tasks, and after each task on the next one. Forward transfer is computed from it.
    """

    key = "callbacks.arriving_classes"
    kept = ("_table", "_class_table", "_accuracies")

    def __init__(self) -> None:
        super().__init__(every=0)
        self._table = torch.empty(0, 0)  # (T, T), NaN where it was not measured; empty before the first task is over
        self._class_table = torch.empty(0, 0)  # (T, C), also NaN there
        self._accuracies: dict[int, float] = {}  # position -> A_t

    def on_train_start(self, trainer: Trainer, module: FederatedModule) -> None:
        if trainer.global_step == 0 and _share_classes(module):
            with trainer.precision_plugin.val_step_context():
                _log_ahead(trainer, module, range(module.data.class_streams.num_tasks), 0)

    def on_aggregate_end(self, trainer: Trainer, module: FederatedModule, round: int) -> None:
        progress = module.tasks.class_progress()
        if progress is None or not progress.is_over or not module.data.evaluation.monitors_test:
            return
        with evaluated_weights(trainer, module):
            self._measure(trainer, module, progress, round)

    def _measure(self, trainer: Trainer, module: FederatedModule, progress: ClassProgress, round: int) -> None:
        data, task = module.data, progress.task
        num_tasks, num_classes = data.class_streams.num_tasks, len(data.classes)
        logits = predict_in_batches(module.net, data.eval_batch_size, data.evaluation.test_inputs())
        targets = data.evaluation.test_targets()
        if len(self._table) == 0:
            self._table = torch.full((num_tasks, num_tasks), float("nan"), dtype=torch.float64)
            self._class_table = torch.full((num_tasks, num_classes), float("nan"), dtype=torch.float64)
        self._table[task] = data.objective.score_by_owner(logits, targets, data.evaluation.test_tasks(), num_tasks).cpu()
        counts = confusion_counts(logits.argmax(dim=1), targets, num_classes).cpu()
        self._class_table[task] = counts.diagonal() / counts.sum(dim=1)
        self._accuracies[task] = float(counts.trace() / counts.sum())
        scalars = self._scalars(progress, data.class_streams.class_task, counts)
        nearest = module.tasks.nearest_mean_logits(data.evaluation.test_inputs())
        if nearest is not None:
            scalars["tasks/nearest_mean_accuracy"] = (nearest.argmax(dim=1) == targets).double().mean()
        module.log_round({name: value for name, value in scalars.items() if not torch.as_tensor(value).isnan()}, round)
        tensors = {"tasks/table": self._table, "tasks/class_table": self._class_table, "tasks/counts": counts}
        if data.class_streams.class_task is not None:
            rounds = class_rounds(data.class_streams.positions_of_classes(), progress.rounds_per_task)
            tensors |= {"tasks/class_task": data.class_streams.class_task, "tasks/class_rounds": rounds}
        log_tensors(trainer, tensors, round)
        if task + 1 < num_tasks and _share_classes(module):
            _log_ahead(trainer, module, [task + 1], round)
        self._draw(trainer, module, progress, counts, round)

    def _scalars(self, progress: ClassProgress, class_task: Tensor | None, counts: Tensor) -> dict[str, Tensor | float]:
        task = progress.task
        known = self._table[: task + 1, : task + 1]
        accuracies = list(self._accuracies.values())
        scalars: dict[str, Tensor | float] = {
            "tasks/accuracy": accuracies[-1],
            "tasks/forgetting": average_forgetting(known),
            "tasks/backward_transfer": backward_transfer(known),
        }
        if len(accuracies) == task + 1:  # all of them, also where the callback joined a resumed run
            scalars["tasks/average_incremental_accuracy"] = sum(accuracies) / len(accuracies)
        scalars |= {f"task_accuracy/{on + 1:02d}": known[-1, on] for on in range(task + 1)}
        if class_task is None:
            return scalars
        scalars["tasks/forgetting_by_class"] = forgetting_by_class(self._class_table[: task + 1], class_task)
        scalars["tasks/task_found"], scalars["tasks/right_where_found"] = tasks_found(counts, class_task)
        if task > 0:
            scalars["tasks/old_accuracy"], scalars["tasks/new_accuracy"] = old_and_new_accuracy(counts, progress.num_old)
        return scalars

    def _draw(self, trainer: Trainer, module: FederatedModule, progress: ClassProgress, counts: Tensor, round: int) -> None:
        streams, num_tasks = module.data.class_streams, module.data.class_streams.num_tasks
        log_figure(trainer, "tasks/accuracy_table", task_table(self._table, "accuracy of the global model"), round)
        if streams.class_task is None:
            return
        shares = task_confusion(counts, streams.class_task, num_tasks)
        log_figure(trainer, "tasks/confusion", task_confusion_table(shares, progress.task), round)
        log_figure(trainer, "tasks/classes", classes_after_tasks(self._class_table.T, class_names(module)), round)


def _share_classes(module: FederatedModule) -> bool:
    """Whether a model can be right on tasks that it has not learned, and the test set is evaluated: in domains."""
    arrives = module.data.tasks is not None and module.data.tasks.global_model and module.data.evaluation.monitors_test
    return arrives and module.data.class_streams.class_task is None


def _log_ahead(trainer: Trainer, module: FederatedModule, tasks: Sequence[int], round: int) -> None:
    data = module.data
    ahead = torch.full((data.class_streams.num_tasks,), float("nan"), dtype=torch.float64)
    for task in tasks:
        of_task = (data.class_streams.test_task == task).nonzero().flatten()
        inputs, targets = data.evaluation.samples_at(of_task, "test")
        predicted = predict_in_batches(module.net, data.eval_batch_size, inputs).argmax(dim=1)
        ahead[task] = (predicted == targets).double().mean()
    log_tensors(trainer, {"tasks/ahead": ahead}, round)
