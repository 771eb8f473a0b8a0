"""What follows from the model without trying values: where compression pays, and how much of it is needed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hvd_compress.cost.formulas import allreduce
from hvd_compress.papers.utility.model import Case


@dataclass(frozen=True)
class Pays:
    """Where compression is faster: with less than `below` bytes a second, and with more than `above`.

    `below` is 0 where no slow network makes it pay, `above` infinite where no fast one does. Where it pays on every
    network, `below` is infinite.
    """

    below: float
    above: float


def pays(case: Case) -> Pays:
    """Return the bandwidths at which compression is faster (the crossover of Figures 4.10 and 4.12), all else equal.

    In beta dense is the larger of two straight lines, one where the backward pass hides all but the last bucket, one
    where it does not; compressed is a third. Compression pays where one of the two lies above it.
    """
    training, compression = case.training, case.compression
    ranks, alpha = case.network.world_size, case.network.alpha
    bucket, last = (allreduce(size, ranks, "ring") for size in (training.bucket_bytes, training.last_bytes))
    sent, others = compression.terms(ranks), training.buckets - 1
    compressed_s = training.backward_s + compression.coding_s(ranks) + alpha * sent.steps
    hidden_s = training.gamma * training.backward_s + alpha * last.steps
    found = [
        _positive(hidden_s - compressed_s, last.bytes - sent.bytes),
        _positive(
            alpha * (others * bucket.steps + last.steps) - compressed_s, others * bucket.bytes + last.bytes - sent.bytes
        ),
    ]
    below, above = max(each.below for each in found), min(each.above for each in found)
    return Pays(below, above) if below < above else Pays(math.inf, 0.0)


def _positive(constant: float, slope: float) -> Pays:
    """Return the bandwidths 1 / beta for which constant + slope * beta > 0."""
    if slope > 0:
        return Pays(math.inf, 0.0) if constant > 0 else Pays(slope / -constant if constant else math.inf, math.inf)
    if constant > 0:
        return Pays(0.0, -slope / constant)
    return Pays(0.0, math.inf)


def needed_compression(case: Case) -> float:
    """Return how many times fewer bytes scale linearly (Figures 4.8, 4.11); infinite where latency alone is too long.

    It is the least compression with which the allreduces of all buckets but the last take no longer than the backward
    pass, if it takes no time, sums, and overlaps. The last bucket follows the backward pass all the same.
    """
    training, network = case.training, case.network
    bucket, others = allreduce(training.bucket_bytes, network.world_size, "ring"), training.buckets - 1
    room_s = training.gamma * training.backward_s - others * bucket.steps * network.alpha
    transfer_s = others * bucket.bytes * network.beta
    if transfer_s <= room_s:
        return 1.0
    return transfer_s / room_s if room_s > 0 else math.inf


def coding_budget_s(case: Case) -> float:
    """Return the seconds that encoding and decoding may take for compression to pay; negative where none would do."""
    compressed = case.compressed()
    return case.dense().total_s - (compressed.total_s - compressed.encode_s - compressed.decode_s)
