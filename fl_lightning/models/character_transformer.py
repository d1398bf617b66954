"""CharacterTransformer: a small decoder that predicts the next token of a text.

A. Radford, J. Wu, R. Child, D. Luan, D. Amodei, I. Sutskever: Language Models are Unsupervised Multitask Learners. 2019.
Departures: no dropout, and a class layer of its own weights.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl_lightning.checks import check_range
from fl_lightning.models.network import Network


class CharacterTransformer(Network):
    """Token and position embeddings, blocks with LayerNorm before attention and MLP, LayerNorm, linear to tokens.

    Returns (B, T, V) logits; those of a place depend on the tokens up to it.

    Args:
        input_shape: (T,), token ids.
        num_classes: V.
        width: of embeddings; a multiple of ``heads``.
        depth: number of blocks.
        heads: of attention.

    Raises:
        ValueError: if the data gives no token ids, or ``heads`` does not divide ``width``.
    """

    def __init__(self, input_shape: Sequence[int], num_classes: int, width: int = 64, depth: int = 2, heads: int = 4) -> None:
        super().__init__()
        if len(input_shape) != 1:
            raise ValueError(
                f"model.net CharacterTransformer needs token ids, the data gives shape {tuple(input_shape)}: give data.source "
                "Characters"
            )
        for name, value in (("width", width), ("depth", depth), ("heads", heads)):
            check_range(f"model.net.{name}", value, at_least=1)
        if width % heads:
            raise ValueError(f"model.net.heads is {heads}, must divide model.net.width, which is {width}")
        blocks = [_Block(width, heads) for _ in range(depth)]
        self.features = nn.Sequential(_Embedding(num_classes, input_shape[0], width), *blocks, nn.LayerNorm(width))
        self.classifier = nn.Linear(width, num_classes)


class _Embedding(nn.Module):
    def __init__(self, num_tokens: int, length: int, width: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(num_tokens, width), nn.Parameter(0.02 * torch.randn(length, width))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.token(tokens) + self.position


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, inputs: Tensor) -> Tensor:
        """(B, T, width) from (B, T, width)."""
        mixed = self.query_key_value(self.before_attention(inputs)).unflatten(-1, (3, self.heads, -1))
        query, key, value = mixed.movedim(-3, 0).transpose(-3, -2)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = inputs + self.out(attended.transpose(-3, -2).flatten(-2))
        return hidden + self.mlp(self.before_mlp(hidden))
