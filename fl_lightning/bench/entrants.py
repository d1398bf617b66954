"""What can take part in forgetbench: a method with one global model, that finds in a federation what it needs."""

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.bench.federation import Federation, federations
from fl_lightning.config_files.reading import config_values
from fl_lightning.data import FederatedDataModule
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import overridden
from fl_lightning.run.refused_data import check_tasks


def check_entrant(method: FederatedModule, data: FederatedDataModule, of: Federation) -> None:
    """Refuse a method that a federation cannot run, or whose numbers are not those of the table. No data is read.

    Raises:
        ValueError: naming the method, what is missing, and the cure.
    """
    name, needs = type(method).__name__, method.needs.data
    learning = f"{name} with the learner {type(method.tasks).__name__}"
    if needs.public_samples:
        raise ValueError(
            f"--method is {name}, which needs public samples, but no federation of forgetbench has any: give another method"
        )
    if needs.task_streams:
        raise ValueError(
            f"--method is {learning}, which needs tasks that each client learns, but no federation of forgetbench has any: "
            "give another learner or method"
        )
    if needs.arriving_classes and data.tasks is None:
        others = (other.name for other in federations().values() if "tasks" in config_values(other.config)["data"])
        raise ValueError(
            f"--method is {learning}, which needs classes that arrive, but {of.name} has all from the start: give "
            f"--federation {' or '.join(others)}, or leave model.tasks out"
        )
    if data.tasks is not None:
        check_tasks(method, data.tasks)
    keeps_some = method.personal or method.needs.client_weights or method.batch_norm_buffers == "local"
    if keeps_some or overridden(method, FederatedAlgorithm.personal_model, FederatedAlgorithm.is_personal):
        raise ValueError(
            f"--method is {name}, whose clients keep weights of their own, but forgetbench compares global models: give a "
            "method that shares all weights"
        )
