"""The share of a full cache's bytes that clusters of heads leave."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_compress.checks import check_number
from hvd_compress.errors import ConfigError


def cache_share(clusters: Sequence[int], key_heads: int) -> float:
    """Return the share that stays at most: sum over L layers of (min(k, G) + G) / (2 L G).

    Where heads have keys of their own, G = H, it is what stays. Where H heads share the keys of G, a request keeps the
    keys that its representatives use: no more than there are representatives, nor than there are keys.

    Args:
        clusters: k of each layer.
        key_heads: heads of keys of a layer (G).
    """
    return sum(min(k, key_heads) + key_heads for k in clusters) / (2 * len(clusters) * key_heads)


def require_share(share: float, key_heads: int) -> None:
    """Raise ConfigError for a share of the cache that no clusters leave."""
    check_number("cache_share", share, 0.5, 1, above=True, hint="values always stay")
    if share < (least := cache_share([1], key_heads)):
        raise ConfigError(
            f"cache_share is {share!r}, and one cluster in each layer leaves {least:.4g} of the cache, as each has the "
            f"keys of one head and the values of {key_heads}: that is the least"
        )
