"""Who owns the same part of a bucket on other hosts: the groups of ranks in which options and HiTopKComm go across."""

from __future__ import annotations

from hvd_compress.collectives.groups import neighbours
from hvd_compress.engines.base import Engine


def same_place(engine: Engine) -> Engine:
    """Return the engine over the ranks that have this rank's place among those of their host, one from each host."""
    group = engine.group("same place", neighbours(engine.hosts, engine.rank).index(engine.rank))
    assert group is not None
    return group
