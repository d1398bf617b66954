"""Replay: clients rehearse a few samples of earlier tasks.

A. Chaudhry et al.: On Tiny Episodic Memories in Continual Learning. 2019. arXiv 1902.10486, at each client. Nothing more is
sent than by FedAvg. Departures: remembered samples are not augmented.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fl_lightning.checks import check_choice, check_range
from fl_lightning.continual.classes.learner import ClassLearner, SoftmaxOver
from fl_lightning.exchange import Batch, Client, Needs, Upload
from fl_lightning.functional import herding, reservoir
from fl_lightning.module import Net
from fl_lightning.random_streams import numpy_stream, random_bits, stream_seed

Selection = Literal["reservoir", "balanced", "herding"]


class Replay(ClassLearner):
    """A local step is on B samples of the present task and B_m of a client's memory, drawn anew: the mean over all of them.

    A client remembers samples of a task at its last visit in it, by indices of its data; one that takes no part in a task, or
    whose last update in it is not finite, remembers none of it.

    Args:
        memory: m, samples that each client remembers, at least 0; 0 is fine-tuning exactly.
        selection: which: ``reservoir``, each sample met with equal probability; ``balanced``, m divided by the classes met, of
            each at random; ``herding``, likewise, of each those whose mean of features is nearest to the class's, by the global
            model that the client received (iCaRL). For herding the net has ``features`` and ``classifier``, as all of ours.
        replayed: B_m, drawn with replacement; by default half of ``data.batch_size``.
        softmax_over: ``seen``, as remembered samples are of old classes.

    Raises:
        ValueError: if a value is out of range, the memory is larger than the data of any client, or herding has no features.
    """

    needs = ClassLearner.needs | Needs(other_samples=True)

    def __init__(
        self,
        net: Net,
        memory: int = 100,
        selection: Selection = "reservoir",
        replayed: int | None = None,
        softmax_over: SoftmaxOver = "seen",
        **common: Any,
    ) -> None:
        super().__init__(net, softmax_over=softmax_over, **common)
        check_range("model.memory", memory, at_least=0, hint="0 is fine-tuning")
        check_choice("model.selection", selection, Selection)
        if replayed is not None:
            check_range("model.replayed", replayed, at_least=1, hint="null is half of data.batch_size")
        if softmax_over == "new":
            raise ValueError("model.softmax_over is new, but remembered samples are of old classes: set it to seen")
        self.memory, self.selection, self.replayed = memory, selection, replayed

    def adapt_net(self) -> None:
        super().adapt_net()
        if self.selection == "herding" and not hasattr(self.net, "features"):
            raise ValueError(
                f"model.net is {type(self.net).__name__}, but model.selection is herding, which compares features: give it the "
                "parts features and classifier, or set model.selection to balanced"
            )

    def check_data(self) -> None:
        super().check_data()
        if self.memory > (most := self.data.class_streams.most_samples()):
            raise ValueError(f"model.memory is {self.memory}, but no client has more than {most} training samples: lower it")

    def client_start(self, net: nn.Module, client: Client) -> dict[str, Any]:
        carry = super().client_start(net, client)
        if "memory" not in client.state or self.task == 0:
            return carry
        inputs, targets = self._samples(client.state["memory"])
        size = self.replayed or max((self.data.batch_size or client.num_train) // 2, 1)
        key = stream_seed(self.seed, client.round, client.index, "samples remembered")
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
        inputs = torch.cat([batch.inputs, memory["inputs"][chosen]])
        targets = torch.cat([batch.targets, memory["targets"][chosen]])
        count_too = None if batch.real is None else torch.cat([batch.real, torch.ones_like(draws, dtype=torch.bool)])
        losses = self.sample_losses(net, Batch(inputs, targets, count_too), memory["label_counts"], client)
        # The mean of these over the batch is that over the batch and what is remembered.
        real = count if batch.real is None else batch.real.sum()
        return (real * losses[:count] + losses[count:].sum()) / (real + len(draws))

    def client_result(self, net: nn.Module, client: Client) -> Upload:
        if self.memory > 0 and self.is_last_visit(client):
            self.update_memory(client)
        return super().client_result(net, client)

    def update_memory(self, client: Client) -> None:
        """Offer a client's memory the samples of the present task."""
        held = self.data.present_shards.train_indices(client.index)
        rng = numpy_stream(self.seed, self.task, client.index, "what is remembered")
        offered = held[torch.from_numpy(rng.permutation(len(held)))].tolist()
        kept = client.state["memory"].tolist() if "memory" in client.state else []
        if self.selection == "reservoir":
            met = int(client.state.get("met", 0))
            kept = reservoir(kept, met, offered, self.memory, rng)
            client.state["met"] = torch.tensor(met + len(offered), device=client.label_counts.device)
        else:
            kept = self._balanced(kept, offered, client)
        client.state["memory"] = torch.tensor(kept, dtype=torch.int64, device=client.label_counts.device)

    def _balanced(self, kept: Sequence[int], offered: Sequence[int], client: Client) -> list[int]:
        """As many of each class, the first ones of those that were there before."""
        targets = self.data.samples.dataset.train.targets
        by_class: dict[int, list[int]] = {}
        for index in kept:
            by_class.setdefault(int(targets[index]), []).append(index)
        before = set(by_class)
        for index in offered:
            if int(targets[index]) not in before:
                by_class.setdefault(int(targets[index]), []).append(index)
        quota = self.memory // len(by_class)
        if self.selection == "herding":
            for label in by_class.keys() - before:
                by_class[label] = self._herded(by_class[label], quota, client)
        return [index for label in sorted(by_class) for index in by_class[label][:quota]]

    def _herded(self, indices: list[int], quota: int, client: Client) -> list[int]:
        chosen = herding(self.features(client, torch.tensor(sorted(indices))), quota)
        return [sorted(indices)[position] for position in chosen.tolist()]

    def features(self, client: Client, indices: Tensor) -> Tensor:
        """(n, d), what the classifier of the model that a client received gets of training samples."""
        inputs = self._samples(indices)[0]
        return client.evaluate(client.received_state, lambda net: net.get_submodule("features")(inputs))

    def _samples(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Training samples as in evaluation, and their targets."""
        inputs, targets = self.data.evaluation.samples_at(indices.cpu())
        return torch.cat([*inputs.split(self.data.eval_batch_size)]), targets
