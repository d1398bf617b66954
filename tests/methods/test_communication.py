"""What every method sends and keeps, in bytes of float32, row by row."""

import re

import pytest
import torch
from declared_by_tests import HEAD, NORM, STATISTICS, WEIGHTS, WITHOUT_NORM, Cost, costs_of, needs_of, trains_at_the_server
from written_pages import round_of

from fl_lightning import methods
from fl_lightning.optimizers import FedAdam

SERVERS = {
    "FedAvg, momentum": Cost(
        server=(0, 1, 0), settings={"server_optimizer": lambda weights: torch.optim.SGD(weights, lr=1.0, momentum=0.9)}
    ),
    "FedAvg, FedAdam": Cost(server=(0, 2, 0), settings={"server_optimizer": FedAdam}),
}
TABLE = SERVERS | {key: cost for name in methods.__all__ for key, cost in costs_of(name).items()}

UNITS = {  # in the section Round of a docstring, of what is sent more than by FedAvg, behind their number
    "": 0,
    "P": WEIGHTS,
    "-P": -WEIGHTS - STATISTICS,
    "-P_head": -HEAD,
    "-P_body": HEAD - WEIGHTS - STATISTICS,
    "-P_bn": -NORM,
    " bytes": 1,
    "C bytes": 4,
    "C bytes once": 0,
}


@pytest.mark.parametrize("name", methods.__all__)
def test_docstrings_say_what_is_sent(name):
    """The costs that test_<name>.py declares, which are measured below."""
    said = round_of(name)
    for key, (models, weights, more) in (("more down", TABLE[name].down), ("more up", TABLE[name].up)):
        sent = (models - 1) * (WEIGHTS + STATISTICS) + weights * WEIGHTS + more
        count, unit = re.fullmatch(r"(\d*)(.*)", said.get(key, "")).groups()
        assert sent == int(count or 1) * UNITS[unit], key
    assert ("once" in said.get("more up", "")) == (TABLE[name].first_up > 0)


def num_bytes(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize(
    ("name", "personal"),
    [
        *((name, ()) for name in TABLE),
        *(
            (name, ("classifier.*",))
            for name, cost in TABLE.items()
            if not cost.personal_by_rule and not trains_at_the_server(name.split(",")[0])
        ),
    ],
)
@pytest.mark.one_in(4)
def test_bytes_of_a_round(tiny, name, personal):
    """Three rounds of 3, 2 and 2 clients, 3, 1 and 0 of them new; a head that stays at home has no part in anything sent."""
    row, method = TABLE[name], name.split(",")[0]
    result = tiny.train_any(method, personal, precision="32-true", **row.settings)
    weights, statistics = (WEIGHTS, STATISTICS) if needs_of(method)[1].get("norm", True) else (WITHOUT_NORM, 0)
    kept = HEAD if personal else 0

    def of(entry):
        return entry[0] * (weights - kept + statistics) + entry[1] * (weights - kept) + entry[2]

    for report, clients, new in zip(result.reports, (3, 2, 2), (3, 1, 0), strict=True):
        assert report.bytes_down == clients * of(row.down)
        assert report.bytes_up == clients * of(row.up) + new * row.first_up
    # The previous model of MOON is whole, its head included.
    values = of(row.client) + kept * (1 + row.client[0])
    stored = {client: num_bytes(result.stored.states.read(client).tensors()) for client in range(5)}
    assert stored == {client: values * (client < 4) for client in range(5)}
    moments = [moment for state in result.trainer.optimizers[0].state.values() for moment in state.values()]
    assert num_bytes([*result.buffers(recurse=False), *result.server_states.buffers()]) + num_bytes(moments) == of(row.server)
