"""What methods share that hold clients to the global model as it was when the task before ended."""

from typing import Any

from fl_lightning.checks import check_range
from fl_lightning.continual.classes.learner import ClassLearner, frozen_copy
from fl_lightning.module import Net


class DistillingLearner(ClassLearner):
    """Sends the teacher down in every round from the second task on, as clients keep nothing: ``client.broadcast["teacher"]``.

    Args:
        distillation: weight of what the teacher says, at least 0; with 0 it is not sent.

    Raises:
        ValueError: if it is out of range.
    """

    def __init__(self, net: Net, distillation: float, **common: Any) -> None:
        super().__init__(net, **common)
        check_range("model.distillation", distillation, at_least=0, hint="0 is fine-tuning")
        self.distillation = distillation

    def configure_model(self) -> None:
        super().configure_model()
        if "teacher" not in self.server_states:
            self.add_server_state("teacher", frozen_copy(self.net))

    def end_task(self) -> None:
        super().end_task()
        teacher = self.server_state("teacher")
        for name, tensor in frozen_copy(self.net).items():
            teacher[name].copy_(tensor)

    def broadcast(self, client: int) -> dict[str, Any]:
        teaches = self.task > 0 and self.distillation > 0
        return {**super().broadcast(client), **({"teacher": self.server_state("teacher")} if teaches else {})}
