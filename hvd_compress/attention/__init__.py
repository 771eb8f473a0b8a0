"""Clustered head attention (CHAI): fewer keys to move at inference, without retraining (papers: chapter 6).

    counts = find_clusters(model, samples)
    apply(model, counts)
    model.generate(ids, max_new_tokens=100)
    remove(model)

docs/attention.md says how, what is exact and what is refused.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hvd_compress.attention.adapter import apply, remove
    from hvd_compress.attention.cache import ClusteredCache
    from hvd_compress.attention.counts import ClusterCounts
    from hvd_compress.attention.finding import find_clusters

__all__ = ["ClusterCounts", "ClusteredCache", "apply", "find_clusters", "remove"]

_MODULES = {
    "ClusterCounts": "counts",
    "ClusteredCache": "cache",
    "apply": "adapter",
    "find_clusters": "finding",
    "remove": "adapter",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import what is named: the help of `hvd-compress chai` needs neither torch nor transformers."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)

    def __dir__() -> list[str]:
        return [*globals(), *_MODULES]
