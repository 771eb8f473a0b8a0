"""How far above its floor does a step lie, by how gradients are cut and how many buckets are in flight? Nothing runs.

    python benchmarks/overlap/replay.py

A bucket is ready when the backward pass has come so far, is compressed on the core that trains, and travels in two
rounds, each of which takes the line for its bytes and then a latency; buckets in flight share the line in the order in
which they ask for it. Three networks, six sizes with their kernels, three lengths of a step: medians, and the most.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import product
from statistics import median

BUCKET_S = 5e-4
"""Of threads and calls, a bucket."""
NETWORKS = ((1e-3, 1.25e8), (5e-3, 1.25e7), (20e-3, 2.5e6))
"""Latency in seconds, bytes per second."""
SENT = ((1.5e6, 0.006), (11.25e6, 0.004), (5.6e6, 0.004), (0.9e6, 0.004), (7e6, 0.003), (3.4e6, 0.003))
"""Bytes that a rank sends in a step, and seconds of kernels."""
COMPUTED_S = (0.06, 0.15, 0.3)
"""A third of it forward."""


def step_s(
    cuts: Sequence[float],
    in_flight: int,
    forward_s: float,
    backward_s: float,
    line_s: float,
    latency_s: float,
    kernels_s: float,
) -> float:
    """Return the seconds of a step whose buckets hold these shares of the gradients, in the order of readiness."""
    now_s, compressed = forward_s, []
    for share in cuts:
        now_s += backward_s * share + kernels_s * share / 2 + BUCKET_S / 2
        compressed.append(now_s)
    line_free_s, ended = 0.0, {}
    asking = [(compressed[bucket], bucket, 0) for bucket in range(min(in_flight, len(cuts)))]
    while asking:
        when_s, bucket, turn = heapq.heappop(asking)
        line_free_s = max(line_free_s, when_s) + line_s * cuts[bucket] / 2
        there_s = line_free_s + latency_s + BUCKET_S / 4
        if turn == 0:
            heapq.heappush(asking, (there_s, bucket, 1))
            continue
        ended[bucket] = there_s
        following = bucket + in_flight
        if following < len(cuts):
            heapq.heappush(asking, (max(there_s, compressed[following]), following, 0))
    return max(*ended.values(), now_s) + kernels_s * cuts[-1] / 2 + BUCKET_S / 2


def main() -> None:
    print("| buckets in flight | buckets | of the floor, median | most |\n| ---: | ---: | ---: | ---: |")
    for in_flight, buckets in product((1, 2, 3, 4), (1, 2, 4, 6, 8, 16)):
        ratios = []
        for (latency_s, bytes_per_s), (sent, kernels_s), computed_s in product(NETWORKS, SENT, COMPUTED_S):
            forward_s, backward_s, line_s = computed_s / 3, computed_s * 2 / 3, sent / bytes_per_s
            floor_s = forward_s + max(backward_s, line_s) + 2 * latency_s
            taken_s = step_s([1 / buckets] * buckets, in_flight, forward_s, backward_s, line_s, latency_s, kernels_s)
            ratios.append(taken_s / floor_s)
        print(f"| {in_flight} | {buckets} | {median(ratios):.2f} | {max(ratios):.2f} |")


if __name__ == "__main__":
    main()
