"""A GPU that is not there: its tensors lie on the CPU, refuse to meet others, and count what the host asks of them."""

from pretended.counts import Counts, counting
from pretended.machine import pretended_gpu
from pretended.tensor import DEVICE, PretendedTensor, WrongDevice, is_pretended, values

__all__ = ["DEVICE", "Counts", "PretendedTensor", "WrongDevice", "counting", "is_pretended", "pretended_gpu", "values"]
