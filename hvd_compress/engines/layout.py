"""How collectives divide a tensor, and a number of ranks."""

from __future__ import annotations


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
