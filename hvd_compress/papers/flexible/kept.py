"""How many elements a ratio keeps."""

from __future__ import annotations

from hvd_compress.errors import ConfigError


def kept(numel: int, ratio: float) -> int:
    """Return k, as the sparsifiers count it for a bucket that is selected from as a whole.

    Raises ConfigError for a ratio outside (0, 1] or a numel below 0.
    """
    if not 0 < ratio <= 1:
        raise ConfigError(f"ratio = {ratio} lies outside (0, 1]; it is the share that is sent: one per cent is 0.01")
    if numel < 0:
        raise ConfigError(f"numel = {numel} is negative")
    return max(1, round(ratio * numel)) if numel else 0
