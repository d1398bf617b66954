"""The refusal of token ids, and other whole numbers, beyond a net's embeddings, which the first batch need not have."""

from collections.abc import Iterable

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from fl_lightning.data.prepared_samples import Preparation
from fl_lightning.data.samples import Samples, are_whole
from fl_lightning.protocol import NetInputs, evaluate_net


def check_token_ids(what: str, net: nn.Module, preparation: Preparation, parts: Iterable[Samples]) -> None:
    """Refuse whole numbers, inputs by themselves or by name, such as ``input_ids``, beyond a net's embeddings.

    Args:
        what: the key of their source, or what it is, for the error.
        parts: the samples, such as those for training and for tests.
    """
    device = next(net.parameters()).device
    for part in parts:
        named = part.inputs if isinstance(part.inputs, dict) else {"": part.inputs}
        for name, ids in named.items():
            if not isinstance(ids, Tensor) or not are_whole(ids) or len(ids) == 0:
                continue
            rows = ids.reshape(len(ids), -1)
            for row in (rows.amax(dim=1).argmax(), rows.amin(dim=1).argmin()):
                prepared = preparation.for_evaluation(part.rows([int(row)]))
                one = tree_map(lambda part: part.to(device), prepared)
                none = {**one, name: one[name] * 0} if isinstance(one, dict) else one * 0
                if _is_beyond(net, one) and not _is_beyond(net, none):  # the length may be beyond the net's positions too
                    token = min(rows[row].tolist(), key=lambda token: (token >= 0, -token))  # below 0, else the largest
                    said = f"the token {token}" if name in ("", "input_ids") else f"{token} in {name!r}"
                    raise ValueError(
                        f"{what} has {said}, which is beyond the embeddings of model.net: use the net's own tokenizer, or a "
                        "net for more tokens"
                    )


def _is_beyond(net: nn.Module, inputs: NetInputs) -> bool:
    """Whether an index is beyond a table of a net."""
    try:
        evaluate_net(net, lambda net: net(inputs))
    except Exception as error:  # of any net
        return isinstance(error, IndexError)
    return False
