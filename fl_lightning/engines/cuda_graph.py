"""What a GPU is asked once and then does again and again: a function's kernels as one CUDA graph, on a stream."""

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
        device: that works.
        parallel: whether it works beside the present queue; else it is that one.
    """

    def __init__(self, device: torch.device, parallel: bool) -> None:
        is_gpu = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if parallel and is_gpu else None
        self._recording = (torch.cuda.Stream(device), torch.cuda.graph_pool_handle()) if is_gpu else None
        self._device = device

    def present(self) -> AbstractContextManager[object]:
        """A block whose work goes into this queue."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def begin(self) -> None:
        """Have it wait for all that was asked of the present queue."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def end(self) -> None:
        """Have the present queue wait for all that was asked of it."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def recorded(self, function: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """The function as one CUDA graph, which gives its result in the same memory every time.

        It has to have run before, as compilers and libraries set themselves up when they are first called. What it asks of the
        host is asked now, for all replays. Graphs of one queue share memory: a replay may overwrite the results of others.

        Args:
            function: works on memory that stays where it is.
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
