"""A clock that stands still, and a tensor operation that takes time on it; and that nobody else watches gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hvd_compress.session import gradient_times

OWN = torch.autograd.backward
"""torch's: nothing has been watched when this file is read."""


@pytest.fixture(autouse=True)
def nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorders of other tests, which nobody has closed yet, are none of a test's."""
    monkeypatch.setattr(gradient_times, "_watchers", [])
    monkeypatch.setattr(gradient_times, "_current", None)
    monkeypatch.setattr(torch.autograd, "backward", OWN)


class PlayedClock:
    """Seconds that pass only where a test says so. It counts how often somebody waited for the device."""

    def __init__(self) -> None:
        self.now_s, self.waits = 0.0, 0

    def now(self) -> float:
        return self.now_s

    def settle(self) -> None:
        self.waits += 1

    def seconds(self, begin: float, end: float) -> float:
        return end - begin

    def spend(self, x: torch.Tensor, forward_s: float, backward_s: float) -> torch.Tensor:
        """Return x; that takes `forward_s` now, and `backward_s` in the backward pass."""
        return _Spend.apply(x, self, forward_s, backward_s)


class _Spend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, clock: PlayedClock, forward_s: float, backward_s: float) -> torch.Tensor:
        ctx.clock, ctx.backward_s = clock, backward_s
        clock.now_s += forward_s
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        ctx.clock.now_s += ctx.backward_s
        return gradient, None, None, None


class Chain:
    """Layers that multiply, one after the other: the gradient of a layer is ready when those behind it are.

    Attributes:
        parameters: by name, "0" first in the forward pass; "unused" takes part in nothing.
    """

    def __init__(self, clock: PlayedClock, layers: int = 3) -> None:
        self._clock = clock
        shapes = {str(number): (number + 2,) for number in range(layers)}
        self.parameters = {name: torch.nn.Parameter(torch.ones(shape)) for name, shape in shapes.items()}
        self.parameters["unused"] = torch.nn.Parameter(torch.ones(5, 7))

    def loss(self, backward_s: list[float], forward_s: float = 1.0) -> torch.Tensor:
        """Each layer takes as long as the list says, the first layer's time first."""
        x = torch.ones(())
        for seconds, parameter in zip(backward_s, self.parameters.values(), strict=False):
            x = self._clock.spend(x * parameter.sum(), forward_s, seconds)
        return x
