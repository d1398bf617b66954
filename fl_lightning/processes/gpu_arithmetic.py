"""How a GPU multiplies float32 numbers, and how it chooses algorithms of convolutions."""

from typing import Literal

import torch

Float32Products = Literal["highest", "high", "medium"]


def choose_arithmetic(products: Float32Products, benchmark: bool | None, deterministic: bool) -> None:
    """Set, for this process, what runs on CUDA go faster by.

    Args:
        products: of :func:`torch.set_float32_matmul_precision`; with ``highest`` convolutions do not round to TF32 either.
        benchmark: whether cuDNN times its algorithms for each shape and takes the quickest; None: unless ``deterministic``.
        deterministic: whether the same run must give the same bits.
    """
    torch.set_float32_matmul_precision(products)
    torch.backends.cudnn.allow_tf32 = products != "highest"  # torch's default is True, whatever matrices do
    torch.backends.cudnn.benchmark = not deterministic if benchmark is None else benchmark
