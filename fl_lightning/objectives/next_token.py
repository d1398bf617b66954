"""NextToken: each place of a text has a token."""

import copy
from collections.abc import Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fl_lightning.checks import check_list, check_whole
from fl_lightning.losses import IGNORED, TokenCrossEntropy
from fl_lightning.objectives.objective import Entries, Objective

_AT_ONCE = 2**24  # logits that are copied to float64 together


class NextToken(Objective):
    """Language models: targets (n, T) are the tokens that follow each place, outputs (n, T, V) logits.

    Places with target -100 do not count. Accuracy and loss, cross entropy in nats, are means over tokens, and ``perplexity``
    is ``exp(loss)``. The units are groups of texts, such as genres; without groups, buckets of tokens by their frequency in
    the training targets, so that each has about the same number of tokens.

    Args:
        num_tokens: V; None: one more than the largest target.
        groups: names of groups; the last column of targets, (n, T + 1), is then each text's index among them.
        buckets: number of buckets where there are no groups; fewer where a token fills several.

    Raises:
        ValueError: if one of them is out of range.
    """

    loss = TokenCrossEntropy()
    torch_losses = ()

    def __init__(self, num_tokens: int | None = None, groups: Sequence[str] = (), buckets: int = 10) -> None:
        if num_tokens is not None:
            check_whole("NextToken.num_tokens", num_tokens, at_least=2)
        check_list("NextToken.groups", groups)
        check_whole("NextToken.buckets", buckets, at_least=1)
        self.num_tokens, self.groups, self.buckets = num_tokens, tuple(groups), buckets
        self._bucket = torch.empty(0, dtype=torch.int64)  # (V,), of each token

    def stored(self, name: str, targets: Tensor) -> Tensor:
        if targets.ndim != 2 or targets.is_floating_point():
            raise ValueError(
                f"data.source has {name} of shape {tuple(targets.shape)} and type {targets.dtype}, must be whole numbers "
                "(samples, places) for NextToken: give the token that follows each place, -100 where none counts"
            )
        return targets.long()

    def fitted(self, train: Tensor, test: Tensor, names: Sequence[str] | None) -> tuple[Self, tuple[str, ...]]:
        if names is not None:
            units = "groups" if self.groups else "buckets of tokens"
            raise ValueError(
                f"data.source names {len(names)} classes, but the units of NextToken are {units}: leave the names out"
                f"{'' if self.groups else ', or give groups'}"
            )
        fitted = copy.copy(self)
        tokens = torch.cat([self._tokens(part).flatten() for part in (train, test)])
        largest = int(tokens.max()) if len(tokens) > 0 else 0
        fitted.num_tokens = max(largest + 1, 2) if self.num_tokens is None else self.num_tokens
        if self.groups:
            return fitted, self.groups
        seen = self._tokens(train)
        counts = seen[(seen >= 0) & (seen < fitted.num_tokens)].bincount(minlength=fitted.num_tokens)
        order = counts.argsort(descending=True, stable=True)
        before = counts[order].cumsum(dim=0) - counts[order]  # tokens of all texts that are more frequent
        bucket = (before * self.buckets).div(counts.sum().clamp_min(1), rounding_mode="floor").clamp_max(self.buckets - 1)
        found, ranked = bucket.unique(return_inverse=True)
        fitted._bucket = torch.empty_like(order).index_put_((order,), ranked)
        ends = ranked.bincount(minlength=len(found)).cumsum(dim=0).tolist()
        ranks = zip([1, *(end + 1 for end in ends[:-1])], ends, strict=True)
        return fitted, tuple(f"token {first}" if first == last else f"tokens {first} to {last}" for first, last in ranks)

    def check(self, part: str, targets: Tensor, num_units: int) -> None:
        tokens, allowed = self._tokens(targets), self.num_tokens or 0
        wrong = tokens[(tokens != IGNORED) & ((tokens < 0) | (tokens >= allowed))]
        if len(wrong) > 0:
            raise ValueError(
                f"data.source has the {part} target {int(wrong[0])}, must be a token from 0 to {allowed - 1}, or {IGNORED}: "
                "raise num_tokens of NextToken, or use the tokenizer of the net"
            )
        if (tokens == IGNORED).all(dim=1).any():
            raise ValueError(f"data.source has a {part} text without a target that counts: leave it out")
        group = targets[:, -1]
        if self.groups and len(outside := group[(group < 0) | (group >= num_units)]) > 0:
            raise ValueError(
                f"data.source has the {part} group {int(outside[0])}, must be from 0 to {num_units - 1}: give it as the last "
                "column of targets"
            )

    def unit_counts(self, targets: Tensor, num_units: int) -> Tensor:
        if self.groups:
            return targets[:, -1]
        tokens = self._tokens(targets)
        counts = torch.zeros(len(tokens), num_units, dtype=torch.int64)
        return counts.scatter_add_(1, self._bucket[tokens.clamp_min(0)], (tokens != IGNORED).long())

    def strata(self, targets: Tensor) -> Tensor | None:
        return targets[:, -1] if self.groups else None

    def num_outputs(self, num_units: int) -> int:
        return self.num_tokens or 0

    def output_shape(self, targets: Tensor, num_units: int) -> tuple[int, ...]:
        return *self._tokens(targets).shape, self.num_outputs(num_units)

    def entries(self, outputs: Tensor, targets: Tensor) -> Entries:
        tokens = self._tokens(targets)
        counted = (tokens != IGNORED).flatten()
        sample = torch.arange(len(tokens), device=tokens.device).repeat_interleave(tokens.shape[1])[counted]
        hits = (outputs.argmax(dim=-1) == tokens).flatten(-2)[..., counted]
        flat = tokens.flatten()[counted]
        unit = targets[sample, -1] if self.groups else self._bucket.to(flat.device)[flat]
        return Entries(hits.double(), unit, sample)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        tokens, outputs = self._tokens(targets).flatten(), outputs.flatten(0, 1)
        # Some places at a time: with a large vocabulary a float64 copy of all takes gigabytes.
        parts = (tokens != IGNORED).nonzero()[:, 0].split(max(_AT_ONCE // outputs.shape[-1], 1))
        return torch.cat([F.cross_entropy(outputs[part].double(), tokens[part], reduction="none") for part in parts])

    def also(self, loss: Tensor) -> dict[str, Tensor]:
        return {"perplexity": loss.exp()}

    def _tokens(self, targets: Tensor) -> Tensor:
        return targets[:, :-1] if self.groups else targets

    def __repr__(self) -> str:
        of_units = f"groups={list(self.groups)}" if self.groups else f"buckets={self.buckets}"
        return f"NextToken(num_tokens={self.num_tokens}, {of_units})"
