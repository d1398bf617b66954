"""Rules, hostile clients and devices with visits at sites: as in the simulation. The sites are in this process."""

import pytest
import torch
from pretended import pretended_gpu, values
from torch import nn

from fl_lightning import FedAvg
from fl_lightning.data import Devices, from_arrays
from fl_lightning.engines.flower import FlowerEngine, connected
from fl_lightning.engines.rounds import run_round
from fl_lightning.engines.run_context import RunContext
from fl_lightning.engines.sequential import SequentialEngine
from fl_lightning.protocol import Request, pack, unpack
from fl_lightning.robustness import IPM, Krum, LabelFlip


class SitesHere:
    """Answers from the packed requests only, with a method and an engine of its own."""

    def __init__(self, method: FedAvg) -> None:
        self.engine, self.asked = SequentialEngine(method, RunContext()), []

    def visit(self, round, requests):
        self.asked += requests
        replies = {}
        for client, packed in requests.items():
            reply = pack(self.engine.visit(unpack(Request, packed)))
            replies[client] = {path: tensor.clone() for path, tensor in reply.items()}
        return replies


def joined(**settings) -> FedAvg:
    inputs = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    data = from_arrays(
        inputs, torch.arange(40) % 4, [range(k, k + 8) for k in range(0, 40, 8)], batch_size=2, cohorts=[[*range(5)]] * 3
    )
    data.setup()
    torch.manual_seed(1)
    method = FedAvg(nn.Linear(3, 4), **settings)
    method.join(data)
    return method


@pytest.mark.parametrize(
    "settings", [{"aggregation": Krum(1)}, {"hostile": IPM(0.4), "aggregation": Krum(0)}, {"hostile": LabelFlip(0.4)}], ids=repr
)
@pytest.mark.parametrize("partial_work", [False, True])
def test_sites_give_the_bits_of_the_simulation(settings, partial_work, tmp_path):
    """Client 4 is late, or takes one of four steps; uploads are lost in some rounds."""
    speeds = [f"{client},{1 if client == 4 else 1000},1e9,1e9" for client in range(5)]
    (tmp_path / "speeds.csv").write_text("client,samples_per_second,download,upload\n" + "\n".join(speeds))
    devices = Devices(str(tmp_path / "speeds.csv"), deadline=3.0, partial_work=partial_work, lost_uploads=0.1)
    here, server = joined(**settings), joined(**settings)
    simulated, sites = SequentialEngine(here, RunContext(devices=devices)), SitesHere(joined(**settings))
    with connected(sites):
        real = FlowerEngine(server, RunContext(devices=devices))
    reports = [(run_round(here, simulated, round), run_round(server, real, round)) for round in (1, 2, 3)]
    for one, other in reports:
        assert one == other
    assert (4 in sites.asked) == partial_work
    torch.testing.assert_close(server.net.state_dict(), here.net.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("silent", [None, 4])
def test_a_server_on_a_gpu_moves_replies_there(silent):
    """Sites send tensors of the CPU; a client without a reply is left out. The weights are those of a server on a CPU."""

    class Sites(SitesHere):
        def visit(self, round, requests):
            on_cpu = {k: {path: tensor.cpu() for path, tensor in packed.items()} for k, packed in requests.items()}
            return {client: reply for client, reply in super().visit(round, on_cpu).items() if client != silent}

    def trained(server, context):
        with connected(Sites(joined())):
            engine = FlowerEngine(server, context)
        return run_round(server, engine, 1), {name: tensor.cpu() for name, tensor in server.net.state_dict().items()}

    on_cpu, expected = trained(joined(), RunContext())
    with pretended_gpu():
        on_gpu, weights = trained(joined().to("cuda"), RunContext(device=torch.device("cuda", 0)))
    assert on_gpu.clients == on_cpu.clients
    assert on_gpu.nonfinite == on_cpu.nonfinite == ([] if silent is None else [silent])
    torch.testing.assert_close({name: values(tensor) for name, tensor in weights.items()}, expected)
