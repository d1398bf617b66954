"""Data that a fit refuses: tasks that its method does not learn, too few cohorts, and batches that its net cannot take."""

import copy
from collections.abc import Callable, Iterable, Iterator

from torch import nn

from fl_lightning.data import FederatedDataModule
from fl_lightning.data.participation import Participation
from fl_lightning.data.tasks import Tasks
from fl_lightning.exchange import Needs


def check_tasks(needs: Needs, method: str, tasks: Tasks) -> None:
    """Refuse tasks that a method does not learn.

    Args:
        needs: of the method, which say what tasks it learns.
        method: the name of its class, for the message.

    Raises:
        ValueError: with a method that learns them.
    """
    if needs.arriving_classes if tasks.global_model else needs.task_streams:
        return
    learns = "other" if needs.arriving_classes or needs.task_streams else "no"
    fitting = "FedAvgOnClasses" if tasks.global_model else "FedAvgOnTasks"
    raise ValueError(
        f"data.tasks is {tasks}, but {method} learns {learns} tasks: use a method of fl_lightning.continual, "
        f"such as {fitting}, or set data.tasks to null"
    )


def check_cohorts(participation: Participation, rounds: int) -> None:
    """Refuse a fit of more rounds than have cohorts.

    Raises:
        ValueError: naming both numbers.
    """
    named = participation.num_rounds
    if named is not None and rounds > named:
        raise ValueError(f"trainer.max_steps is {rounds}, but {participation.said_by} names {named} rounds: lower it")


def check_batches_of_one(net: nn.Module, data: FederatedDataModule, local_steps: Callable[[int], int], rounds: int) -> None:
    """Refuse clients' batches of one sample, in any task, where the net, as BatchNorm may, cannot take one.

    Args:
        local_steps: of a visit, by client.
        rounds: of the fit.

    Raises:
        ValueError: naming the first client with such a batch.
    """
    if not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in net.modules()):
        return
    clients: Iterable[int] = range(data.num_clients)
    if data.participation.num_rounds is not None:
        clients = {client for round in range(1, rounds + 1) for client in data.cohort(round)}
    lonely = next(_batches_of_one(clients, data, local_steps), None)
    if lonely is None:
        return
    try:
        copy.deepcopy(net).train()(data.first_inputs(1))
    except ValueError as error:
        raise ValueError(
            f"data.batch_size is {data.batch_size}, which gives {lonely} a batch of one sample, but BatchNorm in model.net "
            "needs more: choose another batch size, or a net without"
        ) from error


def _batches_of_one(clients: Iterable[int], data: FederatedDataModule, local_steps: Callable[[int], int]) -> Iterator[str]:
    """Names of the clients that have one, with the task in which they do."""
    for position in data.present_shards.at_each_position():
        task = f" in task {position + 1}" if data.tasks is not None else ""
        holding = (client for client in clients if data.num_train(client) > 0)  # others join later
        alone = (client for client in holding if data.batch_sizes.smallest(client, local_steps(client)) == 1)
        yield from (f"client {client}{task}" for client in alone)
