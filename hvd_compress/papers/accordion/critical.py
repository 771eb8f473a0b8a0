"""When is a regime of a training critical? By norms of gradients summed over epochs, and by learning rates.

Agarwal et al., "Accordion: Adaptive Gradient Communication via Critical Learning Regime Identification", Section 3.2.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hvd_compress.checks import check_whole
from hvd_compress.errors import ConfigError

DECAY = 0.5
"""To which share a learning rate must fall, from one epoch to the next, to count as decayed. Less is a slow schedule:
each epoch of a cosine has a lower rate than the one before, and by any decrease all of a training would be critical."""


def check_schedule(eta: float, every: int) -> None:
    """Raise ConfigError where these are no share by which norms change, or no number of epochs."""
    if isinstance(eta, bool) or not isinstance(eta, (int, float)) or not (0 < eta <= 1 or eta == math.inf):
        raise ConfigError(
            f"eta = {eta!r} must be a share by which norms change, above 0 and 1 at most: 0.5 is 50 %, and math.inf "
            "lets learning rates decide alone"
        )
    check_whole("every", every, 1)


def change(before: float, now: float) -> float:
    """Return |before - now| / before, the left side of the paper's condition; infinite where it has no value."""
    if not math.isfinite(before) or not math.isfinite(now):
        return math.inf
    if before == 0:
        return 0.0 if now == 0 else math.inf
    return abs(before - now) / before


def has_decayed(before: Sequence[float], now: Sequence[float]) -> bool:
    """Whether any learning rate has decayed since the epoch before; not where these are of another optimizer."""
    return len(before) == len(now) and any(0 < new <= DECAY * old for old, new in zip(before, now, strict=True))
