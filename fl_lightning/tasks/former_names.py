"""Former names that joined a method's with a learner's."""

import re

from fl_lightning import methods

_OF_STREAMS = ("SingleTask", "EWC", "StableSGD", "APD")
_OF_CLASSES = ("ClassLearner", "ServerEWC", "Replay", "ICaRL", "MFCL", "GLFC", "LwF")
_RENAMED = {"OnTasks": "TaskLearner", "OnClasses": "ClassLearner", "FedLwF": "LwF"}
_JOINED = re.compile(rf"({'|'.join(methods.__all__)})(OnTasks|OnClasses|{'|'.join(_OF_STREAMS)})")


def present_form(name: str) -> str | None:
    """The replacement of the former name of a method that learns tasks; None if it is not one."""
    found = _JOINED.fullmatch(name)
    method, learner = found.groups() if found else ("", name)
    learner = _RENAMED.get(learner, learner)
    if not found:
        method = "FedAvg" if learner in _OF_CLASSES else "LocalOnly" if learner in _OF_STREAMS else ""
    return f"{name} is now {method} with tasks: --model {method} --model.tasks {learner}" if method else None
