"""Fusion: neighbours in backward order travel as one bucket, which saves latency and costs overlap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hvd_compress.planner.profiles import ELEMENT_BYTES, ModelProfile, Tensor

Cuts = tuple[tuple[int, ...], ...]
"""The tensors of each bucket, by their numbers in backward order."""


@dataclass(frozen=True)
class Fused:
    """A model whose tensors are buckets, and the tensors of each by their numbers in the model that it was made of."""

    model: ModelProfile
    cuts: Cuts


def cut(model: ModelProfile, bucket_bytes: int) -> Cuts:
    """Return buckets of neighbours: a bucket is full before the tensor by which it would exceed `bucket_bytes`."""
    cuts: list[list[int]] = []
    room = -1
    for number, tensor in enumerate(model.tensors):
        size = ELEMENT_BYTES * tensor.numel
        if size > room:
            cuts.append([])
            room = bucket_bytes
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
    )


def merges(cuts: Cuts) -> Iterator[Cuts]:
    """Yield what comes of joining two neighbours, the last ones in backward order first."""
    for at in range(len(cuts) - 2, -1, -1):
        yield (*cuts[:at], cuts[at] + cuts[at + 1], *cuts[at + 2 :])
