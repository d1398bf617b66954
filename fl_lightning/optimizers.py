"""Server optimizers that are missing from torch.

S. J. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan: Adaptive Federated Optimization.
ICLR 2021. arXiv 2003.00295. Algorithm 2: no bias correction, tau outside the root, v starts at tau^2. The third of the paper,
FedAdagrad, is torch's Adagrad with ``initial_accumulator_value: tau^2`` and ``eps: tau``.
"""

import inspect
import math
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor

from fl_lightning.checks import ArgumentError, check_each, check_range, did_you_mean

__all__ = ["FedAdam", "FedYogi"]

OptimizerBuilder = Callable[[Iterable], torch.optim.Optimizer]  # from weights to an optimizer of them
_ARGUMENTS = {"learning rate": "lr", "beta": "betas", "epsilon": "eps"}  # of torch's optimizers, by their name in its messages
_FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
# Of torch's optimizers; their messages do not name it.
_RANGES = {
    **dict.fromkeys(("lr", "eps", "weight_decay", "momentum", "lr_decay"), "at least 0"),
    "betas": "at least 0 and below 1 each",
}


def optimizer_builder(key: str, given: OptimizerBuilder | str) -> OptimizerBuilder:
    """A function that builds an optimizer from weights: ``given`` itself, or the class of torch or this module that it names.

    Args:
        key: key of the config, for messages.

    Raises:
        ValueError: if there is no such class, or ``given`` is not a function, such as an optimizer that is already built.
    """
    if callable(given):
        return partial(_build, key, given)
    known: dict[str, Any] = dict(inspect.getmembers(torch.optim, inspect.isclass))
    del known["Optimizer"]
    known |= {kind.__name__: kind for kind in (FedAdam, FedYogi)}
    if isinstance(given, str) and given in known:
        return partial(_build, key, known[given])
    example = "such as 'Adam' or lambda weights: torch.optim.Adam(weights, lr=0.001)"
    cure = did_you_mean(given, known, otherwise=example) if isinstance(given, str) else example
    shown = repr(given) if isinstance(given, str) else type(given).__name__
    raise ValueError(f"{key} is {shown}, must be the name of an optimizer or build one from weights: {cure}")


def fused(build: OptimizerBuilder) -> OptimizerBuilder:
    """A builder of the same optimizer with fused steps, if torch has them and no other form was requested."""

    @wraps(build)
    def fusing(parameters: Any) -> torch.optim.Optimizer:
        optimizer = build(parameters)
        if type(optimizer) in _FUSED:
            for group in optimizer.param_groups:
                if group["fused"] is None and group["foreach"] is None:
                    group["fused"] = True
        return optimizer

    return fusing


def _build(key: str, build: OptimizerBuilder, weights: Iterable[Tensor]) -> torch.optim.Optimizer:
    """Build an optimizer; a ValueError for one of its arguments names it as it is given on the command line."""
    try:
        optimizer = build(weights)
    except ArgumentError as error:
        raise ArgumentError(f"{key}.{error.name}", error.problem) from error
    except ValueError as error:
        found = re.match(r"Invalid (.+?)(?: value| parameter)?(?: at index \d)?: (.*?)(, must be .*)?$", str(error))
        if found is None:
            raise ValueError(f"{key}: {error}") from error
        argument = _ARGUMENTS.get(found[1], found[1])
        allowed = found[3] or (f", must be {_RANGES[argument]}" if argument in _RANGES else ", which the optimizer refuses")
        verb = "has" if argument == "betas" and not found[2].startswith("(") else "is"
        raise ValueError(f"{key}.{argument} {verb} {found[2]}{allowed}") from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"{key} builds {type(optimizer).__name__}, must build an optimizer of torch: return it")
    for name, value in optimizer.defaults.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{key}.{name} is {value}, must be a finite number")
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        kind = type(optimizer).__name__
        raise ValueError(f"{key} is {kind}, which needs a closure to evaluate the loss again, which no step gives: use another")
    return optimizer


class _Adaptive(torch.optim.Optimizer):
    """``m = beta1 m + (1 - beta1) g``, a rule for v, ``x = x - lr m / (sqrt(v) + tau)``.

    Args:
        params: the global weights.
        lr: above 0.
        betas: of m and v, in [0, 1).
        tau: adaptivity, above 0; v starts at its square.

    Raises:
        ValueError: if one of them is out of range.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.99),
        tau: float = 1e-3,
    ) -> None:
        check_range("lr", lr, above=0)
        check_each("betas", betas, at_least=0, below=1)
        check_range("tau", tau, above=0, hint="the paper uses 1e-3")
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "tau": tau})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step with the present gradients; returns the result of the closure, which can recompute them."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            (beta1, beta2), tau = group["betas"], group["tau"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["m"], state["v"] = torch.zeros_like(weight), torch.full_like(weight, tau**2)
                state["m"].lerp_(weight.grad, 1 - beta1)
                self.renew(state["v"], weight.grad.square(), beta2)
                weight.sub_(group["lr"] * state["m"] / (state["v"].sqrt() + tau))
        return loss

    @staticmethod
    @abstractmethod
    def renew(v: Tensor, square: Tensor, beta2: float) -> None:
        """Update v in place with the squared gradient."""


class FedAdam(_Adaptive):
    """``v = beta2 v + (1 - beta2) g^2``."""

    @staticmethod
    def renew(v: Tensor, square: Tensor, beta2: float) -> None:
        v.lerp_(square, 1 - beta2)


class FedYogi(_Adaptive):
    """``v = v - (1 - beta2) g^2 sign(v - g^2)``: v grows and shrinks by the last gradient's square."""

    @staticmethod
    def renew(v: Tensor, square: Tensor, beta2: float) -> None:
        v.sub_((1 - beta2) * square * (v - square).sign())
