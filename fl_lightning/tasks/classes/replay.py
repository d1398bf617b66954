"""Replay: clients rehearse a few samples of earlier tasks.

A. Chaudhry et al.: On Tiny Episodic Memories in Continual Learning. 2019. arXiv 1902.10486, at each client. Clients send the
same as in FedAvg. Departures: remembered samples are not augmented.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from fl_lightning.checks import check_choice, check_whole
from fl_lightning.functional import herding, reservoir
from fl_lightning.functional.random_streams import numpy_stream, random_bits, stream_seed
from fl_lightning.models.network import features_of
from fl_lightning.protocol import Batch, Client, Needs, NetInputs
from fl_lightning.tasks.classes.learner import ClassLearner, SoftmaxOver
from fl_lightning.tasks.clock import is_visited_within, refuse_another_visit

Selection = Literal["reservoir", "balanced", "herding"]


class Replay(ClassLearner):
    """A local step uses B samples of the present task and B_m newly drawn from a client's memory: the mean over all of them.

    A client chooses among the samples of a task at its last visit in it, by indices of its data. A client that takes no part in
    a task, or ends it with an update that is not finite, late or lost, remembers none of it. Each sample is offered once.

    Args:
        memory: m, samples that each client remembers, at least 0; 0 is fine-tuning exactly.
        selection: the rule: ``reservoir``, each sample met with equal probability; ``balanced``, m divided among the classes
            met, each at random; ``herding``, the same number of each, chosen so that their mean of features is nearest to the
            class's, by the global model that the client received (iCaRL). If a class comes again, in another domain or across a
            blurry border, the memory has earlier and later samples in proportion to their numbers. Features are the inputs of
            the class layer.
        replayed: B_m, drawn with replacement; by default half of ``data.batch_size``.
        softmax_over: ``seen``, as remembered samples are of old classes.
        rounds_per_task: R, rounds after which a task is over.

    Raises:
        ValueError: if a value is out of range, or the memory is larger than the data of any client or, divided by classes,
            smaller than the number that a client meets.
    """

    needs = ClassLearner.needs | Needs(other_samples=True)

    def __init__(
        self,
        memory: int = 100,
        selection: Selection = "reservoir",
        replayed: int | None = None,
        softmax_over: SoftmaxOver = "seen",
        rounds_per_task: int = 20,
    ) -> None:
        super().__init__(rounds_per_task, softmax_over)
        check_whole("model.tasks.memory", memory, at_least=0, hint="0 is fine-tuning")
        check_choice("model.tasks.selection", selection, Selection)
        if replayed is not None:
            check_whole("model.tasks.replayed", replayed, at_least=1, hint="null is half of data.batch_size")
        if softmax_over == "new":
            raise ValueError("model.tasks.softmax_over is new, but remembered samples are of old classes: set it to seen")
        self.memory, self.selection, self.replayed = memory, selection, replayed

    def check_data(self) -> None:
        super().check_data()
        if self.memory > (most := self.data.class_streams.most_samples()):
            raise ValueError(
                f"model.tasks.memory is {self.memory}, but no client has more than {most} training samples: lower it"
            )
        if self.selection != "reservoir" and 0 < self.memory < (most := self.data.class_streams.most_classes()):
            raise ValueError(
                f"model.tasks.memory is {self.memory}, which is divided by the classes that a client meets, up to {most}: "
                f"set it to {most} or more, or to 0 for fine-tuning"
            )

    def begin_visit(self, net: nn.Module, client: Client) -> dict[str, Any]:
        carry = super().begin_visit(net, client)
        task = self.task + self.clocks.has_had_all_rounds(0)  # a rehearsal between two tasks is of the next one
        if int(self.state_of(client).get("offered_until", -1)) >= task:
            refuse_another_visit(self.method, client)
        if "memory" not in self.state_of(client) or self.task == 0:
            return carry
        inputs, targets = self._samples(self.state_of(client)["memory"])
        size = self.replayed or max((self.data.batch_size or client.num_train) // 2, 1)
        key = stream_seed(self.method.seed, client.round, client.index, "samples remembered")
        remembered = {
            "inputs": inputs,
            "targets": targets,
            "label_counts": client.label_counts + targets.bincount(minlength=len(client.label_counts)),
            "key": torch.tensor(key, device=targets.device),
            "draws": torch.arange(size, device=targets.device),
        }
        return {**carry, "remembered": remembered}

    def client_loss(self, net: nn.Module, batch: Batch, client: Client) -> Tensor:
        if "remembered" not in client.carry:
            return super().client_loss(net, batch, client)
        memory = client.carry["remembered"]
        draws, count = memory["draws"], len(batch.targets)
        chosen = random_bits(memory["key"], client.step * len(draws) + draws) % len(memory["targets"])
        inputs = tree_map(lambda new, old: torch.cat([new, old[chosen]]), batch.inputs, memory["inputs"])
        targets = torch.cat([batch.targets, memory["targets"][chosen]])
        count_too = None if batch.real is None else torch.cat([batch.real, torch.ones_like(draws, dtype=torch.bool)])
        losses = self.sample_losses(net, Batch(inputs, targets, count_too), memory["label_counts"], client)
        # The mean of these over the batch is that over the batch and the remembered samples.
        real = count if batch.real is None else batch.real.sum()
        return (real * losses[:count] + losses[count:].sum()) / (real + len(draws))

    def end_visit(self, net: nn.Module, client: Client) -> None:
        stays = self.data.class_streams.stays(client.index, self.task)
        rounds = self.rounds_per_task * (1 + stays)  # until it moves on
        if self.memory > 0 and not is_visited_within(self.method, client, rounds - self.clocks.rounds[0] - 1):
            self.update_memory(client)
            self.state_of(client)["offered_until"] = torch.tensor(self.task + stays, device=client.label_counts.device)

    def update_memory(self, client: Client) -> None:
        """Offer a client's memory the samples of the present task."""
        streams, device = self.data.class_streams, client.label_counts.device
        state = self.state_of(client)
        met = state["met"].cpu() if "met" in state else torch.zeros(len(self.data.classes), dtype=torch.int64)
        kept = state["memory"].tolist() if "memory" in state else []
        held = self.data.present_shards.train_indices(client.index)
        if streams.cumulative:  # where those of earlier tasks, which were offered before, come first
            held = held[int(met.sum()) :]
        rng = numpy_stream(self.method.seed, self.task, client.index, "what is remembered")
        offered = held[torch.from_numpy(rng.permutation(len(held)))].tolist()
        if self.selection == "reservoir":
            kept = reservoir(kept, int(met.sum()), offered, self.memory, rng)
        else:
            kept = self._balanced(kept, met.tolist(), offered, client, rng)
        met = met + streams.dataset.train.targets[held].bincount(minlength=len(met))  # not in place: it is stored
        state.update(memory=torch.tensor(kept, dtype=torch.int64, device=device), met=met.to(device))

    def _balanced(
        self, kept: list[int], met: Sequence[int], offered: list[int], client: Client, rng: np.random.Generator
    ) -> list[int]:
        """The same number of each class; of a class without new samples, the first ones already stored.

        Args:
            met: (C,), samples of each class that were offered before.
        """
        before, new = self._by_class(kept), self._by_class(offered)
        quota, balanced = self.memory // len({*before, *new}), []
        for label in sorted({*before, *new}):
            chosen, more = before.get(label, []), new.get(label, [])
            if more and self.selection == "herding":
                chosen = self._herded(chosen, met[label], more, quota, client)
            elif chosen and more:  # in random order, so that the first ones are also a uniform sample
                chosen = rng.permutation(reservoir(chosen[:quota], met[label], more, quota, rng)).tolist()
            balanced += (chosen or more)[:quota]
        return balanced

    def _by_class(self, indices: Sequence[int]) -> dict[int, list[int]]:
        targets, by_class = self.data.class_streams.dataset.train.targets, {}
        for index in indices:
            by_class.setdefault(int(targets[index]), []).append(index)
        return by_class

    def _herded(self, kept: list[int], met: int, offered: list[int], quota: int, client: Client) -> list[int]:
        """Of one class, kept and new samples in proportion to those met and offered, evenly mixed."""
        offered = sorted(offered)
        kept = kept[: max(round(quota * met / (met + len(offered))), quota - len(offered))]
        chosen = herding(self.features(client, torch.tensor(offered)), quota - len(kept))
        parts = (kept, [offered[position] for position in chosen.tolist()])
        mixed = sorted(((i + 0.5) / len(part), index) for part in parts for i, index in enumerate(part))
        return [index for _, index in mixed]

    def features(self, client: Client, indices: Tensor) -> Tensor:
        """Features (n, d) of training samples in the model that a client received; without autocast."""
        inputs = self._samples(indices)[0]
        with torch.autocast(client.label_counts.device.type, enabled=False):  # its rounding would choose among samples that tie
            return client.evaluate(client.received_state, lambda net: features_of(net, inputs))

    def _samples(self, indices: Tensor) -> tuple[NetInputs, Tensor]:
        """Training samples as in evaluation, and their targets."""
        inputs, targets = self.data.evaluation.samples_at(indices.cpu())
        parts = inputs.split(self.data.eval_batch_size)
        return tree_map(lambda *tensors: torch.cat(tensors), *parts), targets
