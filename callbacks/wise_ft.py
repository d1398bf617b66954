"""WiseFT: accuracy between the initial weights and the final ones.

M. Wortsman, G. Ilharco, J. W. Kim, M. Li, S. Kornblith, R. Roelofs, R. Gontijo-Lopes, H. Hajishirzi, A. Farhadi, H. Namkoong,
L. Schmidt: Robust fine-tuning of zero-shot models. CVPR 2022. arXiv 2109.01903. Equation 1. Departures: none; running
statistics of BatchNorm, which the paper's nets lack, are interpolated with the weights.
"""

from collections.abc import Mapping, Sequence

from lightning.pytorch import Trainer
from torch import Tensor

from fl_lightning.callbacks.federated_callback import FederatedCallback
from fl_lightning.checks import check_each
from fl_lightning.evaluation.reference_sets import (
    ReferenceSamples,
    ReferenceSource,
    evaluated_weights,
    held_references,
    mixed_nets,
    named_sources,
    present_weights,
)
from fl_lightning.module import FederatedModule
from fl_lightning.protocol import Inputs, State, predict_in_batches


class WiseFT(FederatedCallback):
    """Accuracy of ``(1 - a) start + a end`` after the last round, for several shares a of the final weights.

    ``wise_ft/A/NAME`` is the accuracy at share A on a reference set, ``wise_ft/A/test`` on the test set of the federation, if
    there is one. The run keeps its final weights; :func:`fl_lightning.functional.weighted_average` makes a net with a share of
    choice. Checkpoints contain the initial weights that are trained.

    Args:
        sets: reference sets, as of :class:`ReferenceAccuracy`; not named ``test``.
        shares: of the final weights, in [0, 1].
        root: folder of the sources; None: ``data.root``.

    Raises:
        ValueError: if a share is out of range; as :class:`ReferenceAccuracy`; and as a resumed fit starts that began without.
    """

    kept = ("_start",)

    def __init__(
        self,
        sets: Mapping[str, ReferenceSource],
        shares: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
        root: str | None = None,
    ) -> None:
        super().__init__(every=0)
        check_each("WiseFT.shares", shares, at_least=0, at_most=1, hint="1 is the final net")
        if "test" in sets:
            raise ValueError("WiseFT.sets has test, which is the federation's own: give it another name")
        self.sets, self.shares, self.root = named_sources("WiseFT.sets", sets), tuple(shares), root
        self._start: State = {}
        self._held: dict[str, ReferenceSamples] = {}

    @property
    def state_key(self) -> str:
        """Several of one run have sets of their own."""
        return self._generate_state_key(sets=sorted(self.sets))

    def on_train_start(self, trainer: Trainer, module: FederatedModule) -> None:
        self._held = held_references(type(self).__name__, self.sets, self.root, module, module.data)
        if trainer.global_step == 0:
            self._start = present_weights(module)
        if not self._start:
            raise ValueError("callback WiseFT: ckpt_path has no initial weights of it: give it to a new run, or leave it out")

    def on_train_end(self, trainer: Trainer, module: FederatedModule) -> None:
        sets, score = self._samples(module), module.data.objective.score
        with evaluated_weights(trainer, module), trainer.precision_plugin.val_step_context():
            for share, net in zip(self.shares, mixed_nets(module, self._start, self.shares), strict=True):
                for name, (inputs, targets) in sets.items():
                    logits = predict_in_batches(net, module.data.eval_batch_size, inputs)
                    module.log_round({f"wise_ft/{share:g}/{name}": score(logits, targets)}, trainer.global_step)

    def _samples(self, module: FederatedModule) -> dict[str, tuple[Inputs, Tensor]]:
        """Inputs and classes of each set, the federation's own first."""
        evaluation = module.data.evaluation
        sets: dict[str, tuple[Inputs, Tensor]] = {}
        if evaluation.has_test:
            sets["test"] = evaluation.test_inputs(), evaluation.test_targets()
        return sets | {name: (held.inputs, held.targets) for name, held in self._held.items()}
