"""What older releases of torch that the package takes cannot do."""

import pytest
import torch
from torch.torch_version import TorchVersion

STACKED_FIXED_GROUP_NORM = pytest.mark.xfail(
    TorchVersion(torch.__version__) < TorchVersion("2.14"),
    raises=ValueError,
    strict=True,
    reason="torch.vmap takes no GroupNorm of a model that is the same for all clients: docs/engines.md",
)
COMPILED_ATTENTION_DROPOUT = pytest.mark.xfail(
    TorchVersion(torch.__version__) < TorchVersion("2.14"),
    raises=ValueError,
    strict=False,  # known of 2.8 alone
    reason="torch.compile breaks at the dropout of nn.MultiheadAttention: docs/engines.md",
)
