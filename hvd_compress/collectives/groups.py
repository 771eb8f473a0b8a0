"""Who shares a host with whom: the groups of ranks in which hierarchical collectives launch their collectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hvd_compress.engines.base import Capabilities, Engine

LEADER = 0
"""The first rank of a host, by its number among those that share it."""


def neighbours(hosts: Sequence[int], rank: int) -> list[int]:
    """Return the ranks that share the host of `rank`, itself among them, ascending: the first is their leader."""
    return [other for other, host in enumerate(hosts) if host == hosts[rank]]


def sizes(hosts: Sequence[int]) -> list[int]:
    """Return how many ranks each host has, by its number."""
    return [ranks for _, ranks in sorted(Counter(hosts).items())]


def within_host(engine: Engine) -> Engine:
    """Return the engine over the ranks of this host. Collective over all ranks the first time, as leaders()."""
    group = engine.group("within a host", engine.hosts[engine.rank])
    assert group is not None
    return group


def leaders(engine: Engine) -> Engine | None:
    """Return the engine over the leaders of all hosts, in the order of hosts; None on the other ranks."""
    leads = neighbours(engine.hosts, engine.rank)[LEADER] == engine.rank
    return engine.group("leaders", 0 if leads else None)


def no_groups(can: Capabilities) -> str:
    """Say that an engine has no smaller groups, or return nothing."""
    if can.splits:
        return ""
    return (
        "it takes groups of ranks, within hosts and across, and this engine cannot be split into such: launch the job "
        "with mpirun, and say .by(engine='mpi') of the compression, or leave the collective at 'auto'"
    )
