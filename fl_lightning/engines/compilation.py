"""``torch.compile`` of a local step, without a rewriting of it that is wrong."""

from collections.abc import Callable

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, Node

from fl_lightning.engines.local_step import LocalStep, StepResult


class _FactorsAsProducts(CustomGraphPass):
    """Writes ``add(a, b, alpha=k)`` as ``a + k * b``.

    Torch 2.14 takes the sum of a matrix product and ``k * b`` for ``addmm`` and forgets k, so that a step that adds a multiple
    of the weights to the gradient of a linear layer would train another model.
    """

    def __call__(self, graph: Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor):
            _, other = node.args
            factor = node.kwargs.get("alpha", 1)
            if factor != 1 and isinstance(other, Node) and other.meta["val"].dtype == node.meta["val"].dtype:
                with graph.inserting_before(node):
                    product = graph.call_function(torch.ops.aten.mul.Tensor, (other, factor))
                product.meta["val"] = other.meta["val"]
                node.update_arg(1, product)
                node.kwargs = {}

    def uuid(self) -> bytes:
        return get_hash_for_files((__file__,))


def compiled(step: LocalStep, casts: bool) -> Callable[..., StepResult]:
    """The step as one graph; a break in it is an error, not a part that silently runs uncaptured.

    Args:
        casts: whether values are rounded to half precision between operations, as without a compiler.
    """
    return torch.compile(
        step, fullgraph=True, options={"emulate_precision_casts": casts, "post_grad_custom_pre_pass": _FactorsAsProducts()}
    )
