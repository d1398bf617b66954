"""The common part of learners that hold clients to the global model at the end of the previous task."""

from typing import Any, Unpack

from fl_lightning.checks import check_range
from fl_lightning.functional.stateless import tensors_of
from fl_lightning.tasks.classes.learner import ClassArguments, ClassLearner, frozen_copy


class DistillingLearner(ClassLearner):
    """Sends the teacher down in every round from the second task on, as clients keep nothing: ``client.broadcast["teacher"]``.

    Args:
        distillation: weight of the teacher's predictions, at least 0; with 0 it is not sent.

    Raises:
        ValueError: if it is out of range.
    """

    def __init__(self, distillation: float, **common: Unpack[ClassArguments]) -> None:
        super().__init__(**common)
        check_range("model.tasks.distillation", distillation, at_least=0, hint="0 distils nothing")
        self.distillation = distillation

    def begin_run(self) -> None:
        super().begin_run()
        self.method.server_states.add("teacher", frozen_copy(self.method))

    def end_task(self) -> None:
        super().end_task()
        present = tensors_of(self.method.net)
        for name, tensor in self.method.server_states.tensors("teacher").items():
            tensor.copy_(present[name])

    def broadcast(self, client: int) -> dict[str, Any]:
        teaches = self.task > 0 and self.distillation > 0
        return {"teacher": self.method.server_states.tensors("teacher")} if teaches else {}
