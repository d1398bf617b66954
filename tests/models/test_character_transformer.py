"""CharacterTransformer against a plain computation of each place, in float64."""

import math

import pytest
import torch
import torch.nn.functional as F

from fl_lightning.models import CharacterTransformer


def plain(net, tokens):
    """Logits of one text, place by place and head by head."""
    embedding, *blocks, last = net.features
    x = embedding.token.weight[tokens] + embedding.position
    width = x.shape[1]
    for block in blocks:
        norm = F.layer_norm(x, (width,), block.before_attention.weight, block.before_attention.bias)
        q, k, v = (norm @ block.query_key_value.weight.T + block.query_key_value.bias).split(width, dim=1)
        size, mixed = width // block.heads, torch.zeros_like(x)
        for head in range(block.heads):
            part = slice(head * size, (head + 1) * size)
            for place in range(len(tokens)):
                scores = torch.stack([q[place, part] @ k[seen, part] for seen in range(place + 1)]) / math.sqrt(size)
                mixed[place, part] = sum(p * v[seen, part] for seen, p in enumerate(scores.softmax(dim=0)))
        x = x + mixed @ block.out.weight.T + block.out.bias
        norm = F.layer_norm(x, (width,), block.before_mlp.weight, block.before_mlp.bias)
        hidden = norm @ block.mlp[0].weight.T + block.mlp[0].bias
        hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
        x = x + hidden @ block.mlp[2].weight.T + block.mlp[2].bias
    return F.layer_norm(x, (width,), last.weight, last.bias) @ net.classifier.weight.T + net.classifier.bias


def test_each_place_sees_the_tokens_up_to_it():
    torch.manual_seed(0)
    net, tokens = CharacterTransformer((5,), 7, width=8, depth=2, heads=2).double(), torch.randint(0, 7, (3, 5))
    with torch.no_grad():
        torch.testing.assert_close(net(tokens), torch.stack([plain(net, text) for text in tokens]))


@pytest.mark.parametrize(
    ("shape", "settings", "message"),
    [
        ((3, 8, 8), {}, r"needs token ids, the data gives shape \(3, 8, 8\)"),
        ((5,), {"width": 8, "heads": 3}, "model.net.heads is 3, must divide model.net.width, which is 8"),
        ((5,), {"depth": 0}, "model.net.depth is 0"),
    ],
)
def test_what_it_cannot_be_built_for_is_refused(shape, settings, message):
    with pytest.raises(ValueError, match=message):
        CharacterTransformer(shape, 7, **settings)
