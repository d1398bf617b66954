"""User-level differential privacy at the server: each client's change clipped, noise on their sum, once a round.

H. B. McMahan, D. Ramage, K. Talwar, L. Zhang: Learning Differentially Private Recurrent Language Models. ICLR 2018. arXiv
1710.06963. Algorithm 1 with uniform weights and the fixed denominator q N of its estimator f_f.
"""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from fl_lightning.algorithm import FederatedAlgorithm
from fl_lightning.data.client_sampler import Poisson, Uniform
from fl_lightning.data.participation import Participation
from fl_lightning.data.present_shards import BatchSizes
from fl_lightning.functional.many_tensors import norm_of
from fl_lightning.functional.random_streams import stream_seed
from fl_lightning.privacy.defence import Privacy, refuse_batch_norm, refuse_half_precision
from fl_lightning.protocol import Learner, Protection, State, Update, Upload, overridden

_EVERYBODY = -1


class UserLevelDP(Privacy):
    """The server's pseudo-gradient is ``(sum_k d_k min(1, C / ||d_k||) + N(0, sigma^2 C^2)) / (q N)``, d_k the global
    weights less client k's.

    Each of the N clients is in a round's cohort by an independent draw with probability q = ``clients_per_round`` / N: the
    sampler ``Poisson`` replaces ``Uniform``. Epsilon for a client's whole data is logged every round. The server is trusted:
    it sees changes before noise.
    """

    accounts = True

    def check(self, method: FederatedAlgorithm, participation: Participation, precision: str) -> None:
        name, ours = type(method).__name__, FederatedAlgorithm
        refuse_batch_norm(method, "UserLevelDP")
        refuse_half_precision(method, precision, "UserLevelDP")
        if method.server_weighting != "uniform" or overridden(method, ours.update_weight):
            raise ValueError(
                f"model.server_weighting is {method.server_weighting}, but UserLevelDP bounds clients that count equally: "
                "set it to uniform, with a method that does not weight by itself"
            )
        if method.needs.each_upload:
            keys = [key for key in ("aggregation", "hostile") if getattr(method, key) is not None]
            reads = f"model.{keys[0]} is {getattr(method, keys[0])}" if keys else f"{name} reads each client's weights"
            raise ValueError(f"model.privacy is UserLevelDP, which bounds a sum of changes, but {reads}: use DPSGD")
        if getattr(method.data, "devices", None) is not None:
            raise ValueError(
                "model.privacy is UserLevelDP, which divides by the expected number of clients, but data.devices has some "
                "of them missing: use DPSGD, or set data.devices to null"
            )
        if method.needs.data.task_streams:
            raise ValueError(
                f"model.privacy is UserLevelDP, but clients that learn tasks, as with {type(method.tasks).__name__}, tell the "
                "server of each: use DPSGD"
            )
        drawn = type(participation.sampler) in (Poisson, Uniform)
        if not drawn or overridden(method, ours.cohort):
            given = name if drawn else participation.said_by
            raise ValueError(f"model.privacy is UserLevelDP, which draws cohorts by coin, but {given} names them: use DPSGD")
        of_method = overridden(method, ours.client_result, ours.aggregate, ours.probe)
        of_tasks = overridden(method.tasks, Learner.upload, Learner.probe)
        if changed := of_method or of_tasks:
            whose = name if of_method else f"{type(method.tasks).__name__} in model.tasks"
            raise ValueError(
                f"model.privacy is UserLevelDP, which bounds the weights that clients send, but {whose} changes "
                f"{' and '.join(changed)}: use DPSGD, or another {'method' if of_method else 'learner'}"
            )

    def protection(self, seed: int) -> Protection:
        return Protection(bound=self.bound)

    def cohort(self, participation: Participation, round: int) -> list[int]:
        return replace(participation, sampler=Poisson()).cohort(round)

    def bound(self, upload: Upload, received: State) -> Upload:
        """A client's upload, with its change from the received weights clipped."""
        sent = upload["weights"]
        change = {name: weight.detach() - received[name] for name, weight in sent.tensors.items()}
        norm = norm_of(change.values())
        factor = (self.clipping_norm / norm).clamp_max(1.0)  # 1 where nothing changed
        clipped = {name: received[name] + factor * part for name, part in change.items()}
        return {**upload, "weights": sent._replace(tensors=clipped)}

    def release(
        self, update: Update | None, method: FederatedAlgorithm, participation: Participation, num_updates: int
    ) -> Update:
        weights = method.trained_weights(method.net)
        shared = {name: weight for name, weight in weights.items() if not method.is_personal(name)}
        device = next(iter(weights.values())).device
        noise = torch.Generator(device).manual_seed(stream_seed(method.seed, method.round, -1, "user-level noise"))
        scale = self.noise_multiplier * self.clipping_norm
        gradient: dict[str, Tensor] = {}
        for name, weight in shared.items():
            drawn = scale * torch.randn(weight.shape, generator=noise, dtype=weight.dtype, device=weight.device)
            total = 0.0 if update is None else update.pseudo_gradient[name] * num_updates
            gradient[name] = (total + drawn) / participation.size
        return Update(gradient, {} if update is None else update.buffers)

    def charges(
        self, method: FederatedAlgorithm, participation: Participation, batch_sizes: BatchSizes, clients: Iterable[int]
    ) -> dict[int, tuple[float, int]]:
        return {_EVERYBODY: (participation.size / participation.num_clients, 1)}
