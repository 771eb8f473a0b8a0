"""DeMo: a step by the sign of what ranks have sent of their momenta."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from hvd_compress.compression import Compression
from hvd_compress.compression.part import says_by
from hvd_compress.optim.checks import check_from_zero, dense_gradient
from hvd_compress.request.request import Request


class DeMo(torch.optim.Optimizer):
    """Decoupled momentum optimization (Peng et al. 2024, Algorithm 1, with signs as in its experiments).

        p = p - lr * (weight_decay * p + sign(g))

    The momentum is that of each rank, and the compression keeps it (compression()); g is what all have sent of theirs.
    This optimizer has no state. Without the compression it is signSGD.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        weight_decay: float = 0.0,
    ) -> None:
        """Make it over parameters or groups of them; a group may have settings of its own.

        Args:
            lr: how far an element of a parameter moves in a step.
            weight_decay: decoupled; lr * weight_decay of a parameter is taken from it in each step.

        Raises:
            ConfigError: a value is out of range.
        """
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        for group in self.param_groups:
            check_from_zero("lr", group["lr"])
            check_from_zero("weight_decay", group["weight_decay"])

    @says_by("optimizer.compression")
    def compression(self, k: int = 32, chunk: int = 64, decay: float = 0.999) -> Request:
        """Return the compression that goes with this optimizer.

        Args:
            k, chunk, decay: of Compression.demo().

        Raises:
            ConfigError: a value is out of range.
        """
        return Compression.demo(k, chunk, decay)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step.

        Args:
            closure: computes the loss anew, and its gradients.

        Returns:
            What the closure does.

        Raises:
            UnsupportedError: a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = dense_gradient(parameter, "DeMo")
                if gradient is not None:
                    parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
                    parameter.add_(gradient.sign(), alpha=-float(group["lr"]))
        return loss
