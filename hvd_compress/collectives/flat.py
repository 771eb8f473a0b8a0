"""Collectives in which all ranks take part alike, and the one of them that sends the fewest bytes."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_compress import guests
from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives.allgather import AllGather
from hvd_compress.collectives.allreduce import AllReduce, Dense
from hvd_compress.collectives.alltoall import AllToAll
from hvd_compress.collectives.artopk import ARTopk
from hvd_compress.collectives.base import Collective
from hvd_compress.collectives.requantize import Requantize
from hvd_compress.compressors.base import Compressor
from hvd_compress.cost.formulas import VERBS, Formulas, Terms
from hvd_compress.cost.paths import Path
from hvd_compress.engines.base import Capabilities

FLAT: tuple[type[Collective], ...] = (Dense, AllToAll, AllReduce, AllGather, Requantize, ARTopk)
"""In the order in which paths are tried, and equals are preferred."""


def flat_for(compressor: Compressor) -> tuple[type[Collective], ...]:
    """Return them, and those that a guest's compressor has for itself."""
    return (*FLAT, *map(guests.collective, compressor.own_collectives))


def flat_collective(compressor: Compressor, layout: Layout, world_size: int, can: Capabilities) -> Collective | None:
    """Return what carries a compressor over so many ranks with the fewest bytes, no algorithm forced; None if nothing.

    The same on all ranks: it depends on the arguments alone.
    """
    found = [
        collective(compressor, path)  # type: ignore[call-arg]
        for collective in flat_for(compressor)
        if not collective.by_name
        for path in collective.variants(compressor, layout, can)
        if path == Path(path.collective)
    ]
    return cheapest(found, layout, world_size) if found else None


def cheapest(found: Sequence[Collective], layout: Layout, world_size: int) -> Collective:
    """Return the collective with the smallest bandwidth term, the first among equals.

    A message counts as the `message_bytes` of its compressor.
    """
    return min(
        found, key=lambda collective: chain_bytes(collective, layout, world_size, collective.compressor.message_bytes)
    )


def chain_bytes(collective: Collective, layout: Layout, world_size: int, message_bytes: int) -> float:
    """Return the bandwidth term of a collective, in bytes, a message counting as `message_bytes`."""
    bandwidth = Formulas(float(message_bytes), 1.0, world_size)
    stages = collective.stages(layout, world_size)
    return sum(bandwidth.seconds(stage.verb, stage.algorithm, stage.size) for stage in stages)


def undominated(found: Sequence[Collective], layout: Layout, world_size: int) -> list[Collective]:
    """Return those that some network makes the fastest, by formulas; none where it is the same one on all of them.

    No other has as few messages and as few bytes, of equals the first.
    """
    rows = [_terms(collective, layout, world_size) for collective in found]

    def beaten(place: int) -> bool:
        own = rows[place]
        return any(
            other.steps <= own.steps and other.bytes <= own.bytes and (other != own or number < place)
            for number, other in enumerate(rows)
            if number != place
        )

    left = [collective for place, collective in enumerate(found) if not beaten(place)]
    return left if len(left) > 1 else []


def _terms(collective: Collective, layout: Layout, world_size: int) -> Terms:
    stages = collective.stages(layout, world_size)
    return sum((VERBS[s.verb](s.size, world_size, s.algorithm) for s in stages), Terms(0, 0))
