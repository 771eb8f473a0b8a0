"""Fusion: neighbours in backward order travel as one bucket, which saves latency and costs overlap.

A bucket of a job has one dtype. Where a profile does not know them, all are taken to be alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hvd_compress.profiler.profiles import ELEMENT_BYTES, ModelProfile, Tensor

Cuts = tuple[tuple[int, ...], ...]
"""The tensors of each bucket, by their numbers in backward order."""


@dataclass(frozen=True)
class Fused:
    """A model whose tensors are buckets, and the tensors of each by their numbers in the model that it was made of."""

    model: ModelProfile
    cuts: Cuts


def cut(model: ModelProfile, bucket_bytes: int) -> Cuts:
    """Return buckets of neighbours of one dtype: a bucket is full before the tensor by which it would exceed a size.

    Args:
        bucket_bytes: the size.
    """
    cuts: list[list[int]] = []
    room, dtype = -1, None
    for number, tensor in enumerate(model.tensors):
        size = ELEMENT_BYTES * tensor.numel
        if size > room or tensor.dtype != dtype:
            cuts.append([])
            room, dtype = bucket_bytes, tensor.dtype
        cuts[-1].append(number)
        room -= size
    return tuple(map(tuple, cuts))


def fuse(model: ModelProfile, cuts: Cuts) -> Fused:
    """Return the model whose tensors are these buckets. A bucket is ready when the last of its tensors is."""
    buckets = tuple(_bucket([model.tensors[number] for number in numbers]) for numbers in cuts)
    return Fused(model.model_copy(update={"tensors": buckets, "parameters": None}), cuts)


def _bucket(tensors: list[Tensor]) -> Tensor:
    if len(tensors) == 1:
        return tensors[0]
    more = f" and {len(tensors) - 1} more"
    return Tensor(
        name=tensors[0].name + more,
        numel=sum(tensor.numel for tensor in tensors),
        backward_us=sum(tensor.backward_us for tensor in tensors),
        dtype=tensors[0].dtype,
    )


def merges(fused: Fused) -> Iterator[tuple[int, Cuts]]:
    """Yield what comes of joining two neighbours of one dtype, and the first one's number, the last ones first."""
    buckets, cuts = fused.model.tensors, fused.cuts
    for at in range(len(cuts) - 2, -1, -1):
        if buckets[at].dtype == buckets[at + 1].dtype:
            yield at, (*cuts[:at], cuts[at] + cuts[at + 1], *cuts[at + 2 :])
