"""PersonalAccuracy: how well personal models do on their clients' samples."""

from dataclasses import replace
from itertools import product

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from fl_lightning.callbacks.federated_callback import FederatedCallback, log_figure, log_tensors
from fl_lightning.callbacks.figures import accuracy_of_clients
from fl_lightning.checks import check_range
from fl_lightning.evaluation.fine_tuning import FineTuning
from fl_lightning.functional import worst_decile
from fl_lightning.functional.random_streams import numpy_stream
from fl_lightning.functional.transfers import on_device
from fl_lightning.metrics import PersonalScores
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import CohortModels, EvaluationName, RoundReport


class PersonalAccuracy(FederatedCallback):
    """Accuracy of each client's personal model on that client's samples; nothing for methods whose clients keep no models.

    Whenever the run is evaluated, over all clients that have samples: ``mean``, ``sample_mean``, in which each sample counts
    once, ``std`` over clients (population), ``worst_decile``, the mean of the lowest tenth, and ``min``; ``visited_mean`` is
    over those that have taken part, and ``never_visited`` the share of clients that have not; ``without_samples`` counts
    clients that are left out. Their tags say on which samples:
    ``personal/validation/...``, clients' validation parts; ``personal/held_out/...``, test parts held out of clients' samples;
    ``personal/matched/...``, the global test set, dealt out so that each client's part has the class shares of its training
    samples. A client's personal model is the newest shared weights with those that it keeps.

    In the chosen rounds the cohort is measured on its validation parts around its local fits: ``personal/cohort_before`` and
    ``personal/cohort_after``, means over clients, and with the endings ``_sample_mean``, ``_std`` and so on.
    ``forgetting/personal_since_visit`` is the mean, over clients whose last visit was measured so, of the accuracy of their
    personal models now less that at the end of that visit (negative is forgetting): what aggregation did to them.
    ``personal/distribution`` draws the accuracies of all clients; their numbers are the tensor ``clients/personal_accuracy``
    (N,).

    At the end of a run some clients that never took part are fine-tuned for some epochs, from the newest shared weights and the
    initial values of the others, BatchNorm statistics among these estimated on their training samples:
    ``.../new_clients_mean`` and ``.../new_clients_fine_tuned_mean``. Where clients keep nothing
    and fine-tune instead, as with FedBABU, or FedAvg and ``fine_tune``, all of them are: ``.../fine_tuned_mean`` and so on.

    Args:
        every, rounds: rounds of the picture, and in which the cohort is measured.
        fine_tune: measure what fine-tuning makes of every client's model too, at the end of the run.
        fine_tuning_epochs: passes over a client's training samples; 0 leaves fine-tuning out.
        fine_tuning_steps: or local steps; by default epochs count.
        new_clients: at most so many clients that never took part are measured at the end, drawn by the seed; 0 for none.

    Raises:
        ValueError: if a number is negative.
    """

    key = "callbacks.personal_accuracy"
    cure_at_sites = "set fine_tuning_epochs to 0"
    kept = ("_visited", "_last_visit")

    def __init__(
        self,
        every: int = 10,
        rounds: list[int] | None = None,
        fine_tune: bool = False,
        fine_tuning_epochs: int = 5,
        fine_tuning_steps: int | None = None,
        new_clients: int = 20,
    ) -> None:
        super().__init__(every, rounds)
        check_range(f"{self.key}.fine_tuning_epochs", fine_tuning_epochs, at_least=0, hint="0 leaves fine-tuning out")
        if fine_tuning_steps is not None:
            check_range(f"{self.key}.fine_tuning_steps", fine_tuning_steps, at_least=0, hint="null counts epochs")
        check_range(f"{self.key}.new_clients", new_clients, at_least=0, hint="0 measures none")
        self.new_clients = new_clients
        self.fine_tune, self.fine_tuning_epochs, self.fine_tuning_steps = fine_tune, fine_tuning_epochs, fine_tuning_steps
        self._clients_keep_models = False
        self._visited: set[int] = set()
        self._last_visit: dict[int, float] = {}  # accuracy at the end of a client's last visit, where that was measured
        self._measured: dict[int, float] = {}  # of the present round's cohort

    def reads_clients(self, module: FederatedModule) -> bool:
        return self._tunes_everyone(module) and 0 not in (self.fine_tuning_epochs, self.fine_tuning_steps)

    def on_fit_start(self, trainer: Trainer, module: FederatedModule) -> None:
        self._clients_keep_models = module.keeps_models

    def wants_models(self, round: int) -> bool:
        return self._clients_keep_models and self.due(round)

    def on_cohort_fit_end(self, trainer: Trainer, module: FederatedModule, round: int, models: CohortModels) -> None:
        if not module.data.has_validation:
            return
        parts = [module.data.evaluation.client_samples("val", [client]) for client in models.clients]
        inputs, targets = [part for part, _, _ in parts], torch.cat([labels for _, labels, _ in parts])
        sizes = torch.tensor([len(part) for part in inputs], device=targets.device)
        owner = torch.repeat_interleave(torch.arange(len(parts), device=targets.device), sizes)
        logits = [models.predict_personal(inputs, before=asked) for asked in (True, False)]
        before, after = (module.data.objective.score_by_owner(part, targets, owner, len(parts)) for part in logits)
        for tag, accuracy in (("personal/cohort_before", before), ("personal/cohort_after", after)):
            numbers = _over_clients(accuracy, sizes)
            module.log_round({tag if key == "mean" else f"{tag}_{key}": value for key, value in numbers.items()}, round)
        # A client without samples of the present classes has no accuracy.
        self._measured = {client: value for client, value in zip(models.clients, after.tolist(), strict=True) if value == value}

    def on_round_end(self, trainer: Trainer, module: FederatedModule, round: int, report: RoundReport) -> None:
        self._visited.update(report.counted)
        for client in report.counted:
            self._last_visit.pop(client, None)
        self._last_visit |= {client: self._measured[client] for client in report.counted if client in self._measured}
        self._measured = {}

    def on_validation_end(self, trainer: Trainer, module: FederatedModule) -> None:
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        round = trainer.global_step
        for name, scores in module.evaluation.personal.items():
            self._log(module, _group(module, name), scores, round)
        if "val" in module.evaluation.personal and self._last_visit:
            now = module.evaluation.personal["val"].accuracy.cpu()
            changes = torch.stack([now[client] - then for client, then in self._last_visit.items()])
            module.log_round({"forgetting/personal_since_visit": changes.nanmean()}, round)
        if module.evaluation.personal and self.due_or_last(trainer, round):
            name = next(reversed(module.evaluation.personal))
            accuracy = module.evaluation.personal[name].accuracy
            log_tensors(trainer, {"clients/personal_accuracy": accuracy}, round)
            figure = accuracy_of_clients(accuracy, f"Personal models, {_group(module, name)} samples, round {round}")
            log_figure(trainer, "personal/distribution", figure, round)

    def on_train_end(self, trainer: Trainer, module: FederatedModule) -> None:
        everyone = self._tunes_everyone(module)
        at_sites = module.engine_name == "flower"  # where the samples of new clients are
        new = self._new_clients(module) if everyone or (module.keeps_models and not at_sites) else []
        clients = list(range(module.data.num_clients)) if everyone else new
        names = self._names(module)
        if not clients or not names or 0 in (self.fine_tuning_epochs, self.fine_tuning_steps):
            return
        round = trainer.global_step
        unvisited = frozenset(range(module.data.num_clients)) - self._visited
        tuning = FineTuning(module, module.data, round, self.fine_tuning_epochs, self.fine_tuning_steps, unvisited)
        after = module.evaluation.personal_scores(trainer, names, clients, tuning)
        if everyone:
            before = module.evaluation.personal_scores(trainer, names, clients)
            for name in names:
                self._log(module, _group(module, name), before[name], round)
                self._log(module, _group(module, name), after[name], round, "fine_tuned_")
        if new:
            begun = module.evaluation.personal_scores(trainer, names, new, replace(tuning, steps=0))
            means = {"new_clients_mean": begun, "new_clients_fine_tuned_mean": after}
            for name, (key, scores) in product(names, means.items()):
                mean = scores[name].accuracy[new].nanmean()
                module.log_round({f"personal/{_group(module, name)}/{key}": mean}, round)

    def _tunes_everyone(self, module: FederatedModule) -> bool:
        return self.fine_tune or bool(module.fine_tuned)

    def _new_clients(self, module: FederatedModule) -> list[int]:
        new = sorted(set(range(module.data.num_clients)) - self._visited)
        order = numpy_stream(module.seed, -1, -1, "new clients").permutation(len(new))
        return sorted(new[position] for position in order[: self.new_clients].tolist())

    def _names(self, module: FederatedModule) -> list[EvaluationName]:
        """What a fit may look at; with ``monitor_test`` the test samples too."""
        return [name for name in module.data.evaluation.names if name == "val" or module.data.monitor_test > 0]

    def _log(self, module: FederatedModule, group: str, scores: PersonalScores, round: int, kind: str = "") -> None:
        scalars = _over_clients(scores.accuracy, scores.samples)
        if not scalars:
            return
        tested = scores.samples > 0
        scalars["without_samples"] = (~tested).sum()
        has_visited = on_device([client in self._visited for client in range(len(tested))], tested.device, torch.bool)
        if self._visited:
            scalars["visited_mean"] = scores.accuracy.where(has_visited, torch.nan).nanmean()
        scalars["never_visited"] = 1 - has_visited[tested].double().mean()
        module.log_round({f"personal/{group}/{kind}{key}": value for key, value in scalars.items()}, round)


def _over_clients(accuracy: Tensor, samples: Tensor) -> dict[str, Tensor]:
    """Numbers over the clients that have samples; none where no client has.

    Args:
        accuracy, samples: (K,), of each client.
    """
    tested = samples > 0
    accuracy, samples = accuracy[tested], samples[tested]
    if len(accuracy) == 0:
        return {}
    return {
        "mean": accuracy.mean(),
        "sample_mean": (samples * accuracy).sum() / samples.sum(),
        "std": accuracy.std(correction=0),
        "worst_decile": worst_decile(accuracy),
        "min": accuracy.min(),
    }


def _group(module: FederatedModule, name: EvaluationName) -> str:
    """How the tags call clients' samples."""
    return "validation" if name == "val" else module.data.evaluation.test_sets.kind
