"""What every method sends and keeps, in bytes of float32, row by row."""

from typing import NamedTuple

import pytest
import torch
from written_pages import round_of

from fl_lightning import methods
from fl_lightning.optimizers import FedAdam

WEIGHTS, STATISTICS, HEAD = 4 * (3 * 5 + 5 + 5 + 24), 4 * (5 + 5) + 8, 4 * (5 * 4 + 4)  # the counter is an int64
WITHOUT_NORM = 4 * (3 * 5 + 5 + 24)
NORM = 4 * (5 + 5) + STATISTICS  # the BatchNorm layer alone
# Whose rule says what is personal: a personal head on top changes nothing, or leaves nothing to share.
OWN_RULE = {"FedPer", "FedRep", "FedBABU", "LGFedAvg", "LocalOnly"}


class Row(NamedTuple):
    """A client's part in a round: models with their statistics, sets of their weights alone, and bytes on top."""

    down: tuple[int, int, int] = (1, 0, 0)
    up: tuple[int, int, int] = (1, 0, 0)
    client: tuple[int, int, int] = (0, 0, 0)  # what it keeps
    server: tuple[int, int, int] = (0, 0, 0)  # what the server keeps in addition to the model
    first_up: int = 0  # bytes more at the first visit
    settings: dict = {}


MOMENTUM = {"server_optimizer": lambda weights: torch.optim.SGD(weights, lr=1.0, momentum=0.9)}
TABLE = {
    "FedAvg, momentum": Row(server=(0, 1, 0), settings=MOMENTUM),
    "FedAvg, FedAdam": Row(server=(0, 2, 0), settings={"server_optimizer": FedAdam}),
    "FedGMA": Row(),  # the server has the signs from the models
    "FedNova": Row(up=(1, 0, 4)),
    "FedDyn": Row(client=(0, 1, 0), server=(0, 1, 0)),  # the server has the plain sum from the models
    "MOON": Row(client=(1, 0, 0)),
    "SCAFFOLD": Row(down=(1, 1, 0), up=(1, 1, 0), client=(0, 1, 0), server=(0, 1, 0)),
    "SCAFFOLD, I": Row((1, 1, 0), (1, 1, 0), (0, 1, 0), (0, 1, 0), settings={"option": "I"}),
    "FedCurv": Row(down=(1, 2, 0), up=(1, 1, 0), client=(0, 2, 8), server=(0, 2, 0)),
    "FedCurv, all": Row((1, 2, 0), (1, 2, 0), (0, 2, 8), (0, 2, 0), settings={"remember": "all"}),
    "FedDF": Row(),
    "FedPer": Row(down=(1, 0, -HEAD), up=(1, 0, -HEAD), client=(0, 0, HEAD)),
    "FedRep": Row(down=(1, 0, -HEAD), up=(1, 0, -HEAD), client=(0, 0, HEAD)),
    "FedBABU": Row(down=(1, 0, -HEAD), up=(1, 0, -HEAD)),  # a head that is the same for all is neither sent nor kept
    "LGFedAvg": Row(down=(0, 0, HEAD), up=(0, 0, HEAD), client=(1, 0, -HEAD)),
    "FedBN": Row(down=(1, 0, -NORM), up=(1, 0, -NORM), client=(0, 0, NORM)),
    "LocalOnly": Row(down=(0, 0, 0), up=(0, 0, 0), client=(1, 0, 0)),
    "Ditto": Row(client=(1, 0, 0), server=(1, 0, 0)),  # clients draw the initial model from the seed
    "APFL": Row(client=(1, 0, 4), server=(1, 0, 0)),
    "PFedMe": Row(client=(1, 0, -STATISTICS)),
    "Flashback": Row(down=(1, 0, 4 * 4), server=(0, 0, 4 * 4 + 8 * 5), first_up=4 * 4),  # four classes, five clients
}
TABLE |= {name: Row() for name in methods.__all__ if name not in TABLE}  # the others exchange models alone

SAID = {  # in the section Round of a docstring, of what is sent more than by FedAvg
    "": 0,
    "P": WEIGHTS,
    "2P": 2 * WEIGHTS,
    "-P": -WEIGHTS - STATISTICS,
    "-P_head": -HEAD,
    "-P_body": HEAD - WEIGHTS - STATISTICS,
    "-P_bn": -NORM,
    "4 bytes": 4,
    "4C bytes": 4 * 4,
    "4C bytes once": 0,
}


@pytest.mark.parametrize("name", methods.__all__)
def test_docstrings_say_what_is_sent(name):
    """The rows above, which are measured below."""
    said = round_of(name)
    for key, (models, weights, more) in (("more down", TABLE[name].down), ("more up", TABLE[name].up)):
        sent = (models - 1) * (WEIGHTS + STATISTICS) + weights * WEIGHTS + more
        assert sent == SAID[said.get(key, "")], key
    assert ("once" in said.get("more up", "")) == (TABLE[name].first_up > 0)


def num_bytes(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize(
    ("name", "personal"),
    [(name, ()) for name in TABLE] + [(name, ("classifier.*",)) for name in TABLE if name not in OWN_RULE],
)
def test_bytes_of_a_round(tiny, name, personal):
    """Three rounds of 3, 2 and 2 clients, 3, 1 and 0 of them new; a head that stays at home has no part in anything sent."""
    row, method = TABLE[name], name.split(",")[0]
    result = tiny.train_any(method, personal, precision="32-true", **row.settings)
    weights, statistics = (WITHOUT_NORM, 0) if method == "FedReg" else (WEIGHTS, STATISTICS)
    kept = HEAD if personal else 0

    def of(entry):
        return entry[0] * (weights - kept + statistics) + entry[1] * (weights - kept) + entry[2]

    for report, clients, new in zip(result.reports, (3, 2, 2), (3, 1, 0), strict=True):
        assert report.bytes_down == clients * of(row.down)
        assert report.bytes_up == clients * of(row.up) + new * row.first_up
    # The previous model of MOON is whole, its head included.
    values = of(row.client) + kept * (1 + row.client[0])
    stored = {client: num_bytes(result.client_states.read(client).tensors()) for client in range(5)}
    assert stored == {client: values * (client < 4) for client in range(5)}
    moments = [moment for state in result.trainer.optimizers[0].state.values() for moment in state.values()]
    assert num_bytes([*result.buffers(recurse=False), *result.server_states.buffers()]) + num_bytes(moments) == of(row.server)
