"""Clustered head attention (CHAI): fewer keys to move at inference, without retraining (papers: chapter 6).

    counts = find_clusters(model, samples)
    apply(model, counts)
    model.generate(ids, max_new_tokens=100)
    remove(model)

docs/attention.md says how, what is exact and what is refused.
"""

from hvd_compress.attention.adapter import apply, remove
from hvd_compress.attention.cache import ClusteredCache
from hvd_compress.attention.counts import ClusterCounts
from hvd_compress.attention.finding import find_clusters

__all__ = ["ClusterCounts", "ClusteredCache", "apply", "find_clusters", "remove"]
