"""Residuals in the units of a gradient scaler, whose loss scale changes while training runs."""

from __future__ import annotations

import math
from typing import Any

from hvd_compress.feedback.states import States


class LossScale:
    """Rescales residuals when the scale of a torch.amp.GradScaler changes.

    Attributes:
        scale: the loss scale in whose units the residuals are; None without a scaler.
        scaler: which it follows; None for none.
    """

    def __init__(self, states: States) -> None:
        self._states = states
        self.scaler: Any = None
        self.scale: float | None = None

    def follow(self, scaler: Any) -> None:
        """Keep residuals in the units of this scaler from now on."""
        self.scaler = scaler
        if self.scale is None:
            self.scale = scaler.get_scale()

    def update(self) -> None:
        """Call it before the first bucket of a step leaves with its residual, and before residuals are saved."""
        if self.scaler is None or self.scale is None:
            return
        scale = self.scaler.get_scale()
        if scale != self.scale and min(scale, self.scale) > 0 and math.isfinite(scale):
            self._states.scale(scale / self.scale)
            self.scale = scale
