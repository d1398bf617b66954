"""Where graphs are recorded: a stream and a memory pool for each queue of work."""

from contextlib import contextmanager

import pytest
import torch

from fl_lightning.engines.cuda_graph import Stream

GPU = torch.device("cuda", 0)


@pytest.fixture
def recordings(monkeypatch):
    """Graphs, with the stream and the pool that each was recorded on; a replay is noted too."""
    noted, pools = [], iter(range(9))

    class Graph:
        def replay(self):
            noted.append(("replay", self))

    @contextmanager
    def graph(one, pool=None, stream=None):
        noted.append((one, pool, stream))
        yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: object())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    return noted


def test_no_two_queues_record_on_one_stream(recordings):
    """A workspace of cuBLAS belongs to a stream: two graphs of a queue, which never run side by side, may share it."""
    queues = [Stream(GPU, parallel=parallel) for parallel in (False, True, True)]
    for queue in queues:
        for _ in range(2):
            assert queue.recorded(lambda: torch.ones(1))() == 1
    recorded = [entry for entry in recordings if entry[0] != "replay"]
    assert len({graph for graph, _, _ in recorded}) == 6
    streams = [stream for _, _, stream in recorded]
    assert None not in streams
    assert [streams.index(stream) for stream in streams] == [0, 0, 2, 2, 4, 4]
    assert [pool for _, pool, _ in recorded] == [0, 0, 1, 1, 2, 2]
