"""How collectives divide a tensor, and a number of ranks; and how much ranks send."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hvd_compress.errors import ConfigError


@dataclass(frozen=True)
class AtMost:
    """Numel that ranks may send less of, but something: who receives it knows by itself where it ends.

    An engine that cannot receive less than it has memory for lets lengths go ahead, and returns tensors of those. From
    others each tensor has the most; what lies after the end of what was sent means nothing.

    Attributes:
        sent: the most that this rank sends to each, the same as those expect.
        received: the most that each rank sends here; its own part is as it is.
    """

    sent: Sequence[int]
    received: Sequence[int]


Lengths = Sequence[int] | AtMost | None
"""Numel by rank; None where the caller does not know them."""


class _Engine(Protocol):
    rank: int
    world_size: int
    takes_shorter: bool


def checked_lengths(lengths: Lengths, numel: int, engine: _Engine) -> Lengths:
    """Return lengths as an engine can use them. Raises ConfigError where exact ones do not fit what it sends."""
    if isinstance(lengths, AtMost):
        return lengths if engine.takes_shorter else None
    if lengths is not None and (len(lengths) != engine.world_size or lengths[engine.rank] != numel):
        raise ConfigError(f"lengths {list(lengths)} do not fit {numel} elements on rank {engine.rank}")
    return lengths


def check_root(root: int, engine: _Engine) -> None:
    """Raise ConfigError unless there is a rank of this number."""
    if not 0 <= root < engine.world_size:
        raise ConfigError(f"root {root} is not one of the {engine.world_size} ranks")


def shard(numel: int, world_size: int, rank: int) -> slice:
    """Return the elements of a tensor that rank `rank` owns: equal runs, the first `numel % world_size` one longer."""
    share, longer = divmod(numel, world_size)
    start = rank * share + min(rank, longer)
    return slice(start, start + share + (rank < longer))


def shard_lengths(numel: int, world_size: int) -> list[int]:
    """Return the number of elements in the shard of every rank, in rank order."""
    shards = [shard(numel, world_size, rank) for rank in range(world_size)]
    return [part.stop - part.start for part in shards]


def largest_power_of_two(world_size: int) -> int:
    """Return the largest power of two that is not above `world_size` (at least 1)."""
    return 1 << (world_size.bit_length() - 1)
