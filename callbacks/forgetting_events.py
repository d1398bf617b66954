"""ForgettingEvents: which samples the global model knows, loses and learns again."""

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from fl_lightning.callbacks.class_names import class_names, num_seen
from fl_lightning.callbacks.federated_callback import log_figure, log_tensors
from fl_lightning.callbacks.figures import over_rounds
from fl_lightning.callbacks.probe import Probe
from fl_lightning.evaluation.reference_sets import check_global_model, evaluated_weights
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import predict_in_batches


class ForgettingEvents(Probe):
    """Forgetting events of the probe's samples: right at one measurement of the global model, and wrong at the next.

    M. Toneva, A. Sordoni, R. Tachet des Combes, A. Trischler, Y. Bengio, G. J. Gordon: An Empirical Study of Example Forgetting
    during Deep Neural Network Learning. ICLR 2019, section 3. Departures: the paper counts from one use of a training sample to
    the next; here test samples are measured in the chosen rounds, after averaging.

    ``events/mean`` is the number of events so far, mean over samples; ``events/unforgettable`` the share of samples that were
    right at some measurement and never forgotten; ``events/never_learned`` the share that never was right. Samples of classes
    that have not arrived are left out.
    ``events/classes`` is the picture: the share of each class's samples with an event, a column a measurement. Its numbers are
    the tensors ``events/class`` (C,) and ``events/counts`` (S,), the events of each sample so far.
    """

    needs_classes = True
    kept = ("_was_right", "_counts", "_history")

    def __init__(self, every: int = 10, rounds: list[int] | None = None, samples: int = 1000) -> None:
        super().__init__(every, rounds, samples)
        self._was_right: Tensor | None = None  # (S,), at the last measurement
        self._counts: Tensor | None = None  # (S,), events so far
        self._history: dict[int, Tensor] = {}  # round -> (C,), share of the samples of each class with an event

    def on_fit_start(self, trainer: Trainer, module: FederatedModule) -> None:
        super().on_fit_start(trainer, module)
        check_global_model("ForgettingEvents", module)

    def on_aggregate_end(self, trainer: Trainer, module: FederatedModule, round: int) -> None:
        if not self.due(round):
            return
        inputs, targets = self.probe_samples(module)
        with evaluated_weights(trainer, module):
            logits = predict_in_batches(module.net, module.data.eval_batch_size, inputs)
        is_right, targets = (logits.argmax(dim=1) == targets).cpu(), targets.cpu()
        was_right = torch.zeros_like(is_right) if self._was_right is None else self._was_right
        counts = torch.zeros_like(targets) if self._counts is None else self._counts
        forgotten = was_right & ~is_right
        self._was_right, self._counts = is_right, counts + forgotten
        never_forgotten = self._counts == 0
        seen = targets < num_seen(module)
        sizes = torch.bincount(targets[seen], minlength=len(module.data.classes))
        by_class = torch.bincount(targets[forgotten], minlength=len(sizes)) / sizes
        self._history[round] = by_class
        scalars = {
            "events/mean": self._counts[seen].double().mean(),
            "events/unforgettable": (is_right & never_forgotten)[seen].double().mean(),
            "events/never_learned": (~is_right & never_forgotten)[seen].double().mean(),
        }
        module.log_round(scalars, round)
        log_tensors(trainer, {"events/class": by_class, "events/counts": self._counts}, round)
        values = torch.stack(list(self._history.values()), dim=1)
        title = "Share of the samples that were right and are wrong"
        log_figure(trainer, "events/classes", over_rounds(values, class_names(module), list(self._history), title), round)
