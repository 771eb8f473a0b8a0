"""COVAP's tensor sharding: large buckets are cut, so that each step sends about as much."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from hvd_compress.papers.covap.sharded import Shard

MOST = 1.25
"""Times the mean of all steps that one of them may send."""


def shard_count(numel: int, median_numel: float, interval: int) -> int:
    """Return min(floor(numel / median), interval), 1 at least (Sun et al., COVAP, Section III.C)."""
    return max(1, min(int(numel / max(1.0, median_numel)), interval))


def shard_counts(numels: Sequence[int], interval: int) -> list[int]:
    """Return into how many shards each bucket is cut, by number.

    As the paper says, by the median of all buckets. Where that leaves a step that sends nothing, or more than MOST
    times the mean, as with fewer buckets than steps in an interval, the largest shards are cut further: a bucket in
    `interval` shards sends as much in each step.
    """
    if not numels:
        return []
    counts = [shard_count(numel, median(numels), interval) for numel in numels]
    while max(sent := sent_by_step(numels, counts, interval)) * interval > MOST * sum(sent) or not min(sent):
        cut = [number for number, count in enumerate(counts) if count < min(interval, numels[number])]
        if not cut:
            break  # elements are fewer than steps
        largest = max(cut, key=lambda number: numels[number] / counts[number])
        counts[largest] = min(interval, numels[largest])
    return counts


def sent_by_step(numels: Sequence[int], counts: Sequence[int], interval: int) -> list[int]:
    """Return the elements of each step of an interval: shard t goes in step s iff (t + s) mod interval = 0."""
    shards = [Shard(n, count).of(numel) for numel, count in zip(numels, counts, strict=True) for n in range(count)]
    sent = [0] * interval
    for number, elements in enumerate(shards):
        sent[-number % interval] += elements.stop - elements.start
    return sent
