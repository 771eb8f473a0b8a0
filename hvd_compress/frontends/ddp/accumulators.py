"""The nodes by which autograd adds to gradients: DDP has its hooks on them, and does not see when one is replaced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class Accumulators:
    """Tells which parameters have another node than before.

    Torch makes a new one where a parameter is converted, as by Module.double(). DDP is not told of gradients then, and
    each rank goes on with its own. To look takes some 0.2 microseconds a parameter.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """`parameters`: by name, as DDP has wrapped them."""
        self._parameters = dict(parameters)
        self._nodes = self._now()

    def replaced(self) -> list[str]:
        """Return the names of parameters whose gradients DDP does not see any more. With gradients enabled alone."""
        pairs = zip(self._parameters, self._nodes, self._now(), strict=True)
        return [name for name, before, now in pairs if now is not None and before is not None and now is not before]

    def _now(self) -> list[Any]:
        """None where a parameter is frozen."""
        reached: Any = _Reach.apply(*self._parameters.values())  # held, as torch 2.4 needs it for the node
        node = reached.grad_fn
        return [None] * len(self._parameters) if node is None else [following for following, _ in node.next_functions]


class _Reach(torch.autograd.Function):
    """Leads to the nodes of all its arguments at once."""

    @staticmethod
    def forward(ctx: Any, *parameters: torch.Tensor) -> torch.Tensor:
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> None:
        raise AssertionError("no gradient comes by here")
