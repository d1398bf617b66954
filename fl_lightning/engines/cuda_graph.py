"""A function's kernels, recorded once as one CUDA graph and replayed on a stream."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


class Stream:
    """A queue of work on a device: a further one on a GPU; elsewhere all work is done at once, in order.

    Its graphs are recorded on a stream and in a memory pool of their own. torch's default is one stream for all graphs, which
    then share one cuBLAS workspace: replays side by side overwrite it, and deleting one graph frees it under the others, see
    https://github.com/pytorch/pytorch/issues/193402.

    Args:
        parallel: whether it works in parallel to the present queue; else it is that queue.
    """

    def __init__(self, device: torch.device, parallel: bool) -> None:
        is_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if parallel and is_gpu else None
        self._recording = (torch.cuda.Stream(device), torch.cuda.graph_pool_handle()) if is_gpu else None
        self._device = device

    def present(self) -> AbstractContextManager[object]:
        """Put the work of a block into this queue."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def begin(self) -> None:
        """Make it wait for all work in the present queue."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def end(self) -> None:
        """Make the present queue wait for all its work."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def recorded(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """The function as one CUDA graph, with its result in the same memory every time.

        It must have run before, as compilers and libraries set themselves up in the first call. Its host code runs now,
        once for all replays. Graphs of one queue share memory: a replay can overwrite the results of others.

        Args:
            function: works on memory with fixed addresses.
        """
        assert self._recording is not None, "there are no graphs without a GPU"
        graph, (stream, pool) = torch.cuda.CUDAGraph(), self._recording
        torch.cuda.synchronize(self._device)
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            result = function()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay
