"""How many clusters each layer has, where all layers together may have so many: from the curves of find_clusters."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hvd_compress.attention.elbow import elbow
from hvd_compress.errors import ConfigError

Curve = Sequence[float]
"""E(1) .. E(H) of a layer."""
ROUNDING = 1 + 1e-5
"""Curves are kept with 6 digits: so much above an error of a curve is not below the error itself."""


def clusters_of(share: float, layers: int, heads: int) -> int:
    """Return the most clusters with which at most this share of a cache's bytes stays: (k + H) / (2 L H), of all
    layers together."""
    return int((2 * share - 1) * layers * heads + 1e-9)


def by_plateau(curves: Sequence[Curve], clusters: int) -> tuple[float, list[int]]:
    """Return the smallest plateau, the same of all layers, with which they have at most so many clusters, and k."""
    candidates = sorted({error / curve[0] for curve in curves for error in curve if error < curve[0]})
    for plateau in (each * ROUNDING for each in candidates):
        found = [elbow(curve, plateau) for curve in curves]
        if sum(found) <= clusters:
            return plateau, found
    raise ConfigError(f"{len(curves)} layers have a cluster each at least, not {clusters}: ask for a larger share")


def by_total_error(curves: Sequence[Curve], clusters: int) -> list[int]:
    """Return k of each layer with the smallest sum of E(k) over layers, and so many clusters, found greedily: one
    cluster less where that adds the least error."""
    found = [len(curve) for curve in curves]
    while sum(found) > clusters:
        added = [curve[k - 2] - curve[k - 1] if k > 1 else float("inf") for curve, k in zip(curves, found, strict=True)]
        found[added.index(min(added))] -= 1
    return found


def alike(curves: Sequence[Curve], clusters: int) -> list[int]:
    """Return the same k of all layers, one more in the first ones where they do not divide."""
    each, more = divmod(clusters, len(curves))
    return [each + (layer < more) for layer in range(len(curves))]


def share_of(clusters: Sequence[int], heads: int) -> float:
    """Return the share of a cache's bytes that stays, as ClusterCounts.cache_share has it."""
    return sum(itertools.chain(clusters, [heads] * len(clusters))) / (2 * len(clusters) * heads)
